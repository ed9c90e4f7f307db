//! `edgesync check`, `backup`, `verify`, `repair` and `support-bundle` on an enrolled node:
//! healthy, and with one fault after the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use edgesync_admin::check::{CheckReport, CheckResult, CheckStatus};
use site::fleet::{Fleet, ended, identity_of, in_sync, output_text};
use site::{Agent, Site, Snapshot, edge_rows, objects, same_on_both_sides, secret};

/// Runs `edgesync` with these arguments against the node of an agent.
async fn edgesync(agent: &Agent, words: &[&str]) -> Output {
    let mut command = Command::new(edgesync_testkit::programs::device());
    command.args(words).env("EDGESYNC_CONFIG", agent.config()).env("EDGESYNC_SOCKET", &agent.socket);
    ended(command).await
}

/// Runs the checks; returns their report, with the exit code.
async fn check(agent: &Agent) -> (CheckReport, Option<i32>) {
    let output = edgesync(agent, &["check", "-o", "json"]).await;
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", output_text(&output)));
    (report, output.status.code())
}

fn of<'a>(report: &'a CheckReport, id: &str) -> &'a CheckResult {
    report.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no check {id}: {report:#?}"))
}

/// Asserts that a check failed, with this message and advice.
fn failed((report, code): &(CheckReport, Option<i32>), id: &str, seen: &str, next: &str) {
    let check = of(report, id);
    assert_eq!((check.status, *code), (CheckStatus::Failed, Some(1)), "{report:#?}");
    assert!(check.message.contains(seen), "{check:?}");
    assert!(check.next_step.as_ref().is_some_and(|step| step.contains(next)), "{check:?}");
}

/// Asserts that a check passed.
fn passed(report: &CheckReport, id: &str) {
    assert_eq!(of(report, id).status, CheckStatus::Ok, "{id}: {report:#?}");
}

async fn joined(site: &Site) -> (Fleet, Agent) {
    let fleet = Fleet::embedded(site, |_| {}).await;
    let mut agent = fleet.device(site, "edge-1").await;
    agent.run_as_configured().await;
    fleet.cloud.apply(objects(0..50).chain([secret(1_000)])).await;
    in_sync(&agent).await;
    same_on_both_sides(&fleet.cloud, &agent).await;
    (fleet, agent)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn healthy_node_passes_every_check() {
    let site = Site::new();
    let (_fleet, mut agent) = joined(&site).await;
    let before = edge_rows(&agent.database);
    let (report, code) = check(&agent).await;
    assert_eq!(code, Some(0), "{report:#?}");
    for id in [
        "configuration",
        "clock",
        "database-integrity",
        "seal-key",
        "certificate",
        "tcp",
        "tls",
        "cloud",
        "local-api",
    ] {
        passed(&report, id);
    }
    assert_eq!(report.checks.len(), 20);

    // Without the agent, which is the only failure, the checks also cover the connection and the
    // access rules.
    agent.stop().await;
    let stopped = check(&agent).await;
    failed(&stopped, "local-api", "agent not running", "edgesync");
    assert_eq!(stopped.0.counts.failed, 1, "{:#?}", stopped.0);
    for id in ["mqtt", "acl", "tls", "database-integrity"] {
        passed(&stopped.0, id);
    }
    assert_eq!(edge_rows(&agent.database), before, "a check changes nothing");
}

/// The life of a device in short. `packaging/test --cross` runs it with programs of other
/// architectures, too.
#[tokio::test]
async fn killed_node_without_its_database_passes_every_check() {
    let site = Site::new();
    let (fleet, mut agent) = joined(&site).await;
    fleet.cloud.apply(objects(50..1_000)).await;
    assert_eq!(same_on_both_sides(&fleet.cloud, &agent).await, 1_001);
    let before = fleet.cloud.counters(&agent.node).await;
    agent.process.kill();
    Snapshot::remove(&agent.database);
    agent.run_as_configured().await;
    assert_eq!(same_on_both_sides(&fleet.cloud, &agent).await, 1_001);
    assert_eq!(fleet.cloud.sent_since(&agent.node, before).await, (1_001, 0));
    let (report, code) = check(&agent).await;
    assert_eq!(code, Some(0), "{report:#?}");
}

#[tokio::test]
async fn faults_are_found_with_the_next_step() {
    let site = Site::new();
    let (mut fleet, mut agent) = joined(&site).await;
    agent.stop().await;

    let identity = identity_of(agent.config()).join("node.pem");
    set_mode(&identity, 0o644);
    failed(&check(&agent).await, "permissions", "node.pem", "chmod");
    set_mode(&identity, 0o600);

    let config = std::fs::read_to_string(agent.config()).unwrap();
    std::fs::write(agent.config(), format!("{config}\n[nonsense]\nx = 1\n")).unwrap();
    failed(&check(&agent).await, "configuration", "nonsense", "");
    let elsewhere = config.lines().map(|line| match line.starts_with("broker = ") {
        true => "broker = \"mqtts://nowhere.invalid\"\n".to_owned(),
        false => format!("{line}\n"),
    });
    std::fs::write(agent.config(), elsewhere.collect::<String>()).unwrap();
    failed(&check(&agent).await, "name-resolution", "nowhere.invalid", "");
    std::fs::write(agent.config(), &config).unwrap();

    let key = agent.database.with_file_name("seal.key");
    let away = agent.database.with_file_name("seal.key.away");
    std::fs::rename(&key, &away).unwrap();
    failed(&check(&agent).await, "seal-key", "does not exist", "start the agent");
    std::fs::rename(&away, &key).unwrap();

    let status = fleet.cloud.process.terminate(site::PATIENCE).await;
    assert!(status.success());
    failed(&check(&agent).await, "tcp", "", "");
}

#[tokio::test]
async fn flipped_bit_is_found_by_verify_and_fixed_by_repair() {
    let site = Site::new();
    let (fleet, mut agent) = joined(&site).await;
    let whole = edgesync(&agent, &["verify", "--online"]).await;
    assert_eq!(whole.status.code(), Some(0), "{}", output_text(&whole));
    let running = edgesync(&agent, &["repair"]).await;
    assert_eq!(running.status.code(), Some(1), "{}", output_text(&running));
    assert!(output_text(&running).contains("the agent is running; hint: "), "{}", output_text(&running));
    agent.stop().await;

    let mut bytes = std::fs::read(&agent.database).unwrap();
    let needle = b"\"line\":\"line-";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at + 2] ^= 1;
    std::fs::write(&agent.database, bytes).unwrap();
    let damaged = edgesync(&agent, &["verify"]).await;
    assert_eq!(damaged.status.code(), Some(1), "{}", output_text(&damaged));
    failed(&check(&agent).await, "database-integrity", "", "repair");

    let repaired = edgesync(&agent, &["repair"]).await;
    assert_eq!(repaired.status.code(), Some(0), "{}", output_text(&repaired));
    let whole = edgesync(&agent, &["verify"]).await;
    assert_eq!(whole.status.code(), Some(0), "{}", output_text(&whole));
    agent.run_as_configured().await;
    in_sync(&agent).await;
    same_on_both_sides(&fleet.cloud, &agent).await;
}

#[tokio::test]
async fn backups_are_complete_and_support_bundles_hide_secrets() {
    let site = Site::new();
    let (fleet, agent) = joined(&site).await;
    let copy = site.path("copy.db");
    let backup = edgesync(&agent, &["backup", copy.to_str().unwrap()]).await;
    assert_eq!(backup.status.code(), Some(0), "{}", output_text(&backup));
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(edge_rows(&copy), edge_rows(&agent.database));
    let again = edgesync(&agent, &["backup", copy.to_str().unwrap()]).await;
    assert_eq!(again.status.code(), Some(1), "{}", output_text(&again));

    let secret = fleet.cloud.get(&secret(1_000)).await;
    let word = secret["data"]["password"].as_str().unwrap().to_owned();
    let bundle = site.path("bundle.tar.zst");
    let output = edgesync(&agent, &["support-bundle", bundle.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    // A bundle that runs out of space leaves nothing behind that would block the next.
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f 1; exec \"$@\"",
        "sh",
        edgesync_testkit::programs::device(),
        "support-bundle",
    ]);
    let short = site.path("short.tar.zst");
    limited.arg(&short).env("EDGESYNC_CONFIG", agent.config()).env("EDGESYNC_SOCKET", &agent.socket);
    let limited = ended(limited).await;
    assert_eq!(limited.status.code(), Some(1), "{}", output_text(&limited));
    assert!(output_text(&limited).contains("File too large") && !short.exists(), "{}", output_text(&limited));

    let files = edgesync(&agent, &["files"]).await;
    assert_eq!(files.status.code(), Some(0), "{}", output_text(&files));
    assert!(
        output_text(&files).contains("No rules configured; see docs/files.md"),
        "{}",
        output_text(&files)
    );

    let bytes = zstd::decode_all(std::fs::File::open(&bundle).unwrap()).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("README.txt") && text.contains("edge-1"), "{} bytes", bytes.len());
    for hidden in [word.as_str(), "PRIVATE KEY", "credentials-1000"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    // The bundle also has no line of the device's own secrets: keys of its API and identity,
    // tokens.
    let mut files =
        ["api.pem", "token", "token-secrets"].map(|name| agent.database.with_file_name(name)).to_vec();
    let identity = std::fs::read_dir(identity_of(agent.config())).unwrap();
    files.extend(identity.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    let mut keys = 0;
    for file in files {
        let of = file.extension().unwrap_or_default();
        let mut is_secret = of != "pem" && of != "toml";
        for line in std::fs::read_to_string(&file).unwrap_or_default().lines() {
            if line.starts_with("-----") {
                is_secret = line.starts_with("-----BEGIN") && line.contains("PRIVATE KEY");
                keys += usize::from(is_secret);
            } else if is_secret && line.len() > 20 {
                assert!(!text.contains(line), "{}: {line}", file.display());
            }
        }
    }
    assert!(keys >= 2, "those of the API and of the identity");
}
