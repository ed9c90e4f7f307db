//! Addresses of proxies, variables, and answers to CONNECT, over pipes.

use super::*;
use tokio::io::{AsyncReadExt as _, duplex};

fn proxy(text: &str) -> Proxy {
    Proxy::parse(text).unwrap()
}

#[test]
fn addresses_are_parsed_with_user_and_port() {
    for (text, shown, username, password) in [
        ("http://proxy:3128", "http://proxy:3128", None, None),
        ("http://proxy/", "http://proxy:1080", None, None),
        ("proxy.example:8080", "http://proxy.example:8080", None, None),
        ("http://[2001:db8::1]:3128", "http://[2001:db8::1]:3128", None, None),
        ("http://me@10.0.0.1:1", "http://10.0.0.1:1", Some("me"), None),
        ("http://me:p%40ss%3A@h:1", "http://h:1", Some("me"), Some("p@ss:")),
    ] {
        let proxy = proxy(text);
        assert_eq!(proxy.to_string(), shown);
        assert_eq!((proxy.username.as_deref(), proxy.password.as_deref()), (username, password));
        assert_eq!(Proxy::parse(&proxy.secret_url()), Ok(proxy));
    }
}

#[test]
fn invalid_address_is_refused_without_its_password() {
    for bad in [
        "",
        "http://",
        "https://me:secret@a",
        "socks5://me:secret@a",
        "http://me:secret@a:0",
        "http://me:secret@a b",
    ] {
        let problem = Proxy::parse(bad).unwrap_err();
        assert!(problem.contains("http://proxy.example:3128") && !problem.contains("secret"), "{problem}");
    }
    let shown = format!("{:?}", proxy("http://me:secret@a"));
    assert!(shown.contains("me") && !shown.contains("secret"), "{shown}");
}

#[test]
fn usual_variables_are_read() {
    let rules = |set: &[(&str, &str)]| {
        ProxyRules::of_environment(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(rules(&[]).unwrap().proxy_for("a", 1), None);
    let of =
        |set: &[(&str, &str)], host: &str| rules(set).unwrap().proxy_for(host, 443).map(Proxy::to_string);
    assert_eq!(of(&[("https_proxy", "http://p:1")], "a").as_deref(), Some("http://p:1"));
    let both = [("ALL_PROXY", "http://q:1"), ("HTTPS_PROXY", "http://p:1")];
    assert_eq!(of(&both, "a").as_deref(), Some("http://p:1"));
    let excepted = [("HTTPS_PROXY", "p:1"), ("NO_PROXY", "example.com")];
    assert_eq!(of(&excepted, "mqtt.example.com"), None);
    assert_eq!(of(&excepted, "mqtt.example.org").as_deref(), Some("http://p:1"));
    assert_eq!(of(&excepted, "127.0.0.1"), None);
    // HTTP_PROXY is for http:// only.
    assert_eq!(of(&[("HTTP_PROXY", "http://p:1")], "a"), None);
    let error = rules(&[("HTTPS_PROXY", "socks5://p:1")]).unwrap_err();
    assert!(error.starts_with("variable HTTPS_PROXY must be"), "{error}");
}

/// Runs CONNECT against a proxy that sends `answer`; returns the request too.
async fn connect(proxy: &Proxy, answer: &[u8]) -> (Result<(), ProxyError>, String) {
    let (mut stream, mut peer) = duplex(64 * 1024);
    peer.write_all(answer).await.unwrap();
    let result = proxy.tunnel(&mut stream, "broker.example", 8883).await;
    drop(stream);
    let mut request = String::new();
    peer.read_to_string(&mut request).await.unwrap();
    (result, request)
}

async fn refusal(proxy: &Proxy, answer: &str) -> String {
    connect(proxy, answer.as_bytes()).await.0.unwrap_err().to_string()
}

#[tokio::test]
async fn tunnel_is_requested_with_basic_authentication() {
    let (result, request) =
        connect(&proxy("http://p:1"), b"HTTP/1.0 200 Connection established\r\n\r\n").await;
    result.unwrap();
    assert_eq!(request, "CONNECT broker.example:8883 HTTP/1.1\r\nHost: broker.example:8883\r\n\r\n");
    // The example of RFC 7617.
    let named = proxy("http://Aladdin@p:1").with_password("open sesame".to_owned());
    let (result, request) = connect(&named, b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n").await;
    result.unwrap();
    assert!(
        request.contains("\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn each_refusal_names_the_obstacle() {
    let (plain, named) = (proxy("http://p:1"), proxy("http://me@p:1"));
    let basic = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n";
    assert!(
        refusal(&plain, basic).await.starts_with("requires a user name and a password (HTTP status 407);")
    );
    assert!(refusal(&named, basic).await.starts_with("refused user 'me' (HTTP status 407);"));
    // As tinyproxy answers a wrong password, and a name that does not resolve.
    let wrong = "HTTP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\n\r\n";
    assert!(refusal(&named, wrong).await.starts_with("refused user 'me' (HTTP status 401);"));
    let unknown = refusal(&plain, "HTTP/1.1 500 Unable to connect\r\n\r\n").await;
    assert!(unknown.starts_with("cannot reach broker.example:8883 (HTTP status 500"), "{unknown}");
    let other = "HTTP/1.1 407 x\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM\r\n\r\n";
    assert!(refusal(&named, other).await.contains("offers Negotiate, NTLM, and only Basic is supported"));
    let forbidden = refusal(&plain, "HTTP/1.1 403 Forbidden\r\n\r\n").await;
    assert!(forbidden.starts_with("does not allow broker.example:8883"), "{forbidden}");
    let beyond = refusal(&plain, "HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
    assert!(beyond.starts_with("cannot reach broker.example:8883"), "{beyond}");
    assert!(refusal(&plain, "HTTP/1.1 405 No\r\n\r\n").await.contains("HTTP status 405 No"));
}

#[tokio::test]
async fn server_that_answers_everything_itself_is_no_proxy() {
    let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Welcome</html>";
    assert!(refusal(&proxy("http://p:1"), page).await.contains("captive portal"));
    assert!(refusal(&proxy("http://p:1"), "<html>Welcome</html>\r\n").await.contains("not an HTTP response"));
}

#[tokio::test]
async fn endless_head_ends_at_its_limit() {
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "X: y\r\n".repeat(5000));
    assert!(refusal(&proxy("http://p:1"), &endless).await.contains("exceeds"));
}
