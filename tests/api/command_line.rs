//! The command line's commands against a real server over the cloud's store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_admin::Route;
use edgesync_testkit::serving;
use std::path::Path;
use std::sync::Arc;

use edgesync_api::{Address, Client, Kind, Limits, Writable};
use edgesync_cli::apply::{self, Summary};
use edgesync_cli::get::{self, Query};
use edgesync_cli::output::Output;
use edgesync_cli::records::{self, RecordColumn};
use edgesync_cli::{CliError, EXIT_UNAVAILABLE, EXIT_USAGE, Terminal};
use edgesync_object::{NodeName, ObjectRef, kinds, yaml};
use edgesync_protocol::cloud::{Record, RecordBatch};
use edgesync_protocol::digest::Epoch;
use jiff::Timestamp;
use serde_json::{Value, json};
use serving::{Running, config_map, send};

/// Output of a command.
#[derive(Debug, Default)]
struct Printed {
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Printed {
    fn out(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.err.clone()).unwrap()
    }
}

async fn applied(
    client: &Client,
    sources: &[&str],
    namespace: Option<&str>,
    input: &str,
) -> (Summary, Printed) {
    let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
    let mut printed = Printed::default();
    let mut input = input.as_bytes();
    let mut terminal = Terminal { input: &mut input, out: &mut printed.out, err: &mut printed.err };
    let summary = apply::run(client, &sources, namespace, &mut terminal).await.unwrap();
    (summary, printed)
}

async fn deleted(client: &Client, source: &str, ignore_not_found: bool) -> (Summary, Printed) {
    let mut printed = Printed::default();
    let mut input = std::io::empty();
    let mut terminal = Terminal { input: &mut input, out: &mut printed.out, err: &mut printed.err };
    let sources = [source.to_owned()];
    let summary = apply::delete(client, &sources, None, ignore_not_found, &mut terminal).await.unwrap();
    (summary, printed)
}

async fn got(client: &Client, query: &Query) -> Result<Printed, CliError> {
    let mut printed = Printed::default();
    let mut input = std::io::empty();
    let mut terminal = Terminal { input: &mut input, out: &mut printed.out, err: &mut printed.err };
    get::run(client, query, Timestamp::now(), &mut terminal).await.map(|()| printed)
}

fn query(kind: &str, output: Output) -> Query {
    Query { kind: kind.into(), output, ..Query::default() }
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The server's form of `stringData` equals the stored one, whenever that was written.
#[tokio::test]
async fn reapplied_string_data_leaves_an_old_secret_unchanged() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: text}}";
    applied(&client, &["-"], None, secret).await;
    let path = "/api/v1/namespaces/default/secrets/s";
    let mut object: Value = client.get(path).await.unwrap();
    object["metadata"]["managedFields"][0]["time"] = json!("2020-01-01T00:00:00Z");
    let before: Value = client.put(path, &object).await.unwrap();
    assert_eq!(before["metadata"]["managedFields"][0]["time"], json!("2020-01-01T00:00:00Z"));

    let (_, printed) = applied(&client, &["-"], None, secret).await;
    assert_eq!(printed.out(), "secret/s unchanged\n");
    assert_eq!(client.get::<Value>(path).await.unwrap(), before);
}

#[tokio::test]
async fn apply_creates_leaves_unchanged_and_configures() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "2.json", &config_map("b", "1"));
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: lab}\nstringData: {k: text}\n";
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: 2\n  \
        selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    \
        spec: {containers: [{name: c, image: i}]}\n";
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: edge-1}\n";
    write(dir.path(), "1.yaml", &format!("# all\n---\n{secret}---\n{deployment}---\n{node}"));
    let source = dir.path().to_str().unwrap();

    let (summary, printed) = applied(&client, &[source], None, "").await;
    let expected = "secret/s created\ndeployment.apps/d created\nnode/edge-1 created\nconfigmap/b created\n";
    assert_eq!((printed.out().as_str(), printed.err().as_str()), (expected, ""));
    assert_eq!(summary, Summary { created: 4, ..Summary::default() });
    let (summary, printed) = applied(&client, &[source], None, "").await;
    assert_eq!(printed.out(), expected.replace("created", "unchanged"));
    assert_eq!(summary, Summary { unchanged: 4, ..Summary::default() });

    let (summary, printed) = applied(&client, &["-"], None, &config_map("b", "2")).await;
    assert_eq!((printed.out().as_str(), summary.configured), ("configmap/b configured\n", 1));
    let data: Value = client.get("/api/v1/namespaces/default/configmaps/b").await.unwrap();
    assert_eq!((&data["data"]["k"], &data["metadata"]["generation"]), (&json!("2"), &json!(2)));
    let secret: Value = client.get("/api/v1/namespaces/lab/secrets/s").await.unwrap();
    assert_eq!((&secret["data"]["k"], secret.get("stringData")), (&json!("dGV4dA=="), None));

    let (summary, printed) = deleted(&client, source, false).await;
    assert_eq!(summary.deleted, 4);
    assert!(printed.out().contains("deployment.apps \"d\" deleted\n"), "{}", printed.out());
    let (summary, printed) = deleted(&client, source, false).await;
    assert_eq!((summary.failed, summary.exit_code()), (4, 1));
    assert!(printed.err().contains(": configmaps \"b\" not found (NotFound)\n"), "{}", printed.err());
    assert!(!printed.err().contains("ConfigMap"), "{}", printed.err());
    assert_eq!(deleted(&client, source, true).await.0, Summary { absent: 4, ..Summary::default() });
}

/// All readers parse YAML by the rules of kubectl: octal numbers, and words for booleans.
#[tokio::test]
async fn yaml_scalars_parse_alike_in_apply_and_in_a_body() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let pod = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, annotations: {{on: 'on'}}}}\nspec:\n  hostNetwork: yes\n  \
             containers: [{{name: c, image: i}}]\n  volumes: [{{name: v, configMap: {{name: c, defaultMode: 0400}}}}]\n"
        )
    };
    let path = |name: &str| format!("/api/v1/namespaces/default/pods/{name}");
    assert_eq!(applied(&client, &["-"], None, &pod("by-command")).await.0.created, 1);
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "pod.yaml", &pod("by-file"));
    assert_eq!(applied(&client, &[&file], None, "").await.0.created, 1);
    let headers = "Content-Type: application/apply-patch+yaml\r\n";
    let applied = format!("{}?fieldManager=m", path("by-patch"));
    assert_eq!(send(&running.unix, "PATCH", &applied, headers, &pod("by-patch")).await.code, 201);
    let headers = "Content-Type: application/yaml\r\n";
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(send(&running.unix, "POST", pods, headers, &pod("by-create")).await.code, 201);
    for name in ["by-command", "by-file", "by-patch", "by-create"] {
        let found: Value = client.get(&path(name)).await.unwrap();
        let spec = &found["spec"];
        let read = (&spec["volumes"][0]["configMap"]["defaultMode"], &spec["hostNetwork"]);
        assert_eq!(read, (&json!(256), &json!(true)), "{name}");
        assert_eq!(found["metadata"]["annotations"], json!({"true": "on"}), "{name}");
    }
}

#[tokio::test]
async fn apply_keeps_a_reported_status() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let pod = |image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    };
    assert_eq!(applied(&client, &["-"], None, &pod("a")).await.0.created, 1);
    let path = "/api/v1/namespaces/default/pods/p";
    let mut reported: Value = client.get(path).await.unwrap();
    reported["status"]["phase"] = json!("Running");
    client.put::<Value>(&format!("{path}/status"), &reported).await.unwrap();
    assert_eq!(applied(&client, &["-"], None, &pod("a")).await.0.unchanged, 1);
    assert_eq!(applied(&client, &["-"], None, &pod("b")).await.0.configured, 1);
    let pod: Value = client.get(path).await.unwrap();
    let shown = (&pod["status"]["phase"], &pod["spec"]["containers"][0]["image"]);
    assert_eq!(shown, (&json!("Running"), &json!("b")));
}

#[tokio::test]
async fn apply_names_failed_documents_and_applies_the_rest() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let dir = tempfile::tempdir().unwrap();
    let good = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    let text = format!("{}---\nkind: [\n---\n{}---\n{}", good("a"), good("'B!'"), good("c"));
    let file = write(dir.path(), "f.yaml", &text);
    let (summary, printed) = applied(&client, &["/does/not/exist", &file], Some("lab"), "").await;
    assert_eq!((summary.created, summary.failed, summary.exit_code()), (2, 3, 1));
    assert_eq!(printed.out(), "configmap/a created\nconfigmap/c created\n");
    let err = printed.err();
    let lines: Vec<&str> = err.lines().collect();
    assert!(lines[0].starts_with("error: read /does/not/exist: No such file"), "{err}");
    assert!(lines[1].starts_with(&format!("error: {file}, document 2: line ")), "{err}");
    assert!(
        lines[2].starts_with(&format!("error: {file}, document 3: ConfigMap \"B!\" is invalid: ")),
        "{err}"
    );
    assert!(lines[2].contains("metadata.name: ") && lines[2].ends_with("(Invalid)"), "{err}");
    let other = format!("{}---\n{}", good("x"), good("z").replace("name: z", "name: z, namespace: other"));
    let (summary, printed) = applied(&client, &["-"], Some("lab"), &other).await;
    assert_eq!((summary.created, summary.failed), (1, 1));
    assert!(
        printed.err().contains("'other' in the manifest does not match 'lab' of -n"),
        "{}",
        printed.err()
    );
}

#[tokio::test]
async fn many_objects_are_summarized_after_their_lines() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let objects = |count: usize| -> String {
        let one = |number| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c-{number}}}\n");
        (0..count).map(one).collect()
    };
    let (_, printed) = applied(&client, &["-"], None, &objects(20)).await;
    assert_eq!((printed.out().lines().count(), &*printed.err()), (20, ""));
    let (_, printed) = applied(&client, &["-"], None, &objects(21)).await;
    assert_eq!(printed.out().lines().count(), 21);
    assert_eq!(printed.err(), "21 objects: 1 created, 0 configured, 20 unchanged, 0 failed\n");
}

#[tokio::test]
async fn custom_kinds_are_applied_and_listed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let storage = serving::open(&dir.path().join("cloud.db")).await;
    let resource = Arc::new(kinds::guess("example.com/v1", "Widget", true));
    storage.set_custom(&[Arc::new(Kind {
        custom: true,
        writable: Writable::Everything,
        ..Kind::without_schema(resource)
    })]);
    let running = Running::start(Arc::new(storage), Limits::cloud()).await;
    let client = running.client();
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: default}\n";
    assert_eq!(applied(&client, &["-"], None, widget).await.0.created, 1);
    for word in ["widgets", "Widget", "widgets.example.com", "widget/w"] {
        let printed = got(&client, &query(word, Output::Name)).await.unwrap();
        assert_eq!(printed.out(), "widget.example.com/w\n", "{word}");
    }
    let unknown = got(&client, &query("gizmos", Output::Table)).await.unwrap_err();
    assert_eq!(unknown.to_string(), "the server doesn't have a resource type \"gizmos\"");
}

#[tokio::test]
async fn get_shows_objects_in_every_format() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let object = |name: &str, namespace: &str, label: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"on": "true", "run": "a\n\n b\n"},
            "metadata": {"name": name, "namespace": namespace, "labels": {"l": label}}})
        .to_string()
    };
    let all = [object("a", "default", "1"), object("bcd", "default", "2"), object("c", "lab", "1")].concat();
    applied(&client, &["-"], None, &all).await;

    let lines = |printed: Printed| -> Vec<Vec<String>> {
        printed.out().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let table = lines(got(&client, &query("cm", Output::Table)).await.unwrap());
    assert_eq!(table[0], ["NAME", "DATA", "AGE"]);
    assert_eq!(
        (&table[1][..2], &table[2][..2]),
        (&["a".into(), "2".into()][..], &["bcd".into(), "2".into()][..])
    );
    let everywhere = Query { all_namespaces: true, selector: "l=1".into(), ..query("cm", Output::Wide) };
    let table = lines(got(&client, &everywhere).await.unwrap());
    assert_eq!(table[0], ["NAMESPACE", "NAME", "DATA", "AGE", "VERSION", "UID", "LABELS"]);
    assert_eq!((table.len(), &*table[2][0], &*table[2][6]), (3, "lab", "l=1"));

    let one = Query { names: vec!["a".into()], ..query("configmap", Output::Yaml) };
    let printed = got(&client, &one).await.unwrap().out();
    assert!(printed.contains("  \"on\": \"true\"\n") || printed.contains("  'on': "), "{printed}");
    let stored: Value = client.get("/api/v1/namespaces/default/configmaps/a").await.unwrap();
    assert_eq!(yaml::parse(&printed).unwrap(), stored);
    for output in [Output::Yaml, Output::Json] {
        let printed =
            got(&client, &Query { all_namespaces: true, ..query("cm", output) }).await.unwrap().out();
        let list = yaml::parse(&printed).unwrap();
        assert_eq!(
            (&list["kind"], list["items"].as_array().unwrap().len()),
            (&json!("List"), 3),
            "{printed}"
        );
        let (summary, _) = applied(&client, &["-"], None, &printed).await;
        assert_eq!(summary.unchanged, 3, "what get prints can be applied: {output:?}");
    }
}

#[tokio::test]
async fn get_reports_an_empty_result() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let printed = got(&client, &query("cm", Output::Table)).await.unwrap();
    assert_eq!((printed.out().as_str(), &*printed.err()), ("", "No resources found in default namespace.\n"));
    let printed = got(&client, &query("nodes", Output::Table)).await.unwrap();
    assert_eq!(printed.err(), "No resources found\n");
    let printed = got(&client, &query("cm", Output::Json)).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&printed.out()).unwrap()["items"], json!([]));
    let missing = Query { names: vec!["none".into()], ..query("cm", Output::Table) };
    let error = got(&client, &missing).await.unwrap_err();
    assert_eq!(error.to_string(), "configmaps \"none\" not found");
    let odd = Query { names: vec!["a".into()], all_namespaces: true, ..query("cm", Output::Table) };
    assert_eq!(got(&client, &odd).await.unwrap_err().exit_code(), EXIT_USAGE);
}

#[tokio::test]
async fn get_shows_every_page_of_a_list() {
    let running = Running::cloud(Limits::cloud()).await;
    let client = running.client();
    let all: String = (0..1_100).map(|number| config_map(&format!("m{number:04}"), "v")).collect();
    assert_eq!(applied(&client, &["-"], None, &all).await.0.created, 1_100);
    let printed = got(&client, &query("cm", Output::Name)).await.unwrap().out();
    assert_eq!((printed.lines().count(), printed.lines().last()), (1_100, Some("configmap/m1099")));
}

#[tokio::test]
async fn syncs_are_listed_by_node_as_table_or_yaml() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(serving::open(&dir.path().join("cloud.db")).await);
    for (node, namespaces) in [("edge-1", &["lab", ""][..]), ("edge-2", &["lab"])] {
        let put = namespaces.iter().map(|namespace| {
            let object = ObjectRef {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: (*namespace).into(),
                name: "web".into(),
            };
            let record = Record { version: 77.into(), object: Arc::new(object) };
            (format!("u-{}", namespace.len()).into(), record)
        });
        let batch =
            RecordBatch { epoch: Epoch(1), confirmed: 1, put: put.collect(), ..RecordBatch::default() };
        storage.store().record(&NodeName::parse(node).unwrap(), None, batch).await.unwrap();
    }
    let running = Running::start(storage, Limits::cloud()).await;
    let client = running.client();

    let mut printed = Printed::default();
    let mut input = std::io::empty();
    let mut terminal = Terminal { input: &mut input, out: &mut printed.out, err: &mut printed.err };
    let now = Timestamp::now();
    records::syncs(&client, Some("edge-1"), Output::Table, now, &mut terminal).await.unwrap();
    let columns = [&RecordColumn::value("text", |text: &String| Value::from(text.as_str()))];
    records::table(&[], &columns, now, &mut terminal).unwrap();
    records::sheet(&client, Route::Status, Output::Table, &mut terminal).await.unwrap();
    let out = printed.out();
    let lines: Vec<String> =
        out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "NODE KIND NAMESPACE OBJECT VERSION AGE");
    assert!(lines[1].starts_with("edge-1 ConfigMap <none> web 77 "), "{out}");
    assert!(lines[2].starts_with("edge-1 ConfigMap lab web 77 "), "{out}");
    assert_eq!(lines[3..], ["In sync: yes", "Node: edge-1"]);
    assert_eq!(printed.err(), "No resources found\n", "an answer without records is an empty table");
}

#[tokio::test]
async fn missing_server_exits_with_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let client = Client::new(Address::Unix(dir.path().join("none.sock")));
    let error = got(&client, &query("cm", Output::Table)).await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNAVAILABLE);
    let error = got(&client, &query("gizmos", Output::Table)).await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNAVAILABLE, "a kind that would have to be asked for");
    let mut printed = Printed::default();
    let manifest = config_map("a", "1");
    let mut input = manifest.as_bytes();
    let mut terminal = Terminal { input: &mut input, out: &mut printed.out, err: &mut printed.err };
    let error = apply::run(&client, &["-".into()], None, &mut terminal).await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNAVAILABLE);
    let error = apply::run(&client, &[], None, &mut terminal).await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_USAGE);
}

#[tokio::test]
async fn apply_of_an_unserved_kind_asks_for_its_definition() {
    let running = Running::cloud(Limits::cloud()).await;
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: default}\n";
    let (summary, printed) = applied(&running.client(), &["-"], None, widget).await;
    assert_eq!((summary.created, summary.failed), (0, 1));
    assert!(printed.err().contains("apply its CustomResourceDefinition first"), "{}", printed.err());
}
