//! Checks that the clock can be right, and is synchronized.

use std::path::Path;

use super::{Check, Examined, Finding, Look, ONE};
use edgesync_transport::tls::Clock;

pub(super) const CHECK: Check =
    Check { id: "clock", title: "Clock", needs: &["configuration"], limit: ONE, look: Look::Files(look) };

/// Directory where systemd-timesyncd records that it has set the clock.
const TIMESYNC: &str = "/run/systemd/timesync";

fn look(examined: &mut Examined) -> Finding {
    judge(&examined.clock(), Path::new(TIMESYNC))
}

fn judge(clock: &Clock, timesync: &Path) -> Finding {
    let now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ");
    if !clock.is_plausible() {
        let seen = format!(
            "it shows {now}, which is in the past: this program, a certificate or the database is newer"
        );
        return Finding::failed(seen, "set the clock, for instance with NTP: see 'timedatectl'");
    }
    if timesync.join("synchronized").exists() {
        return Finding::ok(format!("{now}, synchronized"));
    }
    if timesync.exists() {
        let seen =
            format!("it shows {now}, which can be right, but has not been synchronized since the start");
        return Finding::warning(seen, "look with 'timedatectl timesync-status' why no time server answers");
    }
    Finding::ok(format!("{now}; without systemd-timesyncd nothing tells whether it is synchronized"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use jiff::Timestamp;

    #[test]
    fn a_clock_before_what_has_passed_fails_and_one_that_nobody_sets_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = dir.path().join("none");
        failed(
            judge(&Clock::of(|| Timestamp::UNIX_EPOCH, []), &nothing),
            "1970-01-01T00:00:00Z",
            "timedatectl",
        );
        fn later() -> Timestamp {
            "2030-01-01T00:00:00Z".parse().unwrap()
        }
        ok(judge(&Clock::of(later, []), &nothing), "2030-01-01T00:00:00Z; without");
        warned(judge(&Clock::of(later, []), dir.path()), "not been synchronized", "timesync-status");
        std::fs::write(dir.path().join("synchronized"), "").unwrap();
        ok(judge(&Clock::of(later, []), dir.path()), ", synchronized");
        let newer = "2031-01-01T00:00:00Z".parse().unwrap();
        failed(judge(&Clock::of(later, [newer]), dir.path()), "in the past", "NTP");
    }
}
