//! The API servers under test: a real one, and the one embedded in `edgesync-cloud`. Readers and
//! writers must find no difference.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use edgesync_api::Client;

use crate::cluster::kubernetes::Kubernetes;
use edgesync_testkit::site::{Cloud, Site};

/// An API server that tests can start, stop and use.
pub(crate) trait ApiServer: Sized {
    /// Whether the server defines the kinds of edgesync and writes ObjectSyncs itself.
    const IS_OURS: bool;

    /// Starts the server and waits until it is ready.
    async fn start(site: &Site) -> Self;

    /// The kubeconfig of an administrator.
    fn admin(&self) -> &Path;

    /// A client with the administrator's rights.
    fn client(&self) -> &Client;

    /// Kills the server with SIGKILL.
    fn kill(&mut self);

    /// Starts the killed server at the same address with its data.
    async fn run(&mut self);

    /// Kills the server and starts it again.
    async fn crash(&mut self) {
        self.kill();
        self.run().await;
    }
}

impl ApiServer for Kubernetes {
    const IS_OURS: bool = false;

    async fn start(site: &Site) -> Self {
        Self::start(site).await
    }

    fn admin(&self) -> &Path {
        &self.admin
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    async fn run(&mut self) {
        self.run().await;
    }
}

/// `edgesync-cloud` with the embedded store.
pub(crate) struct Embedded {
    cloud: Cloud,
    client: Client,
}

impl ApiServer for Embedded {
    const IS_OURS: bool = true;

    async fn start(site: &Site) -> Self {
        let cloud = Cloud::start_with(site, |settings| {
            settings.tables("");
        })
        .await;
        Self { client: cloud.client(), cloud }
    }

    fn admin(&self) -> &Path {
        &self.cloud.kubeconfig
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn kill(&mut self) {
        self.cloud.process.kill();
    }

    async fn run(&mut self) {
        self.cloud.run().await;
    }
}

/// Instantiates tests with a type parameter for each API server.
macro_rules! over_each {
    ($($test:ident),+ $(,)?) => {
        mod kubernetes {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs a Kubernetes API server: tests/cluster/run"]
                async fn $test() {
                    super::$test::<crate::cluster::kubernetes::Kubernetes>().await;
                }
            )+
        }

        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<crate::cluster::api::Embedded>().await;
                }
            )+
        }
    };
}
pub(crate) use over_each;
