//! Reviews: identity and permissions of a client, identity behind a token. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::auth::{Access, Caller, Role, authorize};
use super::kind::{Kind, Writable};
use super::request::{Review, Verb};
use edgesync_object::Status;
use edgesync_object::status::Reason;

/// Verb of a review.
const CREATE: &str = "create";

/// Answers a review: the object that was sent, with its status. `tokens` are the access rules of
/// the server.
///
/// # Errors
/// 403 for a review of a token without the role `admin`, 400 for one without a token.
pub(super) fn answer(
    review: Review,
    kinds: &[Arc<Kind>],
    tokens: &Access,
    caller: &Caller,
    mut sent: Value,
) -> Result<Value, Status> {
    let status = match review {
        Review::Myself => json!({ "userInfo": user(caller) }),
        Review::Token => token(tokens, caller.role, &sent)?,
        Review::Access => access(kinds, caller.role, &sent),
        Review::Rules => rules(kinds, caller.role),
    };
    if !sent.is_object() {
        sent = Value::Object(Map::new());
    }
    sent["apiVersion"] = json!(format!("{}/{}", review.group(), Review::VERSION));
    sent["kind"] = json!(review.kind());
    sent["status"] = status;
    Ok(sent)
}

/// Checks that a role may post a review; returns the reason if not. A reviewer of tokens can guess
/// them, and learns the role of others.
fn may_post(role: Role, review: Review) -> Result<(), String> {
    if review != Review::Token || role == Role::Admin {
        return Ok(());
    }
    let plural = review.plural();
    Err(format!("cannot create {plural} with the role '{role}'; reviews of tokens need the role 'admin'"))
}

fn token(tokens: &Access, role: Role, sent: &Value) -> Result<Value, Status> {
    may_post(role, Review::Token).map_err(|why| Status::new(Reason::Forbidden, why))?;
    match sent.pointer("/spec/token").and_then(Value::as_str) {
        None | Some("") => Err(Status::bad_request("spec.token: a TokenReview must have a token")),
        Some(token) => Ok(match tokens.bearer(token) {
            Some(bearer) => json!({ "authenticated": true, "user": user(&bearer) }),
            None => json!({ "authenticated": false, "error": "the token is unknown or expired" }),
        }),
    }
}

fn user(caller: &Caller) -> Value {
    json!({ "username": &*caller.name, "groups": [format!("role:{}", caller.role), "system:authenticated"] })
}

fn access(kinds: &[Arc<Kind>], role: Role, sent: &Value) -> Value {
    let Some(attributes) = sent.pointer("/spec/resourceAttributes") else {
        let verb = sent.pointer("/spec/nonResourceAttributes/verb").and_then(Value::as_str);
        return json!({ "allowed": matches!(verb, Some("get" | "head" | "options")) });
    };
    let word = |name: &str| attributes.get(name).and_then(Value::as_str).unwrap_or_default();
    let (group, plural, part, verb) = (word("group"), word("resource"), word("subresource"), word("verb"));
    if [group, plural, verb].contains(&"*") {
        let all = kinds.iter().filter(|kind| {
            (group == "*" || kind.resource.group == group)
                && (plural == "*" || kind.resource.plural == plural)
        });
        let allowed = role == Role::Admin
            && all.clone().count() > 0
            && all.into_iter().all(|kind| is_allowed(kind, role, verb));
        return json!({ "allowed": allowed });
    }
    let version = word("version");
    let review_version = if matches!(version, "" | "*") { Review::VERSION } else { version };
    if let Some(review) = Review::of(group, review_version, plural).filter(|_| part.is_empty()) {
        let outcome = match verb {
            CREATE => may_post(role, review),
            _ => Err(format!("{plural} can only be created")),
        };
        return access_status(outcome);
    }
    let served = kinds.iter().find(|kind| {
        let resource = &kind.resource;
        resource.group == group
            && resource.plural == plural
            && (matches!(version, "" | "*") || resource.version == version)
    });
    let outcome = match served {
        None => Err(format!("{plural} are not served here")),
        Some(kind) => check(kind, part, role, verb),
    };
    access_status(outcome)
}

fn access_status(outcome: Result<(), String>) -> Value {
    match outcome {
        Ok(()) => json!({ "allowed": true }),
        Err(reason) => json!({ "allowed": false, "reason": reason }),
    }
}

/// Checks that a verb is allowed on a kind or a subresource; returns the reason if not.
fn check(kind: &Kind, part: &str, role: Role, verb: &str) -> Result<(), String> {
    let Some(verb) = Verb::ALL.into_iter().find(|candidate| candidate.as_str() == verb) else {
        return Err(format!("unknown verb '{verb}'"));
    };
    let served = match part {
        "" => true,
        "status" => kind.status_subresource,
        "scale" => kind.scale.is_some(),
        "finalize" => kind.is_finalized() && verb == Verb::Update,
        _ => false,
    };
    if !served {
        return Err(format!("{}/{part} is not served here", kind.resource.plural));
    }
    authorize(role, verb, kind).map_err(|status| status.message)?;
    let writable = match kind.writable {
        Writable::Everything => true,
        Writable::Status => part == "status",
        Writable::Nothing => false,
    };
    if verb.writes() && !writable {
        let hint = kind.read_only_hint.as_deref().unwrap_or("it is read-only here");
        return Err(hint.to_owned());
    }
    Ok(())
}

fn is_allowed(kind: &Kind, role: Role, verb: &str) -> bool {
    Verb::ALL
        .into_iter()
        .filter(|candidate| verb == "*" || candidate.as_str() == verb)
        .all(|verb| check(kind, "", role, verb.as_str()).is_ok())
}

fn rules(kinds: &[Arc<Kind>], role: Role) -> Value {
    let rule = |kind: &Arc<Kind>| {
        let allowed =
            Verb::ALL.into_iter().map(Verb::as_str).filter(|verb| check(kind, "", role, verb).is_ok());
        let verbs: Vec<&str> = allowed.collect();
        let resource = &kind.resource;
        (!verbs.is_empty())
            .then(|| json!({ "apiGroups": [resource.group], "resources": [resource.plural], "verbs": verbs }))
    };
    let reviews = Review::ALL.into_iter().filter(|review| may_post(role, *review).is_ok()).map(
        |review| json!({ "apiGroups": [review.group()], "resources": [review.plural()], "verbs": [CREATE] }),
    );
    json!({
        "resourceRules": kinds.iter().filter_map(rule).chain(reviews).collect::<Vec<_>>(),
        "nonResourceRules": [{ "nonResourceURLs": ["*"], "verbs": ["get"] }],
        "incomplete": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;

    fn kind(word: &str, writable: Writable) -> Arc<Kind> {
        let resource = kinds::by_word(word).unwrap_or_else(|| panic!("{word}")).resource();
        Arc::new(Kind { writable, ..Kind::without_schema(Arc::new(resource)) })
    }

    fn tokens() -> Access {
        Access::tokens(vec![("local-token".to_owned(), Role::Local)], 1000)
    }

    fn answer_to(review: Review, kinds: &[Arc<Kind>], role: Role, sent: Value) -> Result<Value, u16> {
        let caller = Caller { name: "ada".into(), role, ..Caller::default() };
        answer(review, kinds, &tokens(), &caller, sent).map_err(|status| status.code)
    }

    fn allowed(kinds: &[Arc<Kind>], role: Role, attributes: &Value) -> bool {
        let sent = json!({ "spec": { "resourceAttributes": attributes } });
        answer_to(Review::Access, kinds, role, sent).unwrap()["status"]["allowed"] == true
    }

    #[test]
    fn review_equals_the_result_of_the_request() {
        let kinds = [
            kind("cm", Writable::Everything),
            kind("secret", Writable::Everything),
            kind("ns", Writable::Everything),
        ];
        let ask = |role, verb: &str, plural: &str| {
            allowed(&kinds, role, &json!({ "verb": verb, "resource": plural }))
        };
        assert!(ask(Role::View, "get", "configmaps") && !ask(Role::View, "create", "configmaps"));
        assert!(!ask(Role::View, "get", "secrets") && ask(Role::Edit, "get", "secrets"));
        assert!(!ask(Role::Edit, "delete", "namespaces") && ask(Role::Admin, "delete", "namespaces"));
        assert!(ask(Role::Admin, "*", "*") && !ask(Role::Edit, "*", "*"));
        let secrets = json!({ "spec": { "resourceAttributes": { "verb": "get", "resource": "secrets" } } });
        let why = answer_to(Review::Access, &kinds, Role::View, secrets).unwrap();
        assert!(why["status"]["reason"].as_str().is_some_and(|why| why.contains("'edit'")), "{why}");
        assert!(!ask(Role::Admin, "use", "configmaps") && !ask(Role::Admin, "get", "widgets"));
        let log = json!({ "verb": "get", "resource": "configmaps", "subresource": "log" });
        assert!(!allowed(&kinds, Role::Admin, &log));
        let held = [kind("cm", Writable::Nothing)];
        assert!(!allowed(&held, Role::Admin, &json!({ "verb": "create", "resource": "configmaps" })));
    }

    #[test]
    fn caller_gets_name_role_and_rules() {
        let kinds = [kind("cm", Writable::Everything), kind("secret", Writable::Everything)];
        let myself = answer_to(Review::Myself, &kinds, Role::View, Value::Null).unwrap();
        assert_eq!(
            myself["status"]["userInfo"],
            json!({"username": "ada", "groups": ["role:view", "system:authenticated"]})
        );
        assert_eq!(myself["kind"], "SelfSubjectReview");
        let rules = answer_to(Review::Rules, &kinds, Role::View, json!({})).unwrap();
        let rules = rules["status"]["resourceRules"].as_array().unwrap().clone();
        let configmaps =
            json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
        assert_eq!(rules.first(), Some(&configmaps));
        let reviews = rules.iter().skip(1).map(|rule| rule["resources"][0].as_str().unwrap());
        let posted = ["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];
        assert_eq!(reviews.collect::<Vec<_>>(), posted);
    }

    #[test]
    fn admin_learns_whose_a_token_is() {
        let review =
            |role, token: &str| answer_to(Review::Token, &[], role, json!({ "spec": { "token": token } }));
        let known = review(Role::Admin, "local-token").unwrap();
        assert_eq!(
            (&known["kind"], &known["apiVersion"]),
            (&json!("TokenReview"), &json!("authentication.k8s.io/v1"))
        );
        let user = json!({"username": "token", "groups": ["role:local", "system:authenticated"]});
        assert_eq!(known["status"], json!({"authenticated": true, "user": user}));
        for unknown in ["local-tokeN", "Bearer local-token", "x", &"x".repeat(5000)] {
            let status = &review(Role::Admin, unknown).unwrap()["status"];
            assert_eq!((&status["authenticated"], status.get("user")), (&json!(false), None), "{unknown}");
        }
        assert_eq!(review(Role::Admin, ""), Err(400));
        assert_eq!(answer_to(Review::Token, &[], Role::Admin, Value::Null), Err(400));
        for role in [Role::View, Role::Local, Role::Edit] {
            assert_eq!(review(role, "local-token"), Err(403), "{role}");
        }
    }

    #[test]
    fn reviews_are_reviewed_like_kinds() {
        let ask = |role, verb: &str, group: &str, plural: &str| {
            allowed(&[], role, &json!({ "verb": verb, "group": group, "resource": plural }))
        };
        let authentication = "authentication.k8s.io";
        assert!(ask(Role::View, "create", authentication, "selfsubjectreviews"));
        assert!(!ask(Role::View, "list", authentication, "selfsubjectreviews"));
        assert!(!ask(Role::Edit, "create", authentication, "tokenreviews"));
        assert!(ask(Role::Admin, "create", authentication, "tokenreviews"));
        assert!(!ask(Role::Admin, "create", "", "tokenreviews"));
    }
}
