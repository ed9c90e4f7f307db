//! Service manager integration: readiness, status, watchdog, and signals.
//!
//! Outside systemd (no `NOTIFY_SOCKET`) notifications do nothing. A failed notification is logged
//! at debug level and never stops the program.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Maximum length of a status line in bytes; `systemctl status` shows one line.
const MAX_STATUS: usize = 512;

/// Interval at which a long start extends its timeout; each time by three times as much.
const EXTEND_EVERY: Duration = Duration::from_secs(10);

/// Exit code after a second SIGTERM or SIGINT: 128 + SIGINT, as in shells.
const EXIT_INTERRUPTED: i32 = 130;

/// Returns whether systemd manages the services of this machine (sd_booted(3)).
#[must_use]
pub fn manages() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// Returns a hint: a command where [systemd manages](manages) the services, other text elsewhere.
#[must_use]
pub fn advice<'a>(command: &'a str, elsewhere: &'a str) -> &'a str {
    if manages() { command } else { elsewhere }
}

/// Notifies that the start is finished.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Reports a status line.
pub fn status(status: &str) {
    notify(&[NotifyState::Status(&one_line(status))]);
}

/// Runs work that must be done before the program serves, however long it takes, and extends the
/// start timeout meanwhile.
pub async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    status(what);
    let mut work = std::pin::pin!(work);
    let going_on = pings(2 * EXTEND_EVERY, || {
        let extended = u32::try_from((3 * EXTEND_EVERY).as_micros()).unwrap_or(u32::MAX);
        notify(&[NotifyState::ExtendTimeoutUsec(extended)]);
    });
    tokio::select! {
        output = &mut work => output,
        never = going_on => match never {},
    }
}

/// Notifies that a reload has begun; [`ready`] ends it.
pub fn reloading() {
    // Type=notify-reload requires the start time of the reload in the same message.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic time for the service manager"),
    }
}

/// Extends the start timeout to `by` from now on.
pub fn extend_start(by: Duration, status: &str) {
    let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status(&one_line(status))]);
}

/// Notifies that the program drains and will exit.
pub fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
}

/// Pings the service manager's watchdog while a loop makes progress: a loop that hangs makes the
/// service manager restart the program. Does nothing without a watchdog. Stops when dropped.
#[derive(Debug)]
pub struct Watchdog {
    turns: Arc<AtomicU64>,
    pinging: JoinHandle<()>,
}

impl Watchdog {
    /// Starts to ping; must be called inside a runtime.
    #[must_use]
    pub fn start() -> Self {
        let turns = Arc::new(AtomicU64::new(0));
        let (counted, mut seen) = (Arc::clone(&turns), u64::MAX);
        let pinging = tokio::spawn(watchdog(move || {
            let turned = counted.load(Ordering::Relaxed);
            std::mem::replace(&mut seen, turned) != turned
        }));
        Self { turns, pinging }
    }

    /// Records an iteration of the loop.
    pub fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.pinging.abort();
    }
}

/// Pings at half the watchdog interval while `alive` reports progress. Returns at once without a
/// watchdog, otherwise never; `alive` must not block.
async fn watchdog(mut alive: impl FnMut() -> bool) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    pings(limit, || {
        if alive() {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("loop without progress: watchdog ping withheld");
        }
    })
    .await;
}

async fn pings(limit: Duration, mut ping: impl FnMut()) -> Infallible {
    let mut ticks = tokio::time::interval(limit / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        ping();
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "notify service manager");
    }
}

/// Converts text to one line of limited length: a line break would start a new assignment of the
/// protocol.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_STATUS));
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > MAX_STATUS {
            break;
        }
        line.push(c);
    }
    line
}

/// A request of the service manager or the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SIGTERM or SIGINT: drain and exit 0.
    Stop,
    /// SIGHUP: reload the configuration.
    Reload,
}

/// Signals that the program handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    stopping: bool,
}

impl Signals {
    /// Installs handlers for SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    /// The handlers could not be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            stopping: false,
        })
    }

    /// Returns the next request. After the first [`Request::Stop`] another stop signal ends the
    /// process at once, and reloads are ignored; so keep waiting while draining.
    pub async fn next(&mut self) -> Request {
        loop {
            let request = self.receive().await;
            match (self.stopping, request) {
                (true, Request::Stop) => {
                    tracing::warn!("second stop signal: exiting without draining");
                    process::exit(EXIT_INTERRUPTED);
                }
                (true, Request::Reload) => {}
                (false, Request::Stop) => {
                    self.stopping = true;
                    return request;
                }
                (false, Request::Reload) => return request,
            }
        }
    }

    /// Runs `work` to its end, or drops it on a stop request. Reload requests are ignored
    /// meanwhile.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return Some(output),
                request = self.next() => if request == Request::Stop { return None },
            }
        }
    }

    /// Runs `work` to its end, while a second stop signal still ends the process.
    pub async fn during<T>(mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return output,
                _ = self.next() => {}
            }
        }
    }

    async fn receive(&mut self) -> Request {
        // A closed stream never yields again; it must not look like a signal.
        tokio::select! {
            Some(()) = self.terminate.recv() => Request::Stop,
            Some(()) = self.interrupt.recv() => Request::Stop,
            Some(()) = self.hangup.recv() => Request::Reload,
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn status_is_one_line_of_limited_length() {
        assert_eq!(one_line("in sync\nREADY=1"), "in sync READY=1");
        let long = one_line(&"ä".repeat(1000));
        assert!(long.len() <= MAX_STATUS && long.chars().all(|c| c == 'ä'));
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_pinged_twice_per_interval() {
        let count = Cell::new(0);
        let pings = pings(Duration::from_secs(10), || count.set(count.get() + 1));
        assert!(tokio::time::timeout(Duration::from_secs(31), pings).await.is_err());
        assert_eq!(count.get(), 7);
    }

    #[tokio::test]
    async fn signals_become_requests() {
        let mut signals = Signals::new().unwrap();
        for (name, request) in [("HUP", Request::Reload), ("HUP", Request::Reload), ("TERM", Request::Stop)] {
            let own = process::id().to_string();
            let sent = process::Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &own]).status();
            assert!(sent.unwrap().success());
            assert_eq!(signals.next().await, request);
        }
    }

    #[tokio::test]
    async fn notifications_do_nothing_without_a_service_manager() {
        // The variables are those of the test's environment, without a service manager.
        if std::env::var_os("WATCHDOG_USEC").is_none() {
            watchdog(|| true).await;
        }
    }
}
