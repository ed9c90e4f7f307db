//! Garbage collection: deletes dependents after their owners, and the contents of a namespace
//! before the namespace. Depends on `api` and `object`.
//!
//! One task follows all kinds through the [`Storage`]. It examines changed objects, plans with the
//! pure [`graph`], and writes by compare-and-swap: a concurrent change makes the write fail,
//! arrives here as a change, and leads to a new plan. Records of held objects are not touched: they
//! are deleted when nodes report it.

mod collector;
mod graph;
mod namespaces;
pub(super) mod remove;

pub(super) use collector::Collector;

#[cfg(test)]
mod tests;
