//! The line that the service manager shows.

use std::time::Duration;

use tokio::time::Instant;

use edgesync_runtime::systemd;

/// How often the service manager is told something new, at most.
const EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct ServiceStatus {
    line: String,
    /// Before this the service manager is told nothing new.
    next_at: Instant,
}

impl ServiceStatus {
    pub(super) fn new() -> Self {
        Self { line: String::new(), next_at: Instant::now() }
    }

    /// Returns the line that the service manager was told last.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Tells a new line. The loop turns at least once a second: what changes more often is told later.
    pub(super) fn tell(&mut self, line: String) {
        if line != self.line && self.next_at <= Instant::now() {
            systemd::status(&line);
            self.line = line;
            self.next_at = Instant::now() + EVERY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_that_changes_too_often_is_told_later() {
        let mut status = ServiceStatus::new();
        status.tell("a".to_owned());
        status.tell("b".to_owned());
        assert_eq!(status.line(), "a");
        tokio::time::advance(EVERY).await;
        status.tell("b".to_owned());
        assert_eq!(status.line(), "b");
    }
}
