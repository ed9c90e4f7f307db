//! What operators ask of a fleet, and are told, as JSON: the same wherever it is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use edgesync_api::Role;
use edgesync_cloud_store::operators::OperatorRecord;
use edgesync_cloud_store::pairing::{MemberRecord, TokenRecord};
use edgesync_enrollment::Office;
use edgesync_object::status::{Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{Labels, Status};
use edgesync_transport::tls::{Certificate, Identity, Trust};

/// What a token is asked for with.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WantedToken {
    node: Option<String>,
    ttl_seconds: u64,
    uses: u32,
    #[serde(default)]
    labels: Labels,
}

/// What a node is admitted with.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedAdmission {
    /// The external broker refuses the node's revoked certificates.
    pub broker_updated: bool,
}

/// What the certificate of an operator is asked for with.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedOperator {
    pub user: String,
    pub role: Role,
    lifetime_seconds: u64,
}

impl WantedOperator {
    /// How long it is to be good.
    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime_seconds)
    }
}

/// Reads what is asked for.
pub fn wanted<T: DeserializeOwned>(body: &Value) -> Result<T> {
    T::deserialize(body).map_err(|error| Status::new(Reason::BadRequest, error.to_string()))
}

/// What there are, as a list.
fn items<T>(records: &[T], show: fn(&T, Timestamp) -> Value, now: Timestamp) -> Value {
    json!({ "items": records.iter().map(|record| show(record, now)).collect::<Vec<_>>() })
}

/// Does what is asked of tokens, at a path below `tokens`: shows all, without their secret part, makes one, or makes one useless.
/// `service` is where to join, as far as that is known.
pub async fn tokens(
    office: &Office,
    method: &str,
    path: &[&str],
    body: &Value,
    service: Option<&str>,
) -> Result<Value> {
    let now = Timestamp::now();
    match (method, path) {
        ("GET", []) => Ok(items(&office.tokens().await?, token, now)),
        ("POST", []) => {
            let WantedToken { node, ttl_seconds, uses, labels } = wanted(body)?;
            let ttl = Duration::from_secs(ttl_seconds);
            let made = office.create_token(node.as_deref(), ttl, uses, labels).await?;
            let mut shown = token(&made.record, now);
            shown["token"] = made.token.into();
            shown["cloud"] = json!(service);
            Ok(shown)
        }
        ("POST", [id, "revoke"]) => Ok(json!({ "id": id, "revoked": office.revoke_token(id).await? })),
        _ => Err(Status::no_such_path()),
    }
}

fn token(token: &TokenRecord, now: Timestamp) -> Value {
    let state = match token {
        token if token.revoked.is_some() => "revoked",
        token if token.expires <= now => "expired",
        token if token.used >= token.uses => "used up",
        _ => "usable",
    };
    let mut shown = json!(token);
    shown["state"] = state.into();
    shown
}

/// Certificates of operators.
pub fn operators(operators: &[OperatorRecord], now: Timestamp) -> Value {
    items(operators, operator, now)
}

fn operator(operator: &OperatorRecord, now: Timestamp) -> Value {
    let state = match operator {
        operator if operator.revoked.is_some() => "revoked",
        operator if operator.expires <= now => "expired",
        _ => "usable",
    };
    let mut shown = json!(operator);
    shown["state"] = state.into();
    shown
}

/// The certificate of an operator, with its key, and who vouches for the API.
pub fn new_operator(trust: &Trust, identity: &Identity) -> Value {
    let pem = |certificates: &[Certificate]| certificates.iter().map(Certificate::to_pem).collect::<String>();
    json!({ "ca": pem(&trust.0), "certificate": pem(identity.chain()), "key": identity.key().to_pem() })
}

/// How many certificates of operators are revoked.
pub fn revoked_operators(which: &str, certificates: usize) -> Value {
    json!({ "operator": which, "certificates": certificates })
}

/// How many certificates of a node this is about.
pub fn certificates(node: &str, certificates: usize) -> Value {
    json!({ "node": node, "certificates": certificates })
}

/// Whether a node was removed, and is no more what it was before.
pub fn removed(node: &str, removed: bool) -> Value {
    json!({ "node": node, "removed": removed })
}

/// Whether a node that was removed may come back.
pub fn admitted(node: &str, admitted: bool) -> Value {
    json!({ "node": node, "admitted": admitted })
}

/// How many removals are confirmed.
pub fn confirmed(node: &str, count: u64) -> Value {
    json!({ "node": node, "confirmed": count })
}

/// Adds to what is known of nodes what is known of their names: when certificates end, who is revoked, and who has joined and
/// never come.
pub fn with_members(nodes: Vec<Value>, members: &[MemberRecord]) -> Vec<Value> {
    let named = |node: Value| Some((node["name"].as_str()?.to_owned(), node));
    let mut nodes: BTreeMap<String, Value> = nodes.into_iter().filter_map(named).collect();
    for member in members {
        let node = nodes.entry(member.node.clone()).or_insert_with(|| only_joined(&member.node));
        add_member(node, member);
    }
    nodes.into_values().collect()
}

/// The same of one node. None if nothing is known of it.
pub fn with_member(node: Option<Value>, member: Option<&MemberRecord>) -> Option<Value> {
    let Some(member) = member else { return node };
    let mut node = node.unwrap_or_else(|| only_joined(&member.node));
    add_member(&mut node, member);
    Some(node)
}

fn only_joined(name: &str) -> Value {
    json!({ "name": name, "state": NEVER_CONNECTED })
}

fn add_member(node: &mut Value, member: &MemberRecord) {
    if node["state"] == "removed" {
        return;
    }
    node["certificateEnds"] = json!(member.ends.map(rfc3339));
    node["revoked"] = member.is_revoked.into();
    if member.is_revoked && node["state"] != BEING_REMOVED {
        // Its Lease may still be good for a moment.
        node["state"] = REVOKED.into();
        node["ready"] = false.into();
    }
}

/// A node that has joined and never said Hello.
pub(super) const NEVER_CONNECTED: &str = "never connected";
/// A node whose certificates are all revoked.
pub(super) const REVOKED: &str = "revoked";
/// A node whose removal has begun.
pub const BEING_REMOVED: &str = "being removed";

/// What can be done about a node that has joined and that nothing else is known of.
pub fn never_connected(node: &str) -> Status {
    let message = format!(
        "node '{node}' has joined and never said Hello: 'edgesync-cloud node forget {node}' revokes its certificate and frees \
         the name"
    );
    Status::new(Reason::NotFound, message)
}

/// A node that nothing is known of.
pub fn unknown(node: &str) -> Status {
    Status::new(Reason::NotFound, format!("there is no node '{node}': 'edgesync-cloud nodes' shows all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_revoked_and_who_has_only_joined_is_told() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let member = |node: &str, ends: Option<i64>, is_revoked| MemberRecord {
            node: node.to_owned(),
            ends: ends.map(at),
            is_revoked,
        };
        let node = |name: &str, state: &str| json!({ "name": name, "state": state, "ready": true });
        let nodes = vec![node("b", "offline"), node("c", "removed"), node("d", "in sync"), node("e", "live")];
        let members = [
            member("a", Some(10), false),
            member("b", None, true),
            member("c", None, true),
            member("d", Some(20), false),
        ];
        let shown = with_members(nodes, &members);
        let of = |index: usize| {
            let node: &Value = &shown[index];
            (node["name"].as_str().unwrap(), node["state"].as_str().unwrap(), node["ready"].as_bool())
        };
        assert_eq!(of(0), ("a", "never connected", None));
        assert_eq!(of(1), ("b", "revoked", Some(false)));
        assert_eq!(of(2), ("c", "removed", Some(true)));
        assert_eq!(of(3), ("d", "in sync", Some(true)));
        assert_eq!(of(4), ("e", "live", Some(true)));
        assert_eq!(shown[0]["certificateEnds"], "1970-01-01T00:00:10Z");
        assert_eq!(with_member(None, Some(&members[0])).unwrap(), shown[0]);
        assert_eq!(with_member(None, None), None);
    }

    #[test]
    fn the_state_of_a_token_is_told() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let usable = TokenRecord {
            id: "a".into(),
            node: None,
            created: at(0),
            expires: at(10),
            uses: 2,
            used: 1,
            revoked: None,
            labels: Labels::new(),
        };
        for (record, now, state) in [
            (usable.clone(), 9, "usable"),
            (usable.clone(), 10, "expired"),
            (TokenRecord { used: 2, ..usable.clone() }, 9, "used up"),
            (TokenRecord { revoked: Some(at(1)), ..usable }, 10, "revoked"),
        ] {
            assert_eq!(items(&[record], token, at(now))["items"][0]["state"], state);
        }
    }
}
