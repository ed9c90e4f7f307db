//! The types of CEL expressions, as schemas declare them and functions return them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Nesting limit of lists, maps and optionals in a type. A deeper type becomes `dyn`.
const MAX_LEVELS: usize = 64;

/// The static type of an expression or a variable. Cheap to clone.
///
/// [`fmt::Display`] writes CEL's name of the type, as error messages show it.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Any value: operators and functions are checked at run time (`x-kubernetes-int-or-string`,
    /// undeclared fields).
    Dyn,
    /// The type of `null` alone. Null fits any other type too, because fields may be nullable.
    Null,
    /// `true` or `false`: the result of comparisons, macros such as `all`, and validation rules.
    Bool,
    /// A signed integer of 64 bits; arithmetic that overflows fails.
    Int,
    /// An unsigned integer of 64 bits, written `1u`.
    Uint,
    /// A floating-point number of 64 bits.
    Double,
    /// A string: Unicode text. Indexes and lengths count code points.
    Text,
    /// Bytes; in JSON, text in Base64 (`format: byte`).
    Bytes,
    /// A timestamp; in JSON, text in RFC 3339 (`format: date-time`) or a day (`format: date`).
    Time,
    /// A duration; in JSON, text such as `1h30m` (`format: duration`).
    Span,
    /// A list; [`Type::list`] makes an atomic one.
    List(Arc<ListOf>),
    /// A map, by the types of its keys and values; [`Type::map`] makes one.
    Map(Arc<(Type, Type)>),
    /// An object with declared fields: any other field is an error at compile time.
    Object(Arc<ObjectOf>),
    /// A value that may be absent; [`Type::optional`] makes one.
    Optional(Arc<Type>),
    /// The type of a type, which `type(x)` and the names `int`, `string` and so on return.
    Kind,
    /// An IPv4 or IPv6 address, from `ip(…)`.
    Ip,
    /// An address range, from `cidr(…)`.
    Cidr,
    /// A URL, from `url(…)`.
    Url,
    /// A Kubernetes quantity, from `quantity(…)`, exact to a billionth.
    Quantity,
    /// A semantic version, from `semver(…)`.
    Semver,
    /// A named format such as `format.dns1123Label()`, on which `validate` is called.
    Format,
}

/// The type of a list.
#[derive(Debug, PartialEq)]
pub struct ListOf {
    /// The type of each item.
    pub item: Type,
    /// The list's topology, which decides equality and `+`.
    pub merge: Merge,
}

/// The topology of a list (`x-kubernetes-list-type`): how its items are identified.
#[derive(Debug, PartialEq)]
pub enum Merge {
    /// By position. Two lists are equal if they have equal items in the same order; `+` appends.
    Atomic,
    /// By value. Order does not count for equality; `+` is the union.
    Set,
    /// By the values of these fields (`x-kubernetes-list-map-keys`). Order does not count for
    /// equality; with `+`, an item of the right list replaces one of the left with the same keys.
    Map(Vec<Arc<str>>),
}

/// The type of an object with declared fields.
///
/// Two object types are equal only if they are the same `ObjectOf`, which the schema declares at
/// one place. Comparing them field by field could take exponential time.
#[derive(Debug, Default)]
pub struct ObjectOf {
    /// The fields by the names that expressions use: those that [`escape`] returns.
    pub fields: BTreeMap<Arc<str>, FieldOf>,
}

impl PartialEq for ObjectOf {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A declared field of an object.
#[derive(Debug)]
pub struct FieldOf {
    /// The field's name in JSON.
    pub name: Arc<str>,
    /// The type of its value.
    pub of: Type,
}

impl Type {
    /// Returns the type of an atomic list; [`Type::Dyn`] if the item is nested 64 levels deep.
    pub fn list(item: Type) -> Self {
        if item.is_deepest() {
            return Self::Dyn;
        }
        Self::List(Arc::new(ListOf { item, merge: Merge::Atomic }))
    }

    /// Returns the type of a map; [`Type::Dyn`] if the value is nested 64 levels deep. A key type
    /// that CEL does not allow (anything but `bool`, `int`, `uint` and `string`) becomes `dyn`.
    pub fn map(key: Type, value: Type) -> Self {
        if value.is_deepest() {
            return Self::Dyn;
        }
        Self::Map(Arc::new((if key.may_be_key() { key } else { Self::Dyn }, value)))
    }

    /// Returns the type of a value that may be absent; [`Type::Dyn`] if the value is nested 64
    /// levels deep.
    pub fn optional(of: Type) -> Self {
        if of.is_deepest() {
            return Self::Dyn;
        }
        Self::Optional(Arc::new(of))
    }

    /// Returns whether the type has the full nesting depth.
    fn is_deepest(&self) -> bool {
        let mut at = self;
        for _ in 0..MAX_LEVELS {
            at = match at {
                Self::List(list) => &list.item,
                Self::Map(map) => &map.1,
                Self::Optional(of) => of,
                _ => return false,
            };
        }
        true
    }

    pub(super) fn may_be_key(&self) -> bool {
        matches!(self, Self::Bool | Self::Int | Self::Uint | Self::Text | Self::Dyn)
    }

    pub(super) fn is_dyn(&self) -> bool {
        *self == Self::Dyn
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Returns whether a value of one type may be of the other. Null fits any type: fields may be
    /// nullable.
    pub(super) fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) => true,
            (Self::List(one), Self::List(two)) => one.item.fits(&two.item),
            (Self::Map(one), Self::Map(two)) => one.0.fits(&two.0) && one.1.fits(&two.1),
            (Self::Optional(one), Self::Optional(two)) => one.fits(two),
            _ => self == other,
        }
    }

    /// Returns the type of a value that is of one type or the other.
    pub(super) fn or(self, other: Type) -> Self {
        match (&self, &other) {
            _ if self == other => self,
            (Self::Null, _) => other,
            (_, Self::Null) => self,
            (Self::List(one), Self::List(two)) => Self::list(one.item.clone().or(two.item.clone())),
            (Self::Map(one), Self::Map(two)) => {
                Self::map(one.0.clone().or(two.0.clone()), one.1.clone().or(two.1.clone()))
            }
            (Self::Optional(one), Self::Optional(two)) => Self::optional((**one).clone().or((**two).clone())),
            _ => Self::Dyn,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::List(list) => return write!(f, "list({})", list.item),
            Self::Map(map) => return write!(f, "map({}, {})", map.0, map.1),
            Self::Optional(of) => return write!(f, "optional_type({of})"),
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Time => "timestamp",
            Self::Span => "duration",
            Self::Object(_) => "object",
            Self::Kind => "type",
            Self::Ip => "net.IP",
            Self::Cidr => "net.CIDR",
            Self::Url => "kubernetes.URL",
            Self::Quantity => "kubernetes.Quantity",
            Self::Semver => "kubernetes.Semver",
            Self::Format => "kubernetes.NamedFormat",
        };
        f.write_str(name)
    }
}

/// Reserved words of CEL, which cannot be identifiers.
pub(super) const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Returns the name by which expressions address a field, escaped as Kubernetes does it: `a-b`
/// becomes `a__dash__b`, `namespace` becomes `__namespace__`. `None` if no expression can name the
/// field.
pub fn escape(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let known = |letter: char| letter.is_ascii_alphanumeric() || "_.-/".contains(letter);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(known) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_identifiers_are_escaped() {
        for (name, escaped) in [
            ("a", Some("a")),
            ("a-b", Some("a__dash__b")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("a__b", Some("a__underscores__b")),
            ("namespace", Some("__namespace__")),
            ("a b", None),
            ("1a", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
