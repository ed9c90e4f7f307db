//! The types of expressions: what schemas declare, and what functions make of it. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How many lists, maps and optionals a type may have one within the other. What is deeper is known at run time only.
const MAX_LEVELS: usize = 64;

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Known at run time only.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Time,
    Span,
    List(Arc<ListOf>),
    /// Keys and values.
    Map(Arc<(Type, Type)>),
    Object(Arc<ObjectOf>),
    Optional(Arc<Type>),
    /// The type of types.
    Kind,
    Ip,
    Cidr,
    Url,
    Quantity,
    Semver,
    Format,
}

/// A list: its items, and how it counts as equal and is added.
#[derive(Debug, PartialEq)]
pub struct ListOf {
    pub item: Type,
    pub merge: Merge,
}

/// What tells the items of a list apart.
#[derive(Debug, PartialEq)]
pub enum Merge {
    /// Their place.
    Atomic,
    /// Their value.
    Set,
    /// These fields.
    Map(Vec<Arc<str>>),
}

/// An object: its fields by the names that expressions use.
#[derive(Debug, Default)]
pub struct ObjectOf {
    pub fields: BTreeMap<Arc<str>, FieldOf>,
}

/// Objects are the same only where the schema says it at one place: nobody walks through them.
impl PartialEq for ObjectOf {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A field of an object.
#[derive(Debug)]
pub struct FieldOf {
    /// The name that it has in objects.
    pub name: Arc<str>,
    pub of: Type,
}

impl Type {
    pub fn list(item: Type) -> Self {
        if item.is_deepest() {
            return Self::Dyn;
        }
        Self::List(Arc::new(ListOf { item, merge: Merge::Atomic }))
    }

    /// A map. A key is never a list or a map.
    pub fn map(key: Type, value: Type) -> Self {
        if value.is_deepest() {
            return Self::Dyn;
        }
        Self::Map(Arc::new((if key.may_be_key() { key } else { Self::Dyn }, value)))
    }

    pub fn optional(of: Type) -> Self {
        if of.is_deepest() {
            return Self::Dyn;
        }
        Self::Optional(Arc::new(of))
    }

    /// Whether nothing may be made of values of it.
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

    /// Whether a value of one may be one of the other. Null fits everywhere: fields may be nullable.
    pub(super) fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) => true,
            (Self::List(one), Self::List(two)) => one.item.fits(&two.item),
            (Self::Map(one), Self::Map(two)) => one.0.fits(&two.0) && one.1.fits(&two.1),
            (Self::Optional(one), Self::Optional(two)) => one.fits(two),
            _ => self == other,
        }
    }

    /// What a value is that may be of either.
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

/// Words that no name may be.
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

/// The name by which expressions call a field; `None` if they cannot.
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
    fn names_that_no_expression_could_have_are_escaped() {
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
