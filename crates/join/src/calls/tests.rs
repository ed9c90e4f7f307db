use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::tests::authority::{Authority, time};
use crate::tests::service::{CLOUD_TIME, Service, cloud_now, reply, server_identity, token};
use edgesync_transport::tls::{Clock, Identity, Key};

const BROKER: &str = "mqtts://:8883";

/// A service that is reached directly.
fn at(url: &JoinUrl) -> JoinService {
    JoinService::new(url.clone(), Dialer::default())
}

fn authority() -> Arc<Authority> {
    Arc::new(Authority::new("ca"))
}

fn client(authority: &Authority, identity: Option<&Identity>) -> Client {
    let trust = Trust::new(vec![authority.ca.clone()]);
    Client::new(&trust, identity, Clock::of(cloud_now, [])).unwrap()
}

fn node(authority: &Authority) -> Identity {
    authority.node("pump-7", time("2026-11-20T00:00:00Z"), time("2027-11-20T00:00:00Z"))
}

async fn ask_certificate(
    service: &Service,
    authority: &Authority,
    node: &str,
) -> Result<Certificate, CallError> {
    let (tls, trust) = (client(authority, None), Trust::new(vec![authority.ca.clone()]));
    let request = Key::generate().unwrap().node_request(node).unwrap();
    let token = token(authority);
    fetch_certificate(&at(&service.url), &tls, &trust, node, &request, Credential::Token(&token)).await
}

#[tokio::test]
async fn node_joins_and_renews_with_the_calls_of_kubeedge() {
    let authority = authority();
    let service = Service::of_cloud(Arc::clone(&authority), BROKER).await;
    let (ca, _) = fetch_ca(&at(&service.url), &token(&authority)).await.unwrap();
    assert_eq!(ca, authority.ca);

    let certificate = ask_certificate(&service, &authority, "pump-7").await.unwrap();
    assert_eq!(certificate.node(), Some("pump-7"));
    let current = node(&authority);
    let tls = client(&authority, Some(&current));
    let membership = fetch_membership(&at(&service.url), &tls).await.unwrap().unwrap();
    assert_eq!((membership.node.as_str(), membership.broker.as_str()), ("pump-7", BROKER));
    assert_eq!((membership.prefix.as_str(), membership.time.as_str()), ("plant/v1", CLOUD_TIME));

    let trust = Trust::new(vec![ca]);
    let clock = Clock::of(cloud_now, []);
    let renewed = crate::renewal::renew(&at(&service.url), &trust, &current, "pump-7", clock).await.unwrap();
    assert_eq!(renewed.certificate().node(), Some("pump-7"));
    assert_ne!(renewed.certificate().serial(), current.certificate().serial());

    let asked = service.asked();
    let paths = asked.iter().map(|asked| asked.question.path.as_str()).collect::<Vec<_>>();
    assert_eq!(paths, ["/ca.crt", "/edge.crt", "/edgesync/v1/join", "/edge.crt", "/edgesync/v1/join"]);
    assert!(asked.iter().all(|asked| asked.question.method == "GET"));
    assert_eq!(asked[1].question.header("authorization"), Some("Bearer head.claims.signature"));
    assert_eq!(asked[1].question.header("nodename"), Some("pump-7"));
    assert_eq!((asked[1].shown.as_deref(), asked[3].shown.as_deref()), (None, Some("pump-7")));
    assert_eq!(asked[3].question.header("authorization"), None);
}

#[tokio::test]
async fn ca_of_another_cloud_is_refused_with_both_fingerprints() {
    let (authority, other) = (self::authority(), self::authority());
    let service = Service::of_cloud(Arc::clone(&other), BROKER).await;
    let error = fetch_ca(&at(&service.url), &token(&authority)).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CallError::OtherCa { .. }), "{text}");
    assert!(text.contains(&authority.ca.fingerprint()) && text.contains(&other.ca.fingerprint()), "{text}");
    assert!(!error.is_unreachable());
}

#[tokio::test]
async fn refusals_contain_the_sanitized_message_of_the_cloud() {
    let authority = authority();
    let status = r#"{"kind":"Status","message":"the token\u001b[31m is used up"}"#;
    for (code, body, words) in [
        (401, "the token has expired\n".to_owned(), "refused by the cloud: the token has expired"),
        (403, status.to_owned(), "refused by the cloud: the token[31m is used up"),
        (409, String::new(), "refused by the cloud: status 409 without a message"),
        (401, "x".repeat(5000), "refused by the cloud: xxx"),
        (503, "later".to_owned(), ", status 503: later"),
        (404, "nothing".to_owned(), ", status 404: nothing"),
        (200, "nonsense".to_owned(), "parse certificate from"),
    ] {
        let service =
            Service::start(&authority, &server_identity(&authority), move |_| reply(code, body.clone()))
                .await;
        let error = ask_certificate(&service, &authority, "pump-7").await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words) && text.len() < 600, "{code}: {text}");
        assert!(!text.contains(char::is_control) && !text.contains("signature"), "{text}");
        assert!(!error.is_unreachable(), "{text}");
    }
}

#[tokio::test]
async fn certificate_for_another_node_is_rejected() {
    let authority = authority();
    let other = authority.node("pump-8", time("2026-11-20T00:00:00Z"), time("2027-11-20T00:00:00Z"));
    for der in [other.certificate().der().to_vec(), authority.ca.der().to_vec()] {
        let identity = server_identity(&authority);
        let service = Service::start(&authority, &identity, move |_| reply(200, der.clone())).await;
        let error = ask_certificate(&service, &authority, "pump-7").await.unwrap_err().to_string();
        assert!(error.contains("not for node 'pump-7'"), "{error}");
    }
}

#[tokio::test]
async fn cloud_core_has_no_membership() {
    let authority = authority();
    let identity = server_identity(&authority);
    for (code, body) in [(404, "404 page not found"), (200, "{}"), (200, "[1"), (403, "revoked")] {
        let service = Service::start(&authority, &identity, move |_| reply(code, body)).await;
        let found = fetch_membership(&at(&service.url), &client(&authority, Some(&node(&authority)))).await;
        match code {
            404 => assert_eq!(found, Ok(None)),
            403 => assert!(matches!(found, Err(CallError::Refused { code: 403, .. })), "{found:?}"),
            _ => assert!(matches!(found, Err(CallError::Unexpected { .. })), "{found:?}"),
        }
    }
}

#[tokio::test]
async fn cloud_core_is_detected_by_its_missing_call() {
    let authority = authority();
    let identity = server_identity(&authority);
    let cloud = Service::of_cloud(Arc::clone(&authority), BROKER).await;
    assert_eq!(is_cloud_core(&at(&cloud.url), &client(&authority, None)).await, Ok(false));
    let core = Service::of_cloud_core(Arc::clone(&authority)).await;
    assert_eq!(is_cloud_core(&at(&core.url), &client(&authority, None)).await, Ok(true));
    let broken = Service::start(&authority, &identity, |_| reply(502, "bad gateway")).await;
    let error = is_cloud_core(&at(&broken.url), &client(&authority, None)).await.unwrap_err();
    assert!(matches!(error, CallError::Unexpected { code: 502, .. }), "{error}");
}

#[tokio::test]
async fn cloud_core_issues_and_renews_certificates() {
    let authority = authority();
    let service = Service::of_cloud_core(Arc::clone(&authority)).await;
    let first = ask_certificate(&service, &authority, "pump-7").await.unwrap();
    let subject = first.subject();
    assert_eq!((subject.requested_node(), &*subject.common_name), (Some("pump-7"), "system:node:pump-7"));
    let current =
        authority.node("system:node:pump-7", time("2026-11-20T00:00:00Z"), time("2027-11-20T00:00:00Z"));
    let (trust, clock) = (Trust::new(vec![authority.ca.clone()]), Clock::of(cloud_now, []));
    let renewed = crate::renewal::renew(&at(&service.url), &trust, &current, "pump-7", clock).await.unwrap();
    assert_eq!(renewed.certificate().subject().common_name, "system:node:pump-7");
    let asked = service.asked();
    let renewal = &asked[asked.len() - 2].question;
    assert_eq!((renewal.path.as_str(), renewal.header("nodename")), ("/edge.crt", Some("pump-7")));
    assert_eq!(renewal.header("authorization"), None);
}

#[tokio::test]
async fn answer_beyond_the_limit_is_refused() {
    let authority = authority();
    let service =
        Service::start(&authority, &server_identity(&authority), |_| reply(200, vec![b'x'; MAX_ANSWER + 1]))
            .await;
    let error = fetch_ca(&at(&service.url), &token(&authority)).await.unwrap_err();
    assert!(matches!(error, CallError::Unreadable { .. }), "{error}");
    assert!(error.to_string().contains("10002"), "{error}");
}

#[tokio::test]
async fn missing_service_differs_from_another_service() {
    let authority = authority();
    let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = JoinUrl { host: "127.0.0.1".into(), port: free.local_addr().unwrap().port() };
    drop(free);
    let error = fetch_ca(&at(&url), &token(&authority)).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("refused"), "{error}");

    // Too long for a label, so no name server is queried.
    let url = JoinUrl { host: format!("{}.invalid", "a".repeat(64)), port: 1 };
    let error = fetch_ca(&at(&url), &token(&authority)).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("resolve host name '"), "{error}");

    // Plain HTTP, as on the port of an API without TLS.
    let http = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = JoinUrl { host: "127.0.0.1".into(), port: http.local_addr().unwrap().port() };
    let served = tokio::spawn(async move {
        let (mut stream, _) = http.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream
    });
    let error = fetch_ca(&at(&url), &token(&authority)).await.unwrap_err();
    assert!(matches!(error, CallError::Tls(HandshakeError::Http { .. })), "{error:?}");
    assert!(!error.is_unreachable());
    drop(served.await.unwrap());
}

#[tokio::test]
async fn server_without_a_ca_is_no_join_service() {
    let authority = authority();
    let identity = server_identity(&authority);
    for (code, body) in [(404, "no"), (403, "forbidden"), (200, "<html>")] {
        let service = Service::start(&authority, &identity, move |_| reply(code, body)).await;
        let error = fetch_ca(&at(&service.url), &token(&authority)).await.unwrap_err().to_string();
        assert!(error.contains("default port is 10002"), "{error}");
    }
}

#[test]
fn date_of_an_answer_is_parsed() {
    let mut answer = reply(200, "");
    answer.headers.push(("date".into(), "Sun, 06 Nov 1994 08:49:37 GMT".into()));
    assert_eq!(date(&answer), Some(time("1994-11-06T08:49:37Z")));
    answer.headers[0].1 = "yesterday".into();
    assert_eq!(date(&answer), None);
}
