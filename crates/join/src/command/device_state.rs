//! State of the device before it joins: the configuration, and the identity if there is one.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::JoinError;
use crate::calls::JoinService;
use crate::files::{self, Disk as _, FilesError, RealDisk, Stored};
use crate::settings;
use edgesync_config as config;
use edgesync_config::edge::{Config, Identity};
use edgesync_config::{Brokers, ConfigErrors, JoinUrl};
use edgesync_runtime::connection;
use edgesync_store::durable::FileError;
use edgesync_transport::dial::LastGood;
use edgesync_transport::tls::{Certificate, Clock};

/// Template of a new configuration: all keys with their defaults, as comments.
const DOCUMENTED: &str = include_str!("../../../../config/edgesync.toml");

/// State of the device.
pub(super) struct DeviceState {
    /// Path of the configuration file, with links resolved.
    pub(super) path: PathBuf,
    /// Path as given: relative paths are relative to its directory.
    pub(super) named: PathBuf,
    /// Text of the file, or the template.
    pub(super) text: String,
    /// Configuration parsed from `text`; keys that the join adds may be missing.
    pub(super) config: Config,
    /// Directory of the identities.
    pub(super) root: PathBuf,
    /// Existing membership, if the device has joined.
    pub(super) member: Option<Member>,
}

/// Membership of a device that has joined.
pub(super) struct Member {
    pub(super) stored: Stored,
    pub(super) cloud: Option<JoinUrl>,
    pub(super) node: String,
}

impl Member {
    /// Returns the clock, with a floor of times that have certainly passed.
    pub(super) fn clock(&self, now: fn() -> Timestamp) -> Clock {
        let made = self.stored.ca.iter().map(Certificate::not_before);
        Clock::of(now, made.chain([self.stored.identity.certificate().not_before()]))
    }
}

impl DeviceState {
    /// Returns whether the database may hold objects of another cloud.
    pub(super) fn may_hold_others(&self, cloud: &JoinUrl) -> bool {
        let known = self.member.as_ref().and_then(|member| member.cloud.as_ref());
        known != Some(cloud) && self.config.store.path.exists()
    }

    /// Returns the value of a key that the file sets and that is valid.
    pub(super) fn configured<V>(
        &self,
        section: &str,
        key: &str,
        parse: impl FnOnce(&str) -> Result<V, String>,
    ) -> Option<V> {
        match settings::get(&self.text, section, key)?.as_slice() {
            [text] => parse(text).ok(),
            _ => None,
        }
    }

    /// Returns the addresses of a broker that the file sets and that are valid.
    pub(super) fn configured_brokers(&self) -> Option<Brokers> {
        let texts = settings::get(&self.text, "link", "broker")?;
        Brokers::parse(texts.iter().map(String::as_str)).ok()
    }

    /// Returns the join service at an address, reached as `[link]` has it.
    pub(super) fn service(&self, url: &JoinUrl) -> Result<JoinService, JoinError> {
        let dialer = connection::dialer(&self.config.link, LastGood::default());
        let dialer = dialer.map_err(|error| JoinError::Other(format!("{error:#}")))?;
        Ok(JoinService::new(url.clone(), dialer))
    }

    /// Reads the state; `name` is the node's future name, if it is known.
    pub(super) fn read(path: &Path, name: Option<&str>) -> Result<Self, JoinError> {
        let failed = |error| JoinError::Other(format!("resolve the path of the configuration: {error}"));
        let named = std::path::absolute(path).map_err(failed)?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| named.clone());
        let text = read_text(&path)?.unwrap_or_else(|| DOCUMENTED.to_owned());
        let config = parse_incomplete(&named, &text, name)?;
        let store = std::path::absolute(&config.store.path).unwrap_or_else(|_| config.store.path.clone());
        let member = read_member(&config)?;
        Ok(Self { path, named, text, config, root: store.with_file_name("identity"), member })
    }
}

fn read_text(path: &Path) -> Result<Option<String>, JoinError> {
    let failed = |cause| JoinError::from(FilesError::from(FileError::tried("read", path)(cause)));
    match RealDisk.read(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Parses the configuration. Keys that joining will add may be missing: a name if the host's is
/// invalid, an authority for a broker with TLS, the address of a CloudCore.
fn parse_incomplete(path: &Path, text: &str, name: Option<&str>) -> Result<Config, ConfigErrors> {
    let parse = |text: &str| config::parse::<Config>(path, text, std::env::vars_os());
    let error = match parse(text) {
        Ok(loaded) => return Ok(loaded.config),
        Err(error) => error,
    };
    let mut added = Vec::new();
    let named = name.map(|name| ("node", "name", settings::string(name)));
    let identity = ("identity", "directory", settings::string("/nonexistent"));
    let url = ("kubeedge", "url", settings::string("wss://cloud.invalid"));
    for more in named.into_iter().chain([identity, url]) {
        added.push(more);
        if let Ok(Ok(loaded)) = settings::set_all(text, &added).map(|text| parse(&text)) {
            return Ok(Config { identity: Identity::default(), ..loaded.config });
        }
    }
    Err(error)
}

/// Loads the configured identity. A lost or damaged one counts as none.
fn read_member(config: &Config) -> Result<Option<Member>, JoinError> {
    let Some(directory) = &config.identity.directory else { return Ok(None) };
    let stored = match files::load(&RealDisk, directory) {
        Ok(stored) => stored,
        Err(FilesError::Io(error)) if error.cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(FilesError::Content(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let node =
        stored.identity.certificate().subject().requested_node().unwrap_or(&config.node.name).to_owned();
    Ok(Some(Member { stored, cloud: config.identity.cloud.clone(), node }))
}
