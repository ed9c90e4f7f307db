//! Checks that the clock can be right, and is synchronized.

use std::path::Path;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};
use edgesync_transport::tls::Clock;

pub(super) const CHECK: Check = Check {
    id: "clock",
    title: "Clock",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Directory where systemd-timesyncd records that it has set the clock.
const TIMESYNC: &str = "/run/systemd/timesync";

fn examine(examined: &mut Examined) -> Finding {
    evaluate(&examined.clock(), Path::new(TIMESYNC))
}

fn evaluate(clock: &Clock, timesync: &Path) -> Finding {
    let now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ");
    if !clock.is_plausible() {
        let message = format!("{now} is in the past: this program, a certificate or the database is newer");
        return Finding::failed(message, "set the clock, for instance with NTP ('timedatectl')");
    }
    if timesync.join("synchronized").exists() {
        return Finding::ok(format!("{now}, synchronized"));
    }
    if timesync.exists() {
        let message = format!("{now} is plausible, but not synchronized since boot");
        return Finding::warning(
            message,
            "run 'timedatectl timesync-status' to see why no time server responds",
        );
    }
    Finding::ok(format!("{now}; synchronization unknown, systemd-timesyncd does not run"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use jiff::Timestamp;

    #[test]
    fn a_clock_in_the_past_fails_and_an_unsynced_one_warns() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = dir.path().join("none");
        failed(
            evaluate(&Clock::of(|| Timestamp::UNIX_EPOCH, []), &nothing),
            "1970-01-01T00:00:00Z",
            "timedatectl",
        );
        fn later() -> Timestamp {
            "2030-01-01T00:00:00Z".parse().unwrap()
        }
        ok(evaluate(&Clock::of(later, []), &nothing), "2030-01-01T00:00:00Z; synchronization unknown");
        warned(evaluate(&Clock::of(later, []), dir.path()), "not synchronized", "timesync-status");
        std::fs::write(dir.path().join("synchronized"), "").unwrap();
        ok(evaluate(&Clock::of(later, []), dir.path()), ", synchronized");
        let newer = "2031-01-01T00:00:00Z".parse().unwrap();
        failed(evaluate(&Clock::of(later, [newer]), dir.path()), "in the past", "NTP");
    }
}
