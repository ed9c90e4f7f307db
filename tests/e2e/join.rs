//! Enrollment end to end: tokens, names, files, renewal, devices that were off, operators of the
//! API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use edgesync_admin::agent::AgentStatus;
use edgesync_admin::cloud::state::{NEVER_CONNECTED, REVOKED};
use edgesync_admin::cloud::{NodeInfo, NodeList};
use edgesync_admin::{Route, read};
use serde_json::Value;
use site::fleet::{Fleet, ended, identity_of, in_sync, output_text, stored};
use site::{PATIENCE, Site, ask, config_map, eventually, same_on_both_sides};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn device_joins_with_a_token_and_syncs_over_tls() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut agent = fleet.device(&site, "edge-1").await;
    let identity = identity_of(agent.config());
    assert_eq!((mode(&identity), mode(&identity.join("node.pem"))), (0o700, 0o600));
    for secret in ["ca.key", "token.key", "server.pem"] {
        assert_eq!(mode(&site.path("pki").join(secret)), 0o600, "{secret}");
    }
    agent.run_as_configured().await;
    fleet.cloud.apply([config_map(1), site::secret(2)]).await;
    in_sync(&agent).await;
    same_on_both_sides(&fleet.cloud, &agent).await;
    let identity_status = agent.status().await.identity.unwrap();
    assert_eq!((&*identity_status.subject, &*identity_status.validity), ("edge-1", "valid"));
    let node: Value = fleet.cloud.client().get("/api/v1/nodes/edge-1").await.unwrap();
    let conditions = node["status"]["conditions"].as_array().unwrap();
    let valid =
        conditions.iter().find(|condition| condition["type"] == "edgesync.io/CertificateValid").unwrap();
    assert_eq!(valid["status"], "True", "{valid}");

    // A second join changes nothing and does not use the token.
    let before = std::fs::read(identity.join("node.pem")).unwrap();
    let output = fleet.join(&agent, &fleet.token(&["--node", "edge-1"]).await, &[]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(std::fs::read(identity_of(agent.config()).join("node.pem")).unwrap(), before);

    // The log has no refusals for a device that joined.
    let log = fleet.cloud.process.log();
    assert!(log.iter().any(|line| line.contains("node joined")), "{log:#?}");
    let refusals: Vec<_> =
        log.iter().filter(|line| line.contains("refused") || line.contains("code=401")).collect();
    assert!(refusals.is_empty(), "{refusals:#?}");
}

#[tokio::test]
async fn refused_joins_say_what_to_do() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let first = fleet.new_device(&site, "edge-1");
    let refused = async |agent: &site::Agent, token: &str, expected: &str| {
        let output = fleet.join(agent, token, &[]).await;
        assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
        assert!(output_text(&output).contains(expected), "{expected}: {}", output_text(&output));
        assert!(
            !output_text(&output).contains(token.split('.').next_back().unwrap()),
            "the token is not shown"
        );
    };

    let token = fleet.token(&[]).await;
    assert!(fleet.join(&first, &token, &[]).await.status.success());
    // A used token.
    let second = fleet.new_device(&site, "edge-2");
    refused(&second, &token, "token create").await;
    // A taken name, with a token for any node.
    let thief = Site::new();
    refused(&fleet.new_device(&thief, "edge-1"), &fleet.token(&[]).await, "taken").await;
    // A token for another node.
    refused(&second, &fleet.token(&["--node", "edge-3"]).await, "edge-3").await;
    // A revoked token.
    let token = fleet.token(&[]).await;
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(2).unwrap()).unwrap();
    let id = serde_json::from_slice::<Value>(&claims).unwrap()["jti"].as_str().unwrap().to_owned();
    let listed = output_text(&fleet.command(&["token", "list"]).await);
    assert!(listed.contains(&id) && !listed.contains(&token[70..]), "{listed}");
    assert!(fleet.command(&["token", "revoke", &id]).await.status.success());
    refused(&second, &token, "revoked").await;
    // A token of another cloud.
    let elsewhere = Site::new();
    let other = Fleet::embedded(&elsewhere, |_| {}).await;
    refused(&second, &other.token(&[]).await, "but the token is for").await;
    // A forged token.
    let token = fleet.token(&[]).await;
    let mut forged = token.clone();
    forged.replace_range(token.len() - 4.., if token.ends_with("AAAA") { "BBBB" } else { "AAAA" });
    refused(&second, &forged, "token").await;
    let left = std::fs::read_dir(second.database.with_file_name("identity")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing was written");
}

#[tokio::test]
async fn certificates_are_renewed_without_an_interruption() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.text("enrollment.certificate_lifetime", "1m");
    })
    .await;
    let mut agent = fleet.device(&site, "edge-1").await;
    let joined = stored(&agent).identity;
    agent.run_as_configured().await;
    in_sync(&agent).await;
    eventually("the certificate is renewed", Duration::from_secs(90), async || {
        (agent.status().await.identity?.renewals > 0).then_some(())
    })
    .await;
    assert_eq!(agent.status().await.link.connections, 1, "the connection was not interrupted");
    let renewed = stored(&agent);
    assert_ne!(renewed.identity.certificate().serial(), joined.certificate().serial());
    assert_eq!(
        renewed.previous.unwrap().certificate(),
        joined.certificate(),
        "kept until the new one has worked"
    );
    // The next connection uses the new certificate, and then the agent removes the old one.
    fleet.cloud.apply([config_map(1)]).await;
    agent.crash_as_configured().await;
    in_sync(&agent).await;
    eventually("the old one is removed", PATIENCE, async || stored(&agent).previous.is_none().then_some(()))
        .await;
    same_on_both_sides(&fleet.cloud, &agent).await;
}

#[tokio::test]
async fn expired_device_renews_itself_within_the_grace_period() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.text("enrollment.certificate_lifetime", "1m");
    })
    .await;
    let mut agent = fleet.device(&site, "edge-1").await;
    // The certificate is still valid in its last second.
    let ends = stored(&agent).identity.certificate().ends();
    eventually("the certificate has ended", Duration::from_secs(90), async || {
        (jiff::Timestamp::now() > ends).then_some(())
    })
    .await;
    agent.run_as_configured().await;
    in_sync(&agent).await;
    assert!(stored(&agent).identity.certificate().not_after() > ends);
}

#[tokio::test]
async fn operators_authenticate_by_certificate_until_revoked() {
    let site = Site::new();
    let mut cloud = site::Cloud::start(&site).await;
    let ask = async |words: &[&str]| {
        let mut command = Command::new(edgesync_testkit::programs::cloud());
        command.args(words);
        ended(command).await
    };
    let (address, socket) = (format!("https://{}", cloud.api), cloud.socket.to_str().unwrap().to_owned());
    let kubeconfig = async |user: &str, role: &str| {
        let words = ["kubeconfig", "--user", user, "--role", role, "--api", &address, "--server", &socket];
        let output = ask(&words).await;
        assert!(output.status.success(), "{}", output_text(&output));
        let path = site.path(&format!("{user}.kubeconfig"));
        std::fs::write(&path, &output.stdout).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ada, eve) = (kubeconfig("ada", "admin").await, kubeconfig("eve", "view").await);
    // The kubeconfig contains the address of the API.
    for (file, role) in [(&ada, "admin"), (&eve, "view")] {
        let nodes = ask(&["nodes", "--kubeconfig", file]).await;
        assert!(nodes.status.success(), "{role}: {}", output_text(&nodes));
        let token = ask(&["token", "create", "--kubeconfig", file]).await;
        assert_eq!(token.status.success(), role == "admin", "{}", output_text(&token));
    }
    // kubectl accepts the same files.
    let kubectl = async |file: &str, words: &[&str]| {
        let program = std::env::var_os("EDGESYNC_TEST_KUBECTL").unwrap_or_else(|| "kubectl".into());
        let mut kubectl = Command::new(program);
        kubectl.args(["--kubeconfig", file]).args(words).env("HOME", site.path("home"));
        ended(kubectl).await
    };
    let made = kubectl(&ada, &["create", "secret", "generic", "by-ada", "--from-literal=a=b"]).await;
    assert!(output_text(&made).contains("secret/by-ada created"), "{}", output_text(&made));
    let read = kubectl(&ada, &["get", "secret", "by-ada"]).await;
    assert!(read.status.success(), "{}", output_text(&read));
    let rule = site.path("rule.yaml");
    let spec = "spec: {objects: {kinds: [secrets]}, nodes: {}}";
    let head = "apiVersion: edgesync.io/v1alpha1\nkind: Placement\nmetadata: {name: everywhere, namespace: default}\n";
    std::fs::write(&rule, format!("{head}{spec}\n")).unwrap();
    let placed = kubectl(&ada, &["create", "-f", rule.to_str().unwrap()]).await;
    assert!(output_text(&placed).contains("everywhere created"), "{}", output_text(&placed));
    let refused = kubectl(&eve, &["get", "secret", "by-ada"]).await;
    assert!(
        output_text(&refused).contains("cannot get secrets with the role 'view'"),
        "{}",
        output_text(&refused)
    );

    // A kubeconfig overrides the default address of this machine.
    let mut elsewhere = Command::new(edgesync_testkit::programs::cloud());
    elsewhere.args(["nodes", "--kubeconfig", &eve]).env("EDGESYNC_CLOUD_SERVER", site.path("nowhere.sock"));
    let asked = ended(elsewhere).await;
    assert!(asked.status.success(), "{}", output_text(&asked));

    // TCP clients need a certificate, also those of this machine.
    let without = ask(&["nodes", "--server", &address]).await;
    assert_eq!(without.status.code(), Some(64), "{}", output_text(&without));
    let plain = ask(&["nodes", "--server", &format!("http://{}", cloud.api)]).await;
    assert!(!plain.status.success(), "{}", output_text(&plain));

    let listed = ask(&["operator", "list", "--server", &socket]).await;
    let lines = output_text(&listed);
    for (user, role) in [("ada", "admin"), ("eve", "view"), ("local", "admin")] {
        assert!(lines.lines().any(|line| line.starts_with(user) && line.contains(role)), "{lines}");
    }
    let revoked = ask(&["operator", "revoke", "ada", "--server", &socket]).await;
    assert!(
        output_text(&revoked).contains("operator 'ada': 1 certificate revoked"),
        "{}",
        output_text(&revoked)
    );
    let refused = ask(&["nodes", "--kubeconfig", &ada]).await;
    assert!(
        !refused.status.success() && output_text(&refused).contains("was revoked"),
        "{}",
        output_text(&refused)
    );
    assert!(ask(&["nodes", "--kubeconfig", &eve]).await.status.success());

    // The audit log has their requests, without secrets.
    assert!(cloud.process.terminate(PATIENCE).await.success());
    let log = cloud.process.log();
    let audit: Vec<&String> = log.iter().filter(|line| line.contains("edgesync::audit")).collect();
    let has = |words: &[&str]| audit.iter().any(|line| words.iter().all(|word| line.contains(word)));
    for words in [
        &["user=\"ada\"", "role=admin", "create", "secrets", "default/by-ada", "code=201"][..],
        &["user=\"ada\"", "verb=\"get\"", "secrets", "default/by-ada", "code=200"],
        &["user=\"eve\"", "verb=\"get\"", "secrets", "default/by-ada", "code=403"],
        &["user=\"ada\"", "create", "placements", "default/everywhere", "code=201"],
        &["user=\"ada\"", "create", "tokens", "code=200"],
        &["user=\"eve\"", "role=view", "create", "tokens", "code=403"],
        &["user=\"uid ", "create", "operators/ada/revoke", "code=200"],
    ] {
        assert!(has(words), "{words:?} in {audit:#?}");
    }
}

#[tokio::test]
async fn revoked_removed_and_absent_nodes_show_on_both_sides() {
    let site = Site::new();
    let mut fleet = Fleet::embedded(&site, |_| {}).await;
    // A device that has joined but whose agent has never run.
    let _asleep = fleet.device(&site, "edge-0").await;
    let nodes = async |fleet: &Fleet| {
        let output = fleet.command(&["nodes", "-o", "json"]).await;
        let nodes: Value = serde_json::from_slice(&output.stdout).unwrap();
        read::<NodeList>(&nodes).unwrap().items
    };
    let asleep = |node: &NodeInfo| node.name() == "edge-0" && node.state() == NEVER_CONNECTED;
    eventually("who has only joined is shown", PATIENCE, async || {
        nodes(&fleet).await.iter().any(asleep).then_some(())
    })
    .await;
    fleet.cloud.crash().await;
    eventually("the cloud side serves again", PATIENCE, async || {
        fleet.command(&["nodes"]).await.status.success().then_some(())
    })
    .await;
    let shown = nodes(&fleet).await;
    let certificate_ends = &shown[0].membership().unwrap().certificate_ends;
    assert!(shown.iter().any(asleep) && certificate_ends.is_some(), "{shown:#?}");
    let refused = fleet.command(&["node", "remove", "edge-0"]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", output_text(&refused));
    assert!(output_text(&refused).contains("node forget edge-0"), "{}", output_text(&refused));
    assert!(fleet.command(&["node", "forget", "edge-0"]).await.status.success());
    assert_eq!(nodes(&fleet).await, Vec::<NodeInfo>::new());

    // A node that is revoked while its agent runs.
    let mut first = fleet.device(&site, "edge-1").await;
    first.run_as_configured().await;
    in_sync(&first).await;
    let typo = fleet.command(&["node", "revoke", "edge-l"]).await;
    assert_eq!(typo.status.code(), Some(1), "{}", output_text(&typo));
    assert!(output_text(&typo).contains("node 'edge-l' not found"), "{}", output_text(&typo));
    assert!(fleet.command(&["node", "revoke", "edge-1"]).await.status.success());
    let revoked = fleet.cloud.node("edge-1").await.unwrap();
    assert_eq!((revoked.state(), revoked.ready()), (REVOKED, Some(false)), "{revoked:#?}");
    let token = fleet.token(&["--node", "edge-1"]).await;
    for runs in [true, false] {
        if !runs {
            first.stop().await;
        }
        let again = fleet.join(&first, &token, &[]).await;
        assert_eq!(again.status.code(), Some(1), "{}", output_text(&again));
        assert!(
            output_text(&again).contains("revoked") && output_text(&again).contains("--force"),
            "{}",
            output_text(&again)
        );
    }
    let anew = fleet.join(&first, &token, &["--force"]).await;
    assert!(anew.status.success(), "{}", output_text(&anew));

    // A node that is removed.
    let token = fleet.token(&["--node", "edge-2"]).await;
    let mut second = fleet.device(&site, "edge-2").await;
    second.run_as_configured().await;
    in_sync(&second).await;
    assert!(fleet.command(&["node", "remove", "edge-2"]).await.status.success());
    for runs in [true, false] {
        if !runs {
            second.stop().await;
        }
        let again = fleet.join(&second, &token, &[]).await;
        assert_eq!(again.status.code(), Some(1), "{}", output_text(&again));
        assert!(output_text(&again).contains("node admit edge-2"), "{}", output_text(&again));
    }
}

#[tokio::test]
async fn agent_waits_for_the_join_and_then_starts() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut agent = fleet.new_device(&site, "edge-1");
    agent.process.start();
    agent.process.logged("not joined, waiting; hint: 'edgesync join", 0).await;
    let joined = fleet.join(&agent, &fleet.token(&["--node", "edge-1"]).await, &[]).await;
    assert!(joined.status.success(), "{}", output_text(&joined));
    agent.process.logged("joined, starting", 0).await;
    eventually("it is in sync", PATIENCE, async || {
        let status: AgentStatus = ask(&agent.client(), Route::Status).await.ok()?;
        status.sync.in_sync.then_some(())
    })
    .await;
    assert!(!agent.process.log().iter().any(|line| line.contains(":1883")), "{:#?}", agent.process.log());
    agent.stop().await;

    // A waiting agent ends on SIGTERM.
    let mut other = fleet.new_device(&site, "edge-2");
    other.process.start();
    other.process.logged("not joined", 0).await;
    other.stop().await;
}

#[tokio::test]
async fn second_agent_of_the_same_name_does_not_start() {
    let site = Site::new();
    let cloud = site::Cloud::start(&site).await;
    let mut first = site::Agent::start(&site, "edge-1", cloud.mqtt).await;
    let elsewhere = Site::new();
    let mut second = site::Agent::new(&elsewhere, "edge-1", cloud.mqtt);
    second.write_config();
    second.process.start();
    let ended = second.process.ended(PATIENCE).await;
    assert!(!ended.success(), "{ended}");
    let log = second.process.log().join("\n");
    let expected = format!("in use by another agent on this machine (process {})", first.process.id());
    assert!(log.contains("node 'edge-1'") && log.contains(&expected), "{log}");
    assert!(!second.database.exists(), "it has not begun");
    assert_eq!(first.status().await.link.connections, 1, "the first was left alone");
    // The name is free as soon as the first agent ends, even by a crash.
    first.crash().await;
}
