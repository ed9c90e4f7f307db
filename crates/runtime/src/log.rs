//! The log: destination, format, and change of its level on a reload.

mod logfmt;
mod targets;

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::{Layer, fmt};

use edgesync_api::AUDIT;
use edgesync_config as config;
use edgesync_config::Format;

/// Reason why the log could not be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// journald was requested and is not available.
    #[error("open journald log")]
    Journald(#[source] io::Error),
    /// Another part of the process has already set a subscriber.
    #[error("open log: already open")]
    AlreadyOpen(#[source] tracing::subscriber::SetGlobalDefaultError),
    /// The level could not be changed.
    #[error("set log level")]
    Reload(#[source] reload::Error),
}

/// Handle of the open log.
#[derive(Clone, Debug)]
pub struct Log {
    level: reload::Handle<Targets, Registry>,
}

impl Log {
    /// Opens the log of the process; must be called once.
    ///
    /// # Errors
    /// journald was requested and is not available, or the log is open already.
    pub fn open(log: &config::Log) -> Result<Self, LogError> {
        let (filter, level) = reload::Layer::new(with_audit(&log.level));
        let output = output(resolve(log.format, journal_is_stderr()))?;
        let subscriber = Registry::default().with(output.with_filter(filter));
        tracing::subscriber::set_global_default(subscriber).map_err(LogError::AlreadyOpen)?;
        Ok(Self { level })
    }

    /// Changes the levels.
    ///
    /// # Errors
    /// The log was closed, which happens only while the process ends.
    pub(crate) fn set_level(&self, level: &Targets) -> Result<(), LogError> {
        self.level.reload(with_audit(level)).map_err(LogError::Reload)
    }
}

/// Returns the levels with the audit log always on. Libraries log each failed attempt, and their
/// users log its meaning once, so libraries are enabled at `debug` and `trace`, and where the
/// configuration names them.
fn with_audit(level: &Targets) -> Targets {
    let level = &targets::present(level);
    let is_unnamed = |library: &&str| level.iter().all(|(target, _)| target != *library);
    let targets = LIBRARIES.into_iter().filter(is_unnamed).map(|library| (library, LevelFilter::OFF));
    let mut level = level.clone().with_targets(targets).with_target(AUDIT, LevelFilter::INFO);
    let default = level.default_level().unwrap_or(LevelFilter::OFF);
    if default <= LevelFilter::INFO {
        let is_named = level.iter().any(|(target, _)| target == OWN);
        level = level.with_default(LevelFilter::OFF);
        if !is_named {
            level = level.with_target(OWN, default);
        }
    }
    level
}

/// Target of the programs' own lines.
const OWN: &str = "edgesync";
/// Libraries that are too verbose at any level.
const LIBRARIES: [&str; 2] = ["kube_client", "kube_runtime"];

/// Timestamps in UTC, RFC 3339 with three fractional digits.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, out: &mut Writer<'_>) -> std::fmt::Result {
        write!(out, "{:.3}", jiff::Timestamp::now())
    }
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// Creates the layer of one format.
fn output(format: Format) -> Result<Output, LogError> {
    Ok(match format {
        Format::Json => {
            fmt::layer().json().flatten_event(true).with_timer(Milliseconds).with_writer(io::stderr).boxed()
        }
        Format::Journald => tracing_journald::layer()
            .map_err(LogError::Journald)?
            // Fields under their own names: `journalctl NODE=…`.
            .with_field_prefix(None)
            .boxed(),
        Format::Auto | Format::Text => {
            let colour =
                io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
            text_layer(io::stderr, colour)
        }
    })
}

/// Creates the layer for lines of text.
fn text_layer<W>(out: W, colour: bool) -> Output
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let fields = fmt::format::debug_fn(logfmt::write_field).delimited(" ");
    fmt::layer().fmt_fields(fields).with_ansi(colour).with_timer(Milliseconds).with_writer(out).boxed()
}

/// Resolves `auto`: journald if standard error goes to the journal, else text.
fn resolve(format: Format, journal: bool) -> Format {
    match format {
        Format::Auto if journal => Format::Journald,
        Format::Auto => Format::Text,
        chosen => chosen,
    }
}

/// Returns whether standard error goes to journald: systemd names device and inode of its stream.
fn journal_is_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    identity(&io::stderr()).is_some_and(|identity| stream == identity)
}

/// Returns device and inode of a file descriptor, in the format of `JOURNAL_STREAM`.
fn identity(file: &impl AsFd) -> Option<String> {
    let file = std::fs::File::from(file.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    Some(format!("{}:{}", metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[test]
    fn auto_is_journald_only_where_standard_error_is_the_journal() {
        assert_eq!(resolve(Format::Auto, true), Format::Journald);
        assert_eq!(resolve(Format::Auto, false), Format::Text);
        assert_eq!(resolve(Format::Json, true), Format::Json);
    }

    #[test]
    fn two_descriptors_of_one_file_have_one_identity() {
        let one = tempfile::tempfile().unwrap();
        let other = tempfile::tempfile().unwrap();
        assert_eq!(identity(&one), identity(&one.try_clone().unwrap()));
        assert_ne!(identity(&one), identity(&other));
    }

    /// Held by tests that log or reload: a reload rebuilds the process' cache of callsites by the
    /// subscriber of its own thread.
    static CALLSITES: Mutex<()> = Mutex::new(());

    /// Returns the lines that a piece of code logs.
    fn logged(colour: bool, code: impl FnOnce()) -> Vec<String> {
        let _alone = CALLSITES.lock().unwrap_or_else(PoisonError::into_inner);
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let layer = text_layer(move || file.try_clone().unwrap(), colour);
        tracing::subscriber::with_default(Registry::default().with(layer), code);
        std::fs::read_to_string(log.path()).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn foreign_text_cannot_forge_lines() {
        let said = "gone\n2026-01-01T00:00:00Z ERROR edgesync: the disk is full\r\x1b[2J";
        for colour in [false, true] {
            let lines = logged(colour, || {
                tracing::warn!(why = %said, "the node rejected an object");
                tracing::warn!(why = said, "the node rejected an object");
                tracing::warn!("in the middle of {said}");
            });
            assert_eq!(lines.len(), 3, "{lines:?}");
            let foreign = |line: &String| line.contains('\r') || line.contains("\x1b[2J");
            assert!(!lines.iter().any(foreign), "{lines:?}");
        }
    }

    #[test]
    fn fields_are_written_as_logfmt() {
        let lines = logged(false, || {
            let (peer, error) = ("127.0.0.1:1883", "read frame: connection reset");
            tracing::info!(%peer, node = "edge-1", bytes = 12, "connected");
            tracing::warn!(%error, selector = %"app=web", reason = ?Some("two words"), empty = %"", "closed, retrying");
        });
        let expected = [
            " INFO edgesync_runtime::log::tests: connected peer=127.0.0.1:1883 node=\"edge-1\" bytes=12",
            " WARN edgesync_runtime::log::tests: closed, retrying error=\"read frame: connection reset\" \
             selector=\"app=web\" reason=\"Some(\\\"two words\\\")\" empty=\"\"",
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.ends_with(expected), "{line}");
        }
    }

    /// Returns a log and its filter, without a subscriber: the interest of a callsite is cached
    /// for all subscribers of a process together, those of other tests included.
    fn unattached(level: &str) -> (reload::Layer<Targets, Registry>, Log) {
        let (filter, level) = reload::Layer::new(with_audit(&level.parse().unwrap()));
        (filter, Log { level })
    }

    impl Log {
        fn logs(&self, target: &str, level: tracing::Level) -> bool {
            self.level.with_current(|current| current.would_enable(target, &level)).unwrap()
        }
    }

    #[test]
    fn reload_changes_the_filter() {
        use tracing::Level;
        let _alone = CALLSITES.lock().unwrap_or_else(PoisonError::into_inner);
        let (_filter, log) = unattached("info");
        assert!(!log.logs("edgesync_transport::link", Level::DEBUG));
        log.set_level(&"info,edgesync::link=debug".parse().unwrap()).unwrap();
        assert!(log.logs("edgesync_transport::link", Level::DEBUG));
        assert!(!log.logs("edgesync::store", Level::DEBUG));
    }

    #[test]
    fn libraries_are_logged_if_configured() {
        use tracing::Level;
        for (level, own, library) in [
            ("info", true, false),
            ("warn", false, false),
            ("debug", true, true),
            ("info,rumqttc=info", true, true),
        ] {
            let filter = with_audit(&level.parse().unwrap());
            assert_eq!(filter.would_enable("edgesync::link", &Level::INFO), own, "{level}");
            assert_eq!(filter.would_enable("rumqttc::v5", &Level::INFO), library, "{level}");
            assert!(!filter.would_enable("kube_client", &Level::ERROR), "{level}");
        }
    }

    #[test]
    fn timestamps_have_milliseconds() {
        let mut text = String::new();
        Milliseconds.format_time(&mut Writer::new(&mut text)).unwrap();
        let (_, fraction) = text.split_once('.').unwrap();
        assert!(
            fraction.len() == 4 && fraction.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok(),
            "{text}"
        );
    }

    #[test]
    fn audit_log_is_on_at_any_level() {
        use tracing::Level;
        let (_filter, log) = unattached("off");
        assert!(log.logs(AUDIT, Level::INFO));
        log.set_level(&"error,edgesync::audit=off".parse().unwrap()).unwrap();
        assert!(log.logs(AUDIT, Level::INFO));
        assert!(!log.logs("edgesync::store", Level::INFO));
    }
}
