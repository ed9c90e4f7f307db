use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin;

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn lease() -> std::sync::Arc<Schema> {
    builtin("coordination.k8s.io", "v1", "Lease").unwrap()
}

fn reasons(causes: &[edgesync_object::status::Cause]) -> Vec<(&str, &str)> {
    causes.iter().map(|cause| (cause.field.as_str(), cause.reason.as_str())).collect()
}

#[test]
fn times_are_normalized_in_built_in_kinds_only() {
    for (format, expected) in [
        (TIME, "2026-01-02T03:04:05Z"),
        (MICRO_TIME, "2026-01-02T03:04:05.500000Z"),
        ("date-time", "2026-01-02T04:04:05.5+01:00"),
    ] {
        let time = Schema { kind: Type::String, format: format.into(), ..Schema::default() };
        let properties = [("at".into(), std::sync::Arc::new(time))].into();
        let schema = Schema { kind: Type::Object, properties, ..Schema::default() };
        let mut written = object(json!({"at": "2026-01-02T04:04:05.5+01:00"}));
        apply_defaults(&schema, &mut written);
        assert_eq!(written["at"], expected);
        assert_eq!(validate(&schema, &written), []);
        let mut wrong = object(json!({"at": "yesterday"}));
        apply_defaults(&schema, &mut wrong);
        assert_eq!(wrong["at"], "yesterday");
        assert_eq!(validate(&schema, &wrong).len(), 1);
    }
}

#[test]
fn unknown_fields_are_removed_and_reported() {
    let mut lease_object = object(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "extra": 1,
        "metadata": {
            "name": "a", "nme": "b", "creationTimestamp": null, "labels": {"x": "y", "z": null},
            "ownerReferences": [{"uid": "1", "typo": {}}],
            "managedFields": [{"fieldsV1": {"f:spec": {".": {}}}}],
        },
        "spec": {"holderIdentity": "me", "holder": "you", "renewTime": null},
    }));
    let unknown = prune(&lease(), &mut lease_object);
    assert_eq!(unknown, ["extra", "metadata.nme", "metadata.ownerReferences[0].typo", "spec.holder"]);
    let expected = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": "a", "labels": {"x": "y", "z": ""}, "ownerReferences": [{"uid": "1"}],
            "managedFields": [{"fieldsV1": {"f:spec": {".": {}}}}],
        },
        "spec": {"holderIdentity": "me"},
    });
    assert_eq!(Value::Object(lease_object), expected);
}

#[test]
fn report_of_unknown_fields_is_bounded() {
    let fields = (0..MAX_UNKNOWN * 3).map(|number| (format!("f{number}"), json!(1)));
    let mut spec = Map::from_iter([("spec".to_owned(), Value::Object(fields.collect()))]);
    assert_eq!(prune(&lease(), &mut spec).len(), MAX_UNKNOWN);
    assert_eq!(spec["spec"], json!({}));
}

#[test]
fn wrong_types_are_separate_from_other_problems() {
    let event = builtin("", "v1", "Event").unwrap();
    let bad = object(json!({
        "metadata": {"name": 1}, "count": "3", "source": [], "reason": null, "eventTime": "noon",
        "series": {"count": 5_000_000_000_u64},
    }));
    let types = [("count", "FieldValueTypeInvalid"), ("source", "FieldValueTypeInvalid")];
    assert_eq!(reasons(&wrong_types(&event, &bad)), types);
    let all = validate(&event, &bad);
    assert_eq!(
        reasons(&all),
        [
            ("involvedObject", "FieldValueRequired"),
            ("count", "FieldValueTypeInvalid"),
            ("eventTime", "FieldValueInvalid"),
            ("series.count", "FieldValueInvalid"),
            ("source", "FieldValueTypeInvalid"),
        ]
    );
    assert_eq!(all[1].message, "Invalid value: \"3\": must be an integer");
    assert_eq!(all[4].message, "Invalid value: an array: must be an object");
}

#[test]
fn secrets_have_base64_and_nodes_have_quantities() {
    let secret = builtin("", "v1", "Secret").unwrap();
    let bad = object(json!({"data": {"good": "aGk=", "bad": "hi!"}, "stringData": {"n": 1}}));
    let causes = validate(&secret, &bad);
    assert_eq!(
        reasons(&causes),
        [("data.bad", "FieldValueInvalid"), ("stringData.n", "FieldValueTypeInvalid")]
    );
    let node = builtin("", "v1", "Node").unwrap();
    let status = object(json!({"status": {"capacity": {"cpu": 0.5, "memory": "2Gi", "pods": "many"}}}));
    assert_eq!(reasons(&validate(&node, &status)), [("status.capacity.pods", "FieldValueInvalid")]);
    let mut fresh = Map::new();
    apply_defaults(&secret, &mut fresh);
    assert_eq!(Value::Object(fresh), json!({"type": "Opaque"}));
}

#[test]
fn items_of_maps_and_sets_must_be_unique() {
    let node = builtin("", "v1", "Node").unwrap();
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let status = object(json!({"status": {"conditions": [condition("a"), condition("b"), condition("a")]}}));
    let causes = validate(&node, &status);
    assert_eq!(reasons(&causes), [("status.conditions[2]", "FieldValueDuplicate")]);
    assert_eq!(causes[0].message, "Duplicate value: {\"type\":\"a\"}");
}

/// Typed clients send the empty fields of a condition too.
#[test]
fn conditions_need_only_type_and_status() {
    for (group, kind) in [("", "Service"), ("apiextensions.k8s.io", "CustomResourceDefinition")] {
        let schema = builtin(group, "v1", kind).unwrap();
        let condition = json!({"type": "A", "status": "True", "lastTransitionTime": null, "reason": ""});
        let mut sent = object(json!({"status": {"conditions": [condition, {"type": "B"}]}}));
        assert!(prune(&schema, &mut sent).is_empty(), "{kind}");
        apply_defaults(&schema, &mut sent);
        assert_eq!(sent["status"]["conditions"][0], json!({"type": "A", "status": "True"}), "{kind}");
        let mut causes = validate(&schema, &object(json!({"status": sent["status"]})));
        causes.retain(|cause| cause.field.starts_with("status"));
        assert_eq!(reasons(&causes), [("status.conditions[1].status", "FieldValueRequired")], "{kind}");
    }
    let budget = builtin("policy", "v1", "PodDisruptionBudget").unwrap();
    let sent = json!({"status": {"conditions": [{"type": "A", "status": "True"}]}});
    let causes = validate(&budget, &object(sent));
    assert_eq!(causes.len(), 3, "an API server validates these: {causes:?}");
}

#[test]
fn problems_and_steps_are_bounded() {
    let node = builtin("", "v1", "Node").unwrap();
    let taints: Vec<Value> = (0..1000).map(|_| json!({"effect": "Maybe"})).collect();
    let spec = object(json!({"spec": {"taints": taints}}));
    assert_eq!(validate(&node, &spec).len(), 64);
}

#[test]
fn defaults_are_bounded_in_size() {
    let big = Schema { default: Some(json!("x".repeat(100_000))), ..Schema::default() };
    let items =
        Schema { kind: Type::Object, properties: [("big".into(), big.into())].into(), ..Schema::default() };
    let list = Schema { kind: Type::Array, items: Some(items.into()), ..Schema::default() };
    let root = Schema { properties: [("list".into(), list.into())].into(), ..Schema::default() };
    let mut many = object(json!({"list": vec![json!({}); 10_000]}));
    apply_defaults(&root, &mut many);
    let length = Value::Object(many).to_string().len();
    assert!(length > 1_000_000 && length < MAX_DEFAULTS + 100_000, "{length}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,5}".prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "spec",
        "status",
        "metadata",
        "name",
        "labels",
        "holderIdentity",
        "taints",
        "key",
        "conditions",
        "type",
        "template",
        "containers",
        "ports",
        "volumes",
        "strategy",
        "data",
        "unknown",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        let fields = prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("spec|status|metadata|data|x", any_value(), 0..5)
        .prop_map(|fields| fields.into_iter().collect())
}

fn any_kind() -> impl Strategy<Value = std::sync::Arc<Schema>> {
    let kinds = edgesync_object::kinds::KINDS.iter();
    let schemas =
        kinds.filter_map(|known| builtin(known.group, known.version, known.kind)).collect::<Vec<_>>();
    prop::sample::select(schemas)
}

proptest! {
    #[test]
    fn pruning_is_idempotent(schema in any_kind(), mut object in any_object()) {
        prune(&schema, &mut object);
        let once = object.clone();
        prop_assert!(prune(&schema, &mut object).is_empty());
        prop_assert_eq!(object, once);
    }

    #[test]
    fn defaults_are_idempotent_and_valid(
        schema in any_kind(), mut object in any_object(),
    ) {
        prune(&schema, &mut object);
        let before = wrong_types(&schema, &object);
        apply_defaults(&schema, &mut object);
        let once = object.clone();
        apply_defaults(&schema, &mut object);
        prop_assert_eq!(&object, &once);
        prop_assert!(prune(&schema, &mut object).is_empty());
        prop_assert_eq!(wrong_types(&schema, &object), before);
    }

    #[test]
    fn wrong_types_are_a_subset_of_all_problems(schema in any_kind(), object in any_object()) {
        let all = validate(&schema, &object);
        for cause in wrong_types(&schema, &object) {
            prop_assert_eq!(cause.reason.as_str(), "FieldValueTypeInvalid");
            prop_assert!(all.contains(&cause) || all.len() == 64);
        }
    }
}

mod manifests {
    use super::*;

    /// Asserts that the manifest has no unknown fields, is valid, and does not change.
    fn survives(manifest: &Value) -> Map<String, Value> {
        let text = |field: &str| manifest[field].as_str().unwrap().to_owned();
        let api_version = text("apiVersion");
        let (group, version) = edgesync_object::split_api_version(&api_version);
        let schema = builtin(group, version, &text("kind")).unwrap();
        let mut pruned = object(manifest.clone());
        assert_eq!(prune(&schema, &mut pruned), Vec::<String>::new());
        assert_eq!(&Value::Object(pruned.clone()), manifest);
        assert_eq!(validate(&schema, &pruned), []);
        apply_defaults(&schema, &mut pruned);
        assert_eq!(validate(&schema, &pruned), []);
        pruned
    }

    fn pod_spec() -> Value {
        json!({
            "initContainers": [{"name": "init", "image": "busybox", "command": ["sh", "-c", "true"], "restartPolicy": "Always"}],
            "containers": [{
                "name": "web", "image": "nginx:1.27", "args": ["-g", "daemon off;"],
                "ports": [{"name": "http", "containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
                ],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}],
                "resources": {"limits": {"cpu": 1, "memory": "128Mi"}, "requests": {"cpu": "250m"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "x", "readOnly": true}],
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http", "httpHeaders": [{"name": "X", "value": "y"}]}},
                "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 5},
                "startupProbe": {"exec": {"command": ["true"]}, "failureThreshold": 30},
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "securityContext": {
                    "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "imagePullPolicy": "IfNotPresent", "stdin": false, "tty": false,
            }],
            "volumes": [
                {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                {"name": "cfg", "configMap": {"name": "settings", "items": [{"key": "a", "path": "b", "mode": 256}]}},
                {"name": "all", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "audience": "me"}},
                    {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ]}},
                {"name": "host", "hostPath": {"path": "/var/log", "type": "Directory"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            ],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}}]},
            },
            "tolerations": [{"key": "node-role.kubernetes.io/edge", "operator": "Exists", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "nodeSelector": {"kubernetes.io/arch": "arm64"}, "hostNetwork": true,
            "imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "web", "terminationGracePeriodSeconds": 5,
            "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["foo.local"]}],
            "dnsConfig": {"nameservers": ["1.1.1.1"], "options": [{"name": "ndots", "value": "2"}]},
        })
    }

    #[test]
    fn pod_manifest_is_fully_known() {
        let metadata =
            json!({"name": "web", "namespace": "default", "labels": {"app": "web"}, "finalizers": ["a/b"]});
        let pod =
            survives(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()}));
        let spec = &pod["spec"];
        assert_eq!(spec["restartPolicy"], "Always");
        assert_eq!(spec["containers"][0]["ports"][0]["protocol"], "TCP");
        assert_eq!(spec["containers"][0]["readinessProbe"]["failureThreshold"], 3);
        assert_eq!(spec["containers"][0]["readinessProbe"]["periodSeconds"], 5);
        assert_eq!(spec["volumes"][1]["configMap"]["defaultMode"], 420);
    }

    #[test]
    fn deployment_manifest_is_fully_known() {
        let deployment = survives(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]},
                "template": {"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": pod_spec()},
                "minReadySeconds": 1, "paused": false,
            },
            "status": {
                "replicas": 1, "observedGeneration": 2,
                "conditions": [{"type": "Available", "status": "True", "lastUpdateTime": "2024-05-06T07:08:09Z", "reason": "R", "message": "m"}],
            },
        }));
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    }

    #[test]
    fn chosen_strategy_gets_no_default_of_another() {
        let schema = builtin("apps", "v1", "Deployment").unwrap();
        let mut deployment = object(json!({"spec": {"strategy": {"type": "Recreate"}}}));
        apply_defaults(&schema, &mut deployment);
        assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
    }

    #[test]
    fn services_claims_and_roles_are_fully_known() {
        let service = survives(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {
                "selector": {"app": "web"}, "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}],
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}, "publishNotReadyAddresses": true,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
        }));
        assert_eq!(service["spec"]["type"], "ClusterIP");
        survives(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db"}]}},
                "volumeClaimTemplates": [{
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }],
            },
        }));
        survives(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web"},
            "spec": {"ingressClassName": "nginx", "tls": [{"hosts": ["a.b"], "secretName": "tls"}], "rules": [{"host": "a.b",
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]},
        }));
        survives(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "web", "namespace": "default"}],
        }));
        survives(&json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
            "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "OnFailure", "containers": [{"name": "a", "image": "b"}]}}}}},
        }));
        survives(&json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "ws.lab.io"},
            "spec": {"group": "lab.io", "scope": "Namespaced", "names": {"plural": "ws", "kind": "W", "shortNames": ["w"]},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]},
        }));
    }

    #[test]
    fn problems_of_a_pod_have_paths() {
        let schema = builtin("", "v1", "Pod").unwrap();
        let pod = object(json!({"spec": {
            "restartPolicy": "Sometimes",
            "containers": [
                {"image": 5, "ports": [{"containerPort": "http"}]},
                {"name": "a", "resources": {"limits": {"cpu": "lots"}}},
                {"name": "a"},
            ],
        }}));
        assert_eq!(
            reasons(&validate(&schema, &pod)),
            [
                ("spec.containers[0].name", "FieldValueRequired"),
                ("spec.containers[0].image", "FieldValueTypeInvalid"),
                ("spec.containers[0].ports[0].containerPort", "FieldValueTypeInvalid"),
                ("spec.containers[1].resources.limits.cpu", "FieldValueInvalid"),
                ("spec.containers[2]", "FieldValueDuplicate"),
                ("spec.restartPolicy", "FieldValueNotSupported"),
            ]
        );
    }
}
