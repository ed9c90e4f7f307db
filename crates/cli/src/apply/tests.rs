use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify};

use super::*;
use edgesync_api::Address;
use edgesync_object::{Status, kinds};

/// Limit for a run that waits for what never happens.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a request; returns its method and path.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap() == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.unwrap();
    let mut words = head.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}

/// Starts a server without objects, which answers a write when `write` has handled the name of the
/// object. Returns its address.
async fn server<F>(write: impl Fn(String) -> F + Clone + Send + Sync + 'static) -> Address
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut stream, write) = (BufReader::new(stream), write.clone());
            tokio::spawn(async move {
                while let Some((method, path)) = request(&mut stream).await {
                    let path = path.split('?').next().unwrap_or_default();
                    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                    let (code, body) = match method.as_str() {
                        "get" => {
                            let missing = Status::not_found(&kinds::guess("v1", "Any", true), &name);
                            (404, json!(missing).to_string())
                        }
                        _ => {
                            write(name).await;
                            (200, json!({"metadata": {"resourceVersion": "1"}}).to_string())
                        }
                    };
                    let head = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n", body.len());
                    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                }
            });
        }
    });
    address
}

/// Applies manifests; returns what was printed.
async fn applied(server: Address, manifests: &[String]) -> String {
    let (text, client) = (manifests.join("---\n"), Client::new(server));
    let (mut input, mut out, mut err) = (text.as_bytes(), Vec::new(), Vec::new());
    let mut terminal = Terminal { input: &mut input, out: &mut out, err: &mut err };
    let sources = ["-".to_owned()];
    let run = run(&client, &sources, None, &mut terminal);
    let summary = tokio::time::timeout(PATIENCE, run).await.expect("the run waits for ever").unwrap();
    assert_eq!((summary.failed, String::from_utf8(err).unwrap()), (0, String::new()));
    String::from_utf8(out).unwrap()
}

fn manifest(api_version: &str, kind: &str, name: &str) -> String {
    format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}}}\n")
}

#[tokio::test]
async fn objects_are_applied_concurrently_and_printed_in_order() {
    // No write is answered before all of them are sent.
    let barrier = Arc::new(Barrier::new(MAX_IN_FLIGHT));
    let server = server(move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
        }
    })
    .await;
    let names: Vec<String> = (0..MAX_IN_FLIGHT).map(|number| format!("m-{number}")).collect();
    let manifests: Vec<String> = names.iter().map(|name| manifest("v1", "ConfigMap", name)).collect();
    let expected: String = names.iter().map(|name| format!("configmap/{name} created\n")).collect();
    assert_eq!(applied(server, &manifests).await, expected);
}

/// The writes at a server, as `begin NAME` and `end NAME`.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<String>>>);

impl Writes {
    fn push(&self, event: &str, name: &str) {
        self.0.lock().unwrap().push(format!("{event} {name}"));
    }

    fn position(&self, event: &str) -> usize {
        let events = self.0.lock().unwrap();
        events.iter().position(|found| found == event).unwrap_or_else(|| panic!("{event}: {events:?}"))
    }
}

#[tokio::test]
async fn namespaces_and_definitions_precede_other_objects() {
    let writes = Writes::default();
    let log = writes.clone();
    let server = server(move |name| {
        let log = log.clone();
        async move {
            log.push("begin", &name);
            tokio::task::yield_now().await;
            log.push("end", &name);
        }
    })
    .await;
    let manifests = [
        manifest("v1", "ConfigMap", "first"),
        manifest("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets.lab.io"),
        manifest("v1", "Namespace", "shop"),
        manifest("v1", "ConfigMap", "last"),
    ];
    let printed = applied(server, &manifests).await;
    let expected = "configmap/first created\n\
                    customresourcedefinition.apiextensions.k8s.io/widgets.lab.io created\n\
                    namespace/shop created\n\
                    configmap/last created\n";
    assert_eq!(printed, expected);
    for prerequisite in ["end shop", "end widgets.lab.io"] {
        for other in ["begin first", "begin last"] {
            assert!(writes.position(prerequisite) < writes.position(other), "{prerequisite}, {other}");
        }
    }
}

#[tokio::test]
async fn manifests_of_one_object_are_applied_in_order() {
    let (writes, other) = (Writes::default(), Arc::new(Notify::new()));
    let log = writes.clone();
    let server = server(move |name| {
        let (log, other) = (log.clone(), Arc::clone(&other));
        async move {
            log.push("begin", &name);
            match name.as_str() {
                // The first write ends after that of another object, which is sent meanwhile.
                "twice" => other.notified().await,
                _ => other.notify_one(),
            }
            if name == "twice" {
                other.notify_one();
            }
            log.push("end", &name);
        }
    })
    .await;
    let manifests = ["twice", "once", "twice"].map(|name| manifest("v1", "ConfigMap", name));
    applied(server, &manifests).await;
    let events = writes.0.lock().unwrap().clone();
    let twice: Vec<&String> = events.iter().filter(|event| event.ends_with("twice")).collect();
    assert_eq!(twice, ["begin twice", "end twice", "begin twice", "end twice"], "{events:?}");
}

#[test]
fn messages_that_begin_with_the_object_need_no_prefix() {
    assert!(names_object("configmaps \"a\" not found (NotFound)", "a"));
    assert!(names_object("Deployment \"a\" is invalid: spec: Required value (Invalid)", "a"));
    assert!(!names_object("configmaps \"ab\" not found (NotFound)", "a"));
    assert!(!names_object("Operation cannot be fulfilled on configmaps \"a\": x (Conflict)", "a"));
    assert!(!names_object("kind not served (NotFound)", "a"));
}

#[test]
fn objects_are_named_as_in_kubectl() {
    let resource = |word| edgesync_object::kinds::by_word(word).unwrap().resource();
    assert_eq!(short_name(&resource("cm"), "a"), "configmap/a");
    assert_eq!(short_name(&resource("deploy"), "a"), "deployment.apps/a");
}

#[test]
fn summary_lists_all_counts_of_the_action() {
    let summary = Summary { created: 2, failed: 1, ..Summary::default() };
    let line = summary.line(Action::Apply);
    assert_eq!((line.as_str(), summary.exit_code()), ("2 created, 0 configured, 0 unchanged, 1 failed", 1));
    let summary = Summary { deleted: 3, absent: 1, ..Summary::default() };
    let line = |ignore_not_found| summary.line(Action::Delete { ignore_not_found });
    assert_eq!(line(false), "3 deleted, 0 failed");
    assert_eq!(line(true), "3 deleted, 1 not found, 0 failed");
    assert_eq!(summary.exit_code(), 0);
}
