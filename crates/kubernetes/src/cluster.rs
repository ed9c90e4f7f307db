//! Kubernetes client of a fleet: credentials, watch planning, the informer, and reads and writes of
//! single objects.
//!
//! The cluster is the store and assigns UIDs and resource versions. No other module uses the client
//! library. May depend on [`edgesync_object`], [`edgesync_placement`] and [`edgesync_protocol`].

mod access;
mod api_discovery;
mod catch_up;
mod definitions;
mod discovery;
mod feed;
mod informer;
mod interests;
mod item;
mod kind_watch;
mod object_index;
mod objects;
mod output;
mod plan;
mod planner;
mod rate_limiter;
mod store_version;
mod watch_run;
mod watch_state;
mod watches;

pub use access::{AccessError, Cluster, Credentials, Unserved};
pub use edgesync_enrollment::object_store::{Failure, Precondition, WatchEvent};
pub use feed::Feed;
pub use item::Item;
pub use kind_watch::KindWatch;
pub use plan::{Cause, Interest, Kinds, Namespaces, Origin, Problem, Watch};
pub(crate) use rate_limiter::{Priority, RateLimiter, Usage};
pub use watch_run::ObservedObject;
