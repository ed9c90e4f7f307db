//! The keeper over a real store.
