//! kubectl and the CEL rules of custom kinds: messages for violated, invalid and unsupported rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl::Cluster;
use edgesync_testkit::site::{PATIENCE, eventually};
use serde_json::json;

const GATEWAYS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gateways, kind: Gateway}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-validations:
        - {rule: \"self.metadata.name.startsWith('gw-')\", message: names begin with gw-}
        properties:
          spec:
            type: object
            x-kubernetes-validations:
            - rule: self.min <= self.max
              messageExpression: \"'min %d is more than max %d'.format([self.min, self.max])\"
              fieldPath: .min
            properties:
              class:
                type: string
                x-kubernetes-validations: [{rule: self == oldSelf, message: class is immutable}]
              min: {type: integer, default: 1}
              max: {type: integer, default: 5}
              listeners:
                type: array
                maxItems: 8
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, host: {type: string, maxLength: 63}}
                  x-kubernetes-validations:
                  - {rule: \"!has(self.host) || self.host.matches('^[a-z.]+$')\"}
";

fn gateway(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: example.com/v1, kind: Gateway, metadata: {{name: {name}, namespace: default}}, spec: {{{spec}}}}}\n"
    )
}

async fn with_gateways() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.apply(GATEWAYS);
    cluster
        .kubectl(&["wait", "--for=condition=Established", "crd/gateways.example.com", "--timeout=30s"])
        .ok();
    cluster
}

#[tokio::test]
async fn violated_rules_are_reported_with_their_message() {
    let cluster = with_gateways().await;
    let apply = |name: &str, spec: &str| cluster.client.feed(&["apply", "-f", "-"], &gateway(name, spec));
    apply("gw-a", "class: fast, listeners: [{name: x, host: a.example}]").ok();
    let said = apply("other", "class: fast").fails_with("The Gateway \"other\" is invalid: ");
    assert!(said.contains("<nil>: Invalid value: \"object\": names begin with gw-"), "{said}");
    apply("gw-a", "class: slow").fails_with("spec.class: Invalid value: \"string\": class is immutable");
    apply("gw-a", "class: fast, min: 7")
        .fails_with("spec.min: Invalid value: \"object\": min 7 is more than max 5");
    apply("gw-a", "class: fast, listeners: [{name: x}, {name: z, host: A}]").fails_with(
        "spec.listeners[1]: Invalid value: \"object\": failed rule: !has(self.host) || self.host.matches('^[a-z.]+$')",
    );
    let said = apply("gw-a", "class: fast, min: many, listeners: [{host: A}]").fails();
    assert!(said.contains("<nil>: Invalid value: null: some validation rules were not checked"), "{said}");
    apply("gw-a", "class: fast, min: 2").ok();
}

#[tokio::test]
async fn new_rules_allow_unchanged_fields_and_deletion() {
    let cluster = with_gateways().await;
    cluster.apply(&gateway("gw-a", "class: fast, max: 9"));
    cluster.apply(&GATEWAYS.replace(
        "max: {type: integer, default: 5}",
        "max: {type: integer, default: 5, x-kubernetes-validations: [{rule: self < 9}]}",
    ));
    eventually("the new rule is in force", PATIENCE, async || {
        let refused =
            cluster.client.feed(&["create", "--dry-run=server", "-f", "-"], &gateway("gw-b", "max: 9"));
        (refused.code != Some(0)).then_some(())
    })
    .await;
    let patch = |patch: &str| cluster.kubectl(&["patch", "gateway", "gw-a", "--type=merge", "-p", patch]);
    patch(r#"{"spec":{"min":2}}"#).ok();
    patch(r#"{"spec":{"max":10}}"#).fails_with("spec.max: Invalid value: \"integer\": failed rule: self < 9");
    patch(r#"{"metadata":{"finalizers":["example.com/hold"]}}"#).ok();
    cluster.kubectl(&["delete", "gateway", "gw-a", "--wait=false"]).ok();
    patch(r#"{"metadata":{"finalizers":null}}"#).ok();
    assert!(!cluster.has("gateway/gw-a"));
}

#[tokio::test]
async fn invalid_rules_are_refused_unsupported_ones_warned_of() {
    let cluster = with_gateways().await;
    let apply = |text: &str| cluster.client.feed(&["apply", "-f", "-"], text);
    let said = apply(&GATEWAYS.replace("rule: self == oldSelf", "rule: self.name == 1")).fails();
    let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[class].x-kubernetes-validations[0].rule: \
              Invalid value: \"self.name == 1\": compilation failed: ERROR: <input>:1:5: type 'string' does not support field selection";
    assert!(said.contains(at), "{said}");
    let with_math = GATEWAYS
        .replace("rule: self.min <= self.max", "rule: 'math.greatest(self.min, self.max) == self.max'");
    let warned = apply(&with_math);
    assert!(
        warned.code == Some(0) && warned.stderr.contains("is not evaluated here: math.greatest"),
        "{warned}"
    );
    let condition = [
        "wait",
        "--for=condition=edgesync.io/RulesNotEvaluated",
        "crd/gateways.example.com",
        "--timeout=30s",
    ];
    cluster.kubectl(&condition).ok();
    let conditions = cluster.get("crd/gateways.example.com")["status"]["conditions"].take();
    let conditions = conditions.as_array().unwrap();
    let told =
        conditions.iter().find(|condition| condition["type"] == "edgesync.io/RulesNotEvaluated").unwrap();
    assert!(told["message"].as_str().unwrap().ends_with("is not evaluated here: math.greatest"), "{told}");
    cluster.apply(GATEWAYS);
    eventually("the condition goes with its reason", PATIENCE, async || {
        let kinds = cluster.get("crd/gateways.example.com")["status"]["conditions"].take();
        let there = kinds
            .as_array()
            .unwrap()
            .iter()
            .any(|kind| kind["type"] == json!("edgesync.io/RulesNotEvaluated"));
        (!there).then_some(())
    })
    .await;
}
