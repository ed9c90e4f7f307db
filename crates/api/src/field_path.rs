//! The path of a field within a body, formatted only when it is shown: descending allocates
//! nothing. Pure.

use std::fmt;

use super::cost_meter;

/// Maximum number of characters shown of one segment.
const MAX_SHOWN: usize = 128;

/// A path from the root of a body, as a linked list from its last segment.
#[derive(Clone, Copy)]
pub(super) enum FieldPath<'a> {
    Root,
    /// A field of the object at the parent path.
    Field(&'a FieldPath<'a>, &'a str),
    /// An item of the list at the parent path, by index.
    Item(&'a FieldPath<'a>, usize),
    /// An item of the list at the parent path, by its key.
    Element(&'a FieldPath<'a>, &'a dyn fmt::Display),
}

/// Formats as `spec.list[0].name`, each segment truncated to [`MAX_SHOWN`].
impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        cost_meter::count(MAX_SHOWN);
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(truncate(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", truncate(name)),
            Self::Item(parent, number) => write!(f, "{parent}[{number}]"),
            Self::Element(parent, element) => write!(f, "{parent}{element}"),
        }
    }
}

/// Truncates a client's text to the length that is shown.
pub(super) fn truncate(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_SHOWN).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}
