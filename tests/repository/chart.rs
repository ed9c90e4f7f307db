//! Compares the Helm chart with the manifests that its templates read, as Helm and kustomize
//! render both, and checks its values.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use edgesync_config as config;
use edgesync_config::settings;
use edgesync_fleet::config::Config;
use edgesync_object::yaml;
use edgesync_testkit::kubectl::{helm, kubectl, old_helm};
use serde_json::{Value, json};

/// The values without a default.
const REQUIRED: [&str; 2] = ["image.repository=edgesync-cloud", "enrollment.names={edgesync.example.com}"];

/// Objects by kind, namespace and name.
type Objects = BTreeMap<[String; 3], Value>;

fn manifests() -> PathBuf {
    edgesync_testkit::programs::root().join("packaging/kubernetes")
}

fn chart() -> PathBuf {
    manifests().join("chart")
}

/// Runs a program to its end. Returns its output, or else its errors.
fn run(command: &mut Command) -> Result<String, String> {
    let home = tempfile::tempdir().unwrap();
    command.env_clear().env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Renders a chart with the required values and others, such as `replicas=3`.
fn template(helm: &Path, chart: &Path, namespace: &str, values: &[&str]) -> Result<String, String> {
    let mut command = Command::new(helm);
    command.args(["template", "edgesync", "--namespace", namespace]).arg(chart);
    for value in REQUIRED.iter().chain(values) {
        // --set takes a fraction for text.
        let (_, right) = value.split_once('=').unwrap();
        let is_json = serde_json::from_str::<Value>(right).is_ok_and(|json| json.is_array() || json.is_f64());
        command.args([if is_json { "--set-json" } else { "--set" }, value]);
    }
    run(&mut command)
}

fn objects(text: &str) -> Objects {
    let mut found = Objects::new();
    for document in yaml::documents(text).filter(|document| !document.is_empty()) {
        let object = document.parse().unwrap();
        let field = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = [field("/kind"), field("/metadata/namespace"), field("/metadata/name")];
        assert!(found.insert(key.clone(), object).is_none(), "{key:?} twice");
    }
    found
}

/// Replaces the text of the configuration by the effective settings.
fn parse_configuration(mut objects: Objects, namespace: &str) -> Objects {
    let key = ["ConfigMap", namespace, "edgesync-cloud-config"].map(str::to_owned);
    let map = objects.get_mut(&key).unwrap();
    let text = map["data"]["edgesync-cloud.toml"].as_str().unwrap();
    let path = Path::new("/etc/edgesync/edgesync-cloud.toml");
    let loaded = config::parse::<Config>(path, text, []).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let settings = settings(&loaded.config).into_iter();
    let values: BTreeMap<String, String> =
        settings.map(|setting| (format!("{}.{}", setting.section, setting.key), setting.value)).collect();
    map["data"] = json!(values);
    objects
}

/// Renders an overlay. Its image gets the tag of the chart, and its `ConfigMap` the name without
/// checksum.
fn kustomized(overlay: &str) -> Objects {
    let text = run(Command::new(kubectl()).arg("kustomize").arg(manifests().join(overlay))).unwrap();
    let (_, rest) = text.split_once("edgesync-cloud-config-").unwrap();
    let checksum: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    let text = text.replace(&format!("edgesync-cloud-config-{checksum}"), "edgesync-cloud-config");
    let image = format!("image: edgesync-cloud:{}\n", env!("CARGO_PKG_VERSION"));
    parse_configuration(objects(&text.replace("image: edgesync-cloud\n", &image)), "edgesync")
}

/// Removes an annotation, and the field for annotations with the last of them.
fn take_annotation(object: &mut Value, metadata: &str, name: &str) -> Option<Value> {
    let metadata = object.pointer_mut(metadata)?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let taken = annotations.remove(name);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    taken
}

/// Renders the chart, without the annotations that only Helm needs.
fn rendered(helm: &Path, namespace: &str, values: &[&str]) -> Objects {
    let text = template(helm, &chart(), namespace, values).unwrap();
    let mut objects = parse_configuration(objects(&text), namespace);
    for ([kind, ..], object) in &mut objects {
        let policy = take_annotation(object, "/metadata", "helm.sh/resource-policy");
        let expected =
            ["Namespace", "CustomResourceDefinition"].contains(&kind.as_str()).then(|| json!("keep"));
        assert_eq!(policy, expected, "{kind}");
        let checksum = take_annotation(object, "/spec/template/metadata", "checksum/config");
        assert_eq!(checksum.is_some(), kind == "Deployment", "{kind}");
    }
    objects
}

#[test]
fn chart_renders_the_objects_of_each_overlay() {
    let overlays: [(&str, &[&str]); 6] = [
        (".", &[]),
        ("base", &[]),
        ("overlays/load-balancer", &["service.type=LoadBalancer"]),
        ("overlays/external-broker", &["broker.mode=external", "broker.url=mqtts://broker.example.com:8883"]),
        ("overlays/signer", &["service.type=LoadBalancer", "signer.enabled=true"]),
        ("overlays/one-port", &["service.type=LoadBalancer", "service.sharedPort=443"]),
    ];
    let known = fs::read_dir(manifests().join("overlays")).unwrap().count();
    assert_eq!(known, overlays.len() - 2, "an overlay is not compared");
    for (overlay, values) in overlays {
        let expected = kustomized(overlay);
        assert!(expected.len() > 20, "{overlay}: {:?}", expected.keys());
        for helm in [old_helm(), helm()] {
            let found = rendered(&helm, "edgesync", &[&["namespace.create=true"], values].concat());
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{overlay}, {}",
                helm.display()
            );
            for (key, object) in &expected {
                assert_eq!(&found[key], object, "{overlay}, {}: {key:?}", helm.display());
            }
        }
    }
}

#[test]
fn chart_moves_all_objects_to_the_namespace_of_the_release() {
    let values = ["namespace.create=true", "signer.enabled=true", "podMonitor.enabled=true"];
    let objects = rendered(&helm(), "fleet", &values);
    let mut namespaces: BTreeSet<&str> = objects.keys().map(|[_, namespace, _]| namespace.as_str()).collect();
    assert!(namespaces.remove(""), "objects of the cluster");
    let subjects = objects.values().filter_map(|object| object["subjects"].as_array()).flatten();
    namespaces.extend(subjects.map(|subject| subject["namespace"].as_str().unwrap()));
    let created = objects.keys().filter(|[kind, ..]| kind == "Namespace");
    namespaces.extend(created.map(|[_, _, name]| name.as_str()));
    assert_eq!(namespaces, BTreeSet::from(["fleet", "fleet-ca", "kube-node-lease", "kube-system"]));
    let object = |kind: &str, name: &str| &objects[&[kind, "fleet", name].map(str::to_owned)];
    assert_eq!(object("ConfigMap", "edgesync-cloud-config")["data"]["kubernetes.namespace"], "\"fleet\"");
    let deployment = object("Deployment", "edgesync-cloud").to_string();
    assert!(deployment.contains("https://edgesync-signer.fleet.svc:10002"), "{deployment}");
}

#[test]
fn values_of_the_chart_reach_its_objects() {
    let digest = format!("sha256:{}", "0f".repeat(32));
    let image = format!("image.digest={digest}");
    let objects = rendered(
        &helm(),
        "edgesync",
        &[
            image.as_str(),
            "image.pullPolicy=Always",
            "image.pullSecrets[0].name=registry",
            "replicas=3",
            "resources.limits.memory=2Gi",
            "store.sizeLimit=1Gi",
            "signer.enabled=true",
            "signer.replicas=2",
            "config.kubernetes.qps=500",
            "config.sync.mass_delete_share=0.5",
            "config.placement=[{\"nodes\": {\"names\": [\"gw-*\"]}, \"objects\": {\"kinds\": [\"configmaps\"]}}]",
            "service.type=NodePort",
            "service.externalTrafficPolicy=Cluster",
            "service.annotations.example\\.com/pool=edge",
            "nodeSelector.disk=ssd",
            "podAnnotations.example\\.com/team=edge",
            "networkPolicy.enabled=false",
            "crds.objectSyncs=false",
            "podMonitor.enabled=true",
            "podMonitor.labels.release=prometheus",
            "podMonitor.interval=1m",
        ],
    );
    let at = |kind: &str, name: &str, path: &str| {
        let object = &objects[&[kind, "edgesync", name].map(str::to_owned)];
        object.pointer(path).unwrap_or_else(|| panic!("{kind} {name} lacks {path}: {object:#}")).clone()
    };
    let pod = "/spec/template/spec";
    for name in ["edgesync-cloud", "edgesync-signer"] {
        let container = format!("{pod}/containers/0");
        let image = at("Deployment", name, &format!("{container}/image"));
        assert_eq!(image, format!("edgesync-cloud@{digest}"));
        assert_eq!(at("Deployment", name, &format!("{container}/imagePullPolicy")), "Always");
        assert_eq!(at("Deployment", name, &format!("{pod}/imagePullSecrets")), json!([{"name": "registry"}]));
        assert_eq!(at("Deployment", name, &format!("{pod}/nodeSelector")), json!({"disk": "ssd"}));
        let annotations = at("Deployment", name, "/spec/template/metadata/annotations");
        assert_eq!(annotations, json!({"example.com/team": "edge"}));
    }
    assert_eq!(at("Deployment", "edgesync-cloud", "/spec/replicas"), 3);
    assert_eq!(at("Deployment", "edgesync-signer", "/spec/replicas"), 2);
    let resources = at("Deployment", "edgesync-cloud", &format!("{pod}/containers/0/resources"));
    let expected = json!({"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}});
    assert_eq!(resources, expected);
    assert_eq!(at("Deployment", "edgesync-cloud", &format!("{pod}/volumes/1/emptyDir/sizeLimit")), "1Gi");
    let configured = at("ConfigMap", "edgesync-cloud-config", "/data");
    let effective = |key: &str| configured[key].as_str().unwrap().to_owned();
    assert_eq!(
        (effective("kubernetes.qps"), effective("sync.mass_delete_share")),
        ("500".into(), "0.5".into())
    );
    assert!(effective(".placement").contains("gw-*"), "{configured:#}");
    assert_eq!(at("Service", "edgesync-cloud", "/spec/type"), "NodePort");
    assert_eq!(at("Service", "edgesync-cloud", "/spec/externalTrafficPolicy"), "Cluster");
    assert_eq!(at("Service", "edgesync-cloud", "/metadata/annotations"), json!({"example.com/pool": "edge"}));
    assert_eq!(at("PodMonitor", "edgesync-cloud", "/metadata/labels/release"), "prometheus");
    assert_eq!(at("PodMonitor", "edgesync-cloud", "/spec/podMetricsEndpoints/0/interval"), "1m");
    assert!(!objects.keys().any(|[kind, ..]| kind == "NetworkPolicy"));
    let namespaces = objects.keys().filter(|[kind, ..]| kind == "Namespace");
    assert_eq!(namespaces.map(|[_, _, name]| name.as_str()).collect::<Vec<_>>(), ["edgesync-ca"]);
    let definitions = objects.keys().filter(|[kind, ..]| kind == "CustomResourceDefinition");
    let definitions: Vec<&str> = definitions.map(|[_, _, name]| name.as_str()).collect();
    assert_eq!(definitions, ["clusterplacements.edgesync.io", "placements.edgesync.io"]);
}

/// Administrators with a CA of their own create the namespace before.
#[test]
fn chart_leaves_out_the_namespace_of_the_keys_if_asked() {
    for helm in [old_helm(), helm()] {
        let all = rendered(&helm, "edgesync", &[]);
        let found = rendered(&helm, "edgesync", &["namespace.createKeys=false"]);
        let missing: Vec<&[String; 3]> = all.keys().filter(|key| !found.contains_key(*key)).collect();
        assert_eq!(missing, [&["Namespace", "", "edgesync-ca"].map(str::to_owned)]);
        for (key, object) in &found {
            assert_eq!(all.get(key), Some(object), "{key:?}");
        }
    }
}

/// Port 443 of the Service leads to another port of the Pods; devices receive the former.
#[test]
fn shared_port_of_the_service_is_the_one_that_devices_learn() {
    let effective = |objects: &Objects, key: &str| {
        let key_of_map = ["ConfigMap", "edgesync", "edgesync-cloud-config"].map(str::to_owned);
        objects[&key_of_map]["data"][key].as_str().unwrap().to_owned()
    };
    let ports = |objects: &Objects| {
        let service = &objects[&["Service", "edgesync", "edgesync-cloud"].map(str::to_owned)];
        let ports = service["spec"]["ports"].as_array().unwrap().clone();
        ports
            .into_iter()
            .map(|port| (port["name"].as_str().unwrap().to_owned(), port["port"].clone()))
            .collect::<Vec<_>>()
    };
    let named = |name: &str, port: u16| (name.to_owned(), json!(port));
    for helm in [old_helm(), helm()] {
        let objects = rendered(
            &helm,
            "edgesync",
            &["service.sharedPort=8443", "config.listen.mqtt_names=[\"mqtt.example.com\"]"],
        );
        assert_eq!(ports(&objects), [named("mqtt", 8883), named("join", 10002), named("shared", 8443)]);
        assert_eq!(effective(&objects, "listen.address"), "\"0.0.0.0:10443\"");
        assert_eq!(effective(&objects, "listen.services"), "[\"join\", \"mqtt\"]");
        assert_eq!(effective(&objects, "listen.mqtt_names"), "[\"mqtt.example.com\"]");
        let learned = effective(&objects, "enrollment.broker_urls");
        for url in ["mqtts://:8883", "mqtts://:8443", "wss://:8443/mqtt"] {
            assert!(learned.contains(url), "{url}: {learned}");
        }

        let own = "config.enrollment.broker_urls=[\"wss://edge.example.com/mqtt\"]";
        let services = "config.listen.services=[\"mqtt\"]";
        let objects = rendered(&helm, "edgesync", &["service.sharedPort=443", own, services]);
        assert!(!effective(&objects, "enrollment.broker_urls").contains("8883"), "{helm:?}");
        assert_eq!(effective(&objects, "listen.services"), "[\"mqtt\"]");

        // An external broker has its own ports.
        let broker = ["broker.mode=external", "broker.url=mqtts://broker.example.com:8883"];
        let objects = rendered(&helm, "edgesync", &[&broker[..], &["service.sharedPort=443"]].concat());
        assert_eq!(ports(&objects), [named("join", 10002), named("shared", 443)]);
        assert_eq!(effective(&objects, "listen.services"), "[\"join\"]");
        assert_eq!(effective(&objects, "enrollment.broker_urls"), "[]");
    }
}

/// YAML would read these names as a number and as booleans.
#[test]
fn chart_quotes_names_of_namespaces() {
    for helm in [old_helm(), helm()] {
        let objects = rendered(&helm, "123", &["place.secrets=[\"on\",\"true\",\"7\"]"]);
        for namespace in ["on", "true", "7"] {
            let key = |kind: &str| [kind, namespace, "edgesync-place-secrets"].map(str::to_owned);
            assert!(objects.contains_key(&key("Role")), "{namespace}: {:?}", objects.keys());
            assert_eq!(objects[&key("RoleBinding")]["subjects"][0]["namespace"], "123");
        }
    }
}

#[test]
fn secret_for_an_external_broker_is_mounted() {
    let broker = ["broker.mode=external", "broker.url=mqtts://broker.example.com:8883"];
    let values = [
        "broker.secret=broker",
        "config.link.username=edgesync",
        "config.link.password_file=/etc/edgesync-broker/password",
    ];
    let objects = rendered(&helm(), "edgesync", &[&broker[..], &values].concat());
    let pod = &objects[&["Deployment", "edgesync", "edgesync-cloud"].map(str::to_owned)]["spec"]["template"]
        ["spec"];
    let named = |list: &Value| {
        let found = list.as_array().unwrap().iter().find(|item| item["name"] == "broker");
        found.unwrap_or_else(|| panic!("{pod:#}")).clone()
    };
    let secret = json!({"name": "broker", "secret": {"secretName": "broker", "defaultMode": 0o440}});
    assert_eq!(named(&pod["volumes"]), secret);
    let mount = json!({"name": "broker", "mountPath": "/etc/edgesync-broker", "readOnly": true});
    assert_eq!(named(&pod["containers"][0]["volumeMounts"]), mount);
}

/// Some programs drop the links to the manifests.
#[test]
fn chart_without_its_links_names_the_archive() {
    let copy = tempfile::tempdir().unwrap();
    let mut words = Command::new("cp");
    words.arg("-r").arg(chart()).arg(copy.path());
    run(&mut words).unwrap();
    fs::remove_dir_all(copy.path().join("chart/manifests")).unwrap();
    for helm in [old_helm(), helm()] {
        let error = template(&helm, &copy.path().join("chart"), "edgesync", &[]).unwrap_err();
        assert!(error.contains("hint: ") && error.contains("packaging/chart"), "{error}");
    }
}

/// An older API server drops the rules, so that each upgrade would add them.
#[test]
fn chart_has_no_rules_in_cel_for_older_api_servers() {
    for (version, expected) in
        [("1.20.2", false), ("1.24.17", false), ("1.25.0", true), ("1.36.2-gke.1", true)]
    {
        let mut command = Command::new(helm());
        command.args(["template", "edgesync", "--namespace", "edgesync", "--kube-version", version]);
        command.args(["--set", &REQUIRED.join(",")]).arg(chart());
        let text = run(&mut command).unwrap();
        assert_eq!(text.contains("x-kubernetes-validations"), expected, "{version}");
    }
}

/// The values for the rights of the example give those rights.
#[test]
fn chart_grants_the_rights_of_the_example() {
    let text = fs::read_to_string(manifests().join("examples/rights.yaml")).unwrap();
    let expected = objects(&text);
    let rules = |name: &str| {
        let key = ["ClusterRole", "", &format!("edgesync-place-{name}")].map(str::to_owned);
        format!("place.rules.{name}={}", expected[&key]["rules"])
    };
    let found =
        rendered(&old_helm(), "edgesync", &[&rules("widgets"), &rules("pods"), "place.secrets={plant}"]);
    assert_eq!(expected.len(), 4);
    for (key, object) in expected {
        for field in ["rules", "roleRef", "subjects"] {
            assert_eq!(found[&key][field], object[field], "{key:?}");
        }
        // The uninstall finds them by a label.
        assert_eq!(found[&key]["metadata"]["labels"], object["metadata"]["labels"], "{key:?}");
    }
}

/// Invalid values, and parts of the errors of both versions, which format field names differently.
const REFUSED: [(&[&str], &[&str]); 26] = [
    (&["image.repository="], &["image.repository is empty", "hint: pack it with packaging/image"]),
    (
        &["enrollment.names=null"],
        &["enrollment.names is empty", "hint: --set 'enrollment.names={edge.example.com}'"],
    ),
    (&["enrollment.names=edge.example.com"], &["enrollment", "names", "array"]),
    (&["enrollment.names={https://edge.example.com}"], &["enrollment", "names", "match", "pattern"]),
    (&["enrollment.names={Edge.example.com}"], &["enrollment", "names", "match", "pattern"]),
    (&["replica=3"], &["replica", "not allowed"]),
    (&["replicas=0"], &["replicas", "1"]),
    (&["image.digest=sha256:0"], &["image", "digest", "pattern"]),
    (&["broker.mode=extern"], &["broker", "mode", "embedded", "external"]),
    (&["broker.mode=external"], &["broker.url is empty", "hint: --set broker.url="]),
    (&["broker.url=mqtt://broker"], &["broker.url is set", "hint: --set broker.mode=external"]),
    (&["broker.secret=broker"], &["broker.secret is set", "hint: --set broker.mode=external"]),
    (
        &["broker.mode=external", "broker.url=mqtt://broker", "signer.enabled=true"],
        &["signer.enabled with an external broker", "hint: --set signer.enabled=false"],
    ),
    (
        &["service.sharedPort=443", "signer.enabled=true"],
        &["service.sharedPort with signer.enabled", "hint: --set service.sharedPort=0"],
    ),
    (
        &["service.sharedPort=8883"],
        &["8883 is the port of one service already", "hint: --set service.sharedPort=443"],
    ),
    (&["service.sharedPort=70000"], &["service", "sharedPort", "535"]),
    (
        &["config.listen.address=:443"],
        &["config.listen.address: the chart sets", "set the value service.sharedPort"],
    ),
    (&["config.brokers.queue=1MiB"], &["config", "brokers", "not allowed"]),
    (
        &["config.enrollment.names=[\"a\"]"],
        &["config.enrollment.names: the chart sets", "set the value enrollment.names"],
    ),
    (&["config.kubernetes.namespace=a"], &["config.kubernetes.namespace: the chart sets", "hint: remove it"]),
    // The ports of Pods and probes.
    (&["config.api.health=off"], &["config.api.health: the chart sets", "hint: remove it"]),
    (&["config.enrollment.listen=off"], &["config.enrollment.listen: the chart sets", "hint: remove it"]),
    (&["config.broker.listen=0.0.0.0:1883"], &["config.broker.listen: the chart sets", "hint: remove it"]),
    (
        &["place.rules.x=[{\"apiGroups\":[\"\"],\"resources\":[\"secrets\"],\"verbs\":[\"list\"]}]"],
        &[
            "place.rules.x: a right to the Secrets of all namespaces",
            "hint: --set 'place.secrets={NAMESPACE}'",
        ],
    ),
    (
        &["place.rules.x=[{\"apiGroups\":[\"*\"],\"resources\":[\"*\"],\"verbs\":[\"list\"]}]"],
        &["place.rules.x: a right to the Secrets of all namespaces"],
    ),
    (&["place.secrets={edgesync-ca}"], &["place.secrets: namespace 'edgesync-ca'", "hint: remove it"]),
];

#[test]
fn chart_refuses_invalid_values_and_says_why() {
    for helm in [old_helm(), helm()] {
        for (values, expected) in REFUSED {
            let error = template(&helm, &chart(), "edgesync", values).unwrap_err();
            for text in expected {
                assert!(error.contains(text), "{values:?}: {text:?} is missing in {error}");
            }
        }
        let error = template(&helm, &chart(), "default", &[]).unwrap_err();
        assert!(error.contains("namespace 'default'") && error.contains("--create-namespace"), "{error}");
        let long = "a".repeat(61);
        let error = template(&helm, &chart(), &long, &[]).unwrap_err();
        assert!(error.contains("is longer than 63 characters") && error.contains("at most 60"), "{error}");
        template(&helm, &chart(), &long[1..], &["enrollment.names={10.0.0.7,2001:DB8::7}"]).unwrap();
        let mut lint = Command::new(&helm);
        lint.args(["lint", "--strict", "--namespace", "edgesync", "--set", &REQUIRED.join(",")]).arg(chart());
        run(&mut lint).unwrap();
    }
}

/// Keys of the values, with those of nested objects after a dot.
fn keys(prefix: &str, value: &Value, nested: &dyn Fn(&str, &Value) -> Option<Value>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in value.as_object().unwrap() {
        let path = format!("{prefix}{key}");
        match nested(&path, value) {
            Some(inner) => found.extend(keys(&format!("{path}."), &inner, nested)),
            None => {
                found.insert(path);
            }
        }
    }
    found
}

#[test]
fn schema_of_the_chart_has_the_documented_values() {
    let read = |name: &str| fs::read_to_string(chart().join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let values = yaml::parse(&read("values.yaml")).unwrap();
    let properties = |_: &str, schema: &Value| {
        // Only these sections have a fixed set of values.
        let is_section = schema["properties"].is_object() && schema.get("patternProperties").is_none();
        is_section.then(|| schema["properties"].clone())
    };
    let mut described = keys("", &schema["properties"], &properties);
    assert!(described.remove("global"));
    // Maps without fixed keys are values.
    let section = |path: &str, value: &Value| {
        let is_value = described.contains(path);
        value.as_object().filter(|_| !is_value).map(|_| value.clone())
    };
    assert_eq!(keys("", &values, &section), described);
}

#[test]
fn chart_has_the_version_of_the_program() {
    let text = fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let about = yaml::parse(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&about["version"], &about["appVersion"]), (&json!(version), &json!(version)));
}

/// The links to the manifests become files.
#[test]
fn archive_of_the_chart_renders_as_its_directory_does() {
    let script = edgesync_testkit::programs::root().join("packaging/chart");
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let archives = directories.each_ref().map(|directory| {
        let path = run(Command::new(&script).arg(directory.path())).unwrap();
        PathBuf::from(path.trim_end())
    });
    let [first, second] = archives.each_ref().map(|path| fs::read(path).unwrap());
    assert!(first == second, "two archives of the same sources differ");
    let values = ["signer.enabled=true", "podMonitor.enabled=true"];
    for helm in [old_helm(), helm()] {
        let [packed, sources] =
            [&archives[0], &chart()].map(|chart| template(&helm, chart, "edgesync", &values).unwrap());
        assert_eq!(packed, sources);
    }
}
