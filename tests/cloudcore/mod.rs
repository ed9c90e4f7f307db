//! A scripted CloudCore: the model of one, and a server around it.

pub(crate) mod model;
pub(crate) mod server;
