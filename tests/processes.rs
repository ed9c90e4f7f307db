//! Whole installations: agents, cloud sides, brokers, kubectl and programs on devices, as processes of their own.

mod e2e;
mod files;
mod hostile;
