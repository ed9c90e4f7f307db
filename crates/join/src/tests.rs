//! What the tests of joining share: an authority, and a join service that does what a test tells it.

pub(super) mod authority;
pub(super) mod service;
