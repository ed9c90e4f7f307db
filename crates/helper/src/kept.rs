//! Copies of the files in memory that are in effect, by which a reboot loses none of them while
//! their successors wait. Sealed like the objects of the agent's database, with a key of the
//! helper's own: the agent can neither read nor replace them.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use edgesync_config::edge::Config;
use edgesync_files::contents::Files;
use edgesync_files::{Failure, Place};
use edgesync_runtime::chain;
use edgesync_store::durable;
use edgesync_store::seal::{Binding, KeySource, Keyring};

/// File of the keys, in the directory of the records.
const KEY_FILE: &str = "kept.key";
/// Ending of the directory of a rule's copies.
pub(super) const KEPT: &str = "kept";
/// Names of the credentials in the unit, the same as those of the agent's.
const CREDENTIAL: &str = "edgesync-seal";
const PREVIOUS_CREDENTIAL: &str = "edgesync-seal-previous";

/// The copies of one rule.
pub(super) struct Copies {
    directory: PathBuf,
    rule: String,
    source: KeySource,
    keys: OnceCell<Keyring>,
}

/// The files of a place.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Copy {
    is_secret: bool,
    /// Contents in base64, by name.
    files: Vec<(String, String)>,
}

impl Copies {
    pub(super) fn new(rule: &str, config: &Config) -> Self {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let credential = |name: &str| credentials.as_deref().map(|directory: &Path| directory.join(name));
        let source = KeySource {
            file: config.helper.state.join(KEY_FILE),
            credential: credential(CREDENTIAL),
            previous_credential: credential(PREVIOUS_CREDENTIAL),
            require_credential: config.seal.require_credential,
        };
        let directory = config.helper.state.join(format!("{rule}.{KEPT}"));
        Self { directory, rule: rule.to_owned(), source, keys: OnceCell::new() }
    }

    fn keys(&self) -> Result<&Keyring, Failure> {
        if let Some(keys) = self.keys.get() {
            return Ok(keys);
        }
        let (keys, _) = Keyring::open(&self.source).map_err(|error| Failure::new(chain(&error)))?;
        Ok(self.keys.get_or_init(|| keys))
    }

    fn path(&self, stamp: u64) -> PathBuf {
        self.directory.join(stamp.to_string())
    }

    /// Stores the files of a place durably.
    pub(super) fn write(
        &self,
        stamp: u64,
        place: &Place,
        files: &Files,
        is_secret: bool,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::new(format!("keep a copy of {} for the next reboot: {}", place.path(), chain(error)))
        };
        let files = files.iter().map(|(name, content)| (name.clone(), STANDARD.encode(content))).collect();
        let text = serde_json::to_string(&Copy { is_secret, files }).map_err(|error| failed(&error))?;
        let (version, path) = (stamp.to_string(), place.path());
        let sealed = self.keys()?.seal_bytes(self.binding(&version, &path), &text);
        let sealed = sealed.map_err(|error| failed(&error))?;
        std::fs::create_dir_all(&self.directory).map_err(|error| failed(&error))?;
        durable::sync_directory(&self.directory).map_err(|error| failed(&error))?;
        durable::write(&self.path(stamp), &sealed, 0o600).map_err(|error| failed(&error))
    }

    /// Reads the files of a place, and whether they are secret.
    pub(super) fn read(&self, stamp: u64, place: &Place) -> Result<(Files, bool), Failure> {
        let shown = place.path();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(format!("restore {shown} from its copy after a reboot: {error}"))
        };
        let sealed = std::fs::read(self.path(stamp)).map_err(|error| failed(&error))?;
        let version = stamp.to_string();
        let text = self.keys()?.open_bytes(self.binding(&version, &shown), &sealed);
        let text = text.map_err(|error| failed(&error))?;
        let copy: Copy = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        let decode = |(name, content): (String, String)| Ok((name, STANDARD.decode(content)?));
        let files: Result<Files, base64::DecodeError> = copy.files.into_iter().map(decode).collect();
        Ok((files.map_err(|error| failed(&error))?, copy.is_secret))
    }

    /// Binds a copy to its rule, place and stamp, so that no other can replace it.
    fn binding<'a>(&'a self, version: &'a str, place: &'a str) -> Binding<'a> {
        Binding { uid: &self.rule, version, namespace: "kept", name: place }
    }

    /// Removes all copies but these. What cannot be removed is left to the next call.
    pub(super) fn prune(&self, stamps: &BTreeSet<u64>) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let stamp = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
            if !stamp.is_some_and(|stamp| stamps.contains(&stamp)) {
                let _ = durable::remove(&path);
            }
        }
        if stamps.is_empty() {
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_sealed_bound_to_their_place_and_pruned() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.helper.state = directory.path().to_owned();
        let copies = Copies::new("r", &config);
        let place = |below: &str| Place { base: "/run/x".to_owned(), below: below.to_owned() };
        let files = Files::from([("key".to_owned(), b"hunter2\0\xff".to_vec())]);
        copies.write(7, &place("a"), &files, true).unwrap();
        copies.write(8, &place("b"), &files, false).unwrap();
        let raw = std::fs::read(directory.path().join("r.kept/7")).unwrap();
        assert!(!raw.windows(7).any(|part| part == b"hunter2"));
        // Another process, with the same keys.
        let again = Copies::new("r", &config);
        assert_eq!(again.read(7, &place("a")), Ok((files, true)));
        let exchanged = again.read(7, &place("b")).unwrap_err().message;
        assert!(exchanged.contains("restore /run/x/b") && exchanged.contains("damaged"), "{exchanged}");
        std::fs::rename(directory.path().join("r.kept/8"), directory.path().join("r.kept/7")).unwrap();
        assert!(again.read(7, &place("a")).is_err());
        again.prune(&BTreeSet::from([9]));
        assert_eq!(std::fs::read_dir(directory.path().join("r.kept")).unwrap().count(), 0);
        again.prune(&BTreeSet::new());
        assert!(!directory.path().join("r.kept").exists());
    }

    #[test]
    fn missing_credential_is_refused_if_one_is_required() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.helper.state = directory.path().to_owned();
        config.seal.require_credential = true;
        let copies = Copies::new("r", &config);
        let refused = copies.write(7, &Place::default(), &Files::new(), true).unwrap_err().message;
        assert!(refused.contains("credential"), "{refused}");
    }
}
