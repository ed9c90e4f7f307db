//! The scripted CloudCore over its sockets: the behavior that the tests of the link rely on.
// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use edgesync_testkit::cloudcore;
use std::time::Duration;

use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Trust};
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use cloudcore::{Fault, Options, Scripted};

type Socket = WebSocketStream<edgesync_transport::tls::ClientStream<TcpStream>>;

fn client(cloud: &Scripted, identity: Option<&str>) -> Client {
    let authority = Certificate::from_der("the authority", &cloud.ca()).unwrap();
    let identity = identity.map(|pem| Identity::from_pem("a node", pem).unwrap());
    Client::new(&Trust::new(vec![authority]), identity.as_ref(), Clock::system([])).unwrap()
}

async fn connect(cloud: &Scripted, node: &str) -> Socket {
    let stream = TcpStream::connect(cloud.address()).await.unwrap();
    let stream = client(cloud, Some(&cloud.identity(node))).connect("127.0.0.1", stream).await.unwrap();
    let mut request = format!("{}/project/{node}/events", cloud.url()).into_client_request().unwrap();
    for (name, value) in [("node_id", node), ("project_id", "project"), ("ConnectionUse", "msg")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}

async fn say(socket: &mut Socket, operation: &str, resource: &str, parent: &str, content: Value) {
    let message = json!({
        "header": {"msg_id": "1c0e2a3f-0000-4000-8000-000000000001", "parent_msg_id": parent, "timestamp": 1},
        "route": {"source": "edged", "group": "meta", "operation": operation, "resource": resource},
        "content": content,
    });
    socket.send(Message::text(message.to_string())).await.unwrap();
}

async fn receive(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(text.as_str()).unwrap();
        }
    }
}

async fn register(socket: &mut Socket) {
    let labels = json!({"node-role.kubernetes.io/edge": ""});
    say(socket, "insert", "null/node/edge", "", json!({"metadata": {"name": "edge", "labels": labels}}))
        .await;
    assert_eq!(receive(socket).await["content"]["Err"], Value::Null);
    let update = receive(socket).await;
    assert_eq!(update["route"]["operation"], "update");
    acknowledge(socket, &update).await;
}

async fn acknowledge(socket: &mut Socket, message: &Value) {
    let id = message["header"]["msg_id"].as_str().unwrap();
    say(socket, "response", "x/y/z", id, json!("OK")).await;
}

fn pod(size: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "lab"},
        "spec": {"nodeName": "edge", "containers": [{"name": "c", "args": ["x".repeat(size)]}]}})
}

#[tokio::test]
async fn large_pod_is_pushed_resent_and_recorded_when_acknowledged() {
    let cloud = Scripted::start(Options::default());
    let mut socket = connect(&cloud, "edge").await;
    register(&mut socket).await;
    let uid = cloud.apply(pod(20_000));
    let (first, again) = (receive(&mut socket).await, receive(&mut socket).await);
    assert_eq!(first["header"]["msg_id"], again["header"]["msg_id"]);
    assert_eq!(cloud.objectsyncs("edge")[&uid], "0");
    acknowledge(&mut socket, &first).await;
    let version = first["header"]["resourceversion"].as_str().unwrap();
    cloud.until("the pod is recorded", |core| core.objectsyncs("edge")[&uid] == version).await;
}

#[tokio::test]
async fn cut_in_mid_frame_resends_on_the_next_connection() {
    let cloud = Scripted::start(Options::default());
    let mut socket = connect(&cloud, "edge").await;
    register(&mut socket).await;
    cloud.suffer(Fault::CutMidFrame);
    cloud.apply(pod(5000));
    assert!(socket.next().await.is_none_or(|message| message.is_err()));
    cloud.suffer(Fault::Slow { bytes: 700, pause: Duration::from_millis(1) });
    let mut socket = connect(&cloud, "edge").await;
    assert_eq!(receive(&mut socket).await["route"]["resource"], "lab/pod/web");
}

#[tokio::test]
async fn second_connection_closes_the_first_and_needs_a_certificate() {
    let cloud = Scripted::start(Options::default());
    let stream = TcpStream::connect(cloud.address()).await.unwrap();
    if let Ok(stream) = client(&cloud, None).connect("127.0.0.1", stream).await {
        let request = format!("{}/x", cloud.url()).into_client_request().unwrap();
        assert!(tokio_tungstenite::client_async(request, stream).await.is_err());
    }
    let mut first = connect(&cloud, "edge").await;
    let mut second = connect(&cloud, "edge").await;
    assert!(first.next().await.is_none_or(|message| message.is_err()));
    say(&mut second, "query", "kube-node-lease/lease/edge", "", Value::Null).await;
    assert_eq!(receive(&mut second).await["content"]["Err"]["ErrStatus"]["code"], 404);
}

/// Returns status and body of a response of the join service.
async fn get(
    client: &Client,
    cloud: &Scripted,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> (u16, Vec<u8>) {
    let address = cloud.join_url().trim_start_matches("https://").to_owned();
    let stream = TcpStream::connect(&address).await.unwrap();
    let stream = client.connect("127.0.0.1", stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(path).header("Host", &address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn join_service_issues_by_token_and_renews_by_certificate() {
    let cloud = Scripted::start(Options::default());
    let (hash, jwt) =
        cloud.token().split_once('.').map(|(hash, jwt)| (hash.to_owned(), jwt.to_owned())).unwrap();
    let unverified = Client::unverified().unwrap();
    let (status, ca) = get(&unverified, &cloud, "/ca.crt", &[], Vec::new()).await;
    let fingerprint = Certificate::from_der("/ca.crt", &ca).unwrap().fingerprint();
    assert_eq!((status, fingerprint), (200, hash));
    let anonymous = client(&cloud, None);
    let request = edgesync_transport::tls::Key::generate().unwrap().node_request("edge").unwrap();
    let bearer = format!("Bearer {jwt}");
    let headers = [("Authorization", bearer.as_str()), ("NodeName", "edge")];
    let (status, certificate) = get(&anonymous, &cloud, "/edge.crt", &headers, request.clone()).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&certificate));
    assert_eq!(
        Certificate::from_der("the node's", &certificate).unwrap().subject().requested_node(),
        Some("edge")
    );
    let node = client(&cloud, Some(&cloud.identity("edge")));
    let renew = |name: &'static str| vec![("NodeName", name)];
    assert_eq!(get(&node, &cloud, "/edge.crt", &renew("edge"), request.clone()).await.0, 200);
    assert_eq!(get(&node, &cloud, "/edge.crt", &renew("other"), request.clone()).await.0, 401);
    let expired = cloud.expired_token();
    let bearer = format!("Bearer {}", expired.split_once('.').unwrap().1);
    let (status, body) = get(&anonymous, &cloud, "/edge.crt", &[("Authorization", &bearer)], request).await;
    let body = String::from_utf8(body).unwrap();
    assert_eq!((status, body.ends_with("token is expired")), (401, true), "{body}");
    assert_eq!(get(&anonymous, &cloud, "/node/edge", &[], Vec::new()).await.1, b"Node not found");
    assert_eq!(
        get(&anonymous, &cloud, "/healthz", &[], Vec::new()).await,
        (404, b"404: Page Not Found".to_vec())
    );
}
