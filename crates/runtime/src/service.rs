//! What both programs do to become a service: read the configuration, open the log, read it again on a
//! reload.

use std::path::{Path, PathBuf};

use super::log::{Log, LogError};
use edgesync_config as config;
use edgesync_config::{Change, ConfigErrors, Difference, Loaded, Settings};

/// A configuration in force, and the open log.
#[derive(Debug)]
pub struct Service<C> {
    path: PathBuf,
    loaded: Loaded<C>,
    log: Log,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl<C: Settings> Service<C> {
    /// Reads the configuration and opens the log.
    ///
    /// # Errors
    /// The configuration is wrong, or the log cannot be opened.
    pub fn start(path: &Path) -> Result<Self, StartError> {
        let loaded = config::load::<C>(path)?;
        let log = Log::open(loaded.config.log())?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(Self { path: path.to_owned(), loaded, log })
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &C {
        &self.loaded.config
    }

    /// Whether a file or a variable sets this `section.key`.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.loaded.sources.contains_key(key)
    }

    /// Reads the file again before anything has begun: all of it is in force, unless it is wrong.
    pub fn look_again(&mut self) {
        if let Ok(loaded) = config::load::<C>(&self.path) {
            self.loaded = loaded;
        }
    }

    /// Reads the file again. What a reload can change is in force afterwards in [`Self::config`] (log
    /// levels at once); what needs a restart is logged and stays as it was. A configuration that is
    /// wrong is logged and changes nothing. Gives the keys that changed.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub fn reload(&mut self) -> Result<Vec<Difference>, ConfigErrors> {
        let next = match config::load::<C>(&self.path) {
            Ok(next) => next,
            Err(errors) => {
                tracing::error!("the configuration stays as it was:\n{errors}");
                return Err(errors);
            }
        };
        for warning in &next.warnings {
            tracing::warn!("{warning}");
        }
        let (config, differences) = self.loaded.reloaded(&next.config);
        if let Err(error) = self.log.set_level(&config.log().level) {
            tracing::error!(%error, "the log level stays as it was");
        }
        let (live, restart): (Vec<_>, Vec<_>) =
            differences.into_iter().partition(|difference| difference.change == Change::Live);
        for Difference { key, old, new, .. } in &live {
            tracing::info!("reloaded: {key} = {new}, was {old}");
        }
        for Difference { key, old, new, .. } in &restart {
            tracing::warn!("{key} = {new} needs a restart; {old} stays in force");
        }
        if live.is_empty() && restart.is_empty() {
            tracing::info!("reloaded: the configuration is the same");
        }
        self.loaded = Loaded { config, ..next };
        Ok(live)
    }
}
