//! Silence of the cloud on a link that is up.

use std::time::Duration;

use tokio::time::Instant;

/// Tracks the silence, so that one Event reports its begin and one its end.
#[derive(Debug, Default)]
pub(in crate::agent) struct Silence {
    since: Option<Instant>,
    is_reported: bool,
}

impl Silence {
    /// Records that the cloud is silent. Returns whether to report that: once, from the threshold
    /// on.
    pub(in crate::agent::driver) fn observe(&mut self, threshold: Duration) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() >= threshold && !std::mem::replace(&mut self.is_reported, true)
    }

    /// Ends the silence. Returns how long it lasted if it was reported.
    pub(in crate::agent::driver) fn end(&mut self) -> Option<Duration> {
        let Self { since, is_reported } = std::mem::take(self);
        since.filter(|_| is_reported).map(|since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_is_reported_once_and_with_its_end() {
        let mut silence = Silence::default();
        let threshold = Duration::from_secs(60);
        assert_eq!(silence.end(), None);
        assert!(!silence.observe(threshold));
        assert_eq!(silence.end(), None, "a short silence is not reported");
        assert!(!silence.observe(threshold));
        tokio::time::advance(threshold).await;
        assert!(silence.observe(threshold) && !silence.observe(threshold));
        assert_eq!(silence.end(), Some(threshold));
        assert!(silence.observe(Duration::ZERO));
    }
}
