//! What the agent says of itself: asked through the local API, answered by the loop.

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::door::DoorState;
use crate::api::{Extension, ExtensionCall};
use crate::object::Status;
use crate::object::status::Result;

/// A request for the status.
pub(super) type Question = oneshot::Sender<Value>;

/// Serves `/edgesync/v1/status`.
pub(super) struct StatusExtension {
    questions: mpsc::Sender<Question>,
    door: watch::Receiver<DoorState>,
}

impl StatusExtension {
    pub(super) fn new(questions: mpsc::Sender<Question>, door: watch::Receiver<DoorState>) -> Self {
        Self { questions, door }
    }
}

impl Extension for StatusExtension {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        match (call.method.as_str(), call.path.as_str()) {
            ("GET", "status") => {
                let (answer, answered) = oneshot::channel();
                let stopping = || Status::unavailable("the agent is stopping", 5);
                self.questions.send(answer).await.map_err(|_| stopping())?;
                let mut status = answered.await.map_err(|_| stopping())?;
                if let Some(status) = status.as_object_mut() {
                    status.insert("api".to_owned(), self.door.borrow().show());
                }
                Ok(status)
            }
            _ => Err(Status::no_such_path()),
        }
    }
}

/// Seconds as JSON, one decimal.
pub(super) fn seconds(duration: std::time::Duration) -> Value {
    json!((duration.as_secs_f64() * 10.0).round() / 10.0)
}
