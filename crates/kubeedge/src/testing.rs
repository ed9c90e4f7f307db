//! Shared test helpers: a configuration, captured messages, and answers as CloudCore writes them.

use std::time::Duration;

use serde_json::{Value, json};

use super::outbound::Outbound;
use super::types::{BridgeConfig, Moment, Sent};
use edgesync_object::NodeName;

/// The start of all tests: the time of the captured registration.
pub(super) const WALL: i64 = 1_795_225_351_000;

/// The directory of captured messages.
pub(super) const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/kubeedge");

/// Returns a configuration that keeps everything.
pub(super) fn config() -> BridgeConfig {
    BridgeConfig {
        node: NodeName::parse("edgea").unwrap(),
        lease_interval: Duration::from_secs(10),
        keepalive: Duration::from_secs(15),
        answer_timeout: Duration::from_secs(10),
        retry_max: Duration::from_secs(60),
        max_object: 1 << 20,
        managed_fields: false,
        fetch: Vec::new(),
        watch: Vec::new(),
        verify_interval: Duration::from_secs(3600),
    }
}

/// Returns an outbound in session `s`.
pub(super) fn outbound() -> Outbound {
    let mut outbound = Outbound::new(config());
    outbound.begin(Moment { now: Duration::ZERO, wall: WALL }, 7);
    outbound.session = Some("s".into());
    outbound
}

/// Returns a captured message, by its path below the directory of the captures.
pub(super) fn captured(name: &str) -> Value {
    serde_json::from_str(&captured_text(name)).unwrap()
}

/// Returns the exact text of a captured message.
pub(super) fn captured_text(name: &str) -> String {
    let path = format!("{CAPTURES}/{name}");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Takes the sent messages from the outbound; a ping is `{"ping": number}`.
pub(super) fn sent(outbound: &mut Outbound) -> Vec<Value> {
    let value = |sent| match sent {
        Sent::Text { text, .. } => serde_json::from_str(&text).unwrap(),
        Sent::Ping(number) => json!({ "ping": number }),
    };
    outbound.messages.drain(..).map(value).collect()
}

/// Returns the one message that was sent.
#[track_caller]
pub(super) fn one(outbound: &mut Outbound) -> Value {
    let mut all = sent(outbound);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// Returns `<operation> <resource>` of each sent message.
pub(super) fn routes(messages: &[Value]) -> Vec<String> {
    let route = |message: &Value| match message.get("ping") {
        Some(number) => format!("ping {number}"),
        None => format!("{} {}", text(&message["route"]["operation"]), text(&message["route"]["resource"])),
    };
    messages.iter().map(route).collect()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Returns the answer to a message.
pub(super) fn answer(message: &Value, content: &Value) -> String {
    let is_application = message["route"]["source"] == "metaserver";
    let (operation, resource) = match is_application {
        true => ("applicationResponse", json!("ignore/Application/ignore")),
        false => ("response", message["route"]["resource"].clone()),
    };
    let source = if is_application { "dynamiccontroller" } else { "edgecontroller" };
    json!({
        "header": {"msg_id": "95c6cb33-52c7-488a-96b4-98674da42fd9", "parent_msg_id": message["header"]["msg_id"],
            "timestamp": 1},
        "route": {"source": source, "group": "resource", "operation": operation, "resource": resource},
        "content": content,
    })
    .to_string()
}

/// Returns the content of an answer with an error.
pub(super) fn error(code: u16, reason: &str) -> Value {
    let status = json!({"metadata": {}, "status": "Failure", "message": format!("it is {reason}"), "reason": reason,
        "code": code});
    json!({"Object": {"metadata": {"creationTimestamp": null}}, "Err": {"ErrStatus": status}})
}

/// Advances the clock to this moment.
pub(super) fn pass_to(outbound: &mut Outbound, now: Duration) {
    outbound.at.wall += i64::try_from((now - outbound.at.now).as_millis()).unwrap();
    outbound.at.now = now;
}
