//! Label selectors: the text form (`a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<9`) and the
//! structured form (`matchLabels`, `matchExpressions`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::name::{check_label_key, check_label_value};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Maximum length of a selector in text form, in bytes.
pub const MAX_SELECTOR: usize = 16 * 1024;

/// Labels or annotations of an object.
pub type Labels = BTreeMap<String, String>;

/// Formats labels as `key=value,…`; empty without labels.
#[must_use]
pub fn label_pairs(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Labels borrowed from a text.
type Texts<'a> = BTreeMap<Cow<'a, str>, Cow<'a, str>>;

fn texts_of(json: &str) -> Texts<'_> {
    #[derive(Default, Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default)]
        labels: Option<Texts<'a>>,
    }
    #[derive(Deserialize)]
    struct Labelled<'a> {
        #[serde(borrow, default)]
        metadata: Meta<'a>,
    }
    serde_json::from_str::<Labelled<'_>>(json)
        .ok()
        .and_then(|object| object.metadata.labels)
        .unwrap_or_default()
}

/// Returns the labels of an object in JSON text, parsed without building the rest. Text that is no
/// object has none.
#[must_use]
pub fn labels_of(json: &str) -> Labels {
    let texts = texts_of(json).into_iter();
    texts.map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
}

/// A list of requirements that all must hold. The empty selector selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

/// Requirement for one label.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Present, with one of these values.
    In(BTreeSet<String>),
    /// Absent, or with none of these values.
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    /// Present, with a greater integer value.
    Above(i64),
    /// Present, with a smaller integer value.
    Below(i64),
}

/// Reason why a selector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Longer than [`MAX_SELECTOR`] bytes; the text is not parsed.
    #[error("the selector must be less than or equal to {MAX_SELECTOR} bytes")]
    TooLong,
    /// The text does not follow the grammar.
    #[error("expected {expected} at position {position} of the selector, found {found}")]
    Syntax {
        /// Description of the expected tokens.
        expected: &'static str,
        /// Byte position in the text, from 0.
        position: usize,
        /// Beginning of the unexpected text.
        found: String,
    },
    /// An invalid label key.
    #[error("the label key {0}")]
    Key(String),
    /// An invalid label value.
    #[error("the value of label '{key}' {problem}")]
    Value {
        /// Key of the label.
        key: String,
        /// Requirement for the value.
        problem: String,
    },
    /// An expression with values that its operator does not allow, or without required ones.
    #[error("`values` of label '{key}' must {must} when `operator` is '{operator}'")]
    Values {
        /// Key of the label.
        key: String,
        /// Operator of the expression.
        operator: &'static str,
        /// Requirement for the values.
        must: &'static str,
    },
}

impl Selector {
    /// Returns whether there are no requirements, so that everything is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the keys of the labels that decide, one for each requirement.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.key.as_str())
    }

    /// Returns a label that is required with one of some values, if there is one.
    #[must_use]
    pub fn required_value(&self) -> Option<(&str, impl Iterator<Item = &str>)> {
        self.0.iter().find_map(|requirement| match &requirement.rule {
            Rule::In(values) => Some((requirement.key.as_str(), values.iter().map(String::as_str))),
            _ => None,
        })
    }

    /// Returns whether these labels are selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Returns whether the labels of an object in JSON text are selected, parsed without building
    /// the rest. Text that is no object has no labels.
    #[must_use]
    pub fn matches_json(&self, json: &str) -> bool {
        self.matches_texts(&texts_of(json))
    }

    /// Returns whether labels in JSON text are selected. Text that is no map of strings has none.
    #[must_use]
    pub fn matches_labels(&self, json: &str) -> bool {
        self.matches_texts(&serde_json::from_str(json).unwrap_or_default())
    }

    fn matches_texts(&self, labels: &Texts<'_>) -> bool {
        self.matches_with(|key| labels.get(key).map(AsRef::as_ref))
    }

    /// Returns whether the labels that `get` looks up are selected.
    pub(crate) fn matches_with<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.matches(get(&requirement.key)))
    }

    /// Returns the narrowest selector that selects everything that either selector does.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        let joined = |requirement: &Requirement| {
            let same = other.0.iter().filter(|other| other.key == requirement.key);
            let mut rules = same.filter_map(|other| requirement.rule.joined(&other.rule));
            let first = rules.next()?;
            // Prefers the rule that leaves this requirement unchanged.
            let rule =
                if rules.any(|rule| rule == requirement.rule) { requirement.rule.clone() } else { first };
            Some(Requirement { key: requirement.key.clone(), rule })
        };
        Self(self.0.iter().filter_map(joined).collect())
    }

    /// Returns whether this selector certainly selects everything that the other one does.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.joined(other) == *self
    }

    fn push(&mut self, key: &str, rule: Rule) -> Result<(), SelectorError> {
        check_label_key(key).map_err(SelectorError::Key)?;
        if let Rule::In(values) | Rule::NotIn(values) = &rule {
            for value in values {
                check_label_value(value)
                    .map_err(|problem| SelectorError::Value { key: key.to_owned(), problem })?;
            }
        }
        self.0.push(Requirement { key: key.to_owned(), rule });
        Ok(())
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        match &self.rule {
            Rule::In(values) => value.is_some_and(|value| values.contains(value)),
            Rule::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Rule::Exists => value.is_some(),
            Rule::Absent => value.is_none(),
            Rule::Above(than) => number(value).is_some_and(|value| value > *than),
            Rule::Below(than) => number(value).is_some_and(|value| value < *than),
        }
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

impl Rule {
    /// Returns the strictest rule implied by both rules, if there is any.
    fn joined(&self, other: &Self) -> Option<Self> {
        let not_in = |values: BTreeSet<String>| (!values.is_empty()).then_some(Self::NotIn(values));
        match (self, other) {
            (Self::In(one), Self::In(other)) => Some(Self::In(one | other)),
            (Self::NotIn(one), Self::NotIn(other)) => not_in(one & other),
            (Self::NotIn(not), Self::In(values)) | (Self::In(values), Self::NotIn(not)) => {
                not_in(not - values)
            }
            (Self::NotIn(values), Self::Absent) | (Self::Absent, Self::NotIn(values)) => {
                Some(Self::NotIn(values.clone()))
            }
            (Self::Exists, Self::Exists | Self::In(_)) | (Self::In(_), Self::Exists) => Some(Self::Exists),
            (Self::Absent, Self::Absent) => Some(Self::Absent),
            (Self::Exists | Self::In(_), Self::Absent)
            | (Self::Absent, Self::Exists | Self::In(_))
            | (Self::Exists, Self::NotIn(_))
            | (Self::NotIn(_), Self::Exists) => None,
            // Numeric rules are joined with equal ones only.
            (Self::Above(_) | Self::Below(_), _) | (_, Self::Above(_) | Self::Below(_)) => {
                (self == other).then(|| self.clone())
            }
        }
    }
}

/// A token of the text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Above,
    Below,
    End,
}

/// Tokenizer and parser of the text form.
struct Parser<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Parser<'a> {
    /// Returns the next token and its position.
    fn next(&mut self) -> (usize, Token<'a>) {
        let rest = self.text.get(self.position..).unwrap_or_default();
        let trimmed = rest.trim_start();
        let start = self.position + rest.len() - trimmed.len();
        let (token, length) = match trimmed.as_bytes() {
            [] => (Token::End, 0),
            [b',', ..] => (Token::Comma, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'!', ..] => (Token::Not, 1),
            [b'=', b'=', ..] => (Token::Equals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'>', ..] => (Token::Above, 1),
            [b'<', ..] => (Token::Below, 1),
            _ => {
                let ends =
                    |c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | '!' | '=' | '<' | '>');
                let end = trimmed.find(ends).unwrap_or(trimmed.len());
                (Token::Word(trimmed.get(..end).unwrap_or_default()), end)
            }
        };
        self.position = start + length;
        (start, token)
    }

    fn peek(&mut self) -> Token<'a> {
        let before = self.position;
        let (_, token) = self.next();
        self.position = before;
        token
    }

    fn fail<T>(&self, expected: &'static str, position: usize) -> Result<T, SelectorError> {
        let rest = self.text.get(position..).unwrap_or_default();
        let found = match rest.chars().take(16).collect::<String>() {
            end if end.is_empty() => "its end".to_owned(),
            text => format!("'{}'", text.escape_debug()),
        };
        Err(SelectorError::Syntax { expected, position, found })
    }

    /// Parses a value, which may be empty: then a ',' or ')' follows.
    fn value(&mut self) -> Result<&'a str, SelectorError> {
        match self.peek() {
            Token::Comma | Token::Close | Token::End => Ok(""),
            _ => match self.next() {
                (_, Token::Word(word)) => Ok(word),
                (at, _) => self.fail("a label value", at),
            },
        }
    }

    fn integer(&mut self) -> Result<i64, SelectorError> {
        match self.next() {
            (_, Token::Word(word)) if let Some(value) = number(Some(word)) => Ok(value),
            (at, _) => self.fail("an integer", at),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let (at, token) = self.next();
        if token != Token::Open {
            return self.fail("'('", at);
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?.to_owned());
            match self.next() {
                (_, Token::Comma) => {}
                (_, Token::Close) => return Ok(values),
                (at, _) => return self.fail("',' or ')'", at),
            }
        }
    }

    fn requirement(&mut self) -> Result<(&'a str, Rule), SelectorError> {
        let key = match self.next() {
            (_, Token::Word(key)) => key,
            (_, Token::Not) => match self.next() {
                (_, Token::Word(key)) => return Ok((key, Rule::Absent)),
                (at, _) => return self.fail("a label key", at),
            },
            (at, _) => return self.fail("a label key or '!'", at),
        };
        if matches!(self.peek(), Token::Comma | Token::End) {
            return Ok((key, Rule::Exists));
        }
        let rule = match self.next() {
            (_, Token::Equals) => Rule::In([self.value()?.to_owned()].into()),
            (_, Token::NotEquals) => Rule::NotIn([self.value()?.to_owned()].into()),
            (_, Token::Word("in")) => Rule::In(self.values()?),
            (_, Token::Word("notin")) => Rule::NotIn(self.values()?),
            (_, Token::Above) => Rule::Above(self.integer()?),
            (_, Token::Below) => Rule::Below(self.integer()?),
            (at, _) => return self.fail("'=', '!=', 'in', 'notin', '<' or '>'", at),
        };
        Ok((key, rule))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_SELECTOR {
            return Err(SelectorError::TooLong);
        }
        let mut selector = Self::default();
        let mut parser = Parser { text, position: 0 };
        if parser.peek() == Token::End {
            return Ok(selector);
        }
        loop {
            let (key, rule) = parser.requirement()?;
            selector.push(key, rule)?;
            match parser.next() {
                (_, Token::Comma) => {}
                (_, Token::End) => return Ok(selector),
                (at, _) => return parser.fail("','", at),
            }
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Requirement { key, rule }) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            let list = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
            match rule {
                Rule::Exists => write!(f, "{key}")?,
                Rule::Absent => write!(f, "!{key}")?,
                Rule::Above(than) => write!(f, "{key}>{than}")?,
                Rule::Below(than) => write!(f, "{key}<{than}")?,
                Rule::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values))?,
                Rule::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", list(values))?,
                Rule::In(values) => write!(f, "{key} in ({})", list(values))?,
                Rule::NotIn(values) => write!(f, "{key} notin ({})", list(values))?,
            }
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses the text form.
impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Structured form in objects (`spec.selector`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Requirements beyond equality of labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Expression>,
}

/// One requirement of the structured form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// Key of the label.
    pub key: String,
    /// Relation between the label and the values.
    pub operator: Operator,
    /// At least one value for `In` and `NotIn`, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Relation between a label and a list of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Present, with one of the values.
    In,
    /// Absent, or with none of the values.
    NotIn,
    /// Present, with any value.
    Exists,
    /// Absent from the object.
    DoesNotExist,
}

impl Operator {
    fn name(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        }
    }
}

impl TryFrom<LabelSelector> for Selector {
    type Error = SelectorError;

    fn try_from(structured: LabelSelector) -> Result<Self, SelectorError> {
        let mut selector = Self::default();
        for (key, value) in structured.match_labels {
            selector.push(&key, Rule::In([value].into()))?;
        }
        for Expression { key, operator, values } in structured.match_expressions {
            let takes_values = matches!(operator, Operator::In | Operator::NotIn);
            if takes_values == values.is_empty() {
                let must = if takes_values { "hold at least one value" } else { "be empty" };
                return Err(SelectorError::Values { key, operator: operator.name(), must });
            }
            let values = values.into_iter().collect();
            let rule = match operator {
                Operator::In => Rule::In(values),
                Operator::NotIn => Rule::NotIn(values),
                Operator::Exists => Rule::Exists,
                Operator::DoesNotExist => Rule::Absent,
            };
            selector.push(&key, rule)?;
        }
        Ok(selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_fuzz::fuzz;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn selects(selector: &str, pairs: &[(&str, &str)]) -> bool {
        selector.parse::<Selector>().unwrap().matches(&labels(pairs))
    }

    #[test]
    fn keys_are_those_of_all_requirements() {
        let selector: Selector = "a=b,c in (x,y),!d,e>1".parse().unwrap();
        assert_eq!(selector.keys().collect::<Vec<_>>(), ["a", "c", "d", "e"]);
    }

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let app = [("app", "web"), ("tier", "a"), ("empty", ""), ("line", "7")];
        for yes in [
            "",
            "  ",
            "app",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "other!=db",
            "!other",
            "app in (db, web)",
            "other notin (x)",
            "tier notin (b,c)",
            "app=web,tier in (a),!x",
            "empty=",
            "empty in (,x)",
            "in!=x",
            "line>6,line < 8",
            "line>-1",
        ] {
            assert!(selects(yes, &app), "{yes}");
        }
        for no in [
            "other",
            "app=db",
            "!app",
            "app!=web",
            "app in (db)",
            "tier notin (a)",
            "app=web,x",
            "other=",
            "line>7",
            "line<7",
            "app>1",
            "empty<1",
            "other<1",
        ] {
            assert!(!selects(no, &app), "{no}");
        }
    }

    #[test]
    fn invalid_selector_is_reported_with_position() {
        for (text, message) in [
            ("a=b,", "expected a label key or '!' at position 4 of the selector, found its end"),
            ("a in x", "expected '(' at position 5 of the selector, found 'x'"),
            ("a in (x", "expected ',' or ')' at position 7 of the selector, found its end"),
            ("a b", "expected '=', '!=', 'in', 'notin', '<' or '>' at position 2 of the selector, found 'b'"),
            ("a>b", "expected an integer at position 2 of the selector, found 'b'"),
            ("a>", "expected an integer at position 2 of the selector, found its end"),
            ("a=b c=d", "expected ',' at position 4 of the selector, found 'c=d'"),
            ("!,a", "expected a label key at position 1 of the selector, found ',a'"),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap_err().to_string(), message, "{text}");
        }
        assert!(matches!("ä=b".parse::<Selector>(), Err(SelectorError::Key(_))));
        assert!(matches!("a=-b".parse::<Selector>(), Err(SelectorError::Value { .. })));
        assert_eq!("a".repeat(MAX_SELECTOR + 1).parse::<Selector>(), Err(SelectorError::TooLong));
    }

    #[test]
    fn structured_form_equals_the_text_form() {
        let structured: LabelSelector = serde_json::from_str(
            r#"{"matchLabels":{"app":"web"},"matchExpressions":[
                {"key":"tier","operator":"In","values":["a","b"]},{"key":"x","operator":"DoesNotExist"}]}"#,
        )
        .unwrap();
        let selector = Selector::try_from(structured).unwrap();
        assert_eq!(selector, "app=web,tier in (a,b),!x".parse().unwrap());
    }

    #[test]
    fn values_must_fit_the_operator() {
        for (operator, values) in [(Operator::In, vec![]), (Operator::Exists, vec!["x".to_owned()])] {
            let structured = LabelSelector {
                match_expressions: vec![Expression { key: "a".into(), operator, values }],
                ..LabelSelector::default()
            };
            assert!(
                matches!(Selector::try_from(structured), Err(SelectorError::Values { .. })),
                "{operator:?}"
            );
        }
    }

    #[test]
    fn fuzz_selectors() {
        let samples = [
            "a=b,c!=d",
            "tier in (edge,cloud),!gone",
            "example.com/x notin (a, b) , y",
            "metadata.name=a,spec.x!=b\\,c",
        ];
        fuzz("selector", &samples.map(|text| text.as_bytes().to_vec()), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = text.parse::<Selector>().map(|selector| selector.matches_json(&text));
            let _ = text.parse::<crate::FieldSelector>();
        });
    }

    #[test]
    fn joined_selector_selects_what_either_does() {
        for (one, other, expected) in [
            ("tier=a", "tier=b", "tier in (a,b)"),
            ("tier=a,app=web", "tier=a", "tier=a"),
            ("tier=a", "app=web", ""),
            ("tier", "tier=a", "tier"),
            ("tier!=a", "tier=b", "tier!=a"),
            ("tier notin (a,b)", "!tier", "tier notin (a,b)"),
            ("tier notin (a,b)", "tier=a", "tier!=b"),
            ("tier", "!tier", ""),
            ("", "tier=a", ""),
        ] {
            let (one, other): (Selector, Selector) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(one.joined(&other).to_string(), expected, "{one} | {other}");
            assert_eq!(other.joined(&one).to_string(), expected, "{other} | {one}");
        }
    }

    proptest! {
        #[test]
        fn joined_selector_omits_nothing(
            one in prop::collection::vec("[ab](|=[xyz]|!=[xyz]| in \\([xyz],[xyz]\\)| notin \\([xyz],[xyz]\\))|![ab]", 0..4),
            other in prop::collection::vec("[ab](|=[xyz]|!=[xyz]| in \\([xyz],[xyz]\\)| notin \\([xyz],[xyz]\\))|![ab]", 0..4),
            values in prop::collection::vec(prop::option::of("[xyz]"), 2),
        ) {
            let (one, other): (Selector, Selector) = (one.join(",").parse().unwrap(), other.join(",").parse().unwrap());
            let labels: Labels = ["a", "b"].iter().zip(values)
                .filter_map(|(key, value)| Some(((*key).to_owned(), value?))).collect();
            let joined = one.joined(&other);
            prop_assert!(one.covers(&one) && joined.covers(&one) && joined.covers(&other));
            if one.matches(&labels) || other.matches(&labels) {
                prop_assert!(joined.matches(&labels), "{one} | {other} = {joined}: {labels:?}");
            }
            if one.covers(&other) && other.matches(&labels) {
                prop_assert!(one.matches(&labels));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused_without_panic(text in "[ -~ä]{0,40}") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
            }
        }

        #[test]
        fn well_formed_text_survives_a_round_trip(
            parts in prop::collection::vec("[a-c](|=[x-z]?|!=[x-z]| in \\([x-z](,[x-z]){0,2}\\)| notin \\([x-z]\\))", 0..5)
        ) {
            let selector: Selector = parts.join(",").parse().unwrap();
            prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
        }
    }
}
