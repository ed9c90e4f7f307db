use std::collections::HashSet;

use super::*;

const SCALARS: &[&str] = &[
    "str", "bool", "int32", "int64", "num", "time", "micro", "bytes", "quantity", "port", "any", "obj",
    "unread",
];
const FLAGS: &[&str] = &["set", "map", "atomic", "merge", "retain", "default", "wire", ""];

#[test]
fn each_kind_and_type_occurs_once() {
    let mut seen = HashSet::new();
    for line in TABLES.iter().flat_map(|text| text.lines()) {
        if !line.starts_with(['#', ' ']) && !line.is_empty() {
            let (name, _) = Block::new(line, "");
            assert!(seen.insert(name), "{name} is there twice");
        }
    }
}

fn each_kind() -> Vec<(String, Arc<Schema>)> {
    let table = Table::new(TABLES);
    let kinds = table.blocks.iter().filter(|(_, block)| block.kind).map(|(name, _)| {
        let (api_version, kind) = name.split_once(' ').unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        (kind.to_owned(), builtin(group, version, kind).unwrap())
    });
    kinds.collect()
}

/// Calls `visit` for every schema below this one, with its path.
fn visit_all(schema: &Schema, path: &str, visit: &mut impl FnMut(&Schema, &str)) {
    visit(schema, path);
    for (name, field) in &schema.properties {
        visit_all(field, &format!("{path}.{name}"), visit);
    }
    for inner in schema.items.iter().chain(&schema.additional) {
        visit_all(inner, &format!("{path}[]"), visit);
    }
}

#[test]
fn every_line_of_the_tables_is_parsed() {
    let table = Table::new(TABLES);
    let mut used = HashSet::from(["ObjectMeta", "DeleteOptions"]);
    for (name, block) in &table.blocks {
        for line in block.fields.lines() {
            let field = Field::new(line).unwrap_or_else(|| panic!("{name}: {line}"));
            let inner = field.kind.trim_start_matches(['[', ']', '{', '}']);
            let known = SCALARS.contains(&inner)
                || table.blocks.contains_key(inner)
                || table.blocks.contains_key(format!("v1 {inner}").as_str());
            assert!(known, "{name}: {line}");
            used.insert(inner);
            for flag in field.flags.split(' ') {
                let flag = flag.split('=').next().unwrap();
                assert!(FLAGS.contains(&flag), "{name}: {line}");
            }
            used.extend(field.flags.split(' ').filter_map(|flag| flag.strip_prefix("wire=")));
            if let Some((_, json)) = field.flags.split_once("default=") {
                serde_json::from_str::<serde_json::Value>(json).unwrap_or_else(|_| panic!("{name}: {line}"));
            }
        }
    }
    for (name, block) in &table.blocks {
        assert!(block.kind || used.contains(name), "{name} is a type that nobody has");
    }
    for text in TABLES {
        let (blocks, comments): (Vec<&str>, Vec<&str>) =
            text.lines().filter(|line| !line.starts_with(' ')).partition(|line| !line.starts_with('#'));
        assert!(blocks.iter().all(|line| table.blocks.contains_key(Block::new(line, "").0)));
        assert!(!comments.is_empty());
    }
}

#[test]
fn field_numbers_are_unique() {
    let table = Table::new(TABLES);
    for (name, block) in &table.blocks {
        // Kinds defined by a CustomResourceDefinition have no such encoding, nor have their types.
        let first = block.fields.lines().next().and_then(Field::new);
        if first.is_some_and(|field| field.numbers.is_empty()) {
            assert!(message(name).is_none(), "{name}");
            assert!(!name.contains(".k8s.io/") && !name.starts_with("v1 "), "{name}");
            continue;
        }
        let numbers = block.fields.lines().map(|line| {
            let field = Field::new(line).unwrap();
            let numbers = field.numbers.trim_end_matches('?');
            let path: Vec<u32> = numbers.split('.').map(|number| number.parse().unwrap()).collect();
            assert!(path.len() <= 3 && !path.contains(&0), "{name}: {line}");
            path
        });
        let mut numbers: Vec<Vec<u32>> = numbers.chain(block.kind.then(|| vec![1])).collect();
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            let (one, other) = (&pair[0], &pair[1]);
            assert!(!other.starts_with(one), "{name} has {one:?} twice, or as a field and as a message");
        }
        let message = message(name).unwrap();
        assert_eq!(message.fields().count(), numbers.len());
        for field in message.fields() {
            if let Content::Message(inner) = field.content {
                assert!(super::message(inner).is_some(), "{name}.{} is a {inner}", field.name);
            }
        }
    }
}

#[test]
fn statuses_of_all_kinds_are_known() {
    let table = Table::new(TABLES);
    for (name, block) in &table.blocks {
        for field in block.fields.lines().filter_map(Field::new) {
            let inner = field.kind.trim_start_matches(['[', ']', '{', '}']);
            assert!(SCALARS.contains(&inner) || table.block(inner).is_some(), "{name}: {inner}");
        }
    }
    for known in edgesync_object::kinds::KINDS {
        let name = block_name(known.group, known.version, known.kind);
        let expected = known.has_status() && !known.group.contains("kubeedge");
        // A kind that is no longer served; Leases, Events and the like.
        let other = known.version == "v1" && known.group == "autoscaling";
        let found = table.block(&name).is_some_and(|(_, block)| block.fields.contains(" status"));
        assert!(found || other || !expected, "{name}");
    }
}

#[test]
fn schemas_have_their_field_attributes() {
    let kinds = each_kind();
    assert!(kinds.len() >= 9, "{}", kinds.len());
    for (kind, schema) in kinds {
        for field in ["apiVersion", "kind", "metadata"] {
            assert!(schema.properties.contains_key(field), "{kind} has no {field}");
        }
        visit_all(&schema, &kind, &mut |schema, path| {
            for name in &schema.required {
                assert!(schema.properties.contains_key(name), "{path} requires {name}");
            }
            let items = schema.items.as_deref();
            assert_eq!(items.is_some(), schema.kind == Type::Array, "{path}");
            if let ListType::Map(keys) = &schema.list {
                for key in keys {
                    assert!(items.unwrap().properties.contains_key(key), "{path} has no key {key}");
                }
            }
            if let PatchStrategy::Merge { key: Some(key), .. } = &schema.patch {
                assert!(items.unwrap().properties.contains_key(key), "{path} has no merge key {key}");
            }
            let choices = schema.limits.as_deref().map_or(&[][..], |limits| &limits.choices);
            if let Some(default) = &schema.default {
                assert!(choices.is_empty() || choices.contains(default), "{path} must not be {default}");
            }
        });
    }
}

#[test]
fn types_are_shared_between_kinds() {
    let lease = builtin("coordination.k8s.io", "v1", "Lease").unwrap();
    let again = builtin("coordination.k8s.io", "v1", "Lease").unwrap();
    assert!(Arc::ptr_eq(&lease, &again));
    let event = builtin("", "v1", "Event").unwrap();
    let labels = |kind: &Schema| Arc::clone(&kind.properties["metadata"].properties["labels"]);
    assert!(Arc::ptr_eq(&labels(&lease), &labels(&event)));
    assert!(builtin("", "v1", "Widget").is_none());
    assert!(builtin("", "v1", "ObjectMeta").is_none() && builtin("", "", "ObjectMeta").is_none());
}

#[test]
fn common_fields_have_a_description() {
    for (kind, schema) in each_kind() {
        assert!(!schema.description.is_empty(), "{kind}");
        for (name, field) in
            schema.properties.iter().filter(|(name, _)| matches!(&***name, "spec" | "status"))
        {
            assert!(!field.description.is_empty(), "{kind}.{name}");
        }
    }
    for (group, version, kind) in
        [("coordination.k8s.io", "v1", "Lease"), ("reliablesyncs.kubeedge.io", "v1alpha1", "ObjectSync")]
    {
        let schema = builtin(group, version, kind).unwrap();
        visit_all(&schema, kind, &mut |schema, path| {
            assert!(!schema.description.is_empty() || path.ends_with("[]"), "{path}");
        });
    }
}

#[test]
fn kinds_of_the_cloud_side_are_complete() {
    for (group, version, kinds) in [
        ("", "v1", "Pod PodTemplate Service ServiceAccount ConfigMap Secret Namespace Node Event Endpoints"),
        ("", "v1", "PersistentVolume PersistentVolumeClaim ReplicationController LimitRange ResourceQuota"),
        ("apps", "v1", "Deployment StatefulSet DaemonSet ReplicaSet ControllerRevision"),
        ("batch", "v1", "Job CronJob"),
        ("coordination.k8s.io", "v1", "Lease"),
        ("events.k8s.io", "v1", "Event"),
        ("discovery.k8s.io", "v1", "EndpointSlice"),
        ("networking.k8s.io", "v1", "Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR"),
        ("node.k8s.io", "v1", "RuntimeClass"),
        ("policy", "v1", "PodDisruptionBudget"),
        ("rbac.authorization.k8s.io", "v1", "Role ClusterRole RoleBinding ClusterRoleBinding"),
        ("scheduling.k8s.io", "v1", "PriorityClass"),
        ("storage.k8s.io", "v1", "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment"),
        ("storage.k8s.io", "v1", "VolumeAttributesClass"),
        ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration ValidatingAdmissionPolicy"),
        (
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
        ),
        ("apiregistration.k8s.io", "v1", "APIService"),
        ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
        ("apps.kubeedge.io", "v1alpha1", "EdgeApplication NodeGroup"),
        ("devices.kubeedge.io", "v1beta1", "Device DeviceModel"),
        ("rules.kubeedge.io", "v1", "Rule RuleEndpoint"),
        ("autoscaling", "v2", "HorizontalPodAutoscaler"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        ("reliablesyncs.kubeedge.io", "v1alpha1", "ObjectSync ClusterObjectSync"),
    ] {
        for kind in kinds.split(' ') {
            assert!(builtin(group, version, kind).is_some(), "{group}/{version} {kind}");
        }
    }
}

#[test]
fn lists_of_pods_merge_as_in_kubernetes() {
    let pod = builtin("", "v1", "Pod").unwrap();
    let spec = &pod.properties["spec"];
    let containers = &spec.properties["containers"];
    assert_eq!(containers.list, ListType::Map(vec!["name".into()]));
    let by_name = |retain_keys| PatchStrategy::Merge { key: Some("name".into()), retain_keys };
    assert_eq!(containers.patch, by_name(false));
    assert_eq!(spec.properties["volumes"].patch, by_name(true));
    let ports = &containers.items.as_ref().unwrap().properties["ports"];
    assert_eq!(ports.list, ListType::Map(vec!["containerPort".into(), "protocol".into()]));
    assert!(spec.properties["nodeSelector"].atomic_map);
    let deployment = builtin("apps", "v1", "Deployment").unwrap();
    let template = &deployment.properties["spec"].properties["template"].properties["spec"];
    assert!(Arc::ptr_eq(&template.properties["containers"], containers));
    let strategy = &deployment.properties["spec"].properties["strategy"];
    assert_eq!(strategy.patch, PatchStrategy::RetainKeys);
}
