//! What happens to objects because of others: dependents go when their owners have gone, and what
//! is in a namespace goes before the namespace does. Depends on `api` and `object`.
//!
//! One task follows all kinds through the [`Storage`]. It looks at what has changed, decides with
//! the pure [`graph`], and writes by compare-and-swap: whatever changes meanwhile makes a write
//! fail, comes here as a change, and is decided anew. Records of what nodes hold are left alone:
//! they go when the nodes report it.

mod collector;
mod graph;
mod namespaces;
pub(super) mod remove;

pub(super) use collector::Collector;

#[cfg(test)]
mod tests;
