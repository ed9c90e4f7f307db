//! Attacks on the web page: another user of the machine, another page in the operator's browser,
//! DNS rebinding, and a compromised page.

use std::net::SocketAddr;

use edgesync_admin::Route;
use edgesync_admin::cloud::{PageInvitation, RevokedPageKeys};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use edgesync_testkit::site::{Cloud, Site, ask, secret};

#[derive(Debug)]
struct Answer {
    code: u16,
    head: String,
    body: String,
}

/// A cloud side and the address of its page.
struct Page {
    _site: Site,
    cloud: Cloud,
    address: SocketAddr,
    key: String,
}

impl Page {
    async fn start() -> Self {
        let site = Site::new();
        let cloud = Cloud::start(&site).await;
        let PageInvitation { url, .. } = ask(&cloud.client(), Route::Page).await.unwrap();
        let (address, key) = url.strip_prefix("http://").unwrap().split_once("/page/#key=").unwrap();
        Self { _site: site, cloud, address: address.parse().unwrap(), key: key.to_owned() }
    }

    /// Sends a request with these headers; `Host` is valid unless one is given.
    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all((text + "\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { code, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }
}

const NODES: &str = "/edgesync/v1/nodes";
const REMOVE: &str = "/edgesync/v1/nodes/nobody/remove";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_without_a_key_shows_no_data() {
    let page = Page::start().await;
    let html = page.ask("GET", "/page/", &[]).await;
    assert_eq!(html.code, 200, "{html:?}");
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-opener-policy: same-origin",
        "content-type: text/html",
    ] {
        assert!(html.head.contains(header), "{header} is missing: {}", html.head);
    }
    assert_eq!(page.ask("GET", "/page/main.js", &[]).await.code, 200);
    for path in ["/page/../cloud.toml", "/page/%2e%2e/cloud.db", "/page/nothing.js", "/page/site/index.html"]
    {
        let answer = page.ask("GET", path, &[]).await;
        assert!([401, 404].contains(&answer.code), "{path}: {answer:?}");
    }
    assert_eq!(page.ask("POST", "/page/main.js", &[]).await.code, 401);
    for path in
        [NODES, "/edgesync/v1/summary", "/edgesync/v1/summary?watch=1", "/api/v1/nodes", "/metrics", "/"]
    {
        assert_eq!(page.ask("GET", path, &[]).await.code, 401, "{path}");
        let (claims, signature) = page.key.rsplit_once('.').unwrap();
        let wrong = format!("Bearer {}x.{signature}", &claims[..claims.len() - 1]);
        assert_eq!(page.ask("GET", path, &[("Authorization", &wrong)]).await.code, 401, "{path}");
    }
    let shown = page.ask("GET", "/", &[("Accept", "text/html,*/*;q=0.8")]).await;
    assert_eq!((shown.code, shown.head.contains("location: /page/")), (303, true), "{shown:?}");
    assert_eq!(page.ask("GET", NODES, &[("Authorization", &page.bearer())]).await.code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cross_origin_pages_can_neither_read_nor_act() {
    let page = Page::start().await;
    let bearer = page.bearer();
    let key = ("Authorization", bearer.as_str());
    for stray in [
        ("Host", "rebound.example"),
        ("Host", "127.0.0.1.rebound.example:80"),
        ("Origin", "https://elsewhere.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        assert_eq!(page.ask("GET", NODES, &[key, stray]).await.code, 403, "{stray:?}");
        let marked = [key, stray, ("X-Edgesync-Page", "1")];
        assert_eq!(page.ask("POST", REMOVE, &marked).await.code, 403, "{stray:?}");
    }
    let origin = format!("http://{}", page.address);
    let own = [key, ("Origin", origin.as_str()), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(page.ask("GET", NODES, &own).await.code, 200);
    assert_eq!(page.ask("POST", REMOVE, &own).await.code, 403, "without the header");
    let marked = [own.as_slice(), &[("X-Edgesync-Page", "1")]].concat();
    assert_eq!(
        page.ask("POST", REMOVE, &marked).await.code,
        404,
        "it is done, but for a node that is not there"
    );
    let asked = page.ask("OPTIONS", REMOVE, &[("Origin", "https://elsewhere.example")]).await;
    assert!(!asked.head.contains("access-control"), "nobody else is let in: {asked:?}");
    assert_eq!(page.ask("POST", REMOVE, &[key]).await.code, 404, "who is no browser needs no header");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compromised_page_reads_no_secret_and_creates_no_admin_key() {
    let page = Page::start().await;
    page.cloud.apply([secret(1)]).await;
    let bearer = page.bearer();
    let headers = [("Authorization", bearer.as_str()), ("X-Edgesync-Page", "1")];
    for path in ["/api/v1/secrets", "/api/v1/namespaces/default/secrets/x"] {
        assert_eq!(page.ask("GET", path, &headers).await.code, 403, "{path}");
    }
    let found = page.ask("GET", "/edgesync/v1/objects?kind=secret", &headers).await;
    assert_eq!(
        (found.code, serde_json::from_str::<Value>(&found.body).unwrap()["items"].clone()),
        (200, json!([]))
    );
    // Neither keys for others nor another key for itself, which would outlive its own.
    for path in
        ["tokens", "operators", "broker-config", "nodes/a/revoke", "nodes/a/forget", "page", "page/revoke"]
    {
        let path = format!("/edgesync/v1/{path}");
        assert_eq!(page.ask("POST", &path, &headers).await.code, 403, "{path}");
    }
    assert_eq!(page.ask("DELETE", "/api/v1/nodes/a", &headers).await.code, 403);
    assert_eq!(page.ask("POST", REMOVE, &headers).await.code, 404);
    page.cloud.process.logged("page key of uid ", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_page_key_ends_its_requests_and_its_watch() {
    let page = Page::start().await;
    let bearer = page.bearer();
    let headers = [("Authorization", bearer.as_str())];
    let mut watch = TcpStream::connect(page.address).await.unwrap();
    let request = format!(
        "GET /edgesync/v1/summary?watch=1 HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\r\n",
        page.address
    );
    watch.write_all(request.as_bytes()).await.unwrap();
    let mut lines = Vec::new();
    while !String::from_utf8_lossy(&lines).contains("SNAPSHOT") {
        assert!(watch.read_buf(&mut lines).await.unwrap() > 0, "{}", String::from_utf8_lossy(&lines));
    }
    assert_eq!(page.ask("GET", NODES, &headers).await.code, 200);
    ask::<RevokedPageKeys>(&page.cloud.client(), Route::RevokePageKeys).await.unwrap();
    // Ends by itself.
    watch.read_to_end(&mut lines).await.unwrap();
    assert_eq!(page.ask("GET", NODES, &headers).await.code, 401);
}
