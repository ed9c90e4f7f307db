//! A TLS client that offers chosen protocols (ALPN) under a chosen name (SNI).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use edgesync_transport::tls::{Identity, Trust};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection after its handshake.
pub type Connection = TlsStream<TcpStream>;

/// Name, protocols and certificate of a connection.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    /// The name of the server, in SNI unless it is an address.
    pub name: &'a str,
    /// The protocols in order; empty for no ALPN.
    pub protocols: &'a [&'a str],
    pub identity: Option<&'a Identity>,
}

/// Connects and performs the handshake.
pub async fn connect(address: SocketAddr, trust: &Trust, offer: Offer<'_>) -> io::Result<Connection> {
    let mut roots = RootCertStore::empty();
    for root in trust.0.iter() {
        roots.add(CertificateDer::from(root.der().to_vec())).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match offer.identity {
        Some(identity) => {
            let chain = identity.chain().iter().map(|der| CertificateDer::from(der.der().to_vec())).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key().to_pem().as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = offer.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(offer.name.to_owned()).unwrap();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the protocol that the server chose.
pub fn chosen(stream: &Connection) -> Option<String> {
    stream.get_ref().1.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned())
}
