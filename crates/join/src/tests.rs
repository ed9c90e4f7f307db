//! Shared by the tests: an authority, and a scripted join service.

pub(super) mod authority;
pub(super) mod service;
