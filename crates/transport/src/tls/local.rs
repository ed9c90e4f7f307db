//! TLS for programs on the same machine: no client certificates, no sessions.

use std::io;
use std::sync::Arc;

use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::{Identity, TlsError, VERSIONS, library, provider};

/// Accepts connections of programs on this machine. A cheap handle.
#[derive(Clone)]
pub struct Local(TlsAcceptor);

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local(..)")
    }
}

impl Local {
    /// Creates a server that presents `identity`.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(VERSIONS).map_err(library)?;
        let key = Arc::new(SingleCertAndKey::from(identity.certified()?));
        let mut config = builder.with_no_client_auth().with_cert_resolver(key);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// Errors of the network or of TLS.
    pub async fn accept<S>(
        &self,
        stream: S,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<S>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        self.0.accept(stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Client, Clock, Trust};
    use std::net::{IpAddr, Ipv4Addr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 1, 2, 3));

    #[tokio::test]
    async fn client_that_trusts_the_authority_connects_at_any_time() {
        let identity = Identity::local(HERE).unwrap();
        let local = Local::new(&identity).unwrap();
        let authority = identity.chain().last().unwrap().clone();
        let clock = || Clock::of(|| jiff::Timestamp::UNIX_EPOCH, []);
        let believing = Client::new(&Trust::new(vec![authority]), None, clock()).unwrap();
        for (host, client, through) in [
            ("127.0.0.1", &believing, true),
            ("127.1.2.3", &believing, true),
            ("localhost", &believing, true),
            ("::1", &believing, true),
            ("example.com", &believing, false),
            ("127.0.0.1", &Client::new(&other(), None, clock()).unwrap(), false),
        ] {
            let (here, there) = tokio::io::duplex(16 << 10);
            let (served, connected) = tokio::join!(local.accept(there), client.connect(host, here));
            assert_eq!(connected.is_ok(), through, "{host}");
            assert!(!through || served.is_ok(), "{host}");
        }
    }

    /// Trusts the authority of another device.
    fn other() -> Trust {
        Trust::new(Identity::local(HERE).unwrap().chain().last().cloned().into_iter().collect())
    }

    #[test]
    fn local_identity_survives_a_round_trip() {
        let identity = Identity::local(HERE).unwrap();
        let again = Identity::from_pem("a file", &identity.to_pem()).unwrap();
        assert_eq!(again.chain(), identity.chain());
        assert_ne!(Identity::local(HERE).unwrap().certificate(), identity.certificate());
    }
}
