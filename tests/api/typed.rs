//! Writes of clients with Go's types: empty structs, zero values, quantities in another notation.
//! The API accepts them and treats none as a change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_api::Limits;
use edgesync_object::{Scope, kinds};
use edgesync_testkit::serving;
use serde_json::{Value, json};
use serving::{Running, send};

const JSON: &str = "Content-Type: application/json\r\n";
const STRATEGIC: &str = "Content-Type: application/strategic-merge-patch+json\r\n";

async fn create(running: &Running, path: &str, object: &Value) -> Value {
    let created = send(&running.unix, "POST", path, JSON, &object.to_string()).await;
    assert_eq!(created.code, 201, "{created:?}");
    created.json()
}

/// Puts an object after `change` has added defaults to it and checks that its version stays.
async fn puts_nothing_new(running: &Running, path: &str, object: &Value, change: impl FnOnce(&mut Value)) {
    let mut sent = object.clone();
    change(&mut sent);
    let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
    let put = send(&running.unix, "PUT", &path, JSON, &sent.to_string()).await;
    assert_eq!(put.code, 200, "{put:?}");
    assert_eq!(put.json(), *object);
}

#[tokio::test]
async fn defaults_of_typed_clients_are_no_change() {
    let running = Running::cloud(Limits::cloud()).await;
    let spec = json!({"containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}]});
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let pod = create(&running, pods, &pod).await;
    puts_nothing_new(&running, pods, &pod, |pod| {
        let container = &mut pod["spec"]["containers"][0];
        container["resources"] = json!({});
        container["stdin"] = json!(false);
        container["args"] = json!([]);
        container["workingDir"] = json!("");
        container["ports"][0]["hostPort"] = json!(0);
        pod["spec"]["hostNetwork"] = json!(false);
        pod["spec"]["nodeSelector"] = json!({});
        pod["metadata"]["labels"] = json!({});
    })
    .await;

    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let mut spec = spec;
    spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1000m", "memory": "1024Mi"}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}, "creationTimestamp": null}, "spec": spec}}});
    let deployment = create(&running, deployments, &deployment).await;
    let limits = "/spec/template/spec/containers/0/resources/limits";
    assert_eq!(deployment.pointer(limits).unwrap(), &json!({"cpu": "1", "memory": "1Gi"}));
    puts_nothing_new(&running, deployments, &deployment, |deployment| {
        *deployment.pointer_mut(limits).unwrap() = json!({"cpu": 1, "memory": "1048576Ki"});
        deployment["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
        deployment["spec"]["paused"] = json!(false);
        deployment["status"] = json!({});
    })
    .await;

    // An explicit empty value is kept, and omitting it changes nothing.
    let mut second =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": pod["spec"]});
    second["spec"]["containers"][0]["resources"] = json!({});
    let second = create(&running, pods, &second).await;
    assert_eq!(second["spec"]["containers"][0]["resources"], json!({}));
    puts_nothing_new(&running, pods, &second, |pod| {
        pod["spec"]["containers"][0].as_object_mut().unwrap().remove("resources");
    })
    .await;
}

#[tokio::test]
async fn zero_values_are_replaced_by_defaults() {
    let running = Running::cloud(Limits::cloud()).await;
    let services = "/api/v1/namespaces/default/services";
    let ports = json!([{"name": "a", "port": 80, "targetPort": 0, "nodePort": 0, "protocol": ""}]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": ports, "sessionAffinity": "ClientIP"}});
    let service = create(&running, services, &service).await;
    let port = json!({"name": "a", "port": 80, "targetPort": 80, "protocol": "TCP"});
    assert_eq!(service["spec"]["ports"], json!([port]));
    assert_eq!(service["spec"]["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    puts_nothing_new(&running, services, &service, |service| {
        service["spec"]["ports"][0]["nodePort"] = json!(0);
        service["status"] = json!({"loadBalancer": {}});
    })
    .await;
}

/// Controllers write labels and annotations together with a status.
#[tokio::test]
async fn status_writes_of_built_in_kinds_keep_labels() {
    let running = Running::cloud(Limits::cloud()).await;
    let (services, deployments) =
        ("/api/v1/namespaces/default/services", "/apis/apps/v1/namespaces/default/deployments");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]}});
    let pod = json!({"containers": [{"name": "c", "image": "i:1"}]});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}}, "spec": pod}}});
    let own = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}});
    let both: &[&str] = &["labels", "annotations"];
    for (path, object, kept) in [
        (services, service, both),
        (deployments, deployment, &["annotations"]),
        ("/api/v1/namespaces", own("Namespace"), both),
        ("/api/v1/nodes", own("Node"), both),
    ] {
        let mut object = create(&running, path, &object).await;
        let generation = object["metadata"]["generation"].clone();
        object["metadata"]["labels"] = json!({"a": "b"});
        object["metadata"]["annotations"] = json!({"a": "b"});
        object["metadata"]["finalizers"] = json!(["example.com/f"]);
        let path = format!("{path}/{}/status", object["metadata"]["name"].as_str().unwrap());
        let put = send(&running.unix, "PUT", &path, JSON, &object.to_string()).await;
        assert_eq!(put.code, 200, "{put:?}");
        let written = put.json();
        for field in both {
            let expected = kept.contains(field).then_some("b");
            assert_eq!(written["metadata"][field]["a"].as_str(), expected, "{field}: {written}");
        }
        assert_eq!(written["metadata"]["finalizers"], Value::Null);
        assert_eq!(written["metadata"]["generation"], generation);
        // They are validated like in other writes.
        let mut wrong = written;
        wrong["metadata"]["annotations"] = json!({"not a name": "d"});
        let put = send(&running.unix, "PUT", &path, JSON, &wrong.to_string()).await;
        assert_eq!(put.code, 422, "{put:?}");
    }
}

#[tokio::test]
async fn volumes_and_claims_are_pending_until_bound() {
    let running = Running::cloud(Limits::cloud()).await;
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}});
    for (path, kind, spec) in [
        ("/api/v1/namespaces/default/persistentvolumeclaims", "PersistentVolumeClaim", claim),
        ("/api/v1/persistentvolumes", "PersistentVolume", volume),
    ] {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "v"}, "spec": spec});
        let mut object = create(&running, path, &object).await;
        assert_eq!(object["status"]["phase"], "Pending", "{object}");
        let path = format!("{path}/v");
        object["status"]["phase"] = json!("Bound");
        let bound = send(&running.unix, "PUT", &format!("{path}/status"), JSON, &object.to_string()).await;
        assert_eq!((bound.code, &bound.json()["status"]["phase"]), (200, &json!("Bound")), "{bound:?}");
        let mut object = bound.json();
        object["metadata"]["labels"] = json!({"a": "b"});
        object.as_object_mut().unwrap().remove("status");
        let put = send(&running.unix, "PUT", &path, JSON, &object.to_string()).await;
        assert_eq!((put.code, &put.json()["metadata"]["labels"]["a"]), (200, &json!("b")), "{put:?}");
        assert_eq!(put.json()["status"]["phase"], "Bound", "{put:?}");
    }
}

#[tokio::test]
async fn built_in_kinds_are_validated_and_take_strategic_patches() {
    let running = Running::cloud(Limits::cloud()).await;
    let hook = json!({"name": "h.example.com", "clientConfig": {"url": "https://h"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "rules": [{"operations": ["*"], "apiGroups": [""], "resources": ["*"]}]});
    for (group, version, kind, plural, rest) in [
        ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", json!({"handler": "h"})),
        ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", json!({"spec": {}})),
        ("storage.k8s.io", "v1", "CSINode", "csinodes", json!({"spec": {"drivers": []}})),
        (
            "storage.k8s.io",
            "v1",
            "VolumeAttachment",
            "volumeattachments",
            json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
        ),
        (
            "storage.k8s.io",
            "v1",
            "VolumeAttributesClass",
            "volumeattributesclasses",
            json!({"driverName": "d"}),
        ),
        (
            "networking.k8s.io",
            "v1",
            "IPAddress",
            "ipaddresses",
            json!({"spec": {"parentRef": {"resource": "services", "name": "s"}}}),
        ),
        (
            "networking.k8s.io",
            "v1",
            "ServiceCIDR",
            "servicecidrs",
            json!({"spec": {"cidrs": ["10.0.0.0/8"]}}),
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
            json!({"webhooks": [hook]}),
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            json!({"webhooks": [hook]}),
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            json!({"spec": {"validations": [{"expression": "true"}]}}),
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            json!({"spec": {"policyName": "a"}}),
        ),
        (
            "apiregistration.k8s.io",
            "v1",
            "APIService",
            "apiservices",
            json!({"spec": {"groupPriorityMinimum": 1, "versionPriority": 1}}),
        ),
        (
            "certificates.k8s.io",
            "v1",
            "CertificateSigningRequest",
            "certificatesigningrequests",
            json!({"spec": {"request": "aGk=", "signerName": "a.example.com/b"}}),
        ),
        (
            "storage.k8s.io",
            "v1",
            "CSIStorageCapacity",
            "csistoragecapacities",
            json!({"storageClassName": "s", "capacity": "1Gi"}),
        ),
        ("apps.kubeedge.io", "v1alpha1", "NodeGroup", "nodegroups", json!({"spec": {"nodes": ["a"]}})),
        (
            "apps.kubeedge.io",
            "v1alpha1",
            "EdgeApplication",
            "edgeapplications",
            json!({"spec": {"workloadTemplate": {"manifests": []}}}),
        ),
        (
            "devices.kubeedge.io",
            "v1beta1",
            "Device",
            "devices",
            json!({"spec": {"deviceModelRef": {"name": "m"}, "nodeName": "n"}}),
        ),
        (
            "devices.kubeedge.io",
            "v1beta1",
            "DeviceModel",
            "devicemodels",
            json!({"spec": {"properties": [{"name": "p", "type": "INT"}], "protocol": "modbus"}}),
        ),
        (
            "rules.kubeedge.io",
            "v1",
            "Rule",
            "rules",
            json!({"spec": {"source": "a", "sourceResource": {"path": "/a"}, "target": "b", "targetResource": {}}}),
        ),
        (
            "rules.kubeedge.io",
            "v1",
            "RuleEndpoint",
            "ruleendpoints",
            json!({"spec": {"ruleEndpointType": "rest"}}),
        ),
    ] {
        let scope = kinds::by_plural(group, version, plural).unwrap().resource().scope;
        let namespace = if scope == Scope::Namespaced { "namespaces/default/" } else { "" };
        let path = format!("/apis/{group}/{version}/{namespace}{plural}");
        let mut object =
            json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"name": "a"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        create(&running, &path, &object).await;
        let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
        let patched = send(&running.unix, "PATCH", &format!("{path}/a"), STRATEGIC, &patch).await;
        assert_eq!((patched.code, &patched.json()["metadata"]["labels"]["a"]), (200, &json!("b")), "{kind}");
        object["nonsense"] = json!(1);
        object["metadata"]["name"] = json!("b");
        let strict = format!("{path}?fieldValidation=Strict");
        let refused = send(&running.unix, "POST", &strict, JSON, &object.to_string()).await;
        assert_eq!(refused.code, 400, "{kind}: {refused:?}");
        object.as_object_mut().unwrap().remove("nonsense");
        for (field, value) in rest.as_object().unwrap() {
            let mut wrong = object.clone();
            wrong[field] = if value.is_string() { json!({"a": "b"}) } else { json!("a text") };
            let refused = send(&running.unix, "POST", &path, JSON, &wrong.to_string()).await;
            assert!([400, 422].contains(&refused.code), "{kind}: {field}: {refused:?}");
            assert!(refused.json()["message"].as_str().unwrap().contains(field), "{kind}: {refused:?}");
        }
    }
    let hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/a";
    let hook = &send(&running.unix, "GET", hooks, "", "").await.json()["webhooks"][0];
    assert_eq!((&hook["failurePolicy"], &hook["timeoutSeconds"]), (&json!("Fail"), &json!(10)));
    assert_eq!(hook["rules"][0]["scope"], json!("*"));
}

#[tokio::test]
async fn replicas_are_read_and_written_through_the_scale() {
    let running = Running::cloud(Limits::cloud()).await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template}});
    create(&running, path, &deployment).await;
    let scale = format!("{path}/d/scale");
    let mut shown = send(&running.unix, "GET", &scale, "", "").await.json();
    assert_eq!((&shown["kind"], &shown["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    assert_eq!(shown["status"], json!({"replicas": 0, "selector": "app=d"}));
    shown["spec"]["replicas"] = json!(3);
    let put = send(&running.unix, "PUT", &scale, JSON, &shown.to_string()).await;
    assert_eq!((put.code, &put.json()["spec"]["replicas"]), (200, &json!(3)));
    assert_eq!(
        send(&running.unix, "PUT", &scale, JSON, &shown.to_string()).await.code,
        409,
        "an older version"
    );
    let merge = "Content-Type: application/merge-patch+json\r\n";
    let patched = send(&running.unix, "PATCH", &scale, merge, r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!((patched.code, &patched.json()["spec"]["replicas"]), (200, &json!(5)));
    let object = send(&running.unix, "GET", &format!("{path}/d"), "", "").await.json();
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(5), &json!(3)));
    assert_eq!(send(&running.unix, "PATCH", &scale, merge, r#"{"spec":{"replicas":-1}}"#).await.code, 422);
    assert_eq!(send(&running.unix, "GET", "/api/v1/namespaces/default/scale", "", "").await.code, 404);
    let resources = send(&running.unix, "GET", "/apis/apps/v1", "", "").await.json();
    let found =
        resources["resources"].as_array().unwrap().iter().find(|one| one["name"] == "deployments/scale");
    assert_eq!(found.unwrap()["group"], "autoscaling");
}

#[tokio::test]
async fn unserved_subresources_are_refused_with_a_reason() {
    let running = Running::cloud(Limits::cloud()).await;
    for (method, part) in [
        ("GET", "pods/p/log"),
        ("GET", "pods/p/exec"),
        ("POST", "pods/p/exec"),
        ("POST", "pods/p/attach"),
        ("GET", "pods/p/portforward"),
        ("GET", "pods/p/proxy/metrics"),
        ("POST", "pods/p/eviction"),
        ("PATCH", "pods/p/ephemeralcontainers"),
        ("POST", "serviceaccounts/default/token"),
    ] {
        let answer =
            send(&running.unix, method, &format!("/api/v1/namespaces/default/{part}"), JSON, "{}").await;
        assert_eq!((answer.code, answer.reason().as_str()), (405, "MethodNotAllowed"), "{part}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("is not served: "), "{message}");
    }
    assert_eq!(
        send(&running.unix, "GET", "/api/v1/namespaces/default/configmaps/a/log", "", "").await.code,
        404
    );
}

#[tokio::test]
async fn file_key_references_need_a_volume_of_the_pod() {
    let running = Running::cloud(Limits::cloud()).await;
    let pods = "/api/v1/namespaces/default/pods";
    let variable =
        json!({"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "x", "path": "p", "key": "k"}}});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i:1", "env": [variable]}]}});
    let refused = send(&running.unix, "POST", pods, JSON, &pod.to_string()).await;
    assert_eq!(refused.code, 422, "{refused:?}");
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName");
    assert_eq!(cause["reason"], "FieldValueNotFound");
    pod["spec"]["volumes"] = json!([{"name": "x", "secret": {"secretName": "s"}}]);
    let refused = send(&running.unix, "POST", pods, JSON, &pod.to_string()).await;
    assert_eq!(
        (refused.code, refused.json()["details"]["causes"][0]["reason"].clone()),
        (422, json!("FieldValueInvalid"))
    );
    pod["spec"]["volumes"] = json!([{"name": "x", "emptyDir": {}}]);
    create(&running, pods, &pod).await;
}

#[tokio::test]
async fn pods_name_an_existing_runtime_class() {
    let running = Running::cloud(Limits::cloud()).await;
    let pods = "/api/v1/namespaces/fresh/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"runtimeClassName": "sandbox", "containers": [{"name": "c", "image": "i:1"}]}});
    for path in [pods, &format!("{pods}?dryRun=All")] {
        let refused = send(&running.unix, "POST", path, JSON, &pod.to_string()).await;
        assert_eq!((refused.code, refused.reason().as_str()), (403, "Forbidden"), "{refused:?}");
        let message = "pods \"p\" is forbidden: pod rejected: RuntimeClass \"sandbox\" not found";
        assert_eq!(refused.json()["message"], message);
    }
    let namespace = send(&running.unix, "GET", "/api/v1/namespaces/fresh", "", "").await;
    assert_eq!(namespace.code, 404, "a refused Pod creates no namespace");
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandbox"},
        "handler": "runsc"});
    create(&running, "/apis/node.k8s.io/v1/runtimeclasses", &class).await;
    create(&running, pods, &pod).await;
}

#[tokio::test]
async fn negative_grace_period_of_a_pod_becomes_one_second() {
    let running = Running::cloud(Limits::cloud()).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"terminationGracePeriodSeconds": -5, "containers": [{"name": "c", "image": "i:1"}]}});
    let created = create(&running, "/api/v1/namespaces/default/pods", &pod).await;
    assert_eq!(created["spec"]["terminationGracePeriodSeconds"], 1);
}

#[tokio::test]
async fn token_review_shows_the_role_of_the_bearer() {
    let running = Running::cloud(Limits::cloud()).await;
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = async |token: &str| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        create(&running, reviews, &body).await["status"].clone()
    };
    let known = review(serving::TOKEN).await;
    assert_eq!((&known["authenticated"], &known["user"]["groups"][0]), (&json!(true), &json!("role:admin")));
    assert_eq!(review("another").await["authenticated"], false);
    let list = send(&running.unix, "GET", "/apis/authentication.k8s.io/v1", "", "").await.json();
    let names = list["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["selfsubjectreviews", "tokenreviews"]);
    assert_eq!(send(&running.unix, "GET", reviews, "", "").await.code, 405);
}

#[tokio::test]
async fn self_reviews_answer_identity_and_permissions() {
    let running = Running::cloud(Limits::cloud()).await;
    let post = async |path: &str, body: Value| {
        let answer = send(&running.unix, "POST", path, JSON, &body.to_string()).await;
        assert_eq!(answer.code, 201, "{answer:?}");
        answer.json()["status"].clone()
    };
    let me = post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    assert_eq!(me["userInfo"]["groups"][0], "role:admin");
    let access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let asked = |verb: &str, resource: &str| json!({"spec": {"resourceAttributes": {"verb": verb, "resource": resource}}});
    assert_eq!(post(access, asked("create", "configmaps")).await["allowed"], true);
    assert_eq!(post(access, asked("create", "nonsense")).await["allowed"], false);
    let rules =
        post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json!({"spec": {"namespace": "a"}}))
            .await;
    assert!(rules["resourceRules"].as_array().unwrap().len() > 30);
}

/// An Event has no desired state, so it has no generation, neither after changes nor after
/// deletion.
#[tokio::test]
async fn events_never_get_a_generation() {
    let running = Running::cloud(Limits::cloud()).await;
    let core = json!({"apiVersion": "v1", "kind": "Event", "count": 1,
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "eventTime": "2026-01-02T03:04:05.000000Z",
        "action": "A", "reason": "R", "type": "Normal", "reportingController": "c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let series = json!({"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"});
    for (events, name, mut event, change) in [
        ("/api/v1/namespaces/default/events", "a", core, json!({"count": 2})),
        ("/apis/events.k8s.io/v1/namespaces/default/events", "b", new, json!({"series": series})),
    ] {
        event["metadata"] = json!({"name": name, "finalizers": ["example.com/f"]});
        let created = create(&running, events, &event).await;
        let path = format!("{events}/{name}");
        let patched = send(&running.unix, "PATCH", &path, STRATEGIC, &change.to_string()).await;
        assert_eq!(patched.code, 200, "{patched:?}");
        assert_ne!(patched.json()["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
        assert!(send(&running.unix, "DELETE", &path, "", "").await.code < 300);
        let deleted = send(&running.unix, "GET", &path, "", "").await.json();
        assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted}");
        for event in [created, patched.json(), deleted] {
            assert_eq!(event["metadata"].get("generation"), None, "{event}");
        }
    }
}

/// The server normalizes a time to the precision of its type, as Go's types do on each write.
#[tokio::test]
async fn times_in_another_precision_or_zone_are_no_change() {
    let running = Running::cloud(Limits::cloud()).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let spec = json!({"holderIdentity": "h", "acquireTime": "2026-01-02T03:04:05Z",
        "renewTime": "2026-01-02T04:04:05.1234567+01:00"});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l", "creationTimestamp": null}, "spec": spec});
    let lease = create(&running, leases, &lease).await;
    assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(lease["spec"]["acquireTime"], "2026-01-02T03:04:05.000000Z");
    puts_nothing_new(&running, leases, &lease, |lease| {
        lease["spec"]["acquireTime"] = json!("2026-01-01T22:04:05-05:00");
        lease["spec"]["renewTime"] = json!("2026-01-02T03:04:05.123456789Z");
        lease["metadata"]["creationTimestamp"] = Value::Null;
    })
    .await;

    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-02T03:04:05.5Z", "deprecatedFirstTimestamp": null,
        "series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06Z"},
        "action": "A", "reason": "R", "type": "Normal", "reportingController": "c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let event = create(&running, events, &event).await;
    assert_eq!(event["eventTime"], "2026-01-02T03:04:05.500000Z");
    assert_eq!(event["series"]["lastObservedTime"], "2026-01-02T03:04:06.000000Z");
    puts_nothing_new(&running, events, &event, |event| {
        event["eventTime"] = json!("2026-01-02T03:04:05.50Z");
        event["deprecatedLastTimestamp"] = Value::Null;
    })
    .await;

    let pods = "/api/v1/namespaces/default/pods";
    let spec = json!({"containers": [{"name": "c", "image": "i:1"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    create(&running, pods, &pod).await;
    let status = format!("{pods}/p/status");
    let condition = json!({"type": "Ready", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": "2026-01-02T03:04:05.9+00:00"});
    let patch = json!({"status": {"conditions": [condition], "startTime": "2026-01-02T04:04:05+01:00"}});
    let patched = send(&running.unix, "PATCH", &status, STRATEGIC, &patch.to_string()).await.json();
    assert_eq!(patched["status"]["startTime"], "2026-01-02T03:04:05Z", "{patched}");
    assert_eq!(patched["status"]["conditions"][0]["lastTransitionTime"], "2026-01-02T03:04:05Z");
    let again = send(&running.unix, "PATCH", &status, STRATEGIC, &patch.to_string()).await.json();
    assert_eq!(again["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
}
