//! Whole installations: agents, cloud sides, brokers, kubectl and local programs as processes.

mod e2e;
mod files;
mod hostile;
mod upgrade;
