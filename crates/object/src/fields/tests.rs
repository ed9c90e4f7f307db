use super::*;
use proptest::prelude::*;
use serde_json::json;

fn selector(text: &str) -> FieldSelector {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn selects(text: &str, object: Value) -> bool {
    let Value::Object(object) = object else { panic!("{object}") };
    selector(text).matches("n", "a", &object)
}

fn refused(text: &str) -> String {
    text.parse::<FieldSelector>().unwrap_err().to_string()
}

#[test]
fn name_and_namespace_are_compared() {
    let both = selector("metadata.name==a, metadata.namespace!=b");
    assert!(both.matches_names("c", "a") && both.matches("c", "a", &Map::new()));
    assert!(!both.matches_names("b", "a"));
    assert!(!both.matches_names("c", "x") && !both.matches("c", "x", &Map::new()));
    assert_eq!(both.only_namespace(), None);
    assert!(both.is_only_names() && !selector("spec.x=1").is_only_names());
    assert!(selector("").is_empty() && selector("").matches_names("x", "y"));
    assert_eq!(selector("metadata.namespace=").only_namespace(), Some(""));
}

#[test]
fn values_compare_as_text_and_absent_ones_as_empty() {
    let pod = || json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "e", "hostNetwork": true}});
    assert!(selects("spec.nodeName=e,spec.hostNetwork=true,status.phase=", pod()));
    assert!(!selects("spec.nodeName=,spec.hostNetwork=true", pod()));
    assert!(selects("status.phase!=Running", pod()));
    let widget = || json!({"kind": "Widget", "spec": {"size": 3, "deep": {"on": false}, "list": ["x"]}});
    assert!(selects("spec.size=3,spec.deep.on=false,spec.list=,spec.size.x=", widget()));
}

#[test]
fn absent_flags_and_counts_have_kubernetes_defaults() {
    for (kind, group, text) in [
        ("Pod", "v1", "spec.hostNetwork=false"),
        ("Node", "v1", "spec.unschedulable=false"),
        ("ReplicaSet", "apps/v1", "status.replicas=0"),
        ("Job", "batch/v1", "status.successful=0"),
    ] {
        assert!(selects(text, json!({"apiVersion": group, "kind": kind})), "{text}");
    }
    assert!(!selects("spec.unschedulable=false", json!({"apiVersion": "lab.io/v1", "kind": "Node"})));
    let done = json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"succeeded": 2}});
    assert!(selects("status.successful=2", done));
}

#[test]
fn event_is_selected_by_fields_of_either_form() {
    let core = || {
        json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "reason": "R",
            "source": {"component": "kubelet"}, "reportingComponent": "x"})
    };
    let new = || {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "reason": "R",
            "reportingController": "kubelet"})
    };
    for object in [core(), new()] {
        assert!(selects("involvedObject.name=p,source=kubelet,reason=R", object));
    }
    for object in [core(), new()] {
        assert!(selects("regarding.name=p,regarding.kind=", object));
    }
    assert!(selects("reportingController=x", core()) && selects("reportingComponent=kubelet", new()));
}

#[test]
fn each_kind_has_its_own_fields() {
    let check = |text: &str, group: &str, kind: &str| selector(text).check(group, kind, &[]).is_ok();
    assert!(check("spec.nodeName=a,metadata.name=b", "", "Pod"));
    assert!(check("type=Opaque", "", "Secret") && !check("type=Opaque", "", "ConfigMap"));
    assert!(check("involvedObject.uid=1,source=x", "", "Event"));
    assert!(!check("involvedObject.uid=1", "events.k8s.io", "Event"));
    assert!(!check("source=x", "events.k8s.io", "Event") && !check("regarding.uid=1", "", "Event"));
    assert!(check("regarding.uid=1,reportingController=c,type=Normal", "events.k8s.io", "Event"));
    assert!(check("spec.signerName=x", "certificates.k8s.io", "CertificateSigningRequest"));
    assert!(!check("spec.nodeName=a", "lab.io", "Pod"));
    let error = selector("spec.x=1").check("", "Pod", &[]).unwrap_err();
    assert_eq!(error.to_string(), "field label not supported: spec.x");
    assert_eq!(selector("spec.color=red").check("lab.io", "Widget", &["spec.color".into()]), Ok(()));
}

#[test]
fn commas_and_equals_signs_in_values_are_escaped() {
    let odd = r"metadata.name=a\,b\=c\\d,metadata.namespace=n";
    assert!(selector(odd).matches_names("n", r"a,b=c\d"));
    assert_eq!(selector(odd).only_namespace(), Some("n"));
    for bad in [r"metadata.name=a\", r"metadata.name=a\x", r"metadata.name=\ "] {
        assert!(refused(bad).contains("backslash"), "{bad}");
    }
    assert!(refused("metadata.name=a=b").contains("expected field=value"));
}

#[test]
fn invalid_texts_are_refused() {
    for bad in ["metadata.name", "a b", &"x".repeat(MAX_FIELD_SELECTOR + 1)] {
        assert!(bad.parse::<FieldSelector>().is_err(), "{bad}");
    }
    assert!(selector("=").check("", "Pod", &[]).is_err());
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_panic(text in r"[a.=!,\\ ]{0,40}|.{0,60}") {
        if let Ok(selector) = text.parse::<FieldSelector>() {
            let _ = (selector.check("", "Pod", &[]), selector.matches("n", "a", &Map::new()));
        }
    }

    #[test]
    fn escaped_value_survives_a_round_trip(value in r"[a=,\\ä]{0,20}") {
        let escaped: String = value
            .chars()
            .flat_map(|c| matches!(c, '=' | ',' | '\\').then_some('\\').into_iter().chain([c]))
            .collect();
        let read = selector(&format!("metadata.namespace!=x,metadata.name={escaped}"));
        let other = value.clone() + "x";
        prop_assert!(read.matches_names("n", &value) && !read.matches_names("n", &other));
    }
}
