//! The subset of JSONPath used by columns of CustomResourceDefinitions. Pure.
//!
//! Fields (`.a`, `.a\.b`, `['a.b']`), items (`[0]`, `[-1]`, `[0:2]`), everything (`.*`, `[*]`), and
//! items that satisfy a comparison (`[?(@.type=="Ready")]`). Each step finds a value at most once,
//! so there are never more results than the object has values.

use serde_json::Value;

/// A path into an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Every item or value.
    All,
    /// One item; negative indices count from the end.
    Index(i64),
    /// The items from one index up to another.
    Slice(Option<i64>, Option<i64>),
    Filter(Filter),
}

/// A condition on items: the path finds something that satisfies the comparison.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    path: Vec<Step>,
    compare: Option<(Operator, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    AtMost,
    AtLeast,
    Less,
    Greater,
}

/// Operators in text form; longer ones before their prefixes.
const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl JsonPath {
    /// Parses a path; `None` if it is invalid or unsupported.
    pub(super) fn parse(text: &str) -> Option<Self> {
        steps(text.trim(), true).filter(|steps| !steps.is_empty()).map(Self)
    }

    /// Returns the matches in a value, in order.
    pub(super) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        find(&self.0, value)
    }
}

/// Parses the steps of a path. Filters cannot be nested.
fn steps(text: &str, filters: bool) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let end = unquoted(inside, |rest, depth| depth == 0 && rest.starts_with(']'))?;
            let (inside, after) = (inside.get(..end)?, inside.get(end + 1..)?);
            steps.push(bracket(inside.trim(), filters)?);
            rest = after;
        } else {
            let name = rest.strip_prefix('.')?;
            // `.[0]` is equivalent to `[0]`.
            if !name.starts_with('[') {
                let (step, after) = field(name)?;
                steps.push(step);
                rest = after;
            } else {
                rest = name;
            }
        }
    }
    Some(steps)
}

/// Parses a name up to the next step; a backslash escapes the next character.
fn field(text: &str) -> Option<(Step, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, letter)) = chars.next() {
        match letter {
            '\\' => name.push(chars.next()?.1),
            ']' => return None,
            '.' | '[' => {
                end = at;
                break;
            }
            other => name.push(other),
        }
    }
    let step = match text.get(..end)? {
        "" => return None,
        "*" => Step::All,
        _ => Step::Field(name),
    };
    Some((step, text.get(end..)?))
}

/// Parses the contents of brackets.
fn bracket(inside: &str, filters: bool) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return if filters { filter(condition).map(Step::Filter) } else { None };
    }
    if let Some(name) = quoted(inside) {
        return Some(Step::Field(name));
    }
    let number = |text: &str| text.trim().parse::<i64>().ok();
    match inside.split_once(':') {
        None => number(inside).map(Step::Index),
        Some((from, to)) => {
            let bound = |text: &str| if text.trim().is_empty() { Some(None) } else { number(text).map(Some) };
            Some(Step::Slice(bound(from)?, bound(to)?))
        }
    }
}

fn filter(condition: &str) -> Option<Filter> {
    let starts = |rest: &str| OPERATORS.iter().find(|(sign, _)| rest.starts_with(sign)).copied();
    let own_path = |text: &str| steps(text.trim().strip_prefix('@')?, false);
    let Some(at) = unquoted(condition, |rest, depth| depth == 0 && starts(rest).is_some()) else {
        return Some(Filter { path: own_path(condition)?, compare: None });
    };
    let (left, rest) = condition.split_at_checked(at)?;
    let (sign, operator) = starts(rest)?;
    let right = rest.get(sign.len()..)?.trim();
    let right = match quoted(right) {
        Some(text) => Value::String(text),
        None => serde_json::from_str(right)
            .ok()
            .filter(|value: &Value| !value.is_object() && !value.is_array())?,
    };
    Some(Filter { path: own_path(left)?, compare: Some((operator, right)) })
}

/// Returns the text between quotation marks.
fn quoted(text: &str) -> Option<String> {
    let mark = text.chars().next().filter(|mark| matches!(mark, '\'' | '"'))?;
    let inner = text.get(1..)?.strip_suffix(mark)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(letter) = chars.next() {
        match letter {
            '\\' => out.push(chars.next()?),
            letter if letter == mark => return None,
            other => out.push(other),
        }
    }
    Some(out)
}

/// Returns the first position outside of quotation marks at which `expected` accepts the rest of
/// the text and the number of open brackets.
fn unquoted(text: &str, expected: impl Fn(&str, usize) -> bool) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0usize;
    let mut chars = text.char_indices();
    while let Some((at, letter)) = chars.next() {
        match (quote, letter) {
            (_, '\\') => {
                chars.next();
            }
            (Some(mark), _) if letter == mark => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, _) if expected(text.get(at..)?, depth) => return Some(at),
            (None, '[') => depth += 1,
            (None, ']') => depth = depth.checked_sub(1)?,
            (None, _) => {}
        }
    }
    None
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found.into_iter().flat_map(|value| step.of(value)).collect();
    }
    found
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
            (Self::All, Value::Object(fields)) => fields.values().collect(),
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::Index(index), Value::Array(items)) => {
                let index_from_start =
                    if *index < 0 { index.checked_add_unsigned(items.len() as u64) } else { Some(*index) };
                let index_from_start =
                    index_from_start.and_then(|index_from_start| usize::try_from(index_from_start).ok());
                index_from_start
                    .and_then(|index_from_start| items.get(index_from_start))
                    .into_iter()
                    .collect()
            }
            (Self::Slice(from, to), Value::Array(items)) => {
                let index_from_start = |index: i64| {
                    let length = items.len() as u64;
                    let from_start = match u64::try_from(index) {
                        Ok(index) => index.min(length),
                        Err(_) => length.saturating_sub(index.unsigned_abs()),
                    };
                    // At most the length, so it fits.
                    usize::try_from(from_start).unwrap_or(items.len())
                };
                let (from, to) = (from.map_or(0, index_from_start), to.map_or(items.len(), index_from_start));
                items.get(from..to).unwrap_or_default().iter().collect()
            }
            (Self::Filter(filter), Value::Array(items)) => {
                items.iter().filter(|item| filter.accepts(item)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Filter {
    fn accepts(&self, item: &Value) -> bool {
        find(&self.path, item).first().is_some_and(|found| match &self.compare {
            None => true,
            Some((operator, expected)) => operator.holds(found, expected),
        })
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::String(left), Value::String(right)) => left.partial_cmp(right),
            (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
            _ => (left == right).then_some(std::cmp::Ordering::Equal),
        };
        match self {
            Self::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Self::NotEqual => order.is_none_or(std::cmp::Ordering::is_ne),
            Self::AtMost => order.is_some_and(std::cmp::Ordering::is_le),
            Self::AtLeast => order.is_some_and(std::cmp::Ordering::is_ge),
            Self::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Self::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "web", "tier": "front"}},
            "spec": {"replicas": 3, "ports": [80, 443, 8080], "odd]name": true, "it's": 1},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "age": 5, "tags": ["a"]},
                {"type": "Synced", "status": "False", "age": 9},
            ]},
        })
    }

    #[test]
    fn paths_find_their_values() {
        let object = sample();
        for (path, expected) in [
            (".spec.replicas", json!([3])),
            ("  .spec.replicas ", json!([3])),
            ("['spec']['replicas']", json!([3])),
            (".spec.ports[0]", json!([80])),
            (".spec.ports.[0]", json!([80])),
            (".spec.ports[-1]", json!([8080])),
            (".spec.ports[3]", json!([])),
            (".spec.ports[-4]", json!([])),
            (".spec.ports[-9223372036854775808]", json!([])),
            (".spec.ports[*]", json!([80, 443, 8080])),
            (".spec.ports[1:]", json!([443, 8080])),
            (".spec.ports[:2]", json!([80, 443])),
            (".spec.ports[-1:]", json!([8080])),
            (".spec.ports[2:1]", json!([])),
            (".spec.ports[-9223372036854775808:9223372036854775807]", json!([80, 443, 8080])),
            (".metadata.labels.app\\.kubernetes\\.io/name", json!(["web"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["web"])),
            (".metadata.labels[\"tier\"]", json!(["front"])),
            (".metadata.labels.*", json!(["web", "front"])),
            (".spec['odd]name']", json!([true])),
            (r".spec['it\'s']", json!([1])),
            (".spec", json!([object["spec"]])),
            (".spec.missing.deeper", json!([])),
            (".spec.replicas.deeper", json!([])),
            (".spec[0]", json!([])),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(json!(parsed.find(&object)), expected, "{path}");
        }
    }

    #[test]
    fn filters_select_items_by_content() {
        let object = sample();
        for (condition, expected) in [
            (r#"@.type=="Ready""#, json!(["Ready"])),
            (r#" @.type == 'Synced' "#, json!(["Synced"])),
            (r#"@.type!="Ready""#, json!(["Synced"])),
            (r#"@.type=="a]b)==c""#, json!([])),
            (r#"@['status']=="True""#, json!(["Ready"])),
            (r#"@.tags[0]=="a""#, json!(["Ready"])),
            ("@.tags", json!(["Ready"])),
            ("@==1", json!([])),
            ("@.age>5", json!(["Synced"])),
            ("@.age>=5", json!(["Ready", "Synced"])),
            ("@.age<9.0", json!(["Ready"])),
            ("@.age<=4", json!([])),
            ("@.age==\"5\"", json!([])),
            ("@.tags!=null", json!(["Ready"])),
            ("@.missing!=1", json!([])),
        ] {
            let path = format!(".status.conditions[?({condition})].type");
            let parsed = JsonPath::parse(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(json!(parsed.find(&object)), expected, "{path}");
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for text in [
            "",
            ".",
            "..",
            ".a..b",
            "a",
            "a.b",
            ".a.",
            "$.a",
            "{.a}",
            ".a[",
            ".a]",
            ".a[]",
            ".a[x]",
            ".a['x]",
            ".a['x'y']",
            ".a[1:x]",
            ".a[1:2:3]",
            ".a[?(@.b==)]",
            ".a[?(b==1)]",
            ".a[?(@.b==[1])]",
            ".a[?()]",
            ".a[?(@.b[?(@.c)])]",
            ".a\\",
            ".a[99999999999999999999]",
            ".a[0]b",
        ] {
            assert_eq!(JsonPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn filter_can_compare_the_item_itself() {
        let path = JsonPath::parse(".spec.ports[?(@>80)]").unwrap();
        assert_eq!(json!(path.find(&sample())), json!([443, 8080]));
    }

    proptest! {
        #[test]
        fn no_path_panics(path in r#"[.a\[\]'"?()@=<>:0-9*\\ -]{0,24}|.{0,24}"#) {
            if let Some(path) = JsonPath::parse(&path) {
                let _ = path.find(&sample());
                let _ = path.find(&json!([[{"a": [1, "a", null]}], {"a": 1}]));
            }
        }
    }
}
