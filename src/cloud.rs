//! The cloud side.

mod objects;
pub mod placement;

pub use objects::{CloudObjects, MAX_LEARNT_KINDS};
