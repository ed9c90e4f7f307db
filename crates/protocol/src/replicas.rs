//! Rules for the replicas of the cloud side that write for the same nodes into one API server: the
//! fence, the progress through uploads, and the queue of ObjectSyncs. Pure.
//!
//! Requests to the API server, and their order, are those of the caller. The simulation runs the
//! same rules over a model of an API server.

mod fence;
mod ingest;
mod record_queue;

pub use fence::{LeaseFence, serves};
pub use ingest::IngestProgress;
pub use record_queue::{Job, Outcome, QueueEntry, RecordQueue, StoredRecord};
