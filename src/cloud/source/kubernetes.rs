//! A Kubernetes cluster as the source of a fleet: what replicas write there.
#![allow(dead_code, reason = "these are the parts that the source is put together from")]

mod incarnation;
mod leader;
mod leases;
mod mark;
mod nodes;
mod records;
mod requests;
mod rules;
mod sweep;
mod syncs;
#[cfg(test)]
mod testing;
mod uploads;
