//! Single situations over a good link, each with the exact outcome that the guarantees promise.
