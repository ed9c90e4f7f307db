//! Tests of the bridge, message by message.

mod downstream;
mod equality;
mod queries;
mod replay;
mod rig;
mod session;
mod store;
