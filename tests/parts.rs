//! The parts through their public interfaces: API, link, store; and the repository itself.

mod api;
mod link;
mod repository;
mod store;
