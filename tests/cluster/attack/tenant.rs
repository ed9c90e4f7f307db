//! A tenant of the cluster, who writes objects in a namespace of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use edgesync_admin::Route;
use edgesync_admin::agent::FilesList;
use serde_json::{Value, json};

use super::{Attack, PATIENCE, holds, list, object, objects_in_database, pod, rule};
use crate::cluster::install::Setup;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::programs;
use edgesync_testkit::site::fleet::output_text;
use edgesync_testkit::site::{Agent, Process, ask, eventually};

/// The device that the tenant wants to reach.
const NODE: &str = "edge-3";

/// Creates the tenant and its namespace.
pub(super) fn create(setup: &Setup) -> Kubectl {
    let run = |words: &[&str]| drop(setup.admin.run(words).ok());
    run(&["create", "namespace", "office"]);
    run(&["create", "role", "tenant", "-n", "office", "--verb=*", "--resource=configmaps,pods"]);
    run(&["create", "rolebinding", "tenant", "-n", "office", "--role=tenant", "--user=tenant"]);
    Kubectl::with_kubeconfig(&setup.site, "tenant", &setup.kubernetes.user("tenant"))
}

/// Starts a device with a rule whose check executes what it checks, and the helper of the device.
/// `home` has the database, and files that all users may write.
async fn device(attack: &Attack, home: &Path) -> (Agent, Process) {
    let (fleet, site) = (&attack.replica.fleet, &attack.setup.site);
    let mut agent = fleet.new_device(site, NODE);
    agent.database = home.join("edge-3/edgesync.db");
    let socket = site.path("files.sock");
    let settings = &mut agent.settings;
    settings.text("store.path", agent.database.display()).text("helper.socket", socket.display());
    settings.text("helper.state", home.join("files").display());
    settings.tables(&format!(
        "[[files]]\nname = \"program\"\nto = \"{}/{{metadata.name}}\"\nsettle = \"0s\"\n\
         objects = {{ kinds = [\"configmaps\"], namespaces = [\"office\"], names = [\"planted\"] }}\n\
         check = ['/bin/bash', '-c', '. \"$EDGESYNC_CANDIDATE/program\"']\n",
        home.join("out").display()
    ));
    agent.write_config();
    let token = fleet.token(&["--node", NODE]).await;
    let joined = fleet.join(&agent, &token, &[]).await;
    assert!(joined.status.success(), "{}", output_text(&joined));
    let config = agent.config().into();
    let words =
        vec!["files-helper".into(), "--config".into(), config, "--socket".into(), socket.clone().into()];
    let mut helper = Process::with_arguments("the helper", Path::new(programs::device()), words);
    helper.start();
    eventually("the helper listens", PATIENCE, async || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    })
    .await;
    agent.run_as_configured().await;
    (agent, helper)
}

/// Returns a script that tries commands, and says which ones succeed.
fn script(attempts: &[(&str, String)]) -> String {
    let attempt = |(name, command): &(&str, String)| {
        format!("if ({command}) >/dev/null 2>&1; then echo done {name}; else echo refused {name}; fi\n")
    };
    attempts.iter().map(attempt).collect::<String>() + "exit 1\n"
}

fn output_of(script: &str) -> String {
    let run = Command::new("/bin/bash").args(["-c", script]).output().unwrap();
    String::from_utf8(run.stdout).unwrap()
}

/// By default no author of an object chooses devices. Where an administrator permits it, checks
/// on the device give such an author nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_tenant_reaches_no_device_and_gains_nothing_in_a_check() {
    let mut attack = Attack::start(&[]).await;
    let home = tempfile::tempdir_in(programs::scratch()).unwrap();
    let open = home.path().join("open");
    fs::create_dir(&open).unwrap();
    for (path, mode) in [(home.path(), 0o755), (&*open, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (mut agent, _helper) = device(&attack, home.path()).await;

    let broker = attack.replica.fleet.cloud.mqtt;
    let etc = format!("/etc/edgesync-attack-{}", std::process::id());
    let beyond = [
        ("network", format!("exec 3<>/dev/tcp/{}/{}", broker.ip(), broker.port())),
        ("file", format!("echo x >{}/planted", open.display())),
        ("database", format!("head -c 1 {}", agent.database.display())),
    ];
    // Outside of the sandbox all of that succeeds.
    assert_eq!(output_of(&script(&beyond)), "done network\ndone file\ndone database\n");
    fs::remove_file(open.join("planted")).unwrap();
    let mut attempts = vec![("tmp", "echo x >/tmp/planted".to_owned())];
    attempts.extend(beyond);
    attempts.push(("etc", format!("echo x >{etc}")));

    let mut planted = object("ConfigMap", "office", "planted");
    planted["metadata"]["labels"] = json!({"edgesync.io/node": NODE});
    planted["metadata"]["annotations"] = json!({"edgesync.io/nodes": NODE});
    planted["data"] = json!({"program": script(&attempts)});
    let runs = pod(("office", "planted"), NODE, &["key"]);
    let apply = |object: &Value| attack.tenant.feed(&["apply", "-f", "-"], &list(&[object]));
    apply(&planted).ok();
    apply(&runs).ok();
    // Nothing else is the tenant's.
    for foreign in [
        object("ConfigMap", "plant", "planted"),
        object("ConfigMap", "edgesync", "planted"),
        object("Secret", "office", "key"),
        rule(("office", "all"), &json!({"kinds": ["configmaps"]})),
        rule(("", "all"), &json!({"kinds": ["configmaps"]})),
    ] {
        apply(&foreign).fails_with("forbidden");
    }
    let marker = object("ConfigMap", "plant", "marker");
    attack.apply(&[&marker, &rule(("plant", "all"), &json!({"kinds": ["configmaps"]}))]);
    holds(&agent, &[&marker]).await;
    let found = objects_in_database(&mut agent).await;
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("plant".to_owned(), "marker".to_owned())]);
    agent.run_as_configured().await;
    let requests = attack.requests_of_replica();
    let of_tenant = |uri: &str| {
        let all = ["/api/v1/configmaps", "/api/v1/pods"].iter().any(|all| uri.starts_with(all));
        all || uri.contains("/namespaces/office/")
    };
    let read = requests.iter().find(|request| of_tenant(&request.uri));
    assert!(read.is_none(), "{read:?}");
    assert!(requests.iter().any(|request| request.uri.contains("/namespaces/plant/configmaps")));

    // An administrator permits the label.
    attack.replica.fleet.cloud.process.env("EDGESYNC_CLOUD_KUBERNETES_LABELLED", "configmaps");
    attack.replica.fleet.cloud.crash().await;
    holds(&agent, &[&planted]).await;
    assert!(agent.get(&runs).await.is_none());
    let unshare = ["--mount", "--net", "--ipc", "--pid", "--fork", "true"];
    if !Command::new("unshare").args(unshare).output().is_ok_and(|output| output.status.success()) {
        eprintln!("notice: no root or no namespaces here; what a check may do was not tested");
        return;
    }
    let expected = "done tmp\nrefused network\nrefused file\nrefused database\nrefused etc";
    eventually(&format!("the check prints: {expected}"), PATIENCE, async || {
        let shown: FilesList = ask(&agent.client(), Route::Files).await.ok()?;
        let rule = shown.rules.first()?;
        (rule.in_effect == 0 && rule.output.contains(expected)).then_some(())
    })
    .await;
    assert!(!open.join("planted").exists() && !Path::new(&etc).exists());
}
