//! Collects the support bundle of the cloud side: `edgesync-cloud support-bundle`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use edgesync_api::Client;
use edgesync_cli::bundle::{BlockingJob, Bundle, Redactor, answered, journal, list, system};
use edgesync_cli::check::Report;
use edgesync_cloud_store::inspect;
use edgesync_config as config;
use edgesync_fleet::config::Config;
use edgesync_runtime::{VERSION, chain};
use edgesync_store::durable::directory_of;

const README: &str = "\
Report of an edgesync-cloud. It contains no Secrets, tokens, passwords or keys; values like these are <redacted>.

check.json           results of 'edgesync-cloud check'
versions.txt         version of the program
config.toml          effective configuration, each value with its source
nodes.json           state of the nodes
metrics.txt          metrics
directories.txt      files beside database, keys and socket: mode, owner, size, time
system.txt           kernel, distribution, memory, disk, mounts
journal.txt          journal of the unit, last day

A file that could not be collected contains the reason.
";

/// Collects the files of the bundle. A file that cannot be collected contains the reason.
pub(crate) async fn collect(config_path: &Path, report: &Report) -> Bundle {
    let loaded = config::load::<Config>(config_path);
    let config = loaded.as_ref().map(|loaded| loaded.config.clone()).unwrap_or_default();
    let client = Client::new(edgesync_api::Address::Unix(config.api.socket.clone()));
    let mut bundle = Bundle::new(redactor(&config));
    bundle.text("README.txt", README);
    bundle.json("check.json", &report.document());
    let (machine, now) = (std::env::consts::ARCH, jiff::Timestamp::now());
    bundle.text("versions.txt", &format!("edgesync-cloud {VERSION}\narchitecture {machine}\ntime {now}\n"));
    match &loaded {
        Ok(loaded) => bundle.text("config.toml", &loaded.show()),
        // The faulty lines are left out: they may contain secrets.
        Err(_) => bundle.text("config.toml", "# unreadable: see check.json\n"),
    }
    let nodes = answered(client.get::<Value>(&edgesync_admin::Route::Nodes.path())).await;
    bundle.json("nodes.json", &nodes.unwrap_or_else(|problem| json!({ "error": problem })));
    bundle.metrics(&client).await;
    let (own, store) = (config.clone(), config.store.path.clone());
    let beside: [(&str, BlockingJob); 3] = [
        ("directories.txt", Box::new(move || directories(&own))),
        ("system.txt", Box::new(move || system(&store))),
        ("journal.txt", Box::new(|| journal("edgesync-cloud.service"))),
    ];
    bundle.beside(beside).await;
    bundle
}

/// Builds a redactor for the secrets in the files of this machine.
fn redactor(config: &Config) -> Redactor {
    let files = [config.link.password_file.clone(), Some(config.enrollment.directory.join("token.key"))];
    let texts = files.into_iter().flatten().filter_map(|path| fs::read(path).ok());
    let words = texts.flat_map(|bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let names = inspect::secret_names(&config.store.path).unwrap_or_default();
    Redactor::new(words.collect::<Vec<_>>(), names)
}

fn directories(config: &Config) -> String {
    let mut places = vec![directory_of(&config.store.path), directory_of(&config.api.socket)];
    places.push(&config.enrollment.directory);
    places.dedup();
    let mut out = String::new();
    for place in places {
        let _ = writeln!(out, "{}:", place.display());
        list(place, &mut out);
        out.push('\n');
    }
    if let Err(error) = inspect::secret_names(&config.store.path) {
        let _ = writeln!(out, "database: {}", chain(&error));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_bundle_is_complete_and_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.toml");
        fs::write(
            &path,
            "[store]\npath = \"cloud.db\"\n[enrollment]\ndirectory = \"pki\"\n[api]\nsocket = \"c.sock\"\n",
        )
        .unwrap();
        fs::create_dir(dir.path().join("pki")).unwrap();
        fs::write(dir.path().join("pki/token.key"), "0123456789abcdef0123456789abcdef").unwrap();
        let mut bundle = collect(&path, &Report::default()).await;
        bundle.text("journal.txt", "the key is 0123456789abcdef0123456789abcdef\n");
        let text = |name: &str| {
            let found = bundle.files.iter().rfind(|(file, _)| file.ends_with(name)).unwrap();
            String::from_utf8(found.1.clone()).unwrap()
        };
        for line in README.lines().filter_map(|line| line.split_once("   ")) {
            assert!(!text(line.0).is_empty(), "{}", line.0);
        }
        assert_eq!(text("journal.txt"), "the key is <redacted>\n");
        assert!(text("config.toml").contains("cloud.db") && text("directories.txt").contains("token.key"));
        assert!(text("nodes.json").contains("connect to"));
    }
}
