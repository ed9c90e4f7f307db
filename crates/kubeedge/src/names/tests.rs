use proptest::prelude::*;
use serde_json::json;

use super::*;

fn name(namespace: &str, kind: QueriedKind, name: &str) -> Name {
    Name { namespace: namespace.into(), kind, name: name.into() }
}

#[test]
fn a_rule_without_a_star_is_a_name() {
    let rule = FetchRule::parse("default/configmap/kube-root-ca.crt").unwrap();
    let exact = name("default", QueriedKind::ConfigMap, "kube-root-ca.crt");
    assert_eq!(rule.exact(), Some(exact.clone()));
    assert!(rule.matches(&exact));
    assert_eq!((rule.namespace(), rule.kind()), ("default", QueriedKind::ConfigMap));
    assert!(!rule.matches(&name("default", QueriedKind::Secret, "kube-root-ca.crt")));
    assert!(!rule.matches(&name("lab", QueriedKind::ConfigMap, "kube-root-ca.crt")));
    assert_eq!(rule.to_string(), exact.to_string());
}

#[test]
fn stars_stand_for_any_letters() {
    let cases = [
        ("*", "a", true),
        ("app-*", "app-", true),
        ("app-*", "app-1", true),
        ("app-*", "my-app-1", false),
        ("*-app", "my-app", true),
        ("*-app", "my-app-1", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("a*bb*b", "abb", false),
        ("a*bb*b", "abbb", true),
        ("**a**", "bab", true),
    ];
    for (pattern, text, expected) in cases {
        let rule = FetchRule::parse(&format!("lab/secret/{pattern}")).unwrap();
        assert_eq!(rule.exact(), None);
        assert_eq!(rule.matches(&name("lab", QueriedKind::Secret, text)), expected, "{pattern} {text}");
    }
}

#[test]
fn a_wrong_rule_gets_an_error_with_the_right_form() {
    for wrong in [
        "",
        "a",
        "a/b",
        "lab/pod/x",
        "lab/configmap/",
        "lab/configmaps/x",
        "lab/configmap/x/y",
        "/configmap/x",
        "*/configmap/x",
        "lab/ConfigMap/x",
        "lab/configmap/X",
        "lab/configmap/-*",
        "lab/configmap/a b",
    ] {
        let problem = FetchRule::parse(wrong).unwrap_err();
        assert!(problem.contains("must be <namespace>/<configmap|secret>/<name>"), "{problem}");
        assert!(problem.ends_with(&format!("not {wrong:?}")), "{problem}");
    }
    assert!(FetchRule::parse(&"x/".repeat(5000)).unwrap_err().len() < 400);
    for wrong in [
        "",
        "v1/pods",
        "lab.io/v1",
        "lab.io/v1/Widgets",
        "/v1/pods",
        "lab.io//widgets",
        "a/v1/b/c/d",
        "a/v1/b/",
    ] {
        let problem = WatchRule::parse(wrong).unwrap_err();
        assert!(problem.starts_with("must be <group>/<version>/<plural>"), "{problem}");
    }
}

#[test]
fn a_watch_rule_is_shown_as_it_is_written() {
    for text in ["lab.io/v1/widgets", "lab.io/v1alpha1/widgets/lab", "core/v1/pods", "core/v1/pods/lab"] {
        assert_eq!(WatchRule::parse(text).unwrap().to_string(), text);
    }
    let rule = WatchRule::parse("core/v1/pods/lab").unwrap();
    assert_eq!((&*rule.group, rule.namespace.as_deref()), ("", Some("lab")));
}

#[test]
fn a_wrong_field_of_a_pod_does_not_lose_the_others() {
    let pod = json!({
        "metadata": {"namespace": "lab", "name": "web"},
        "spec": {
            "containers": [7, {"env": {"a": 1}, "envFrom": [{"configMapRef": {"name": "c1"}}, null]}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s1"}}}, {"valueFrom": 3}]}],
            "ephemeralContainers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c2"}}}]}],
            "volumes": [
                {"configMap": {"name": "c1"}}, {"secret": {"secretName": "s2"}}, {"secret": {"secretName": 5}},
                {"projected": {"sources": [{"configMap": {"name": "c3"}}, {"secret": {"name": "s3"}}, 1]}},
                {"configMap": {"name": "../no/name"}},
            ],
            "imagePullSecrets": [{"name": "s4"}, {}],
            "nodeName": [],
        },
    });
    let found: Vec<String> = references(&pod.to_string()).iter().map(Name::to_string).collect();
    assert_eq!(
        found,
        [
            "lab/configmap/c1",
            "lab/configmap/c2",
            "lab/configmap/c3",
            "lab/secret/s1",
            "lab/secret/s2",
            "lab/secret/s3",
            "lab/secret/s4",
        ]
    );
}

#[test]
fn references_need_a_pod_and_are_bounded() {
    for none in ["", "7", "{", r#"{"spec":{}}"#, r#"{"metadata":{"namespace":"lab"},"spec":[]}"#] {
        assert_eq!(references(none), [], "{none}");
    }
    let many: Vec<_> = (0..5000).map(|at| json!({"name": format!("s{at}")})).collect();
    let pod = json!({"metadata": {"namespace": "lab"}, "spec": {"imagePullSecrets": many}});
    assert_eq!(references(&pod.to_string()).len(), 1024);
}

/// Matches by the plain definition of a pattern.
fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|at| by_definition(rest, &text[at..])),
        ([first, pattern @ ..], [letter, text @ ..]) => first == letter && by_definition(pattern, text),
        _ => false,
    }
}

proptest! {
    #[test]
    fn a_pattern_matches_by_its_definition(pattern in "[ab*]{0,7}", text in "[ab]{0,8}") {
        prop_assert_eq!(matches(&pattern, &text), by_definition(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,60}", inner in r#"[\{\}\[\]":,a-z0-9]{0,40}"#) {
        let _ = (FetchRule::parse(&text), WatchRule::parse(&text), references(&text));
        let _ = references(&format!(r#"{{"metadata":{{"namespace":"lab"}},"spec":{{"volumes":[{inner}]}}}}"#));
    }
}
