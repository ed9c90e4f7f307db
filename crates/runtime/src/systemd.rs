//! The service manager's view: readiness, status, watchdog; and the signals it sends.
//!
//! Everything here does nothing outside systemd (no `NOTIFY_SOCKET`), and a notification that fails
//! never stops the program: it is logged at debug level.

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

/// The longest status line that is sent, in bytes; `systemctl status` shows one line.
const MAX_STATUS: usize = 512;

/// How often the service manager is told that a start takes longer; each time it grants three times as much.
const EXTEND_EVERY: Duration = Duration::from_secs(10);

/// The exit code after a second SIGTERM or SIGINT: 128 + SIGINT, as shells show it.
const EXIT_INTERRUPTED: i32 = 130;

/// Whether systemd manages the services of this machine (sd_booted(3)).
#[must_use]
pub fn manages() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// What is advised: a command where [systemd manages](manages) the services, and something else elsewhere.
#[must_use]
pub fn advice<'a>(command: &'a str, elsewhere: &'a str) -> &'a str {
    if manages() { command } else { elsewhere }
}

/// Start-up is finished.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// One line on what the program is doing.
pub fn status(status: &str) {
    notify(&[NotifyState::Status(&one_line(status))]);
}

/// Waits for what must be done before the program serves, however long it takes: the service manager is told that the
/// start goes on.
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

/// A reload has begun; [`ready`] ends it.
pub fn reloading() {
    // Type=notify-reload wants the time at which the reload began in the same message.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic time for the service manager"),
    }
}

/// Start-up takes longer, and makes progress: the service manager is to wait so long from now on.
pub fn extend_start(by: Duration, status: &str) {
    let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status(&one_line(status))]);
}

/// The program drains and will exit.
pub fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
}

/// Pings the service manager's watchdog as long as a loop turns: a loop that hangs makes the service manager restart the
/// program. Does nothing where no watchdog waits. Dropped, it pings no more.
#[derive(Debug)]
pub struct Watchdog {
    turns: Arc<AtomicU64>,
    pinging: JoinHandle<()>,
}

impl Watchdog {
    /// Begins to ping; to be called inside a runtime.
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

    /// Says that the loop has turned.
    pub fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.pinging.abort();
    }
}

/// Pings at half the interval of the watchdog, but only while `alive` says that there is progress. Returns at once where
/// no watchdog waits, and otherwise never; `alive` must not block.
async fn watchdog(mut alive: impl FnMut() -> bool) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    pings(limit, || {
        if alive() {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("a loop makes no progress: no watchdog ping");
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
        tracing::debug!(%error, "the service manager could not be told");
    }
}

/// One line of limited length: a line break would start a new assignment of the protocol.
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

/// What the service manager, or somebody at the keyboard, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SIGTERM or SIGINT: drain and exit 0.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The signals that mean something to the program.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    stopping: bool,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
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

    /// The next request. After the first [`Request::Stop`] another signal to stop ends the process at
    /// once, and reloads are ignored; so keep waiting while draining.
    pub async fn next(&mut self) -> Request {
        loop {
            let request = self.receive().await;
            match (self.stopping, request) {
                (true, Request::Stop) => {
                    tracing::warn!("told to stop a second time: exiting without draining");
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

    /// Runs `work` to its end, or gives it up when it is told to stop. There is nothing to reload meanwhile.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return Some(output),
                request = self.next() => if request == Request::Stop { return None },
            }
        }
    }

    /// Runs `work` until it ends, while a second signal to stop still ends the process.
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
    fn a_status_is_one_line_of_limited_length() {
        assert_eq!(one_line("in sync\nREADY=1"), "in sync READY=1");
        let long = one_line(&"ä".repeat(1000));
        assert!(long.len() <= MAX_STATUS && long.chars().all(|c| c == 'ä'));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_pinged_twice_per_interval() {
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
    async fn without_a_service_manager_nothing_waits() {
        // The variables are those of the test's own environment, which no service manager started.
        if std::env::var_os("WATCHDOG_USEC").is_none() {
            watchdog(|| true).await;
        }
    }
}
