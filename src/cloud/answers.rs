//! What operators ask of a fleet, and are told, as JSON: the same wherever it is asked.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::pairing::Office;
use crate::api::Role;
use crate::object::status::{Reason, Result};
use crate::object::{Labels, Status};
use crate::store::cloud::operators::OperatorRecord;
use crate::store::cloud::pairing::TokenRecord;
use crate::tls::{Certificate, Identity, Trust};

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
pub(super) struct WantedAdmission {
    /// The external broker refuses the node's revoked certificates.
    pub(super) broker_updated: bool,
}

/// What the certificate of an operator is asked for with.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WantedOperator {
    pub(super) user: String,
    pub(super) role: Role,
    lifetime_seconds: u64,
}

impl WantedOperator {
    /// How long it is to be good.
    pub(super) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime_seconds)
    }
}

/// Reads what is asked for.
pub(super) fn wanted<T: DeserializeOwned>(body: &Value) -> Result<T> {
    T::deserialize(body).map_err(|error| Status::new(Reason::BadRequest, error.to_string()))
}

/// What there are, as a list.
fn items<T>(records: &[T], show: fn(&T, Timestamp) -> Value, now: Timestamp) -> Value {
    json!({ "items": records.iter().map(|record| show(record, now)).collect::<Vec<_>>() })
}

/// Does what is asked of tokens, at a path below `tokens`: shows all, without their secret part, makes one, or makes one useless.
/// `service` is where to join, as far as that is known.
pub(super) async fn tokens(
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
pub(super) fn operators(operators: &[OperatorRecord], now: Timestamp) -> Value {
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
pub(super) fn new_operator(trust: &Trust, identity: &Identity) -> Value {
    let pem = |certificates: &[Certificate]| certificates.iter().map(Certificate::to_pem).collect::<String>();
    json!({ "ca": pem(&trust.0), "certificate": pem(identity.chain()), "key": identity.key().to_pem() })
}

/// How many certificates of operators are revoked.
pub(super) fn revoked_operators(which: &str, certificates: usize) -> Value {
    json!({ "operator": which, "certificates": certificates })
}

/// How many certificates of a node this is about.
pub(super) fn certificates(node: &str, certificates: usize) -> Value {
    json!({ "node": node, "certificates": certificates })
}

/// Whether a node was removed, and is no more what it was before.
pub(super) fn removed(node: &str, removed: bool) -> Value {
    json!({ "node": node, "removed": removed })
}

/// Whether a node that was removed may come back.
pub(super) fn admitted(node: &str, admitted: bool) -> Value {
    json!({ "node": node, "admitted": admitted })
}

/// How many removals are confirmed.
pub(super) fn confirmed(node: &str, count: u64) -> Value {
    json!({ "node": node, "confirmed": count })
}

/// A node that nothing is known of.
pub(super) fn unknown(node: &str) -> Status {
    Status::new(Reason::NotFound, format!("node '{node}' has never said Hello"))
}

/// A node of which there are neither certificates nor tokens.
pub(super) fn unknown_name(node: &str) -> Status {
    Status::new(Reason::NotFound, format!("there is no node '{node}': 'edgesync-cloud nodes' shows all"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
