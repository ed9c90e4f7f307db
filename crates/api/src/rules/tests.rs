use super::*;
use edgesync_object::kinds;
use proptest::prelude::*;
use serde_json::json;

fn object(value: Value) -> Object {
    serde_json::from_value(value).unwrap()
}

fn kind(word: &str) -> Resource {
    kinds::by_word(word).unwrap_or_else(|| panic!("{word}")).resource()
}

/// Returns the invalid fields of a new object.
fn wrong(word: &str, mut value: Value) -> Vec<String> {
    if value.pointer("/metadata/name").is_none() {
        value["metadata"]["name"] = json!("a");
    }
    fields(check_create(&kind(word), &object(value)))
}

fn fields(causes: Vec<Cause>) -> Vec<String> {
    causes.into_iter().map(|cause| cause.field).collect()
}

fn wrong_update(word: &str, old: Value, new: Value) -> Vec<String> {
    fields(check_update(&kind(word), &object(old), &object(new)))
}

fn completed(word: &str, old: Option<Value>, new: Value) -> Value {
    let mut new = object(new);
    let old = old.map(object);
    complete(&kind(word), old.as_ref(), &mut new);
    let once = new.clone();
    complete(&kind(word), old.as_ref(), &mut new);
    assert_eq!(new, once, "twice is not once");
    Value::Object(new.into_fields())
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "name": "web"}],
        "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}], "volumes": [{"name": "v"}], "restartPolicy": "Always"})
}

fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    *value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = new;
    value
}

#[test]
fn config_keys_are_file_names_in_one_of_the_two_maps() {
    assert!(wrong("cm", json!({"data": {"a.b-c_D": "x"}, "binaryData": {"b": "eA=="}})).is_empty());
    for bad in ["..", "..a", ".", "a b", "", "a/b", &"k".repeat(254)] {
        assert_eq!(wrong("cm", json!({"data": {bad: ""}})).len(), 1, "{bad}");
    }
    assert_eq!(wrong("cm", json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}})), ["data[a]"]);
    assert_eq!(wrong("cm", json!({"binaryData": {"a": "%"}})), ["binaryData[a]"]);
}

#[test]
fn secret_types_need_their_keys_and_values_are_not_shown() {
    let secret = |kind: &str, data: Value| wrong("secret", json!({"type": kind, "data": data}));
    assert_eq!(secret("kubernetes.io/tls", json!({"tls.crt": ""})), ["data[tls.key]"]);
    assert_eq!(secret("kubernetes.io/ssh-auth", json!({})), ["data[ssh-privatekey]"]);
    assert_eq!(secret("kubernetes.io/basic-auth", json!({})), ["data[username]"]);
    assert!(secret("kubernetes.io/basic-auth", json!({"password": "eA=="})).is_empty());
    let docker = "kubernetes.io/dockerconfigjson";
    assert_eq!(secret(docker, json!({".dockerconfigjson": "eA=="})), ["data[.dockerconfigjson]"]);
    assert!(secret(docker, json!({".dockerconfigjson": "e30="})).is_empty());
    assert_eq!(
        secret("kubernetes.io/service-account-token", json!({})),
        ["metadata.annotations[kubernetes.io/service-account.name]"]
    );
    let causes = check_create(&kind("secret"), &object(json!({"data": {"k": "hunter2!"}})));
    assert_eq!(causes.len(), 1);
    assert!(!causes[0].message.contains("hunter2"), "{causes:?}");
}

#[test]
fn immutable_config_can_only_be_labelled() {
    let old = || json!({"metadata": {"name": "a"}, "data": {"a": "x"}, "immutable": true});
    assert_eq!(wrong_update("cm", old(), with(old(), "/data/a", json!("y"))), ["data"]);
    assert_eq!(wrong_update("cm", old(), with(old(), "/immutable", json!(false))), ["immutable"]);
    assert!(wrong_update("cm", old(), with(old(), "/metadata", json!({"labels": {"a": "b"}}))).is_empty());
    let secret = json!({"type": "Opaque"});
    assert_eq!(wrong_update("secret", secret, json!({"type": "x/y"})), ["type"]);
}

#[test]
fn accepted_object_can_be_labelled_and_get_a_status() {
    let bad = |label: &str| json!({"metadata": {"labels": {"a": label}}, "spec": {}, "status": {"x": label}});
    assert!(!wrong("pod", bad("x")).is_empty());
    assert!(wrong_update("pod", bad("x"), bad("y")).is_empty());
}

#[test]
fn immutable_fields_are_reported_as_in_kubernetes() {
    let deployment = |app: &str| {
        let labels = json!({"app": app});
        json!({"spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()}}})
    };
    let causes = check_update(&kind("deploy"), &object(deployment("a")), &object(deployment("b")));
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0].field, "spec.selector");
    assert!(causes[0].message.ends_with("field is immutable"), "{causes:?}");
    for (word, old, new, field) in [
        (
            "rolebinding",
            json!({"roleRef": {"kind": "Role", "name": "a"}}),
            json!({"roleRef": {"kind": "Role", "name": "b"}}),
            "roleRef",
        ),
        ("sc", json!({"provisioner": "a"}), json!({"provisioner": "b"}), "provisioner"),
        ("pc", json!({"value": 1}), json!({"value": 2}), "value"),
        (
            "node",
            json!({"spec": {"podCIDR": "10.0.0.0/24"}}),
            json!({"spec": {"podCIDR": "10.0.1.0/24"}}),
            "spec.podCIDR",
        ),
        ("pvc", json!({"spec": {"storageClassName": "a"}}), json!({"spec": {}}), "spec.storageClassName"),
    ] {
        assert_eq!(wrong_update(word, old, new), [field], "{word}");
    }
    assert!(wrong_update("node", json!({"spec": {}}), json!({"spec": {"podCIDR": "x"}})).is_empty());
    let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    let larger = with(claim.clone(), "/spec/resources/requests/storage", json!("2Gi"));
    assert!(wrong_update("pvc", claim, larger).is_empty());
}

#[test]
fn stateful_set_has_few_mutable_fields() {
    let set = |service: &str, replicas: u64| {
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "serviceName": service, "replicas": replicas,
            "volumeClaimTemplates": [{"metadata": {"name": "v"}}],
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": with(pod_spec(), "/volumes", json!([]))}}})
    };
    assert!(wrong("sts", set("s", 1)).is_empty());
    assert!(wrong_update("sts", set("s", 1), set("s", 2)).is_empty());
    assert_eq!(wrong_update("sts", set("s", 1), set("t", 1)), ["spec.serviceName"]);
}

#[test]
fn pod_changes_images_tolerations_and_node_only() {
    let pod = || json!({"spec": pod_spec()});
    assert!(wrong_update("pod", pod(), with(pod(), "/spec/containers/0/image", json!("j"))).is_empty());
    assert_eq!(
        wrong_update("pod", pod(), with(pod(), "/spec/containers/0/ports", json!([]))),
        ["spec.containers"]
    );
    let set = |field: &str, value: Value| {
        let mut pod = pod();
        pod["spec"][field] = value;
        pod
    };
    assert!(wrong_update("pod", pod(), set("nodeName", json!("n"))).is_empty());
    assert_eq!(
        wrong_update("pod", set("nodeName", json!("n")), set("nodeName", json!("m"))),
        ["spec.nodeName"]
    );
    assert!(wrong_update("pod", pod(), set("tolerations", json!([{"key": "a"}]))).is_empty());
    assert_eq!(wrong_update("pod", set("tolerations", json!([{"key": "a"}])), pod()), ["spec.tolerations"]);
    let deadline = |seconds: u64| set("activeDeadlineSeconds", json!(seconds));
    assert!(wrong_update("pod", deadline(9), deadline(5)).is_empty());
    assert_eq!(wrong_update("pod", deadline(5), deadline(9)), ["spec.activeDeadlineSeconds"]);
    assert_eq!(wrong_update("pod", pod(), set("hostNetwork", json!(true))), ["spec.hostNetwork"]);
}

#[test]
fn defaults_depend_on_other_fields() {
    let pulled = |image: &str| {
        let pod = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        completed("po", None, pod)["spec"]["containers"][0]["imagePullPolicy"].clone()
    };
    for (image, policy) in [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("host:5000/nginx", "Always"),
        ("nginx:1.27", "IfNotPresent"),
        ("host:5000/nginx@sha256:00", "IfNotPresent"),
    ] {
        assert_eq!(pulled(image), json!(policy), "{image}");
    }
    let class = |resources: Value| {
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}});
        completed("po", None, pod)["status"]["qosClass"].clone()
    };
    assert_eq!(class(json!({})), json!("BestEffort"));
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), json!("Burstable"));
    assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), json!("Guaranteed"));
    assert_eq!(
        completed("po", None, json!({"spec": {"volumes": [{"name": "v"}]}}))["spec"]["volumes"][0]["emptyDir"],
        json!({})
    );
    let policy =
        |spec: Value| completed("netpol", None, json!({"spec": spec}))["spec"]["policyTypes"].clone();
    assert_eq!(policy(json!({})), json!(["Ingress"]));
    assert_eq!(policy(json!({"egress": [{}]})), json!(["Ingress", "Egress"]));
    let job = |spec: Value| {
        let spec = &completed("job", None, json!({"spec": spec}))["spec"];
        (spec["parallelism"].clone(), spec["completions"].clone())
    };
    assert_eq!(job(json!({})), (json!(1), json!(1)));
    assert_eq!(job(json!({"parallelism": 2})), (json!(2), Value::Null));
    assert_eq!(job(json!({"completions": 3})), (json!(1), json!(3)));
    let controller = json!({"metadata": {}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
    let controller = completed("rc", None, controller);
    assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
    assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
    let range =
        json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}});
    let range = &completed("limits", None, range)["spec"]["limits"][0];
    assert_eq!(range["default"], json!({"cpu": "2"}));
    assert_eq!(range["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
}

#[test]
fn volume_files_have_permissions_of_nine_bits() {
    let spec = with(pod_spec(), "/containers/0/env", json!([]));
    let volume = |volume: Value| wrong("po", json!({"spec": with(spec.clone(), "/volumes/0", volume)}));
    for (mode, right) in [(0, true), (0o777, true), (0o1000, false), (-1, false), (400 * 8, false)] {
        let found = volume(json!({"name": "v", "configMap": {"name": "c", "defaultMode": mode}}));
        assert_eq!(found.is_empty(), right, "{mode}: {found:?}");
    }
    let projected = json!({"defaultMode": 4000, "sources": [
        {"secret": {"name": "s", "items": [{"key": "k", "path": "p", "mode": 600}]}},
        {"downwardAPI": {"items": [{"path": "p", "mode": 256}]}},
    ]});
    assert_eq!(
        volume(json!({"name": "v", "projected": projected})),
        [
            "spec.volumes[0].projected.defaultMode",
            "spec.volumes[0].projected.sources[0].secret.items[0].mode"
        ]
    );
}

#[test]
fn containers_need_names_images_and_existing_volumes() {
    assert!(wrong("pod", json!({"spec": pod_spec()})).is_empty());
    for (pointer, value, field) in [
        ("/containers", json!([]), "spec.containers"),
        ("/containers/0/name", json!("A"), "spec.containers[0].name"),
        ("/containers/0/image", json!(""), "spec.containers[0].image"),
        ("/containers/0/ports/0/containerPort", json!(0), "spec.containers[0].ports[0].containerPort"),
        ("/containers/0/ports/0/name", json!("80"), "spec.containers[0].ports[0].name"),
        ("/containers/0/volumeMounts/0/name", json!("w"), "spec.containers[0].volumeMounts[0].name"),
        (
            "/containers/0/env/0/valueFrom/fileKeyRef/volumeName",
            json!("w"),
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName",
        ),
        ("/restartPolicy", json!("Sometimes"), "spec.restartPolicy"),
    ] {
        let found = wrong("pod", json!({"spec": with(pod_spec(), pointer, value)}));
        assert_eq!(found, [field], "{pointer}");
    }
    let twice = json!([{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]);
    assert_eq!(
        wrong("pod", json!({"spec": with(pod_spec(), "/containers", twice)})),
        ["spec.containers[1].name"]
    );
}

#[test]
fn file_keys_are_read_from_an_empty_dir() {
    let of = |volume: Value| wrong("pod", json!({"spec": with(pod_spec(), "/volumes/0", volume)}));
    assert!(of(json!({"name": "v", "emptyDir": {"medium": "Memory"}})).is_empty());
    for source in ["configMap", "secret", "hostPath", "projected"] {
        let found = of(json!({"name": "v", source: {}}));
        assert_eq!(found, ["spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName"], "{source}");
    }
}

#[test]
fn negative_grace_period_is_read_as_one_second() {
    let period = |word: &str, pointer: &str, value: Value| {
        completed(word, None, value).pointer(pointer).cloned().unwrap_or_default()
    };
    let spec = |seconds: i64| {
        let mut spec = pod_spec();
        spec["terminationGracePeriodSeconds"] = seconds.into();
        spec
    };
    let pod = |seconds| json!({"metadata": {"name": "a"}, "spec": spec(seconds)});
    let pointer = "/spec/terminationGracePeriodSeconds";
    for (seconds, expected) in [(-1, 1), (i64::MIN, 1), (0, 0), (30, 30)] {
        assert_eq!(period("pod", pointer, pod(seconds)), json!(expected), "{seconds}");
    }
    let template = json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": spec(-7)}}});
    assert_eq!(period("deploy", "/spec/template/spec/terminationGracePeriodSeconds", template), json!(1));
    assert!(wrong("pod", completed("pod", None, pod(-1))).is_empty());
    // Otherwise it is immutable.
    assert_eq!(wrong_update("pod", pod(-1), pod(1)), Vec::<String>::new());
    assert_eq!(wrong_update("pod", pod(30), pod(1)).len(), 1);
}

#[test]
fn namespace_keeps_its_own_finalizer_until_it_is_deleted() {
    let namespace =
        |finalizers: Value| json!({"metadata": {"name": "a"}, "spec": {"finalizers": finalizers}});
    let (own, both) = (namespace(json!(["kubernetes"])), namespace(json!(["kubernetes", "example.com/x"])));
    assert!(wrong_update("ns", own.clone(), both.clone()).is_empty());
    assert!(wrong_update("ns", both.clone(), own.clone()).is_empty());
    assert_eq!(wrong_update("ns", both.clone(), namespace(json!([]))), ["spec.finalizers"]);
    let terminating =
        with(both, "/metadata", json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
    assert!(wrong_update("ns", terminating, namespace(json!([]))).is_empty());
    for bad in ["x", "", "example.com/", "a b/c"] {
        let found = wrong_update("ns", own.clone(), namespace(json!(["kubernetes", bad])));
        assert_eq!(found, ["spec.finalizers[1]"], "{bad}");
    }
    // Only `/finalize` changes them.
    let kept = completed("ns", Some(own), namespace(json!(["example.com/x"])));
    assert_eq!(kept["spec"]["finalizers"], json!(["kubernetes"]));
}

#[test]
fn workload_selects_its_own_pods() {
    let spec = |selector: Value| {
        json!({"spec": {"selector": selector, "replicas": 1,
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()}}})
    };
    assert!(wrong("deploy", spec(json!({"matchLabels": {"a": "b"}}))).is_empty());
    assert_eq!(wrong("deploy", spec(json!({"matchLabels": {"a": "c"}}))), ["spec.template.metadata.labels"]);
    assert_eq!(wrong("ds", spec(json!({}))), ["spec.selector"]);
    assert_eq!(
        wrong("deploy", with(spec(json!({"matchLabels": {"a": "b"}})), "/spec/replicas", json!(-1))),
        ["spec.replicas"]
    );
    assert_eq!(wrong("rc", spec(json!({"a": "c"}))), ["spec.template.metadata.labels"]);
}

#[test]
fn port_range_ascends_from_a_number() {
    let policy = |port: Value| {
        wrong(
            "netpol",
            json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 1}]}, {"ports": [port]}]}}),
        )
    };
    assert!(policy(json!({"port": 80, "endPort": 80})).is_empty());
    assert_eq!(policy(json!({"port": 80, "endPort": 79})), ["spec.ingress[1].ports[0].endPort"]);
    assert_eq!(policy(json!({"port": 80, "endPort": 70_000})), ["spec.ingress[1].ports[0].endPort"]);
    assert_eq!(policy(json!({"port": "web", "endPort": 90})), ["spec.ingress[1].ports[0].endPort"]);
    assert_eq!(policy(json!({"endPort": 90})), ["spec.ingress[1].ports[0].port"]);
}

#[test]
fn sysctl_and_time_zone_names_are_checked() {
    let sysctl = |names: &[&str]| {
        let sysctls: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        let mut spec = pod_spec();
        spec["securityContext"] = json!({"sysctls": sysctls});
        wrong("po", json!({"spec": spec}))
    };
    assert!(sysctl(&["net.ipv4.ip_forward", "kernel/shm_rmid_forced", "a"]).is_empty());
    for bad in ["", "A.b", "a..b", "-a", "a.", "a b"] {
        assert_eq!(sysctl(&[bad]), ["spec.securityContext.sysctls[0].name"], "{bad}");
    }
    assert_eq!(sysctl(&["a", "a"]), ["spec.securityContext.sysctls[1].name"]);
    let cron = |zone: &str| {
        let job = json!({"spec": {"template": {"spec": with(pod_spec(), "/restartPolicy", json!("Never"))}}});
        wrong("cj", json!({"spec": {"schedule": "@daily", "timeZone": zone, "jobTemplate": job}}))
    };
    for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+1"] {
        assert!(cron(zone).is_empty(), "{zone}");
    }
    for zone in ["", "Local", "local", "../etc/passwd", "/UTC", "Europe/", "a b"] {
        assert_eq!(cron(zone), ["spec.timeZone"], "{zone}");
    }
}

#[test]
fn jobs_run_to_completion_and_cron_jobs_have_a_schedule() {
    let job = with(pod_spec(), "/restartPolicy", json!("Never"));
    assert!(wrong("job", json!({"spec": {"template": {"spec": job}}})).is_empty());
    assert_eq!(
        wrong("job", json!({"spec": {"template": {"spec": pod_spec()}}})),
        ["spec.template.spec.restartPolicy"]
    );
    let cron = |schedule: &str| {
        wrong(
            "cj",
            json!({"spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": {"spec": job}}}}}),
        )
    };
    assert!(cron("*/5 * * * *").is_empty());
    assert_eq!(cron("often"), ["spec.schedule"]);
    let running = |image: &str, suspend: bool| {
        let spec = with(job.clone(), "/containers/0/image", json!(image));
        json!({"spec": {"suspend": suspend, "template": {"spec": spec}}})
    };
    assert_eq!(wrong_update("job", running("a", false), running("b", false)), ["spec.template"]);
    assert!(wrong_update("job", running("a", true), running("b", true)).is_empty());
}

#[test]
fn service_ports_are_distinct() {
    let service = |ports: Value| wrong("svc", json!({"spec": {"ports": ports}}));
    assert!(service(json!([{"port": 80, "targetPort": "web"}])).is_empty());
    assert!(
        service(json!([{"port": 53, "name": "a", "protocol": "UDP"}, {"port": 53, "name": "b"}])).is_empty()
    );
    assert_eq!(service(json!([{"port": 1}, {"port": 2, "name": "b"}])), ["spec.ports[0].name"]);
    assert_eq!(service(json!([{"port": 1, "name": "a"}, {"port": 1, "name": "b"}])), ["spec.ports[1]"]);
    assert_eq!(service(json!([{"port": 0}])), ["spec.ports[0].port"]);
    assert_eq!(service(json!([])), ["spec.ports"]);
    assert!(wrong("svc", json!({"spec": {"clusterIP": "None"}})).is_empty());
    assert_eq!(wrong("svc", json!({"spec": {"type": "ExternalName"}})), ["spec.externalName"]);
    let at = |ip: &str| json!({"metadata": {"name": "a"}, "spec": {"clusterIP": ip, "ports": [{"port": 1}]}});
    assert_eq!(wrong_update("svc", at("10.0.0.1"), at("10.0.0.2")), ["spec.clusterIP"]);
    assert_eq!(completed("svc", Some(at("10.0.0.1")), at(""))["spec"]["clusterIP"], "10.0.0.1");
}

#[test]
fn leases_syncs_roles_and_budgets_are_checked() {
    let lease = |spec: Value| wrong("lease", json!({"spec": spec}));
    assert!(lease(json!({"holderIdentity": "", "leaseDurationSeconds": 1})).is_empty());
    assert_eq!(
        lease(json!({"leaseDurationSeconds": 0, "leaseTransitions": -1})),
        ["spec.leaseDurationSeconds", "spec.leaseTransitions"]
    );
    assert_eq!(lease(json!({"preferredHolder": "x"})), ["spec.strategy"]);
    let record = |name: &str| {
        wrong(
            "objectsync",
            json!({"metadata": {"name": name},
            "spec": {"objectAPIVersion": "v1", "objectKind": "Pod", "objectName": "p"}}),
        )
    };
    assert!(record("edge.lab.413d5245-1fd6").is_empty());
    assert_eq!(record("edge"), ["metadata.name"]);
    assert_eq!(wrong("clusterobjectsyncs", json!({"metadata": {"name": "n.u"}})).len(), 3);
    assert_eq!(
        wrong(
            "role",
            json!({"rules": [{"verbs": [], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/x"]}]})
        ),
        ["rules[0].verbs", "rules[1].nonResourceURLs"]
    );
    assert_eq!(
        wrong(
            "clusterrolebinding",
            json!({"roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "s"}]})
        ),
        ["roleRef.kind", "subjects[0].namespace"]
    );
    assert_eq!(
        wrong("pdb", json!({"spec": {"minAvailable": 1, "maxUnavailable": "10%"}})),
        ["spec.maxUnavailable"]
    );
    let target = json!({"kind": "Deployment", "name": "d"});
    assert_eq!(
        wrong("hpa", json!({"spec": {"minReplicas": 3, "maxReplicas": 2, "scaleTargetRef": target}})),
        ["spec.maxReplicas"]
    );
}

fn new_event() -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "lab.io/c", "reportingInstance": "i",
        "action": "Act", "reason": "Why", "type": "Normal", "note": "x",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "n"}})
}

#[test]
fn new_event_needs_time_reporter_action_and_reason() {
    let event = "events.events.k8s.io";
    assert!(wrong(event, new_event()).is_empty());
    for (pointer, value, field) in [
        ("/eventTime", json!(null), "eventTime"),
        ("/reportingController", json!("a b"), "reportingController"),
        ("/reportingInstance", json!("i".repeat(129)), "reportingInstance"),
        ("/action", json!(""), "action"),
        ("/reason", json!("r".repeat(129)), "reason"),
        ("/note", json!("n".repeat(1025)), "note"),
        ("/type", json!("Odd"), "type"),
        ("/regarding/namespace", json!("m"), "regarding.namespace"),
    ] {
        assert_eq!(wrong(event, with(new_event(), pointer, value)), [field], "{pointer}");
    }
    let mut series = new_event();
    series["series"] = json!({"count": 1});
    assert_eq!(wrong(event, series), ["series.count", "series.lastObservedTime"]);
    let mut old_sort = new_event();
    old_sort["deprecatedCount"] = json!(2);
    assert_eq!(wrong(event, old_sort), ["deprecatedCount"]);
}

#[test]
fn only_the_series_of_an_event_changes() {
    let event = "events.events.k8s.io";
    let mut next = new_event();
    next["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"});
    assert!(wrong_update(event, new_event(), next).is_empty());
    assert_eq!(wrong_update(event, new_event(), with(new_event(), "/note", json!("y"))), ["note"]);
}

#[test]
fn legacy_event_needs_little_and_may_be_counted() {
    let old = |count: u64| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": "n"}, "count": count})
    };
    assert!(fields(check_create(&kind("ev"), &object(old(1)))).is_empty());
    assert!(wrong_update("ev", old(1), old(2)).is_empty());
    let elsewhere = with(old(1), "/metadata/namespace", json!("lab"));
    assert_eq!(wrong("ev", elsewhere), ["involvedObject.namespace"]);
    let mut timed = old(1);
    timed["eventTime"] = json!("2026-01-01T00:00:00.000000Z");
    assert_eq!(wrong("ev", timed), ["reportingComponent", "reportingInstance", "action", "reason"]);
}

#[test]
fn event_converts_between_both_versions() {
    let mut event =
        object(json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m",
        "involvedObject": {"name": "p"}, "source": {"component": "k"}, "count": 3, "firstTimestamp": "a",
        "lastTimestamp": "b", "reportingComponent": "c", "reason": "r", "mine": 1}));
    let core = event.clone();
    event_to_storage(&mut event);
    assert_eq!(
        Value::Object(event.clone().into_fields()),
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "m",
            "regarding": {"name": "p"}, "deprecatedSource": {"component": "k"}, "deprecatedCount": 3,
            "deprecatedFirstTimestamp": "a", "deprecatedLastTimestamp": "b", "reportingController": "c",
            "reason": "r", "mine": 1})
    );
    event_to_core(&mut event);
    assert_eq!(event, core);
    let mut map = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "source": 1}));
    event_to_storage(&mut map);
    assert_eq!(map.to_json(), r#"{"apiVersion":"v1","kind":"ConfigMap","source":1}"#);
}

#[test]
fn string_data_of_a_secret_becomes_data() {
    let secret =
        completed("secret", None, json!({"data": {"a": "eA==", "b": "eA=="}, "stringData": {"b": "y"}}));
    assert_eq!(secret, json!({"data": {"a": "eA==", "b": "eQ=="}, "type": "Opaque"}));
    assert_eq!(completed("secret", None, json!({"stringData": {"b": "y"}}))["data"], json!({"b": "eQ=="}));
    let wrong = json!({"stringData": {"b": 1}, "type": "Opaque"});
    assert_eq!(completed("secret", None, wrong.clone()), wrong);
}

#[test]
fn namespace_has_its_name_label_and_a_finalizer() {
    let created = completed("ns", None, json!({"metadata": {"name": "lab"}}));
    assert_eq!(created["metadata"]["labels"]["kubernetes.io/metadata.name"], "lab");
    assert_eq!(
        (&created["spec"]["finalizers"][0], &created["status"]["phase"]),
        (&json!("kubernetes"), &json!("Active"))
    );
    let changed = json!({"metadata": {"name": "lab", "labels": {"a": "b"}}, "spec": {"finalizers": []}});
    let changed = completed("ns", Some(created.clone()), changed);
    assert_eq!(changed["spec"], created["spec"]);
    assert_eq!(changed["metadata"]["labels"], json!({"a": "b", "kubernetes.io/metadata.name": "lab"}));
    assert_eq!(completed("pod", None, json!({}))["status"]["phase"], "Pending");
    assert_eq!(wrong("ns", json!({"metadata": {"name": "a.b"}})), ["metadata.name"]);
    let binding =
        json!({"roleRef": {"kind": "Role"}, "subjects": [{"kind": "User"}, {"kind": "ServiceAccount"}]});
    let binding = completed("rolebinding", None, binding);
    assert_eq!(binding["roleRef"]["apiGroup"], access::GROUP);
    assert_eq!(
        (&binding["subjects"][0]["apiGroup"], &binding["subjects"][1]["apiGroup"]),
        (&json!(access::GROUP), &Value::Null)
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c/.: -]{0,4}".prop_map(Value::from)
    ];
    let names = prop::sample::select(vec![
        "name",
        "spec",
        "template",
        "containers",
        "ports",
        "rules",
        "data",
        "type",
        "series",
        "selector",
        "metadata",
        "labels",
        "image",
        "port",
        "volumes",
        "subjects",
        "regarding",
        "namespace",
    ]);
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_object_of_any_kind_panics(
        number in 0..kinds::KINDS.len(), spec in any_value(), data in any_value(), other in any_value()
    ) {
        let kind = kinds::KINDS[number].resource();
        let mut new = object(json!({"metadata": {"name": "a"}, "spec": spec, "data": data, "rules": other}));
        complete(&kind, None, &mut new);
        let old = object(json!({"spec": other}));
        complete(&kind, Some(&old), &mut new);
        prop_assert!(check_create(&kind, &new).len() <= 64);
        let _ = check_update(&kind, &old, &new);
    }

    #[test]
    fn event_round_trips_through_the_other_version(
        fields in prop::collection::btree_map(
            prop::sample::select(vec!["message", "note", "source", "deprecatedSource", "count", "deprecatedCount",
                "involvedObject", "regarding", "reportingComponent", "reportingController", "firstTimestamp",
                "deprecatedLastTimestamp", "series", "related", "eventTime", "odd"]),
            any_value(), 0..10)
    ) {
        let mut event = object(json!({"kind": "Event"}));
        event.fields_mut().extend(fields.into_iter().map(|(field, value)| (field.to_owned(), value)));
        for (api_version, there, back) in [
            ("v1", event_to_storage as fn(&mut Object), event_to_core as fn(&mut Object)),
            ("events.k8s.io/v1", event_to_core, event_to_storage),
        ] {
            event.fields_mut().insert("apiVersion".to_owned(), api_version.into());
            let before = event.clone();
            there(&mut event);
            prop_assert_ne!(event.api_version(), api_version);
            back(&mut event);
            prop_assert_eq!(&event, &before);
        }
    }
}

#[test]
fn has_all_is_linear() {
    let items = |length: usize| (0..length).map(|number| json!({"key": number})).collect::<Vec<_>>();
    crate::cost_meter::assert_linear("items", items, |items| assert!(has_all(&items, &items)));
    assert!(!has_all(&items(3), &items(4)) && has_all(&items(4), &[]) && !has_all(&[], &[json!("1")]));
}
