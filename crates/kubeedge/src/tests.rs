//! What the bridge does, message by message.

mod asking;
mod downstream;
mod equality;
mod replay;
mod rig;
mod session;
mod store;
