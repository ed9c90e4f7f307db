//! What the bridge does, message by message.
