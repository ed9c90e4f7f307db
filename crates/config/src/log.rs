//! `[log]`: level and format of the log, the same for both programs.

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::binding::quote;
use super::units;
use crate::section;

section! {
    /// Level and format of the log.
    pub struct Log in "log";
    /// Default level, and levels of single modules.
    level: Targets = Targets::new().with_default(LevelFilter::INFO),
        live units::text(level, LEVELS, parse_level, show_level);
    /// Format and destination; [`Format::Auto`] decides by the type of standard error.
    format: Format = Format::Auto, fixed units::choice(format, FORMATS);
}

/// Format and destination of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// journald if standard error is connected to it, text otherwise.
    Auto,
    /// Human-readable lines on standard error.
    Text,
    /// One JSON object per line on standard error.
    Json,
    /// journald's native protocol, with fields.
    Journald,
}

const FORMATS: &[(&str, Format)] =
    &[("auto", Format::Auto), ("text", Format::Text), ("json", Format::Json), ("journald", Format::Journald)];

const LEVELS: &str = "a level (off, error, warn, info, debug or trace), or levels of modules after it such as \
                      \"info,edgesync::link=debug\"";

const NAMES: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses levels more strictly than `Targets`, which takes an unknown word as the name of a module.
fn parse_level(text: &str) -> Result<Targets, String> {
    let refused = || format!("must be {LEVELS}, not {}", quote(text));
    for part in text.split(',') {
        let level = part.split_once('=').map_or(part, |(_, level)| level);
        if !NAMES.contains(&level) {
            return Err(refused());
        }
    }
    text.parse().map_err(|_| refused())
}

fn show_level(level: &Targets) -> String {
    let mut parts = vec![level.default_level().unwrap_or(LevelFilter::OFF).to_string()];
    let mut modules = level.iter().map(|(target, level)| format!("{target}={level}")).collect::<Vec<_>>();
    modules.sort_unstable();
    parts.extend(modules);
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_modules_survive_a_round_trip() {
        let level = parse_level("info,edgesync::link=debug").unwrap();
        assert!(level.would_enable("edgesync::link::mqtt", &tracing::Level::DEBUG));
        assert!(!level.would_enable("edgesync::store", &tracing::Level::DEBUG));
        assert_eq!(show_level(&level), "info,edgesync::link=debug");
    }

    #[test]
    fn invalid_level_is_refused() {
        for bad in ["", "chatty", "info,edgesync", "edgesync=loud", "info,,a=debug", "a=", "3"] {
            let message = parse_level(bad).unwrap_err();
            assert!(message.starts_with("must be a level"), "{bad}: {message}");
        }
    }
}
