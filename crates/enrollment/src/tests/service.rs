//! The join service over real TLS, with curl as an independent client.

use super::*;
use crate::JoinRelay;
use crate::service::JoinService;
use edgesync_join::{Membership, calls};
use edgesync_transport::dial::Dialer;
use std::process::{Command, Stdio};

struct Served {
    fixture: Fixture,
    address: std::net::SocketAddr,
    serving: tokio::task::JoinSet<()>,
}

async fn served() -> Served {
    let fixture = fixture().await;
    let service = JoinService::bind(([127, 0, 0, 1], 0).into(), fixture.service.clone()).await.unwrap();
    let address = service.address();
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(service.serve());
    Served { fixture, address, serving }
}

#[tokio::test]
async fn the_log_names_refused_joins_but_no_cloudcore_probes() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap())).finish();
    // All tasks of this test run on one thread.
    let _logging = tracing::subscriber::set_default(subscriber);
    let logged = || std::fs::read_to_string(log.path()).unwrap();
    let Served { fixture, address, serving: _serving } = served().await;
    let url = format!("https://localhost:{}", address.port()).parse().unwrap();
    let url = calls::JoinService::new(url, Dialer::default());
    let stranger = tls::Client::new(&fixture.service.trust(), None, tls::Clock::system([])).unwrap();
    assert_eq!(calls::is_cloud_core(&url, &stranger).await, Ok(false));
    assert!(!logged().contains("refused"), "{}", logged());
    calls::fetch_membership(&url, &stranger).await.unwrap_err();
    let (trust, csr) = (fixture.service.trust(), request("a"));
    let without_name = calls::Credential::Certificate;
    calls::fetch_certificate(&url, &stranger, &trust, "a", &csr, without_name).await.unwrap_err();
    assert_eq!(logged().matches("join or renewal refused: neither a token").count(), 1, "{}", logged());
}

impl Served {
    /// Runs curl. Returns the status code, 0 without an answer, and the body.
    async fn curl(&self, path: &str, arguments: &[&str]) -> (u16, Vec<u8>) {
        let out = tempfile::NamedTempFile::new().unwrap();
        let ca = self.fixture.file("ca.crt");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "120", "--write-out", "%{http_code}"])
            .arg("--cacert")
            .arg(ca)
            .arg("--output")
            .arg(out.path())
            .args(arguments)
            .arg(format!("https://localhost:{}{path}", self.address.port()))
            .args(["--connect-to", &format!("localhost::{}:", self.address.ip())])
            .stdin(Stdio::null());
        // The service answers on other threads.
        let output = tokio::task::block_in_place(|| curl.output())
            .expect("curl is needed for this test: apt-get install curl");
        let code = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        (code, std::fs::read(out.path()).unwrap())
    }

    async fn refused(&self, path: &str, arguments: &[&str], words: &str) -> u16 {
        let (code, body) = self.curl(path, arguments).await;
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains(words) && body.ends_with('\n'), "{code} {body:?}");
        code
    }

    /// Writes a file and returns its path.
    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.fixture.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_joins_reads_its_membership_and_renews() {
    let served = served().await;
    let (code, ca) = served.curl("/ca.crt", &["--insecure"]).await;
    assert_eq!((code, ca.as_slice()), (200, served.fixture.service.trust().0[0].der()));
    for method in ["GET", "POST"] {
        let key = Key::generate().unwrap();
        let csr = served.file("a.csr", &key.node_request("a").unwrap());
        let bearer = format!("Authorization: Bearer {}", served.fixture.token(Some("a"), 1).await);
        let body = format!("@{csr}");
        let send = ["-X", method, "--data-binary", &body, "-H", "NodeName: a"];
        let (code, der) = served.curl("/edge.crt", &[&send[..], &["-H", &bearer]].concat()).await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&der));
        let certificate = Certificate::from_der("the answer", &der).unwrap();
        let identity = Identity::new("the answer", vec![certificate], key).unwrap();
        let pem = served.file("a.pem", identity.to_pem().as_bytes());
        let shown = ["--cert", pem.as_str(), "--key", pem.as_str()];

        let (code, body) = served.curl("/edgesync/v1/join", &shown).await;
        let membership: Membership = serde_json::from_slice(&body).unwrap();
        assert_eq!((code, membership.node.as_str()), (200, "a"));
        assert_eq!(
            (membership.broker.as_str(), membership.prefix.as_str()),
            ("mqtts://:8883", "edgesync/v1")
        );

        let (code, der) = served.curl("/edge.crt", &[&send[..], &shown].concat()).await;
        let renewed = Certificate::from_der("the answer", &der).unwrap();
        assert_eq!((code, renewed.node()), (200, Some("a")));
        assert_ne!(renewed.serial(), identity.certificate().serial());
        // A certificate does not renew another name.
        let other = format!("@{}", served.file("b.csr", &request("b")));
        let send = ["--data-binary", other.as_str(), "-H", "NodeName: b"];
        assert_eq!(served.refused("/edge.crt", &[&send[..], &shown].concat(), "of another node").await, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_codes_and_say_what_to_do() {
    let served = served().await;
    let csr = format!("@{}", served.file("a.csr", &request("a")));
    let send = ["--data-binary", csr.as_str(), "-H", "NodeName: a"];
    let with = |more: &[&'static str]| [&send[..], more].concat();
    assert_eq!(served.refused("/edge.crt", &with(&[]), "neither a token").await, 401);
    let wrong = with(&["-H", "Authorization: Bearer a.b.c"]);
    assert_eq!(served.refused("/edge.crt", &wrong, "not issued by this cloud side").await, 401);
    let wrong = with(&["-H", "Authorization: Basic YTpi"]);
    assert_eq!(served.refused("/edge.crt", &wrong, "neither a token").await, 401);
    let without_name = ["--data-binary", csr.as_str(), "-H", "Authorization: Bearer a.b.c"];
    assert_eq!(served.refused("/edge.crt", &without_name, "NodeName").await, 400);
    let bearer = format!("Authorization: Bearer {}", served.fixture.token(None, 1).await);
    for name in ["NodeName: A b", "NodeName: edgesync:cloud"] {
        let send = ["--data-binary", csr.as_str(), "-H", name, "-H", bearer.as_str()];
        assert_eq!(served.refused("/edge.crt", &send, "node name must be a DNS-1123").await, 422);
    }
    // An invalid name is refused before the token is examined.
    let send = ["-H", "NodeName: A b", "-H", "Authorization: Bearer a.b.c"];
    assert_eq!(served.refused("/edge.crt", &send, "node name must be a DNS-1123").await, 422);
    let operator = served.fixture.service.new_operator("ada", Role::Admin, HOUR).await.unwrap();
    let pem = served.file("ada.pem", operator.to_pem().as_bytes());
    let send = ["--data-binary", csr.as_str(), "--cert", pem.as_str(), "--key", pem.as_str()];
    let words = "is not of a node; hint: join with a token";
    assert_eq!(served.refused("/edge.crt", &send, words).await, 403);
    let joined = served.fixture.joined("b").await;
    let pem = served.file("b.pem", joined.to_pem().as_bytes());
    let send = ["-H", "NodeName: A b", "--cert", pem.as_str(), "--key", pem.as_str()];
    assert_eq!(served.refused("/edge.crt", &send, "node name must be a DNS-1123").await, 422);
    assert_eq!(served.refused("/edge.crt", &["-X", "DELETE"], "use GET").await, 405);
    assert_eq!(served.refused("/edgesync/v1/join", &[], "join first").await, 401);
    assert_eq!(served.refused("/api/v1/secrets", &[], "join service").await, 404);
    let long = format!("@{}", served.file("long", &vec![b'x'; 20 << 10]));
    let (code, _) = served.curl("/edge.crt", &["--data-binary", &long]).await;
    assert_eq!(code, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_or_foreign_certificate_gets_no_connection_at_once() {
    let served = served().await;
    let a = served.fixture.joined("a").await;
    let pem = served.file("a.pem", a.to_pem().as_bytes());
    let shown = ["--cert", pem.as_str(), "--key", pem.as_str()];
    assert_eq!(served.curl("/edgesync/v1/join", &shown).await.0, 200);
    served.fixture.service.revoke_node(&node_name("a")).await.unwrap();
    assert_eq!(served.curl("/edgesync/v1/join", &shown).await.0, 0);
    let foreign = fixture().await.joined("a").await;
    let pem = served.file("foreign.pem", foreign.to_pem().as_bytes());
    let shown = ["--cert", pem.as_str(), "--key", pem.as_str()];
    assert_eq!(served.curl("/edgesync/v1/join", &shown).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_does_not_delay_the_stop() {
    let served = served().await;
    let mut silent = tokio::net::TcpStream::connect(served.address).await.unwrap();
    assert_eq!(served.curl("/ca.crt", &[]).await.0, 200);
    drop(served.serving);
    let mut byte = [0];
    let read = tokio::io::AsyncReadExt::read(&mut silent, &mut byte).await;
    assert!(matches!(read, Ok(0) | Err(_)));
}

/// Opens idle connections up to a number, and again whenever some are closed. Sends the number of
/// those open. Never returns.
async fn keep_idle(address: std::net::SocketAddr, count: usize, open: tokio::sync::watch::Sender<usize>) {
    let mut idle = Vec::new();
    loop {
        // A read that would block: open and silent.
        idle.retain(|stream: &tokio::net::TcpStream| {
            stream.try_read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        for _ in idle.len()..count {
            idle.extend(tokio::net::TcpStream::connect(address).await);
        }
        open.send_replace(idle.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nine idle connections a second used to keep all devices out.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_block_devices_that_join() {
    let served = served().await;
    let (sender, mut open) = tokio::sync::watch::channel(0);
    let idle = tokio::spawn(keep_idle(served.address, 400, sender));
    open.wait_for(|open| *open == 400).await.unwrap();
    let (code, ca) = served.curl("/ca.crt", &["--insecure"]).await;
    assert_eq!((code, ca.as_slice()), (200, served.fixture.service.trust().0[0].der()));
    // Connections that can no longer be opened would leave the device all permits.
    open.changed().await.unwrap();
    let open = *open.borrow();
    assert!(open >= 200, "{open} idle connections are open");
    idle.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_connects_devices_to_the_signer() {
    let mut served = served().await;
    let signer = (served.address.ip().to_string(), served.address.port());
    let relay = JoinRelay::bind(([127, 0, 0, 1], 0).into(), signer).await.unwrap();
    served.address = relay.address();
    served.serving.spawn(relay.serve());
    let (code, ca) = served.curl("/ca.crt", &["--insecure"]).await;
    assert_eq!((code, ca.as_slice()), (200, served.fixture.service.trust().0[0].der()));
    // TLS ends at the signer: it sees the certificate of the device.
    let pem = served.file("a.pem", served.fixture.joined("a").await.to_pem().as_bytes());
    let (code, body) =
        served.curl("/edgesync/v1/join", &["--cert", pem.as_str(), "--key", pem.as_str()]).await;
    let membership: Membership = serde_json::from_slice(&body).unwrap();
    assert_eq!((code, membership.node.as_str()), (200, "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_closes_connections_without_a_signer() {
    let mut served = served().await;
    let gone = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    let relay =
        JoinRelay::bind(([127, 0, 0, 1], 0).into(), ("127.0.0.1".to_owned(), gone.port())).await.unwrap();
    served.address = relay.address();
    served.serving.spawn(relay.serve());
    assert_eq!(served.curl("/ca.crt", &["--insecure"]).await.0, 0);
}
