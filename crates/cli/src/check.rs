//! Findings of `check`, and their output for people and programs.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use edgesync_admin::check::{CheckCounts, CheckReport, CheckResult, CheckStatus};
use tokio::runtime::Builder;

use crate::output::{self, Output};
use crate::{CliError, EXIT_FAILED};

/// Next step for a file that this user may not read.
pub const AS_ROOT: &str = "run the command as root or as the user of the service";

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Passed, with a short description.
    Ok(String),
    /// Works, but needs attention.
    Warning {
        /// Description of the finding.
        message: String,
        /// Action that the user should take next.
        next_step: String,
    },
    /// Not checked, with the reason.
    Skipped(String),
    /// Does not work as it must.
    Failed {
        /// Description of the finding.
        message: String,
        /// Action that the user should take next.
        next_step: String,
    },
}

impl Finding {
    /// Creates a passed finding.
    #[must_use]
    pub fn ok(message: impl Into<String>) -> Self {
        Self::Ok(message.into())
    }

    /// Creates a warning with a next step.
    #[must_use]
    pub fn warning(message: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self::Warning { message: message.into(), next_step: next_step.into() }
    }

    /// Creates a failure with a next step.
    #[must_use]
    pub fn failed(message: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), next_step: next_step.into() }
    }

    /// Creates a skipped finding with its reason.
    #[must_use]
    pub fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped(why.into())
    }
}

/// All findings in order: id, title, finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report(pub Vec<(&'static str, &'static str, Finding)>);

impl Finding {
    fn status(&self) -> CheckStatus {
        match self {
            Self::Ok(_) => CheckStatus::Ok,
            Self::Warning { .. } => CheckStatus::Warning,
            Self::Skipped(_) => CheckStatus::Skipped,
            Self::Failed { .. } => CheckStatus::Failed,
        }
    }

    /// Returns the description and the next step.
    fn parts(&self) -> (&str, Option<&str>) {
        match self {
            Self::Ok(message) | Self::Skipped(message) => (message, None),
            Self::Warning { message, next_step } | Self::Failed { message, next_step } => {
                (message, Some(next_step))
            }
        }
    }
}

impl Report {
    /// Returns whether no check failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.counts().failed == 0
    }

    fn counts(&self) -> CheckCounts {
        let mut counts = CheckCounts::default();
        for (.., finding) in &self.0 {
            let count = match finding.status() {
                CheckStatus::Ok => &mut counts.ok,
                CheckStatus::Warning => &mut counts.warning,
                CheckStatus::Skipped => &mut counts.skipped,
                CheckStatus::Failed => &mut counts.failed,
            };
            *count += 1;
        }
        counts
    }

    /// Returns the report for programs.
    #[must_use]
    pub fn document(&self) -> CheckReport {
        let checks = self.0.iter().map(|(id, title, finding)| {
            let (message, next_step) = finding.parts();
            CheckResult {
                id: (*id).to_owned(),
                title: (*title).to_owned(),
                status: finding.status(),
                message: message.to_owned(),
                next_step: next_step.map(str::to_owned),
            }
        });
        let counts = self.counts();
        let result = match counts {
            CheckCounts { failed: 1.., .. } => CheckStatus::Failed,
            CheckCounts { warning: 1.., .. } => CheckStatus::Warning,
            _ => CheckStatus::Ok,
        };
        CheckReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            result,
            counts,
            checks: checks.collect(),
        }
    }
}

/// Formats the report for people: a line per check, with the next step as a hint below unless it
/// passed.
#[must_use]
pub fn render(report: &Report) -> String {
    let width = report.0.iter().map(|(_, title, _)| title.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (_, title, finding) in &report.0 {
        let (message, next_step) = finding.parts();
        let _ = writeln!(out, "{:<7}  {title:<width$}  {}", finding.status().name(), plain(message));
        if let Some(next_step) = next_step {
            let _ = writeln!(out, "{:<7}  {:<width$}  hint: {}", "", "", plain(next_step));
        }
    }
    let CheckCounts { ok, warning, skipped, failed } = report.counts();
    let total = report.0.len();
    let _ = writeln!(out, "{total} checks: {ok} ok, {warning} warning, {skipped} skipped, {failed} failed");
    out
}

/// Replaces control characters, so that external text cannot steer the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Prints a report. Exit code 0 without failures (warnings do not count), else 1.
///
/// # Errors
/// Standard output cannot be written.
pub fn show(report: &Report, output: Output) -> anyhow::Result<u8> {
    let text = match output {
        Output::Yaml | Output::Json => output::render(&edgesync_admin::write(&report.document())?, output)?,
        Output::Table | Output::Wide | Output::Name => render(report),
    };
    io::stdout().write_all(text.as_bytes()).map_err(CliError::Output)?;
    Ok(if report.is_good() { 0 } else { EXIT_FAILED })
}

/// Runs a future to completion without waiting for threads blocked on a disk.
///
/// # Errors
/// The runtime cannot be created.
pub fn wait<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(result)
}

/// Formats a number of bytes.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Report {
        Report(vec![
            ("configuration", "Configuration", Finding::ok("/etc/x.toml")),
            ("clock", "Clock", Finding::warning("it is \u{1b}[2J 1970", "set it")),
            ("tcp", "TCP", Finding::failed("connection refused", "start it")),
            ("tls", "TLS", Finding::skipped("not checked because of: TCP")),
        ])
    }

    #[test]
    fn text_report_has_aligned_lines_and_next_steps() {
        let expected = "\
ok       Configuration  /etc/x.toml
warning  Clock          it is  [2J 1970
                        hint: set it
failed   TCP            connection refused
                        hint: start it
skipped  TLS            not checked because of: TCP
4 checks: 1 ok, 1 warning, 1 skipped, 1 failed
";
        assert_eq!(render(&report()), expected);
    }

    #[test]
    fn json_report_has_stable_names() {
        let json = edgesync_admin::write(&report().document()).unwrap();
        assert_eq!(json["result"], "failed");
        assert_eq!(json["counts"], json!({ "ok": 1, "warning": 1, "skipped": 1, "failed": 1 }));
        let tcp = json!({
            "id": "tcp", "title": "TCP", "status": "failed", "message": "connection refused", "nextStep": "start it"
        });
        assert_eq!(json["checks"][2], tcp);
        assert!(json["checks"][0].get("nextStep").is_none());
        assert!(!report().is_good());
        assert_eq!(Report::default().document().result, CheckStatus::Ok);
    }
}
