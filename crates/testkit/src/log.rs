//! Captures the log lines of the code under test.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::Level;
use tracing::subscriber::DefaultGuard;

struct Lines(UnboundedSender<String>);

impl std::io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Captures lines of this level and above on this thread, where all tasks of a test run by default,
/// until the guard is dropped.
pub fn log(level: Level) -> (DefaultGuard, UnboundedReceiver<String>) {
    let (sender, lines) = unbounded_channel();
    let log = tracing_subscriber::fmt().with_ansi(false).with_max_level(level);
    let log = log.with_writer(move || Lines(sender.clone())).finish();
    (tracing::subscriber::set_default(log), lines)
}
