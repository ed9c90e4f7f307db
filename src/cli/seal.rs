//! The command `edgesync seal`.

use serde_json::{Value, json};

use edgesync_admin::agent::SealStatus;
use edgesync_admin::{Route, read};
use edgesync_api::Client;
use edgesync_cli::{CliError, Terminal};

/// Requests a rotation of the agent and prints the result.
pub(super) async fn rotate(client: &Client, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let done: Value = client.post(&Route::RotateSeal.path(), &json!({})).await?;
    Ok(writeln!(terminal.out, "{}", describe(&read(&done)?))?)
}

fn describe(done: &SealStatus) -> String {
    let objects = match done.sealed_objects {
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    };
    let made = &done.newest;
    let kept =
        if done.wrapped { "wrapped with the credential of the service" } else { "unwrapped in its file" };
    format!("Sealed {objects} with a new key, created at {made} and kept {kept}; old key deleted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::samples;

    #[test]
    fn the_result_is_one_sentence() {
        let done = SealStatus { wrapped: true, ..samples::seal() };
        assert_eq!(
            describe(&done),
            "Sealed 1 object with a new key, created at 2026-11-21T10:00:00Z and kept wrapped with the credential of the \
             service; old key deleted"
        );
        let done = SealStatus { newest: "x".to_owned(), sealed_objects: 12, ..samples::seal() };
        assert!(
            describe(&done)
                .starts_with("Sealed 12 objects with a new key, created at x and kept unwrapped in its file")
        );
    }
}
