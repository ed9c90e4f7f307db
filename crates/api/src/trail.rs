//! The way to a value within a body: put together only when it is shown, so that going somewhere costs nothing. Pure.

use std::fmt;

use super::steps;

/// The most characters of a step that are shown.
const MAX_SHOWN: usize = 128;

/// The way from the root of a body, as a chain from its end.
#[derive(Clone, Copy)]
pub(super) enum Trail<'a> {
    /// The body itself.
    Root,
    /// A field of what is there.
    Field(&'a Trail<'a>, &'a str),
    /// An item of the list that is there, by its number.
    Item(&'a Trail<'a>, usize),
    /// An item of the list that is there, by what identifies it.
    Element(&'a Trail<'a>, &'a dyn fmt::Display),
}

/// `spec.list[0].name`.
impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        steps::count(MAX_SHOWN);
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(cut(name)),
            Self::Field(before, name) => write!(f, "{before}.{}", cut(name)),
            Self::Item(before, number) => write!(f, "{before}[{number}]"),
            Self::Element(before, element) => write!(f, "{before}{element}"),
        }
    }
}

/// As much of a client's text as is shown.
pub(super) fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_SHOWN).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}
