//! Commands with the kubeconfig of a cluster, through a real proxy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::process::Command;

use edgesync_testkit::http_proxy::{HttpProxy, PASSWORD, USER};
use edgesync_testkit::programs;
use edgesync_testkit::site::Site;
use edgesync_testkit::site::fleet::{ended, output_text};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Refusal of the scripted API server.
const REFUSAL: &str = "the API server of this test refuses";

/// Starts an API server that tells its version, and refuses everything else.
async fn api_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn serve(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let (status, body) = if head.starts_with("GET /version ") {
            let text = |value: &str| json!(value);
            let version = json!({
                "major": text("1"), "minor": text("30"), "gitVersion": text("v1.30.0"), "gitCommit": text(""),
                "gitTreeState": text(""), "buildDate": text(""), "goVersion": text(""), "compiler": text(""),
                "platform": text(""),
            });
            ("200 OK", version)
        } else {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": REFUSAL,
                "reason": "Forbidden", "code": 403,
            });
            ("403 Forbidden", status)
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn commands_reach_a_cluster_through_the_proxy() {
    let (site, server) = (Site::new(), api_server().await);
    let proxy = HttpProxy::squid(server.port(), server.ip());
    // Only the proxy resolves the name.
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": format!("http://cloud.example:{}", server.port())}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    });
    let file = site.path("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let password = site.path("password");
    std::fs::write(&password, PASSWORD).unwrap();
    let run = async |variables: &[(&str, String)]| {
        let mut command = Command::new(programs::cloud());
        command.args(["nodes", "--kubeconfig"]).arg(&file);
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        output_text(&ended(command).await)
    };
    let address = proxy.address();
    let (named, full) = (format!("http://{USER}@{address}"), format!("http://{USER}:{PASSWORD}@{address}"));
    for variables in [
        vec![
            ("EDGESYNC_CLOUD_LINK_PROXY", named.clone()),
            ("EDGESYNC_CLOUD_LINK_PROXY_PASSWORD_FILE", password.display().to_string()),
        ],
        vec![("EDGESYNC_CLOUD_LINK_PROXY", "env".to_owned()), ("ALL_PROXY", full.clone())],
        vec![("HTTPS_PROXY", full.clone())],
        vec![("https_proxy", full.clone()), ("NO_PROXY", "other.example".to_owned())],
    ] {
        let text = run(&variables).await;
        assert!(text.contains(REFUSAL), "{variables:?}: {text}");
    }
    for variables in [
        vec![],
        vec![("HTTPS_PROXY", full.clone()), ("NO_PROXY", "cloud.example".to_owned())],
        vec![("EDGESYNC_CLOUD_LINK_PROXY", named.clone())],
    ] {
        let text = run(&variables).await;
        assert!(!text.contains(REFUSAL) && text.contains("connect to API server"), "{variables:?}: {text}");
    }
    let text = run(&[("EDGESYNC_CLOUD_LINK_PROXY", "socks5://p".to_owned())]).await;
    assert!(text.contains("SOCKS are not supported"), "{text}");
}
