//! Applies a rule's `objects` to what the agent lists and sends. The agent selects by the same
//! rule, but it may be taken over: the privileged side decides again.

use serde_json::Value;

use super::refusal::Refusal;
use super::rule::Rule;
use super::wire::Listed;
use edgesync_object::{Labels, split_api_version};

/// Checks that a rule names a listed object by kind, namespace and name.
///
/// # Errors
/// The rule does not.
pub(crate) fn check_listed(rule: &Rule, listed: &Listed) -> Result<(), Refusal> {
    if rule.objects.names(&listed.resource(), &listed.namespace, &listed.name) {
        return Ok(());
    }
    Err(Refusal::NotSelected)
}

/// Checks that a body is that of the listed object, and that the rule selects its labels.
///
/// # Errors
/// The body has another identity, or its labels are not selected.
pub(crate) fn check_body(rule: &Rule, listed: &Listed, body: &Value) -> Result<(), Refusal> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, metadata) = (text(&body["apiVersion"]), &body["metadata"]);
    let is_listed = split_api_version(&api_version).0 == split_api_version(&listed.api_version).0
        && text(&body["kind"]) == listed.kind
        && text(&metadata["namespace"]) == listed.namespace
        && text(&metadata["name"]) == listed.name;
    if !is_listed {
        return Err(Refusal::OtherObject);
    }
    let selector = &rule.objects.selector;
    let labels = || serde_json::from_value::<Labels>(metadata["labels"].clone()).unwrap_or_default();
    if selector.is_empty() || selector.matches(&labels()) {
        return Ok(());
    }
    Err(Refusal::Labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::matching::ObjectMatch;
    use serde_json::json;

    fn rule() -> Rule {
        let objects = ObjectMatch {
            kinds: vec!["configmaps".parse().unwrap(), "mice.lab.io".parse().unwrap()],
            namespaces: vec!["plant-*".parse().unwrap()],
            names: vec!["web".to_owned()],
            selector: "app=web".parse().unwrap(),
        };
        Rule { objects, ..Rule::default() }
    }

    fn listed(api_version: &str, kind: &str, namespace: &str, name: &str) -> Listed {
        let [uid, api_version, kind, namespace, name, version] =
            ["u", api_version, kind, namespace, name, "1"].map(str::to_owned);
        Listed { uid, api_version, kind, namespace, name, version, ..Listed::default() }
    }

    #[test]
    fn objects_of_other_kinds_namespaces_and_names_are_refused() {
        assert_eq!(check_listed(&rule(), &listed("v1", "ConfigMap", "plant-1", "web")), Ok(()));
        for other in [
            listed("v1", "Secret", "plant-1", "web"),
            listed("lab.io/v1", "ConfigMap", "plant-1", "web"),
            listed("v1", "ConfigMap", "office", "web"),
            listed("v1", "ConfigMap", "", "web"),
            listed("v1", "ConfigMap", "plant-1", "sshd"),
        ] {
            assert!(check_listed(&rule(), &other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn an_irregular_plural_selects_custom_kinds_only() {
        let mouse = listed("lab.io/v1", "Mouse", "plant-1", "web");
        assert!(check_listed(&rule(), &mouse).is_err());
        let plural = || "mice".to_owned();
        assert_eq!(check_listed(&rule(), &Listed { plural: plural(), ..mouse }), Ok(()));
        let secret = Listed { plural: plural(), ..listed("v1", "Secret", "plant-1", "web") };
        let any_group = ObjectMatch { kinds: vec!["mice".parse().unwrap()], ..ObjectMatch::default() };
        assert!(check_listed(&Rule { objects: any_group, ..Rule::default() }, &secret).is_err());
    }

    #[test]
    fn body_must_be_of_the_listed_object_with_selected_labels() {
        let web = listed("v1", "ConfigMap", "plant-1", "web");
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "namespace": "plant-1", "name": "web", "labels": { "app": "web" } },
        });
        assert_eq!(check_body(&rule(), &web, &body), Ok(()));
        for (pointer, value) in [
            ("/apiVersion", json!("lab.io/v1")),
            ("/kind", json!("Secret")),
            ("/metadata/namespace", json!("../..")),
            ("/metadata/name", json!("sshd")),
            ("/metadata/name", json!(7)),
            ("/metadata/labels/app", json!("other")),
            ("/metadata/labels/app", json!(1)),
            ("/metadata/labels", Value::Null),
            ("/metadata", json!("web")),
            ("", json!([])),
        ] {
            let mut other = body.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert!(check_body(&rule(), &web, &other).is_err(), "{pointer}: {other}");
        }
        let any = Rule::default();
        assert_eq!(check_body(&any, &web, &body), Ok(()));
    }
}
