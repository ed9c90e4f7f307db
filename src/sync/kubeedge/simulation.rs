//! The guarantees over a CloudCore, in virtual time and from a seed.
