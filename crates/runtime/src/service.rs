//! Start and reload of both programs: configuration and log.

use std::path::{Path, PathBuf};

use super::log::{Log, LogError};
use edgesync_config as config;
use edgesync_config::{Change, ConfigErrors, Difference, Loaded, Settings};

/// The effective configuration, and the open log.
#[derive(Debug)]
pub struct Service<C> {
    path: PathBuf,
    loaded: Loaded<C>,
    log: Log,
}

/// Reason why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl<C: Settings> Service<C> {
    /// Loads the configuration and opens the log.
    ///
    /// # Errors
    /// The configuration is invalid, or the log cannot be opened.
    pub fn start(path: &Path) -> Result<Self, StartError> {
        let loaded = config::load::<C>(path)?;
        let log = Log::open(loaded.config.log())?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(Self { path: path.to_owned(), loaded, log })
    }

    /// Returns the effective configuration.
    #[must_use]
    pub fn config(&self) -> &C {
        &self.loaded.config
    }

    /// Returns whether a file or a variable sets this `section.key`.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.loaded.sources.contains_key(key)
    }

    /// Loads the file again before the program has started: applies all of it, unless it is
    /// invalid.
    pub fn look_again(&mut self) {
        if let Ok(loaded) = config::load::<C>(&self.path) {
            self.loaded = loaded;
        }
    }

    /// Loads the file again and returns the changed keys. Values that a reload can change take
    /// effect in [`Self::config`] (log levels at once); those that need a restart are logged and
    /// stay. An invalid configuration is logged and changes nothing.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn reload(&mut self) -> Result<Vec<Difference>, ConfigErrors> {
        let next = match config::load::<C>(&self.path) {
            Ok(next) => next,
            Err(errors) => {
                tracing::error!("reload rejected, configuration unchanged:\n{errors}");
                return Err(errors);
            }
        };
        for warning in &next.warnings {
            tracing::warn!("{warning}");
        }
        let (config, differences) = self.loaded.reloaded(&next.config);
        if let Err(error) = self.log.set_level(&config.log().level) {
            tracing::error!(%error, "set log level, level unchanged");
        }
        let (live, restart): (Vec<_>, Vec<_>) =
            differences.into_iter().partition(|difference| difference.change == Change::Live);
        for Difference { key, old, new, .. } in &live {
            tracing::info!("reloaded: {key} = {new}, was {old}");
        }
        for Difference { key, old, new, .. } in &restart {
            tracing::warn!("{key} = {new} needs a restart; {old} stays in effect");
        }
        if live.is_empty() && restart.is_empty() {
            tracing::info!("reloaded: configuration unchanged");
        }
        self.loaded = Loaded { config, ..next };
        Ok(live)
    }
}
