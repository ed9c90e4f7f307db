//! The join service: `GET /ca.crt`, `GET` or `POST /edge.crt`, `GET /edgesync/v1/join`, over TLS on a port of its own.

use std::net::SocketAddr;

use tokio::sync::watch;

use super::Pairing;

/// The join service, listening.
pub(crate) struct JoinService {}

impl JoinService {
    /// Listens.
    ///
    /// # Errors
    /// The address is taken.
    pub(crate) async fn bind(address: SocketAddr, pairing: Pairing) -> anyhow::Result<Self> {
        todo!()
    }

    /// Where.
    pub(crate) fn address(&self) -> SocketAddr {
        todo!()
    }

    /// Serves until `stopped` changes or its sender is gone. At most so many connections at a time as a small machine
    /// can take (256); more wait. Slow ones are cut after 30 s.
    pub(crate) async fn serve(self, stopped: watch::Receiver<()>) {
        todo!()
    }
}
