//! The status line in the service manager.

use std::time::Duration;

use tokio::time::Instant;

use edgesync_runtime::systemd;

/// Minimum interval between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends the status line, rate-limited.
pub(super) struct ServiceStatus {
    line: String,
    /// Earliest time for the next line.
    next_at: Instant,
}

impl ServiceStatus {
    pub(super) fn new() -> Self {
        Self { line: String::new(), next_at: Instant::now() }
    }

    /// Returns the line last sent.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Sends a line if it differs and the interval has passed. The loop turns at least once a
    /// second and retries, so the latest line arrives eventually.
    pub(super) fn send(&mut self, line: String) {
        if line != self.line && self.next_at <= Instant::now() {
            systemd::status(&line);
            self.line = line;
            self.next_at = Instant::now() + INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_that_changes_too_often_is_sent_later() {
        let mut status = ServiceStatus::new();
        status.send("a".to_owned());
        status.send("b".to_owned());
        assert_eq!(status.line(), "a");
        tokio::time::advance(INTERVAL).await;
        status.send("b".to_owned());
        assert_eq!(status.line(), "b");
    }
}
