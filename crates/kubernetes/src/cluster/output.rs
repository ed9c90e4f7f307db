//! The informer's channel to its consumer. Sends state only on change.

use tokio::sync::mpsc;

use super::item::Item;
use super::plan::Problem;
use edgesync_placement::Unread;

/// The consumer was dropped.
#[derive(Debug)]
pub(super) struct Closed;

/// Sends items to the consumer, which slows the informer down when it lags.
#[derive(Debug)]
pub(super) struct Output {
    items: mpsc::Sender<Item>,
    /// The outage reported last, until [`Output::end_outage`].
    outage: Option<String>,
    /// The problems and unread objects sent last.
    problems: Vec<Problem>,
    unread: Vec<Unread>,
}

impl Output {
    pub(super) fn new(items: mpsc::Sender<Item>) -> Self {
        Self { items, outage: None, problems: Vec::new(), unread: Vec::new() }
    }

    /// Sends an item. Waits for space in the channel.
    pub(super) async fn send(&self, item: Item) -> Result<(), Closed> {
        self.items.send(item).await.map_err(|_| Closed)
    }

    /// Waits until the consumer is dropped. Cancel-safe.
    pub(super) async fn closed(&self) {
        self.items.closed().await;
    }

    /// Reports an outage, once per cause.
    pub(super) async fn report_outage(&mut self, cause: String) -> Result<(), Closed> {
        if self.outage.as_ref() == Some(&cause) {
            return Ok(());
        }
        self.outage = Some(cause.clone());
        self.send(Item::Failed(cause)).await
    }

    /// Ends an outage: the same cause is reported again.
    pub(super) fn end_outage(&mut self) {
        self.outage = None;
    }

    /// Reports the current problems and unread objects.
    pub(super) async fn report_problems(
        &mut self,
        problems: Vec<Problem>,
        unread: Vec<Unread>,
    ) -> Result<(), Closed> {
        if unread != self.unread {
            self.unread.clone_from(&unread);
            self.send(Item::Unread(unread)).await?;
        }
        if problems != self.problems {
            self.problems.clone_from(&problems);
            self.send(Item::Problems(problems)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Cause, Origin};
    use super::*;

    fn output() -> (Output, mpsc::Receiver<Item>) {
        let (items, received) = mpsc::channel(16);
        (Output::new(items), received)
    }

    #[tokio::test]
    async fn an_outage_is_reported_once_per_cause_until_it_ends() {
        let (mut output, mut received) = output();
        for cause in ["refused", "refused", "timeout"] {
            output.report_outage(cause.to_owned()).await.unwrap();
        }
        output.end_outage();
        output.report_outage("timeout".to_owned()).await.unwrap();
        drop(output);
        let mut causes = Vec::new();
        while let Some(item) = received.recv().await {
            let Item::Failed(cause) = item else { panic!("{item:?}") };
            causes.push(cause);
        }
        assert_eq!(causes, ["refused", "timeout", "timeout"]);
    }

    #[tokio::test]
    async fn problems_and_unread_objects_are_sent_on_change_only() {
        let (mut output, mut received) = output();
        let problem = Problem { origin: Origin::Pods, kind: "gizmos".to_owned(), cause: Cause::Unserved };
        let unread = Unread::Group("lab.io".to_owned());
        for _ in 0..2 {
            output.report_problems(vec![problem.clone()], vec![unread.clone()]).await.unwrap();
        }
        output.report_problems(Vec::new(), vec![unread.clone()]).await.unwrap();
        drop(output);
        assert!(matches!(received.recv().await, Some(Item::Unread(sent)) if sent == [unread]));
        assert!(matches!(received.recv().await, Some(Item::Problems(sent)) if sent == [problem]));
        assert!(matches!(received.recv().await, Some(Item::Problems(sent)) if sent.is_empty()));
        assert!(received.recv().await.is_none());
    }

    #[tokio::test]
    async fn sending_to_a_dropped_consumer_fails() {
        let (output, received) = output();
        drop(received);
        output.closed().await;
        output.send(Item::Complete).await.unwrap_err();
    }
}
