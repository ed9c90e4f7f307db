#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use serde_json::value::RawValue;

use super::*;
use crate::check::Finding;
use crate::check::tests::Testbed;
use edgesync_api::Address;
use edgesync_object::{Resource, ResourceVersion, Scope};
use edgesync_protocol::change::{Change, Put};

/// Text that must not be in any bundle.
const MARKER: &str = "MARKER-MUST-NOT-LEAVE";

fn secret() -> Change {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"{MARKER}-name","namespace":"x"}},"stringData":{{"a":"{MARKER}-body"}}}}"#
    );
    Change::Put(Put {
        uid: "uid-secret".into(),
        version: ResourceVersion::from("1"),
        supersedes: None,
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "Secret".into(),
            plural: "secrets".into(),
            scope: Scope::Namespaced,
        }),
        namespace: "x".into(),
        name: format!("{MARKER}-name").into(),
        body: RawValue::from_string(body).unwrap(),
    })
}

/// A device with markers in all files with secrets.
async fn marked() -> (Testbed, Report) {
    let testbed = Testbed::new("");
    let identity = testbed.path("identity");
    fs::create_dir_all(&identity).unwrap();
    fs::create_dir_all(testbed.path("state")).unwrap();
    for (file, text) in [
        ("identity/node.pem", format!("-----BEGIN PRIVATE KEY-----\n{MARKER}\n-----END PRIVATE KEY-----\n")),
        ("state/token", format!("{MARKER}-token-of-clients\n")),
        ("state/token-secrets", format!("{MARKER}-token-of-readers\n")),
        (
            "state/seal.key",
            format!("edgesync-seal 1\nkey 1 2026-11-23T12:12:31Z plain {MARKER}AAAAAAAAAAAA\n"),
        ),
        ("password", format!("{MARKER}-password\n")),
    ] {
        fs::write(testbed.path(file), text).unwrap();
    }
    let password = testbed.path("password").display().to_string();
    testbed.configure(&format!(
        "[link]\nusername = \"u\"\npassword_file = {password:?}\n# password = \"{MARKER}\"\n"
    ));
    let store = testbed.store().await;
    store.apply(vec![secret()]).await.unwrap();
    store.close().await;
    let message = format!(
        "object x/{MARKER}-name, token {MARKER}-token-of-clients, password {MARKER}-password, \
         body sealed:1:1:{MARKER}, mqtt://u:{MARKER}@b"
    );
    let failed = Finding::Failed { message, next_step: format!("Bearer {MARKER}") };
    (testbed, Report(vec![("mqtt", "MQTT", failed)]))
}

#[tokio::test]
async fn the_bundle_contains_no_secret_of_the_device() {
    let (testbed, report) = marked().await;
    let client = Client::new(Address::Unix(testbed.path("edgesync.sock")));
    let mut bundle = collect(&testbed.config_path(), &report, &client).await;
    bundle.text(
        "journal.txt",
        &format!(
            "2026-11-23T12:12:31Z gw edgesync: x/{MARKER}-name rejected; token={MARKER}-token-of-readers; {MARKER}-password\n"
        ),
    );
    for (name, content) in bundle.files() {
        let text = String::from_utf8(content.to_vec()).unwrap();
        assert!(!text.contains(MARKER), "{name}:\n{text}");
    }
    let journal = bundle.files().filter(|(name, _)| name.ends_with("journal.txt")).last().unwrap();
    assert!(journal.1.starts_with(b"2026-11-23T12:12:31Z gw"), "a time is no secret");
    let packed = bundle.pack().unwrap();
    let plain = zstd::bulk::decompress(&packed, 32 << 20).unwrap();
    assert!(!plain.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()));
}

#[tokio::test]
async fn the_bundle_contains_what_a_report_requires() {
    let (testbed, report) = marked().await;
    let client = Client::new(Address::Unix(testbed.path("edgesync.sock")));
    let bundle = collect(&testbed.config_path(), &report, &client).await;
    let text = |name: &str| {
        let found = bundle.files().find(|(file, _)| *file == format!("edgesync-support/{name}")).unwrap();
        String::from_utf8(found.1.to_vec()).unwrap()
    };
    for line in README.lines().filter_map(|line| line.split_once("   ")) {
        assert!(!text(line.0).is_empty(), "{}", line.0);
    }
    assert!(text("config.toml").contains("name = \"gw-1\""), "{}", text("config.toml"));
    assert!(text("directories.txt").contains("seal.key"), "{}", text("directories.txt"));
    assert!(text("check.json").contains("\"id\": \"mqtt\""));
    assert!(text("status.json").contains("connect to"), "{}", text("status.json"));
    assert!(text("system.txt").contains("MemTotal"), "{}", text("system.txt"));
    assert!(text("versions.txt").contains(VERSION));
}
