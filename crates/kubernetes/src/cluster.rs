//! Kubernetes client of a fleet: credentials, watch planning, the informer, and reads and writes of
//! single objects.
//!
//! The cluster is the store and assigns UIDs and resource versions. No other module uses the client
//! library. May depend on [`edgesync_object`] and [`edgesync_placement`].

mod access;
mod feed;
mod follower;
mod following;
mod holdings;
mod item;
mod kinds;
mod objects;
mod plan;
mod spots;
mod throttle;
mod watching;

pub use access::{AccessError, Cluster, Credentials, Unserved};
pub use edgesync_enrollment::object_store::{Failure, News, Precondition};
pub use feed::Feed;
pub use following::Following;
pub use item::Item;
pub use plan::{Cause, Interest, Kinds, Origin, Place, Problem, Watch};
pub(crate) use throttle::{Throttle, Urgency, Use};
pub use watching::Seen;
