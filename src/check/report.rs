//! The results, for people and for programs.

use super::Finding;

/// All results in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report(pub Vec<(&'static str, &'static str, Finding)>);

/// For people: a line for each, and the next step below what is not in order.
#[must_use]
pub fn render(report: &Report) -> String {
    todo!()
}
