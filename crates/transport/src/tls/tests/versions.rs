//! TLS 1.2 with plain rustls on the other side.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const ONLY_12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

fn parts(identity: &Identity) -> (Vec<rustls::pki_types::CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = identity.chain().iter().map(|certificate| certificate.der().to_vec().into()).collect();
    (chain, PrivateKeyDer::Pkcs8(identity.key().der().to_vec().into()))
}

fn client_12(authority: &Authority, identity: &Identity) -> TlsConnector {
    let (chain, key) = parts(identity);
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock()))
        .with_protocol_versions(ONLY_12)
        .unwrap()
        .with_root_certificates(authority.trust.roots().unwrap())
        .with_client_auth_cert(chain, key)
        .unwrap();
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn both_sides_negotiate_the_newest_version() {
    let authority = Authority::new("Fleet");
    let server = Server::new(&authority.server(), &authority.demanded(), clock()).unwrap();
    let client = Client::new(&authority.trust, Some(&authority.node()), clock()).unwrap();
    let (near, _far) = meet(&client, &server).await;
    assert_eq!(near.unwrap().get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert!(CryptoProvider::get_default().is_none(), "the default of the process is not touched");
}

#[tokio::test]
async fn tls_12_client_is_served_and_resumed() {
    let authority = Authority::new("Fleet");
    let server = Server::new(&authority.server(), &authority.demanded(), clock()).unwrap();
    let until = today() + SignedDuration::from_mins(10);
    let connector = client_12(&authority, &authority.identity(Wish { until, ..Wish::default() }));
    let meet = || async {
        let (near, far) = duplex(64 << 10);
        let name = ServerName::try_from(HOST).unwrap();
        tokio::join!(connector.connect(name, near), server.accept(far))
    };
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let (near, far) = meet().await;
        let near = near.unwrap();
        assert_eq!(near.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_2));
        assert_eq!(near.get_ref().1.handshake_kind(), Some(kind));
        assert_eq!(far.unwrap().1.unwrap().node(), Some("node-a"));
    }
    set_clock(until + SignedDuration::from_secs(1));
    let log = meet().await.1.map(drop).unwrap_err().to_string();
    assert!(log.contains("'node-a'") && log.contains("expired"), "{log}");
}

#[tokio::test]
async fn tls_12_server_is_trusted_and_resumed() {
    let authority = Authority::new("Fleet");
    let (chain, key) = parts(&authority.server());
    let config = ServerConfig::builder_with_details(provider(), Arc::new(clock()))
        .with_protocol_versions(ONLY_12)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let client = Client::new(&authority.trust, Some(&authority.node()), clock()).unwrap();
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let (near, far) = duplex(64 << 10);
        let (near, far) = tokio::join!(client.connect(HOST, near), acceptor.accept(far));
        far.unwrap();
        let near = near.unwrap();
        assert_eq!(near.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_2));
        assert_eq!(near.get_ref().1.handshake_kind(), Some(kind));
    }
}

#[tokio::test]
async fn tls_12_server_refuses_within_the_handshake() {
    let authority = Authority::new("Fleet");
    let (chain, key) = parts(&authority.server());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(authority.trust.roots().unwrap()),
        provider(),
    );
    let config = ServerConfig::builder_with_details(provider(), Arc::new(clock()))
        .with_protocol_versions(ONLY_12)
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let foreign = Authority::new("Elsewhere").node();
    for (identity, reason) in [(Some(&foreign), "unknown authority"), (None, "no certificate presented")] {
        let client = Client::new(&authority.trust, identity, clock()).unwrap();
        let (near, far) = duplex(64 << 10);
        let (near, _) = tokio::join!(client.connect(HOST, near), acceptor.accept(far));
        let expected = HandshakeError::Refused { host: HOST.to_owned(), reason: reason.to_owned() };
        assert_eq!(near.map(drop).unwrap_err(), expected);
    }
}
