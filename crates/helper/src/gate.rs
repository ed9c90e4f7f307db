//! Gate of a rule on this device: holds and windows, the file of `unless`, and the program of
//! `condition`, which runs in the sandbox of checks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::hook;
use super::now;
use super::sandbox::Sandbox;
use edgesync_files::gate::{Facts, decide};
use edgesync_files::hold::Holds;
use edgesync_files::{Closed, Rule, WaitReason};
use jiff::Timestamp;

/// Time for which the answer of a program counts for the further transactions of a pass.
const CONDITION_LASTS: Duration = Duration::from_secs(60);

/// The gate of a rule, at the beginning of a request: no hold begins during one.
#[derive(Debug)]
pub(super) struct Gate<'a> {
    pub(super) rule: &'a Rule,
    pub(super) holds: Holds,
    pub(super) elapsed: u64,
    pub(super) is_clock_known: bool,
    /// The last time that was known, for messages.
    pub(super) last_known: Option<i64>,
    /// File with the state of the clock, for messages.
    pub(super) state: PathBuf,
    /// Directory of the helper, on which the sandbox is prepared.
    pub(super) stand: PathBuf,
    /// Last answer of the program, and when it was given.
    pub(super) condition: Option<(Instant, Option<Closed>)>,
}

impl Gate<'_> {
    /// Implements [`edgesync_files::Effects::closed`].
    pub(super) fn closed(&mut self, override_windows: bool) -> Option<Closed> {
        let facts = Facts {
            holds: &self.holds,
            elapsed: self.elapsed,
            is_clock_known: self.is_clock_known,
            now: now(),
        };
        let closed = decide(self.rule, facts, override_windows).map(|closed| self.explain(closed, facts.now));
        closed.or_else(|| self.busy()).or_else(|| self.ask())
    }

    /// Adds what the device knows of its clock to the message about closed windows.
    fn explain(&self, mut closed: Closed, now: i64) -> Closed {
        if closed.reason == WaitReason::Window && !self.is_clock_known {
            let shown = |at| Timestamp::from_microsecond(at).map(|at| format!("{at:.0}")).unwrap_or_default();
            closed.message.push_str(&format!(": it shows {}", shown(now)));
            if let Some(last) = self.last_known {
                closed.message.push_str(&format!(", the last known time is {}", shown(last)));
            }
            let state = self.state.display();
            closed.message.push_str(&format!("; hint: set the clock, or remove {state} if it is right"));
        }
        closed
    }

    fn busy(&self) -> Option<Closed> {
        let path = self.rule.unless.as_deref()?;
        let message = match std::fs::symlink_metadata(Path::new(path)) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return None;
            }
            Ok(_) => format!("{path} exists"),
            // It may exist.
            Err(error) => format!("inspect {path}: {error}"),
        };
        Some(Closed { reason: WaitReason::Busy, until: None, message })
    }

    /// Asks the program, unless its last answer still counts.
    fn ask(&mut self) -> Option<Closed> {
        if self.rule.condition.is_empty() {
            return None;
        }
        if let Some((_, answer)) = self.condition.as_ref().filter(|(at, _)| at.elapsed() < CONDITION_LASTS) {
            return answer.clone();
        }
        let ran = Sandbox::new(&self.stand, &[]).and_then(|sandbox| {
            let sandbox = sandbox.with_network(self.rule.condition_network);
            let environment = [("EDGESYNC_RULE", self.rule.name.as_str())];
            let start = |command: &mut std::process::Command| sandbox.spawn(command);
            hook::run_started(&self.rule.condition, &environment, self.rule.timeout, start)
        });
        let answer = ran.err().map(|failure| {
            // The remedies of the sandbox are those for checks.
            let message = failure.message.split("; hint: ").next().unwrap_or_default().to_owned();
            Closed { reason: WaitReason::Condition, until: None, message }
        });
        self.condition = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_files::calendar::Window;
    use jiff::tz::TimeZone;

    fn gate<'a>(rule: &'a Rule, stand: &Path) -> Gate<'a> {
        Gate {
            rule,
            holds: Holds::default(),
            elapsed: 0,
            is_clock_known: true,
            last_known: None,
            state: stand.join("holds"),
            stand: stand.to_owned(),
            condition: None,
        }
    }

    #[test]
    fn existing_file_closes_the_gate() {
        let directory = tempfile::tempdir().unwrap();
        let busy = directory.path().join("busy");
        let rule = Rule { unless: Some(busy.display().to_string()), ..Rule::default() };
        let mut gate = gate(&rule, directory.path());
        assert_eq!(gate.closed(false), None);
        std::os::unix::fs::symlink("/no/such/file", &busy).unwrap();
        let closed = gate.closed(true).unwrap();
        assert_eq!(closed.reason, WaitReason::Busy);
        assert!(closed.message.ends_with("busy exists"), "{}", closed.message);
    }

    #[test]
    fn unknown_clock_is_explained() {
        let directory = tempfile::tempdir().unwrap();
        let apply = vec![Window::parse("00:00-24:00", TimeZone::UTC).unwrap()];
        let rule = Rule { apply, ..Rule::default() };
        let mut gate = gate(&rule, directory.path());
        assert_eq!(gate.closed(false), None);
        (gate.is_clock_known, gate.last_known) = (false, Some(1_795_651_200_000_000));
        let message = gate.closed(false).unwrap().message;
        assert!(
            message.contains("the last known time is 2026-11-26T00:00:00Z; hint: set the clock"),
            "{message}"
        );
        assert_eq!(gate.closed(true), None);
    }

    #[test]
    fn program_decides_by_its_exit_code() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("notice: without root no sandbox was tested");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        for (script, why) in [
            ("exit 0", None),
            ("echo drone in flight; exit 1", Some("drone in flight")),
            ("sleep 600", Some("timed out")),
        ] {
            let condition = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
            let rule = Rule { condition, timeout: Duration::from_millis(500), ..Rule::default() };
            let closed = gate(&rule, directory.path()).closed(false);
            match (why, closed) {
                (None, None) => {}
                (Some(why), Some(closed)) if closed.reason == WaitReason::Condition => {
                    assert!(closed.message.contains(why), "{}", closed.message);
                }
                // Where no sandbox is possible, the gate stays closed.
                (None, Some(closed)) => assert!(closed.message.contains("sandbox"), "{}", closed.message),
                other => panic!("{script}: {other:?}"),
            }
        }
        let rule = Rule { condition: vec!["/no/such/program".to_owned()], ..Rule::default() };
        assert!(gate(&rule, directory.path()).closed(false).is_some(), "a missing program permits nothing");
    }

    /// A program may have to ask a machine in the network.
    #[test]
    fn program_reaches_the_network_only_if_its_rule_permits_that() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("notice: without root no sandbox was tested");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let machine = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}", machine.local_addr().unwrap().port());
        let closed = |condition_network| {
            let condition = ["/bin/bash", "-c", &script].map(str::to_owned).to_vec();
            let rule = Rule { condition, condition_network, ..Rule::default() };
            gate(&rule, directory.path()).closed(false)
        };
        if let Some(closed) = closed(true) {
            assert!(closed.message.contains("sandbox"), "{}", closed.message);
            eprintln!("notice: no namespaces here; no sandbox was tested");
            return;
        }
        let closed = closed(false).expect("another network");
        assert_eq!(closed.reason, WaitReason::Condition);
        assert!(closed.message.starts_with("/bin/bash: "), "{}", closed.message);
    }
}
