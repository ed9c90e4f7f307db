//! Tests with a prepared environment: a Kubernetes API server with etcd (`tests/cluster/run`), or
//! built packages (`packaging/test`).

mod cluster;
mod package;
