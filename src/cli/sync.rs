//! The command `sync`: connects now.

use serde_json::{Value, json};

use edgesync_admin::agent::SyncStarted;
use edgesync_admin::{Route, read};
use edgesync_api::Client;
use edgesync_cli::{CliError, Terminal};

/// Asks the agent to connect now.
///
/// # Errors
/// The agent does not answer, or answers in the form of another version.
pub(super) async fn run(agent: &Client, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let answer: Value = agent.post(&Route::Sync.path(), &json!({})).await.map_err(CliError::Client)?;
    let SyncStarted { was_connected, spent_until } = read(&answer)?;
    let text = match spent_until {
        Some(until) => format!("the budget of the metered link is spent until {until}: not connecting"),
        None if was_connected => "already connected".to_owned(),
        None => "connecting; 'edgesync status' shows progress".to_owned(),
    };
    Ok(writeln!(terminal.out, "{text}")?)
}
