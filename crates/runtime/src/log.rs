//! The log: where it goes, in which form, and how a reload changes its level.

mod targets;

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::{Layer, fmt};

use edgesync_api::AUDIT;
use edgesync_config as config;
use edgesync_config::Format;

/// Why the log could not be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// journald was asked for and is not there.
    #[error("cannot log to journald")]
    Journald(#[source] io::Error),
    /// Another part of the process has set a subscriber before.
    #[error("the log is open already")]
    AlreadyOpen(#[source] tracing::subscriber::SetGlobalDefaultError),
    /// The level could not be changed.
    #[error("cannot change the log level")]
    Reload(#[source] reload::Error),
}

/// The open log.
#[derive(Clone, Debug)]
pub struct Log {
    level: reload::Handle<Targets, Registry>,
}

impl Log {
    /// Opens the log of the process; to be called once.
    ///
    /// # Errors
    /// journald was asked for and is not there, or the log is open already.
    pub fn open(log: &config::Log) -> Result<Self, LogError> {
        let (filter, level) = reload::Layer::new(audited(&log.level));
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
        self.level.reload(audited(level)).map_err(LogError::Reload)
    }
}

/// The levels, with what the audit log says in any case. Libraries log each attempt that fails, and whoever uses them says once
/// what that means: they are heard at `debug` and `trace`, and where the configuration names them.
fn audited(level: &Targets) -> Targets {
    let level = &targets::present(level);
    let is_silent = |library: &&str| level.iter().all(|(target, _)| target != *library);
    let targets = LIBRARIES.into_iter().filter(is_silent).map(|library| (library, LevelFilter::OFF));
    let mut level = level.clone().with_targets(targets).with_target(AUDIT, LevelFilter::INFO);
    let default = level.default_level().unwrap_or(LevelFilter::OFF);
    if default <= LevelFilter::INFO {
        let is_said = level.iter().any(|(target, _)| target == OWN);
        level = level.with_default(LevelFilter::OFF);
        if !is_said {
            level = level.with_target(OWN, default);
        }
    }
    level
}

/// What the programs say themselves.
const OWN: &str = "edgesync";
/// Libraries that say too much at any level.
const LIBRARIES: [&str; 2] = ["kube_client", "kube_runtime"];

/// The time of a line, to the millisecond.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, out: &mut Writer<'_>) -> std::fmt::Result {
        write!(out, "{:.3}", jiff::Timestamp::now())
    }
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer for one format.
fn output(format: Format) -> Result<Output, LogError> {
    Ok(match format {
        Format::Json => {
            fmt::layer().json().flatten_event(true).with_timer(Milliseconds).with_writer(io::stderr).boxed()
        }
        Format::Journald => tracing_journald::layer()
            .map_err(LogError::Journald)?
            // The project's own fields under their own names: `journalctl NODE=…`.
            .with_field_prefix(None)
            .boxed(),
        Format::Auto | Format::Text => {
            let colour =
                io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
            let layer = fmt::layer().with_ansi(colour).with_timer(Milliseconds);
            layer.with_writer(move || OneLine { out: io::stderr(), colour }).boxed()
        }
    })
}

/// Keeps a line of the log one line, whatever stands in it: what was said elsewhere must not look like a line of its own.
struct OneLine<W> {
    out: W,
    /// Whether the log itself writes escape sequences; those in its fields it leaves out.
    colour: bool,
}

impl<W: io::Write> io::Write for OneLine<W> {
    /// Takes a line, with the break at its end.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        let mut shown = String::with_capacity(line.len());
        for c in text.chars() {
            match c {
                '\t' => shown.push(c),
                '\x1b' if self.colour => shown.push(c),
                _ if c.is_control() => shown.extend(c.escape_default()),
                _ => shown.push(c),
            }
        }
        if line.ends_with(b"\n") {
            shown.push('\n');
        }
        self.out.write_all(shown.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What `auto` means here.
fn resolve(format: Format, journal: bool) -> Format {
    match format {
        Format::Auto if journal => Format::Journald,
        Format::Auto => Format::Text,
        chosen => chosen,
    }
}

/// Whether standard error goes to journald: systemd names the device and inode of the stream it made.
fn journal_is_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    identity(&io::stderr()).is_some_and(|identity| stream == identity)
}

/// Device and inode of a file descriptor, as `JOURNAL_STREAM` writes them.
fn identity(file: &impl AsFd) -> Option<String> {
    let file = std::fs::File::from(file.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    Some(format!("{}:{}", metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_was_said_elsewhere_makes_no_line_of_its_own() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let writer = move || OneLine { out: file.try_clone().unwrap(), colour: false };
        let subscriber = Registry::default().with(fmt::layer().with_ansi(false).with_writer(writer));
        let said = "gone\n2026-01-01T00:00:00Z ERROR edgesync: the disk is full\r\x1b[2J";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(why = %said, "the node rejected an object");
            tracing::warn!("in the middle of {said}");
        });
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }

    #[test]
    fn a_reload_changes_what_passes() {
        let (filter, handle) = reload::Layer::new("info".parse::<Targets>().unwrap());
        let subscriber = Registry::default().with(fmt::layer().with_writer(io::sink).with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(target: "edgesync_transport::link", tracing::Level::DEBUG));
            Log { level: handle }.set_level(&"info,edgesync::link=debug".parse().unwrap()).unwrap();
            assert!(tracing::enabled!(target: "edgesync_transport::link", tracing::Level::DEBUG));
            assert!(!tracing::enabled!(target: "edgesync::store", tracing::Level::DEBUG));
        });
    }

    #[test]
    fn libraries_are_heard_where_they_are_asked_for() {
        use tracing::{Level, enabled};
        for (level, own, library) in [
            ("info", true, false),
            ("warn", false, false),
            ("debug", true, true),
            ("info,rumqttc=info", true, true),
        ] {
            let (filter, _handle) = reload::Layer::new(audited(&level.parse().unwrap()));
            let subscriber = Registry::default().with(fmt::layer().with_writer(io::sink).with_filter(filter));
            tracing::subscriber::with_default(subscriber, || {
                assert_eq!(enabled!(target: "edgesync::link", Level::INFO), own, "{level}");
                assert_eq!(enabled!(target: "rumqttc::v5", Level::INFO), library, "{level}");
                assert!(!enabled!(target: "kube_client", Level::ERROR), "{level}");
            });
        }
    }

    #[test]
    fn times_have_milliseconds() {
        let mut text = String::new();
        Milliseconds.format_time(&mut Writer::new(&mut text)).unwrap();
        let (_, fraction) = text.split_once('.').unwrap();
        assert!(
            fraction.len() == 4 && fraction.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok(),
            "{text}"
        );
    }

    #[test]
    fn no_level_silences_the_audit_log() {
        let (filter, handle) = reload::Layer::new(audited(&"off".parse().unwrap()));
        let subscriber = Registry::default().with(fmt::layer().with_writer(io::sink).with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::enabled!(target: AUDIT, tracing::Level::INFO));
            Log { level: handle }.set_level(&"error,edgesync::audit=off".parse().unwrap()).unwrap();
            assert!(tracing::enabled!(target: AUDIT, tracing::Level::INFO));
            assert!(!tracing::enabled!(target: "edgesync::store", tracing::Level::INFO));
        });
    }
}
