//! Requests and answers of the admin protocol as JSON, shared by all commands and servers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use edgesync_admin::cloud::{
    JoinedNode, Membership, NewOperator, NewToken, NodeInfo, Operator, OperatorCertificate, OperatorList,
    RevokedCertificates, RevokedOperators, RevokedToken, Token, TokenList, TokenRequest, state,
};
use edgesync_admin::{Method, Route};
use edgesync_api::{ExtensionCall, Role};
use edgesync_enrollment::membership::{MemberRecord, OperatorRecord, TokenRecord};
use edgesync_enrollment::{Enrollment, EnrollmentService, parse_node};
use edgesync_object::status::{Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Status};
use edgesync_transport::tls::{Certificate, Identity, Trust};

/// Deserializes the body of a request; 400 if it is invalid.
pub fn parse_request<T: DeserializeOwned>(body: &Value) -> Result<T> {
    T::deserialize(body).map_err(|error| Status::new(Reason::BadRequest, error.to_string()))
}

/// Serializes an answer; 500 if that fails.
pub fn answer(answer: &impl Serialize) -> Result<Value> {
    edgesync_admin::write(answer).map_err(Status::internal)
}

/// Refuses a request that changes something, unless the caller is an administrator.
pub fn check_change(call: &ExtensionCall) -> Result<()> {
    if call.method == Method::Get.as_str() {
        return Ok(());
    }
    check_role(call, Role::Admin)
}

/// Refuses a request of a caller with a lesser role than the required one.
pub(crate) fn check_role(call: &ExtensionCall, required: Role) -> Result<()> {
    if call.caller.role >= required {
        return Ok(());
    }
    let message = format!("requires role '{required}', have '{}'", call.caller.role);
    Err(Status::new(Reason::Forbidden, message))
}

/// Answers a request about tokens or operators, and 404 to any other. `join_url` is the URL of
/// the join service, if known.
pub async fn enrollment(
    service: &EnrollmentService,
    route: Route<'_>,
    body: &Value,
    join_url: Option<&str>,
) -> Result<Value> {
    let enrollment = service.enrollment();
    match route {
        Route::Tokens => answer(&tokens(&enrollment.tokens().await?)),
        Route::CreateToken => create_token(enrollment, body, join_url).await,
        Route::RevokeToken(id) => {
            answer(&RevokedToken { id: id.to_owned(), revoked: enrollment.revoke_token(id).await? })
        }
        Route::Operators => answer(&operators(enrollment.operator_records().await?)),
        Route::CreateOperator => {
            let OperatorCertificate { user, role, lifetime_seconds } = parse_request(body)?;
            let lifetime = Duration::from_secs(lifetime_seconds);
            let identity = service.new_operator(&user, role, lifetime).await?;
            answer(&new_operator(&enrollment.trust(), &identity))
        }
        Route::RevokeOperators(which) => {
            let certificates = service.revoke_operators(which).await?;
            answer(&RevokedOperators { operator: which.to_owned(), certificates })
        }
        _ => Err(Status::no_such_path()),
    }
}

/// Returns tokens with their states, without their secrets.
pub fn tokens(tokens: &[TokenRecord]) -> TokenList {
    let now = Timestamp::now();
    TokenList { items: tokens.iter().map(|record| token(record, now)).collect() }
}

/// Creates the token that a request describes. `join_url` is the URL of the join service, if known.
pub async fn create_token(enrollment: &Enrollment, body: &Value, join_url: Option<&str>) -> Result<Value> {
    let TokenRequest { node, ttl_seconds, uses, labels } = parse_request(body)?;
    let ttl = Duration::from_secs(ttl_seconds);
    let node = node.as_deref().map(parse_node).transpose()?;
    let made = enrollment.create_token(node.as_ref(), ttl, uses, labels).await?;
    let record = token(&made.record, Timestamp::now());
    answer(&NewToken { record, token: made.token, cloud: join_url.map(str::to_owned) })
}

/// Returns certificates of operators with their states.
pub fn operators(operators: Vec<OperatorRecord>) -> OperatorList {
    let now = Timestamp::now();
    OperatorList { items: operators.into_iter().map(|record| operator(record, now)).collect() }
}

fn token(token: &TokenRecord, now: Timestamp) -> Token {
    let state = match token {
        token if token.revoked.is_some() => "revoked",
        token if token.expires <= now => "expired",
        token if token.used >= token.uses => "used up",
        _ => "usable",
    };
    let TokenRecord { id, node, created, expires, uses, used, revoked, labels } = token.clone();
    let node = node.map(|node| node.to_string());
    Token { id, node, created, expires, uses, used, revoked, labels, state: state.to_owned() }
}

fn operator(operator: OperatorRecord, now: Timestamp) -> Operator {
    let state = match &operator {
        operator if operator.revoked.is_some() => "revoked",
        operator if operator.expires <= now => "expired",
        _ => "usable",
    };
    let OperatorRecord { serial, name, role, created, expires, revoked } = operator;
    Operator { serial, name, role, created, expires, revoked, state: state.to_owned() }
}

/// Returns an operator's certificate and key, with the CA certificates of the API.
pub fn new_operator(trust: &Trust, identity: &Identity) -> NewOperator {
    let pem = |certificates: &[Certificate]| certificates.iter().map(Certificate::to_pem).collect::<String>();
    NewOperator { ca: pem(&trust.0), certificate: pem(identity.chain()), key: identity.key().to_pem() }
}

/// Returns the number of revoked certificates of a node.
pub fn certificates(node: &NodeName, certificates: usize) -> RevokedCertificates {
    RevokedCertificates { node: node.to_string(), certificates }
}

/// Adds memberships to nodes: ends of certificates, revocations, and nodes that have joined and
/// never connected.
pub fn with_members(nodes: Vec<NodeInfo>, members: &[MemberRecord]) -> Vec<NodeInfo> {
    let mut nodes: BTreeMap<String, NodeInfo> =
        nodes.into_iter().map(|node| (node.name().to_owned(), node)).collect();
    for member in members {
        let node = nodes.remove(member.node.as_str());
        nodes.insert(member.node.to_string(), with_known_member(node, member));
    }
    nodes.into_values().collect()
}

/// Adds the membership to one node. Returns `None` if neither is known.
pub fn with_member(node: Option<NodeInfo>, member: Option<&MemberRecord>) -> Option<NodeInfo> {
    match member {
        Some(member) => Some(with_known_member(node, member)),
        None => node,
    }
}

fn with_known_member(node: Option<NodeInfo>, member: &MemberRecord) -> NodeInfo {
    let membership = Membership { certificate_ends: member.ends.map(rfc3339), revoked: member.is_revoked };
    let mut node = node.unwrap_or_else(|| {
        NodeInfo::Joined(JoinedNode {
            name: member.node.to_string(),
            state: state::NEVER_CONNECTED.to_owned(),
            membership: membership.clone(),
            ready: None,
            objects_not_in_effect: None,
        })
    });
    node.set_membership(membership);
    node
}

/// Returns the error for a node that has joined and never connected, with a remedy.
pub fn never_connected(node: &NodeName) -> Status {
    let message = format!(
        "node '{node}' has joined but never connected; hint: to revoke its certificate and free the name, run \
         'edgesync-cloud node forget {node}'"
    );
    Status::new(Reason::NotFound, message)
}

/// Parses the name of a node in a path. An invalid name is answered like an unknown node.
pub fn node_name(node: &str) -> Result<NodeName> {
    NodeName::parse(node).map_err(|_| unknown(node))
}

/// Returns the error for an unknown node.
pub fn unknown(node: &str) -> Status {
    Status::new(Reason::NotFound, format!("node '{node}' not found; hint: 'edgesync-cloud nodes' lists all"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::cloud::{RemovedNode, ServedNode};
    use edgesync_admin::samples;
    use edgesync_object::Labels;
    use serde_json::json;

    #[test]
    fn certificates_of_operators_are_usable_until_they_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let state = |expires, revoked: Option<i64>| {
            let (serial, name, role) = ("1".to_owned(), "ada".to_owned(), "view".to_owned());
            let revoked = revoked.map(at);
            let record = OperatorRecord { serial, name, role, created: at(0), expires: at(expires), revoked };
            operator(record, at(10)).state
        };
        assert_eq!((state(11, None), state(10, None)), ("usable".to_owned(), "expired".to_owned()));
        assert_eq!((state(11, Some(5)), state(9, Some(5))), ("revoked".to_owned(), "revoked".to_owned()));
    }

    #[test]
    fn revoked_and_never_connected_nodes_are_marked() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let member = |node: &str, ends: Option<i64>, is_revoked| MemberRecord {
            node: NodeName::parse(node).unwrap(),
            ends: ends.map(at),
            is_revoked,
        };
        let node = |name: &str, state: &str| {
            let (name, state) = (name.to_owned(), state.to_owned());
            match state.as_str() {
                "removed" => NodeInfo::Removed(RemovedNode { name, state, ..samples::removed_node() }),
                _ => NodeInfo::Served(Box::new(ServedNode { name, state, ..samples::served_node() })),
            }
        };
        let nodes = vec![node("b", "offline"), node("c", "removed"), node("d", "in sync"), node("e", "live")];
        let members = [
            member("a", Some(10), false),
            member("b", None, true),
            member("c", None, true),
            member("d", Some(20), false),
        ];
        let shown = with_members(nodes, &members);
        let of = |index: usize| {
            let node: &NodeInfo = &shown[index];
            (node.name(), node.state(), node.ready())
        };
        assert_eq!(of(0), ("a", "never connected", None));
        assert_eq!(of(1), ("b", "revoked", Some(false)));
        assert_eq!(of(2), ("c", "removed", None));
        assert_eq!(of(3), ("d", "in sync", Some(true)));
        assert_eq!(of(4), ("e", "live", Some(true)));
        assert_eq!(json!(shown[0])["certificateEnds"], "1970-01-01T00:00:10Z");
        assert_eq!(with_member(None, Some(&members[0])).unwrap(), shown[0]);
        assert_eq!(with_member(None, None), None);
    }

    #[test]
    fn token_state_follows_use_expiry_and_revocation() {
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
            assert_eq!(token(&record, at(now)).state, state);
        }
    }
}
