//! Self-reviews: a client's identity and permissions. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::auth::{Caller, Role, authorize};
use super::kind::{Kind, Writable};
use super::request::{Review, Verb};

/// Answers a review: the object that was sent, with its status.
pub(super) fn answer(review: Review, kinds: &[Arc<Kind>], caller: &Caller, mut sent: Value) -> Value {
    let (group, kind, status) = match review {
        Review::Myself => ("authentication", "SelfSubjectReview", json!({ "userInfo": user(caller) })),
        Review::Access => ("authorization", "SelfSubjectAccessReview", access(kinds, caller.role, &sent)),
        Review::Rules => ("authorization", "SelfSubjectRulesReview", rules(kinds, caller.role)),
    };
    if !sent.is_object() {
        sent = Value::Object(Map::new());
    }
    sent["apiVersion"] = json!(format!("{group}.k8s.io/v1"));
    sent["kind"] = json!(kind);
    sent["status"] = status;
    sent
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
    json!({
        "resourceRules": kinds.iter().filter_map(rule).collect::<Vec<_>>(),
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

    fn allowed(kinds: &[Arc<Kind>], role: Role, attributes: &Value) -> bool {
        let caller = Caller { name: "ada".into(), role, ..Caller::default() };
        let sent = json!({ "spec": { "resourceAttributes": attributes } });
        let status = &answer(Review::Access, kinds, &caller, sent)["status"];
        status["allowed"] == true
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
        let why = answer(
            Review::Access,
            &kinds,
            &Caller { name: "ada".into(), role: Role::View, ..Caller::default() },
            json!({ "spec": { "resourceAttributes": { "verb": "get", "resource": "secrets" } } }),
        );
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
        let caller = Caller { name: "ada".into(), role: Role::View, ..Caller::default() };
        let myself = answer(Review::Myself, &kinds, &caller, Value::Null);
        assert_eq!(
            myself["status"]["userInfo"],
            json!({"username": "ada", "groups": ["role:view", "system:authenticated"]})
        );
        assert_eq!(myself["kind"], "SelfSubjectReview");
        let rules = &answer(Review::Rules, &kinds, &caller, json!({}))["status"]["resourceRules"];
        assert_eq!(
            rules,
            &json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}])
        );
    }
}
