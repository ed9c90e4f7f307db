//! nginx serves a page from a ConfigMap: a change is served, a bad configuration keeps the old
//! page, and both sides report nginx's error.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync_admin::agent::FilesState;
use serde_json::{Value, json};

use crate::files::device::{Device, check_user, config_map};
use edgesync_testkit::site::*;
use edgesync_testkit::timing::is_within;

pub(super) const NGINX: &str = "/usr/sbin/nginx";

/// Returns the check of docs/files.md.
fn documented_check() -> &'static str {
    let page = include_str!("../../docs/files.md");
    let (_, script) = page.split_once("# /usr/local/sbin/check-nginx\n").unwrap();
    script.split_once("```").unwrap().0
}

/// Returns the page served at `/`.
fn page(address: SocketAddr) -> Option<String> {
    page_at(address, "/")
}

pub(super) fn page_at(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn site_of(address: SocketAddr, words: &str) -> Value {
    let block = format!("server {{ listen {address}; location / {{ return 200 \"{words}\"; }} }}\n");
    config_map("web", json!({ "site.conf": block }))
}

fn broken() -> Value {
    config_map("web", json!({ "site.conf": "server { lisssten 80; }\n" }))
}

/// nginx; dropping it ends its workers too.
pub(super) struct Nginx(Process, PathBuf);

impl Nginx {
    /// Starts nginx, and waits until it takes signals.
    pub(super) async fn start(&mut self) {
        self.0.start();
        let pid = self.1.join("nginx.pid");
        eventually("nginx runs", PATIENCE, async || {
            std::fs::read_to_string(&pid).ok().filter(|text| !text.is_empty())
        })
        .await;
    }
}

impl Drop for Nginx {
    #[allow(clippy::disallowed_methods, reason = "nothing tells of the end of a process here")]
    fn drop(&mut self) {
        if self.0.runs() {
            self.0.signal("TERM");
        }
        let begun = std::time::Instant::now();
        while self.0.runs() && is_within(begun.elapsed(), PATIENCE) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Creates an nginx with this prefix, in the foreground. Objects have its servers, or with an
/// address the locations of its only one.
pub(super) fn nginx(directory: PathBuf, server: Option<SocketAddr>) -> Nginx {
    std::fs::create_dir_all(directory.join("sites")).unwrap();
    let shown = directory.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {shown}/{name};"))
        .join(" ");
    let include = format!("include {shown}/sites/*/*.conf;");
    let content =
        server.map_or(include.clone(), |address| format!("server {{ listen {address}; {include} }}"));
    let text = format!(
        "user root; worker_processes 1; daemon off; pid {shown}/nginx.pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off; {paths}\n\
         {content} }}\n"
    );
    std::fs::write(directory.join("nginx.conf"), text).unwrap();
    let arguments = ["-p", &shown.to_string(), "-c", "nginx.conf", "-e", "stderr"].map(Into::into).to_vec();
    Nginx(Process::with_arguments("nginx", Path::new(NGINX), arguments), directory)
}

/// The file rule for an nginx with this prefix, with or without a check.
pub(super) fn rule(directory: &Path, check: bool) -> String {
    let shown = directory.display();
    let check = match check {
        true => {
            let (script, user) = (documented_check(), check_user());
            format!("check = ['/bin/sh', '-c', '''\n{script}''']\ncheck_user = \"{user}\"\n")
        }
        false => String::new(),
    };
    format!(
        "[[files]]\nname = \"nginx\"\nobjects = {{ kinds = [\"configmaps\"], namespaces = [\"plant\"] }}\n\
         to = \"{shown}/sites/{{metadata.name}}\"\n{check}\
         reload = {{ run = [\"{NGINX}\", \"-p\", \"{shown}\", \"-c\", \"nginx.conf\", \"-e\", \"stderr\", \"-s\", \"reload\"] }}\n\
         settle = \"0s\"\n"
    )
}

async fn served(address: SocketAddr, words: &str) {
    eventually(&format!("nginx serves {words:?}"), PATIENCE, async || {
        (page(address).as_deref() == Some(words)).then_some(())
    })
    .await;
}

/// Returns an Event about the ConfigMap in the cloud.
async fn event(cloud: &Cloud, reason: &str) -> String {
    let path = "/apis/events.k8s.io/v1/namespaces/plant/events";
    eventually(&format!("the cloud has an Event {reason}"), PATIENCE, async || {
        let list: Value = cloud.client().get(path).await.ok()?;
        let found = list["items"].as_array()?.iter().find(|event| event["reason"] == reason)?.clone();
        (found["regarding"]["name"] == "web").then(|| found["note"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

#[tokio::test]
async fn nginx_serves_updates_and_keeps_its_page_on_a_bad_one() {
    if !Path::new(NGINX).exists() {
        eprintln!("notice: {NGINX} is missing; that programs take files was not tested with it");
        return;
    }
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let address = Site::address();
    let mut nginx = nginx(site.path("nginx"), None);
    let mut device = Device::start(&site, &cloud, &rule(&site.path("nginx"), false)).await;
    nginx.start().await;

    cloud.apply([site_of(address, "one")]).await;
    served(address, "one").await;
    device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;
    cloud.apply([site_of(address, "two")]).await;
    served(address, "two").await;
    let good = device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;

    // The reload fails, and the files are rolled back.
    cloud.apply([broken()]).await;
    let bad = device.until(&cloud, "nginx", &broken(), FilesState::NotInEffect).await;
    assert!(bad.message.contains("unknown directive \"lisssten\""), "{bad:?}");
    assert_eq!((&bad.version, bad.rolled_back), (&good.version, true), "{bad:?}");
    // A worker from before a reload may still answer for a moment.
    served(address, "two").await;
    let file = std::fs::read_to_string(site.path("nginx/sites/web/site.conf")).unwrap();
    assert!(file.contains("\"two\""), "{file}");
    assert!(event(&cloud, "RolledBack").await.contains("unknown directive \"lisssten\""));
    device.until_outbox_is_empty().await;
    let node = cloud.node(super::device::NODE).await.unwrap();
    let told = &node.not_in_effect()[0];
    assert!(told.message.contains("unknown directive \"lisssten\""), "{node:?}");
    assert_eq!((told.rule.as_str(), &told.in_effect), ("nginx", &good.version), "{node:?}");

    cloud.apply([site_of(address, "three")]).await;
    served(address, "three").await;
    let good = device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;

    // The check fails, so nothing is replaced.
    device.reload(&rule(&site.path("nginx"), true)).await;
    cloud.apply([broken()]).await;
    let bad = device.until(&cloud, "nginx", &broken(), FilesState::NotInEffect).await;
    assert!(bad.message.contains("unknown directive \"lisssten\""), "{bad:?}");
    assert_eq!((&bad.version, bad.rolled_back), (&good.version, false), "{bad:?}");
    served(address, "three").await;
    let file = std::fs::read_to_string(site.path("nginx/sites/web/site.conf")).unwrap();
    assert!(file.contains("\"three\""), "{file}");
    assert!(event(&cloud, "NotInEffect").await.contains("unknown directive \"lisssten\""));
    cloud.apply([site_of(address, "four")]).await;
    served(address, "four").await;
    device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;

    // nginx keeps its loaded configuration; the files are deleted with the object.
    cloud.delete(&broken()).await;
    eventually("the files are gone", PATIENCE, async || {
        std::fs::read_dir(site.path("nginx/sites")).unwrap().next().is_none().then_some(())
    })
    .await;
    device.until_outbox_is_empty().await;
}

/// Returns a window that is days away.
pub(super) fn closed_window() -> String {
    let day = jiff::tz::TimeZone::UTC.to_datetime(jiff::Timestamp::now()).date();
    let day = day.checked_add(jiff::Span::new().days(3)).unwrap().weekday();
    format!("apply = {{ at = \"{} 02:00-04:00\", zone = \"UTC\" }}\n", &format!("{day:?}")[..3])
}

/// A version waits outside of a window, and under a hold, while nginx serves the one in effect.
#[tokio::test]
async fn nginx_serves_the_old_page_until_the_window_opens_and_the_hold_ends() {
    if !Path::new(NGINX).exists() {
        eprintln!("notice: {NGINX} is missing; windows and holds were not tested with it");
        return;
    }
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let address = Site::address();
    let mut nginx = nginx(site.path("nginx"), None);
    let mut device = Device::start(&site, &cloud, &rule(&site.path("nginx"), false)).await;
    nginx.start().await;
    cloud.apply([site_of(address, "one")]).await;
    served(address, "one").await;
    let one = device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;

    device.reload(&(rule(&site.path("nginx"), true) + &closed_window())).await;
    cloud.apply([site_of(address, "two")]).await;
    let waits = device.until(&cloud, "nginx", &broken(), FilesState::Waiting).await;
    assert_eq!((waits.reason.as_deref(), &waits.version), (Some("Window"), &one.version), "{waits:?}");
    assert!(waits.until.is_some() && waits.message.starts_with("window opens at "), "{waits:?}");
    // A bad one is found at once, and an operator who forces it changes nothing.
    cloud.apply([broken()]).await;
    let bad = device.until(&cloud, "nginx", &broken(), FilesState::NotInEffect).await;
    assert!(bad.message.contains("unknown directive \"lisssten\"") && !bad.rolled_back, "{bad:?}");
    cloud.apply([site_of(address, "three")]).await;
    device.until(&cloud, "nginx", &broken(), FilesState::Waiting).await;
    let apply = edgesync_admin::Route::ApplyFiles("nginx").path();
    let _: Value = device.agent.client().post(&apply, &json!({})).await.unwrap();
    assert_eq!(page(address).as_deref(), Some("one"));

    device.reload(&(rule(&site.path("nginx"), true) + "apply = { at = \"00:00-24:00\" }\n")).await;
    served(address, "three").await;
    let three = device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;

    device.holds(&["hold", "--rule", "nginx", "--for", "2h", "--why", "harvest"]);
    cloud.apply([site_of(address, "four")]).await;
    let waits = device.until(&cloud, "nginx", &broken(), FilesState::Waiting).await;
    assert_eq!((waits.reason.as_deref(), &waits.version), (Some("Hold"), &three.version), "{waits:?}");
    // A killed helper forgets no hold.
    device.helper.kill();
    device.start_helper().await;
    assert!(device.holds(&["holds"]).contains("harvest"));
    let _: Value = device.agent.client().post(&apply, &json!({})).await.unwrap();
    served(address, "three").await;
    let file = std::fs::read_to_string(site.path("nginx/sites/web/site.conf")).unwrap();
    assert!(file.contains("\"three\""), "{file}");
    device.until_outbox_is_empty().await;
    let node = cloud.node(super::device::NODE).await.unwrap();
    let told = &node.not_in_effect()[0];
    assert_eq!((told.state.as_str(), &told.in_effect), ("Waiting", &three.version), "{node:?}");
    assert!(told.message.starts_with("Hold until ") && told.message.ends_with("harvest"), "{told:?}");

    device.holds(&["release", "--rule", "nginx"]);
    let _: Value = device.agent.client().post(&apply, &json!({})).await.unwrap();
    served(address, "four").await;
    device.until(&cloud, "nginx", &broken(), FilesState::InEffect).await;
    assert_eq!(device.holds(&["holds"]), "No holds\n");
}
