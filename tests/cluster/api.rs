//! What tests take for the cluster: a real API server, or the one that `edgesync-cloud` has embedded. Who follows a cluster, or
//! writes into one, is to find no difference.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use edgesync_api::Client;

use crate::kubernetes::Kubernetes;
use edgesync_testkit::site::{Cloud, Site};

/// See the module.
pub(crate) trait ApiServer: Sized {
    /// Whether it has the kinds of edgesync by itself, and writes their ObjectSyncs itself.
    const IS_OURS: bool;

    /// Starts it and waits until it is ready.
    async fn start(site: &Site) -> Self;

    /// The kubeconfig of somebody who may do everything.
    fn admin(&self) -> &Path;

    /// Asks as the administrator.
    fn client(&self) -> &Client;

    /// Kills it with SIGKILL.
    fn kill(&mut self);

    /// Starts it, which was killed, at its address and with what it had.
    async fn run(&mut self);

    /// Kills it and starts it again.
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

/// Tests over each of them: functions with a type parameter.
macro_rules! over_each {
    ($($test:ident),+ $(,)?) => {
        mod kubernetes {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs a Kubernetes API server: tests/cluster/run"]
                async fn $test() {
                    super::$test::<crate::kubernetes::Kubernetes>().await;
                }
            )+
        }

        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<crate::api::Embedded>().await;
                }
            )+
        }
    };
}
pub(crate) use over_each;
