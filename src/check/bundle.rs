//! Collects the archive for a problem report: `edgesync support-bundle`.
//!
//! Files with secrets are listed, never included.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use edgesync_admin::Route;
use edgesync_api::Client;
use edgesync_cli::bundle::{BlockingJob, Bundle, Redactor, answered, journal, list, system};
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_object::time::rfc3339;
use edgesync_runtime::{VERSION, chain};
use edgesync_store::durable::directory_of;

use super::Report;
use crate::store::inspect;

const README: &str = "\
A report of an edgesync agent. It contains no Secrets, tokens, passwords or keys; texts that resemble one are <redacted>.

check.json           results of 'edgesync check'
versions.txt         of the program and of the database's schema
config.toml          the configuration in force, with the origin of each value
status.json          the status of the agent
traffic.json         the traffic of its link
metrics.txt          its metrics
syncs.txt            the number of ObjectSyncs
directories.txt      files beside database, identity and socket: mode, owner, size, time
system.txt           kernel, distribution, memory, disk, mounts
journal.txt          the journal of the unit, of the last day

A file that could not be collected contains the reason.
";

/// Collects all files; a failure is recorded in the file's place.
pub async fn collect(config_path: &Path, report: &Report, client: &Client) -> Bundle {
    let loaded = config::load::<Config>(config_path);
    let config = loaded.as_ref().map(|loaded| loaded.config.clone()).unwrap_or_default();
    let mut bundle = Bundle::new(redactor(&config));
    bundle.text("README.txt", README);
    bundle.json("check.json", &report.document());
    bundle.text("versions.txt", &versions(&config));
    match &loaded {
        Ok(loaded) => bundle.text("config.toml", &loaded.show()),
        // The invalid lines are omitted: their content is unknown.
        Err(_) => bundle.text("config.toml", "# invalid, see check.json\n"),
    }
    for (name, route) in [("status.json", Route::Status), ("traffic.json", Route::Traffic)] {
        let answer = answered(client.get::<Value>(&route.path())).await;
        bundle.json(name, &answer.unwrap_or_else(|problem| json!({ "error": problem })));
    }
    bundle.metrics(client).await;
    bundle.text("syncs.txt", &syncs(client).await);
    let own = config.clone();
    let beside: [(&str, BlockingJob); 3] = [
        ("directories.txt", Box::new(move || directories(&own))),
        ("system.txt", Box::new(move || system(&config.store.path))),
        ("journal.txt", Box::new(|| journal("edgesync.service"))),
    ];
    bundle.beside(beside).await;
    bundle
}

/// Returns a redactor for the secrets in this device's files.
fn redactor(config: &Config) -> Redactor {
    let kubeconfig = &config.api.kubeconfig;
    let files = [
        config.link.password_file.clone(),
        Some(kubeconfig.with_file_name("token")),
        Some(kubeconfig.with_file_name("token-secrets")),
        Some(config.seal.key_file.clone()),
    ];
    let texts = files.into_iter().flatten().filter_map(|path| fs::read_to_string(path).ok());
    let values: Vec<String> =
        texts.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    // Words of the key file that are no keys, such as its title, are short, contain a hyphen, or
    // are times.
    let values = values.into_iter().filter(|value| value.len() >= 20 || config.link.password_file.is_some());
    let values = values.filter(|value| value.parse::<Timestamp>().is_err());
    let names = inspect::private_names(&config.store.path, &config.seal.kinds).unwrap_or_default();
    Redactor::new(values, names)
}

fn versions(config: &Config) -> String {
    let schema = match inspect::schema(&config.store.path) {
        Ok(schema) => format!("{} of {}", schema.found, schema.known),
        Err(error) => chain(&error),
    };
    format!(
        "edgesync {VERSION}\narchitecture {}\ntime {}\nschema {schema}\n",
        std::env::consts::ARCH,
        rfc3339(Timestamp::now())
    )
}

/// Counts the ObjectSync records; reveals no more than the number.
async fn syncs(client: &Client) -> String {
    let mut out = String::new();
    for plural in ["objectsyncs", "clusterobjectsyncs"] {
        let path = format!("/apis/reliablesyncs.kubeedge.io/v1alpha1/{plural}?limit=1");
        let count = answered(client.get::<Value>(&path)).await.map(|list| {
            let rest = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or(0);
            list.get("items").and_then(Value::as_array).map_or(0, Vec::len) as u64 + rest
        });
        let _ = match count {
            Ok(count) => writeln!(out, "{plural} {count}"),
            Err(problem) => writeln!(out, "{plural}: {problem}"),
        };
    }
    out
}

fn directories(config: &Config) -> String {
    let mut places = vec![directory_of(&config.store.path), directory_of(&config.api.socket)];
    places.extend(config.identity.directory.as_deref());
    places.extend([directory_of(&config.seal.key_file), directory_of(&config.api.kubeconfig)]);
    places.dedup();
    let mut out = String::new();
    for place in places {
        let _ = writeln!(out, "{}:", place.display());
        list(place, &mut out);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests;
