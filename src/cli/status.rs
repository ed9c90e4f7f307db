//! `status`: whether all is well, in a few lines. What an agent of another version leaves out is left out here.

use jiff::Timestamp;
use serde_json::Value;

use edgesync_cli::output::{age, cell, size};

/// The status of an agent for people who want to know whether something is to be done.
#[must_use]
pub fn summary(status: &Value) -> String {
    let now = Timestamp::now();
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let since = |pointer: &str| match text(pointer) {
        "" => String::new(),
        time => format!(" for {}", age(now, time)),
    };
    let mut wrong: Vec<String> = Vec::new();
    let mut lines: Vec<(&str, String)> = Vec::new();

    let (version, runs) = (text("/agent/version"), since("/agent/started"));
    lines.push(("Node", format!("{}, the agent {version} runs{runs}", text("/node"))));
    let connected = text("/link/state") == "connected";
    let mut link = format!(
        "{}{} {} {}",
        text("/link/state"),
        since("/link/since"),
        if connected { "to" } else { "from" },
        text("/link/broker")
    );
    if !connected {
        wrong.push(match text("/link/cause") {
            "" => "no connection to the cloud".to_owned(),
            cause => format!("no connection to the cloud: {cause}"),
        });
        let retry = status.pointer("/link/retryInSeconds").map_or_else(|| "?".to_owned(), cell);
        link.push_str(&format!(": {}; tries again within {retry} s", text("/link/cause")));
    }
    lines.push(("Link", link));
    let cloud = text("/cloud/state");
    if connected && cloud != "connected" {
        wrong.push(format!("the cloud: {cloud}"));
    }
    if connected {
        lines.push(("Cloud", cloud.to_owned()));
    }
    let in_sync = status.pointer("/sync/inSync") == Some(&Value::Bool(true));
    lines.push(("In sync", if in_sync { "yes" } else { "no" }.to_owned()));
    let (pending, held) = (number("/sync/pending"), number("/sync/heldBack"));
    let mut objects = format!("{} held", number("/objects/total"));
    for (count, words) in [(pending, "to come"), (held, "to be removed once that is confirmed in the cloud")]
    {
        if count > 0 {
            objects.push_str(&format!(", {count} {words}"));
        }
    }
    if held > 0 {
        wrong.push(format!("{held} removals wait for 'edgesync-cloud confirm-deletions'"));
    }
    lines.push(("Objects", objects));
    let lanes = status.get("outbox").and_then(Value::as_object);
    let waiting: u64 = lanes.into_iter().flatten().filter_map(|(_, lane)| lane["waiting"].as_u64()).sum();
    let unconfirmed = number("/sync/unconfirmed");
    if waiting + unconfirmed > 0 {
        lines.push((
            "To tell",
            format!("{waiting} items wait for the cloud, {unconfirmed} changes are not confirmed"),
        ));
    }
    for rejected in status.get("rejected").and_then(Value::as_array).into_iter().flatten() {
        let (object, reason) = (&rejected["object"], cell(&rejected["reason"]));
        let of = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let name = if object.is_null() {
            cell(&rejected["uid"])
        } else {
            format!("{} {}/{}", of("kind"), of("namespace"), of("name"))
        };
        wrong.push(format!("{name} is rejected, {reason}: {}", cell(&rejected["message"])));
    }
    let conditions = status.get("conditions").and_then(Value::as_array);
    for condition in conditions.into_iter().flatten() {
        // Pressure and what is spent are bad if they are so, health is bad if it is not.
        let kind = condition["type"].as_str().unwrap_or_default();
        let good = if kind.ends_with("Pressure") || kind.ends_with("Spent") { "False" } else { "True" };
        if condition["status"] != good {
            wrong.push(cell(&condition["message"]));
        }
    }
    if let Some(files) = status.get("files").filter(|files| !files.is_null()) {
        let of = |field: &str| files[field].as_u64().unwrap_or_default();
        let not = of("notInEffect") + of("conflicts");
        lines.push(("Files", format!("{} objects in effect, {not} not: edgesync files", of("inEffect"))));
        if not > 0 {
            wrong.push(format!("{not} objects are not in effect in files"));
        }
    }
    let database = number("/store/databaseBytes") + number("/store/walBytes");
    lines.push(("Database", format!("{}, {}", text("/store/writing"), size(database))));
    if let Some(until) = status.pointer("/identity/notAfter") {
        // Only the cloud knows whether it has revoked it.
        let judged = if connected { "" } else { " by its dates" };
        lines.push(("Certificate", format!("{}{judged}, until {}", text("/identity/validity"), cell(until))));
        if let Some(failure) = status.pointer("/identity/renewalFailure").and_then(Value::as_str) {
            wrong.push(format!("the certificate could not be renewed: {failure}"));
        }
    }
    if text("/api/state") == "waiting" {
        wrong.push("another program has the address of the local API".to_owned());
    }
    lines.push(("Today", format!("{} sent and received", size(number("/traffic/bytesToday")))));

    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 1;
    let mut out = String::new();
    let well = if wrong.is_empty() { "yes" } else { "no" };
    for (name, value) in std::iter::once(("All well", well.to_owned())).chain(lines) {
        out.push_str(&format!("{:<width$}   {value}\n", format!("{name}:")));
    }
    for problem in &wrong {
        out.push_str(&format!("- {problem}\n"));
    }
    if !wrong.is_empty() {
        out.push_str("'edgesync check' says what to do, 'edgesync status -v' all there is to know.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn healthy() -> Value {
        json!({
            "node": "edge-1", "agent": {"version": "0.1.0", "started": "2026-11-21T10:00:00Z"},
            "link": {"state": "connected", "broker": "mqtts://b:8883", "since": "2026-11-21T10:00:01Z", "cause": null},
            "cloud": {"state": "connected"}, "sync": {"inSync": true, "pending": 0, "heldBack": 0, "unconfirmed": 0},
            "outbox": {"status": {"waiting": 0}}, "objects": {"total": 3}, "files": null, "rejected": [],
            "store": {"writing": "works", "databaseBytes": 4096, "walBytes": 0}, "api": {"state": "open"},
            "identity": {"validity": "good", "notAfter": "2027-11-21T10:00:00Z", "renewalFailure": null},
            "conditions": [{"type": "edgesync.io/StoreHealthy", "status": "True", "message": "the database takes changes"},
                {"type": "edgesync.io/DiskPressure", "status": "False", "message": "room"}],
            "traffic": {"bytesToday": 2048},
        })
    }

    #[test]
    fn all_is_well_in_ten_lines() {
        let shown = summary(&healthy());
        assert!(shown.starts_with("All well:      yes\nNode:          edge-1, "), "{shown}");
        assert!(shown.lines().count() <= 10, "{shown}");
        for line in [
            "In sync:       yes",
            "Objects:       3 held",
            "Database:      works, 4.0 KiB",
            "Certificate:   good, until 2027-11-21T10:00:00Z",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }

    #[test]
    fn whatever_is_wrong_is_said() {
        let mut status = healthy();
        status["link"] = json!({"state": "disconnected", "broker": "mqtts://b:8883", "cause": "nothing listens", "retryInSeconds": 9.7});
        status["rejected"] = json!([{"object": {"kind": "ConfigMap", "namespace": "plant", "name": "big"},
            "reason": "TooLarge", "message": "must be at most 9 bytes"}]);
        status["conditions"][1]["status"] = "True".into();
        status["conditions"][1]["message"] = "less than 256 MiB are free".into();
        status["sync"]["heldBack"] = 60.into();
        let shown = summary(&status);
        for words in [
            "All well:      no",
            "disconnected from mqtts://b:8883: nothing listens; tries again within 9.7 s",
            "- no connection to the cloud: nothing listens\n",
            "Certificate:   good by its dates, until 2027-11-21T10:00:00Z\n",
            "- ConfigMap plant/big is rejected, TooLarge: must be at most 9 bytes\n",
            "- less than 256 MiB are free\n",
            "confirm-deletions",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        // An agent of another version.
        assert!(summary(&json!({"node": "n"})).contains("Node:"));
    }
}
