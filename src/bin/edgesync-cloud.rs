//! The cloud side.

fn main() {}
