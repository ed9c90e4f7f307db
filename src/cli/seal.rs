//! `edgesync seal`.

use serde_json::{Value, json};

use edgesync_api::Client;
use edgesync_cli::{CliError, Terminal};

/// Where the agent is asked for new keys.
const ROTATE_PATH: &str = "/edgesync/v1/seal/rotate";

/// Asks the agent for a rotation and says what was done.
pub(super) async fn rotate(client: &Client, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let done: Value = client.post(ROTATE_PATH, &json!({})).await?;
    Ok(writeln!(terminal.out, "{}", describe(&done))?)
}

fn describe(done: &Value) -> String {
    let objects = match done["sealedObjects"].as_u64().unwrap_or(0) {
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    };
    let made = done["newest"].as_str().unwrap_or_default();
    let kept = match done["wrapped"].as_bool() {
        Some(true) => "wrapped with the credential of the service",
        _ => "in its file as it is",
    };
    format!("Sealed {objects} with a new key, made at {made} and kept {kept}; the old key is forgotten.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_said_in_a_sentence() {
        let done =
            json!({ "keys": 1, "wrapped": true, "newest": "2026-11-21T10:00:00Z", "sealedObjects": 1 });
        assert_eq!(
            describe(&done),
            "Sealed 1 object with a new key, made at 2026-11-21T10:00:00Z and kept wrapped with the credential of the \
             service; the old key is forgotten."
        );
        let done = json!({ "wrapped": false, "newest": "x", "sealedObjects": 12 });
        assert!(
            describe(&done)
                .starts_with("Sealed 12 objects with a new key, made at x and kept in its file as it is")
        );
    }
}
