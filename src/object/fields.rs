//! Field selectors (`metadata.name=a,metadata.namespace!=b`) over the two fields that every kind has.

use std::str::FromStr;

/// The longest field selector, in bytes.
pub const MAX_FIELD_SELECTOR: usize = 4 << 10;

/// What name and namespace must be. The empty selector selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

/// Why a field selector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// Longer than [`MAX_FIELD_SELECTOR`].
    #[error("the field selector must be less than or equal to {MAX_FIELD_SELECTOR} bytes")]
    TooLong,
    /// A part without an operator.
    #[error("invalid field selector part '{0}': expected field=value or field!=value")]
    Syntax(String),
    /// A field that cannot be selected by.
    #[error("field label not supported: {0}")]
    Field(String),
}

impl FieldSelector {
    /// Whether everything is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object of this name is selected; the namespace of cluster-scoped objects is empty.
    #[must_use]
    pub fn matches(&self, namespace: &str, name: &str) -> bool {
        self.0.iter().all(|requirement| {
            let actual = match requirement.field {
                Field::Name => name,
                Field::Namespace => namespace,
            };
            (actual == requirement.value) == requirement.equal
        })
    }

    /// The only name that can be selected, if there is one: then a list is a single read.
    #[must_use]
    pub fn only_name(&self) -> Option<&str> {
        self.only(Field::Name)
    }

    /// The only namespace that can be selected, if there is one.
    #[must_use]
    pub fn only_namespace(&self) -> Option<&str> {
        self.only(Field::Namespace)
    }

    fn only(&self, field: Field) -> Option<&str> {
        let requirement = self.0.iter().find(|requirement| requirement.field == field && requirement.equal);
        requirement.map(|requirement| requirement.value.as_str())
    }
}

impl FromStr for FieldSelector {
    type Err = FieldSelectorError;

    fn from_str(text: &str) -> Result<Self, FieldSelectorError> {
        if text.len() > MAX_FIELD_SELECTOR {
            return Err(FieldSelectorError::TooLong);
        }
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let requirement = |part: &str| {
            let shown = |text: &str| text.chars().take(64).collect();
            let (field, rest) =
                part.split_once('=').ok_or_else(|| FieldSelectorError::Syntax(shown(part)))?;
            let (field, equal) = match field.strip_suffix('!') {
                Some(field) => (field, false),
                None => (field, true),
            };
            let field = match field.trim() {
                "metadata.name" => Field::Name,
                "metadata.namespace" => Field::Namespace,
                other => return Err(FieldSelectorError::Field(shown(other))),
            };
            let value = if equal { rest.strip_prefix('=').unwrap_or(rest) } else { rest };
            Ok(Requirement { field, equal, value: value.trim().to_owned() })
        };
        parts.map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selector(text: &str) -> FieldSelector {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn name_and_namespace_are_compared() {
        let both = selector("metadata.name==a, metadata.namespace!=b");
        assert!(both.matches("c", "a"));
        assert!(!both.matches("b", "a"));
        assert!(!both.matches("c", "x"));
        assert_eq!((both.only_name(), both.only_namespace()), (Some("a"), None));
        assert!(selector("").is_empty() && selector("").matches("x", "y"));
        assert_eq!(selector("metadata.namespace=").only_namespace(), Some(""));
    }

    #[test]
    fn other_fields_and_other_texts_are_refused() {
        for bad in ["spec.nodeName=a", "metadata.name", "=", "a b", &"x".repeat(MAX_FIELD_SELECTOR + 1)] {
            assert!(bad.parse::<FieldSelector>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".{0,60}") {
            let _ = text.parse::<FieldSelector>();
        }
    }
}
