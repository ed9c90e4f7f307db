//! Answers with every field set: the fixtures are written from them, and tests of other crates begin with them.

mod agent;

pub use agent::{
    files, files_check, files_summary, full_status, rejected, seal, status, traffic, verification,
};
