//! The parts as their users see them: API, link, store; and the repository itself.

mod api;
mod link;
mod repository;
mod store;
