//! The cloud side.

pub mod placement;
