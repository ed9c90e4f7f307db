//! `edgesync seal`.

use super::{CliError, Terminal};
use crate::api::Client;

/// Asks the agent for a rotation and says what was done.
pub(super) async fn rotate(client: &Client, terminal: &mut Terminal<'_>) -> Result<u8, CliError> {
    todo!()
}
