//! The keys of sealed objects: their location, status and rotation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::events::{EventReason, Events, Regarding};
use crate::store::EdgeStore;
use edgesync_admin::agent::SealStatus;
use edgesync_api::Role;
use edgesync_config::edge::Config;
use edgesync_object::Status;
use edgesync_object::status::{Reason, Result};
use edgesync_store::seal::keyring::{KeyFacts, Opened};
use edgesync_store::seal::{KeySource, SealOptions};

/// Names of the credentials in a systemd unit.
const CREDENTIAL: &str = "edgesync-seal";
const PREVIOUS_CREDENTIAL: &str = "edgesync-seal-previous";
/// Interval of the check whether a key has reached its usage limit.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Returns the sealed kinds and the locations of the keys. A missing credential counts as absent.
pub(super) fn options(config: &Config) -> SealOptions {
    options_with(config, std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).as_deref())
}

fn options_with(config: &Config, credentials: Option<&Path>) -> SealOptions {
    let credential = |name: &str| credentials.map(|directory| directory.join(name));
    SealOptions {
        kinds: config.seal.kinds.clone(),
        keys: KeySource {
            file: config.seal.key_file.clone(),
            credential: credential(CREDENTIAL),
            previous_credential: credential(PREVIOUS_CREDENTIAL),
            require_credential: config.seal.require_credential,
        },
    }
}

/// Returns the section of the status.
pub(super) async fn show(store: &EdgeStore) -> Option<SealStatus> {
    match store.seal_facts().await {
        Ok(facts) => facts.map(|facts| show_keys(&facts.keys, facts.objects)),
        // Another section of the status reports an unreadable store.
        Err(_) => None,
    }
}

/// Emits an Event if the credential was missing: an earlier start was refused, or keys were lost
/// and replaced.
pub(super) async fn emit_events(store: &EdgeStore, events: &Events) {
    let Ok(Some(facts)) = store.seal_facts().await else { return };
    for note in event_notes(&facts.keys) {
        events.emit(EventReason::SealCredentialMissing, Regarding::Node, note);
    }
}

fn event_notes(keys: &KeyFacts) -> Vec<String> {
    let refused = keys.refused.as_ref().map(|since| {
        format!(
            "credential of the seal keys missing, and seal.require_credential set: the agent did not start from {since} on. The credential is available again; nothing was lost."
        )
    });
    let lost = (keys.opened == Opened::Lost).then(|| {
        let how = if keys.wrapped { "wrapped with the current credential" } else { "in plain text" };
        format!(
            "seal keys not opened: credential missing or wrong, or key file damaged. New keys created, {how}; the cloud resends the objects."
        )
    });
    refused.into_iter().chain(lost).collect()
}

fn show_keys(keys: &KeyFacts, sealed_objects: u64) -> SealStatus {
    SealStatus { keys: keys.keys as u64, wrapped: keys.wrapped, newest: keys.newest.clone(), sealed_objects }
}

/// Rotates the keys, for a caller with access to Secrets.
pub(super) async fn rotate(store: &EdgeStore, role: Role) -> Result<SealStatus> {
    if role != Role::Admin {
        let message = "rotation of seal keys needs root or the agent's user on the Unix socket, or the token in the file `kubeconfig-secrets`";
        return Err(Status::new(Reason::Forbidden, message));
    }
    let rotated = store.rotate_seal().await.map_err(|error| {
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        let message = format!("reseal objects: {error}{source}; both keys are kept");
        Status::unavailable(message, 5)
    })?;
    Ok(show_keys(&rotated.keys, rotated.objects))
}

/// Rotates a key that has reached its usage limit, where collisions become likely. Never returns.
pub(super) async fn rotate_worn(store: &EdgeStore) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if store.is_seal_worn()
            && let Err(error) = store.rotate_seal().await
        {
            tracing::warn!(%error, "rotation of a worn seal key failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EdgeOptions;

    #[test]
    fn credentials_are_found_in_their_directory() {
        let mut config = Config::default();
        config.seal.key_file = "/x/seal.key".into();
        config.seal.kinds = vec!["configmaps".into()];
        let options = options_with(&config, None);
        assert_eq!((options.keys.credential, options.keys.previous_credential), (None, None));
        let options = options_with(&config, Some(Path::new("/run/credentials/x")));
        assert_eq!(options.keys.file, Path::new("/x/seal.key"));
        assert_eq!(options.keys.credential.as_deref(), Some(Path::new("/run/credentials/x/edgesync-seal")));
        let previous = Path::new("/run/credentials/x/edgesync-seal-previous");
        assert_eq!(options.keys.previous_credential.as_deref(), Some(previous));
        assert_eq!(options.kinds, ["configmaps"]);
    }

    #[test]
    fn an_event_reports_a_missing_credential() {
        let keys = |opened, refused: Option<&str>, wrapped| {
            let refused = refused.map(str::to_owned);
            KeyFacts { keys: 1, wrapped, newest: "2026-01-01T00:00:00Z".into(), opened, refused }
        };
        assert!(
            event_notes(&keys(Opened::Kept, None, true)).is_empty()
                && event_notes(&keys(Opened::Made, None, false)).is_empty()
        );
        let refused = event_notes(&keys(Opened::Kept, Some("2026-01-02T00:00:00Z"), true));
        assert!(
            refused.len() == 1 && refused[0].contains("did not start from 2026-01-02T00:00:00Z"),
            "{refused:?}"
        );
        let lost = event_notes(&keys(Opened::Lost, None, false));
        assert!(lost.len() == 1 && lost[0].contains("in plain text"), "{lost:?}");
    }

    #[tokio::test]
    async fn rotation_requires_access_to_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.seal.key_file = directory.path().join("seal.key");
        let options = EdgeOptions { seal: Some(options_with(&config, None)), ..EdgeOptions::default() };
        let store = EdgeStore::open(&directory.path().join("edge.db"), options).unwrap();
        let before = std::fs::read(&config.seal.key_file).unwrap();
        assert_eq!(rotate(&store, Role::Local).await.unwrap_err().code, 403);
        assert_eq!(std::fs::read(&config.seal.key_file).unwrap(), before);
        let rotated = rotate(&store, Role::Admin).await.unwrap();
        assert_eq!((rotated.keys, rotated.sealed_objects), (1, 0));
        assert_ne!(std::fs::read(&config.seal.key_file).unwrap(), before);
        let shown = show(&store).await.unwrap();
        assert_eq!((shown.wrapped, shown.newest), (false, rotated.newest));
        store.close().await;
    }
}
