//! Laws for arbitrary objects, configurations and writes.

use super::*;

/// Returns the leaves of a set: members without members below.
fn leaves(set: &FieldSet) -> Vec<String> {
    let paths = set.paths(10_000);
    let within = |path: &String, other: &String| {
        other.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with(['.', '[']))
    };
    paths.iter().filter(|path| !paths.iter().any(|other| within(path, other))).cloned().collect()
}

fn content(object: &Object) -> FieldSet {
    let mut bare = object.clone();
    bare.strip_managed_fields();
    let mut fields = fields_of(&Value::Object(bare.into_fields()), Some(&pod()));
    fields.subtract(&unowned());
    fields
}

fn data() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", "[x-z]", 1..4).prop_map(|map| json!(map))
}

fn container() -> impl Strategy<Value = Value> {
    let ports = prop::collection::btree_map((1i64..4, any::<bool>()), "[p-q]", 1..4);
    let ports = ports.prop_map(|ports| {
        let port = |((port, udp), name): ((i64, bool), String)| match udp {
            true => json!({"containerPort": port, "protocol": "UDP", "name": name}),
            false => json!({"containerPort": port, "name": name}),
        };
        json!(ports.into_iter().map(port).collect::<Vec<Value>>())
    });
    let args = prop::collection::vec("[x-z]", 1..3);
    (prop::option::of("[i-j]"), prop::option::of(args), prop::option::of(ports)).prop_map(
        |(image, args, ports)| {
            let fields = [("image", json!(image)), ("args", json!(args)), ("ports", json!(ports))];
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
        },
    )
}

fn containers() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]", container(), 1..4).prop_flat_map(|map| {
        let named = map.into_iter().map(|(name, mut container)| {
            container["name"] = json!(name);
            container
        });
        Just(named.collect::<Vec<Value>>()).prop_shuffle().prop_map(|list| json!(list))
    })
}

/// Objects without empty fields.
fn arbitrary_object() -> impl Strategy<Value = Value> {
    let finalizers = prop::collection::btree_set("[a-d]", 1..3).prop_map(|set| json!(set));
    let spec = prop::option::of(containers());
    (prop::option::of(data()), spec, prop::option::of(finalizers), 0i64..3).prop_map(
        |(data, containers, finalizers, replicas)| {
            let mut object = json!({"metadata": {}, "spec": {"replicas": replicas}});
            for (at, value) in
                [("/data", data), ("/spec/containers", containers), ("/metadata/finalizers", finalizers)]
            {
                if let Some(value) = value {
                    let (parent, name) = at.rsplit_once('/').unwrap();
                    object.pointer_mut(parent).unwrap()[name] = value;
                }
            }
            object
        },
    )
}

/// Arbitrary JSON, partly shaped like `managedFields`.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<i64>().prop_map(|number| json!(number)),
        prop_oneof!["Apply|Update|FieldsV1|v1|2026-01-01T00:00:00Z", "\\PC{0,4}"]
            .prop_map(|text| json!(text)),
    ];
    let name = prop_oneof![
        "apiVersion|fieldsType|fieldsV1|manager|operation|time|subresource|metadata|data|spec|containers|name",
        "f:metadata|f:data|f:spec|f:a|\\.|k:\\{\"name\":\"a\"\\}|v:1|i:0|k:|v:|\\PC{0,3}",
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|list| json!(list)),
            prop::collection::btree_map(name.clone(), inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

/// Sets of fields that may or may not match an object.
fn fields_of_clients() -> impl Strategy<Value = Value> {
    let step = prop_oneof![
        4 => "f:(metadata|labels|finalizers|data|spec|containers|ports|name|a|b)|\\.",
        2 => "k:\\{\"name\":\"[a-c]\"\\}|k:\\{\"containerPort\":[1-3]\\}|v:\"[a-d]\"|v:[1-3]|i:[0-2]",
        1 => "x:[a-b]",
    ];
    Just(json!({})).prop_recursive(5, 60, 5, move |inner| {
        prop::collection::btree_map(step.clone(), inner, 0..5).prop_map(|map| json!(map))
    })
}

/// Runs a few writes by several managers.
fn history(writes: &[(Value, bool)]) -> Option<Object> {
    let mut live: Option<Object> = None;
    for (number, (rest, applies)) in writes.iter().enumerate() {
        let name = format!("m{}", number % 3);
        live = Some(match (&live, applies) {
            (_, true) => try_apply(live.as_ref(), rest.clone(), &name, true).unwrap(),
            (Some(old), false) if old.metadata().unwrap().contains_key("managedFields") => {
                update(old, rest.clone(), &by(&name))
            }
            (_, false) => create(rest.clone(), &name),
        });
    }
    live
}

fn writes() -> impl Strategy<Value = Vec<(Value, bool)>> {
    prop::collection::vec((arbitrary_object(), any::<bool>()), 0..5)
}

proptest! {
    #[test]
    fn every_leaf_is_owned_and_changes_belong_to_the_writer(
        before in writes(), next in arbitrary_object(),
    ) {
        let Some(live) = history(&before) else { return Ok(()) };
        let new = update(&live, next, &later("writer"));
        let all = Managed::of(&new).union().paths(10_000);
        for path in leaves(&content(&new)) {
            prop_assert!(all.contains(&path), "nobody owns {path} of {new}");
        }
        let diff = compare(live.fields(), new.fields(), Some(&pod()));
        let mut written = diff.written();
        written.subtract(&unowned());
        let mine = owned(&new, "writer", Update);
        prop_assert_eq!(written.paths(10_000), mine.clone());
        for entry in Managed::of(&new).entries() {
            let others = entry.fields.paths(10_000);
            prop_assert!(entry.manager == "writer" || !others.iter().any(|path| mine.contains(path)));
            prop_assert!(entry.fields.intersection(&diff.removed).is_empty());
        }
    }

    #[test]
    fn forced_apply_gives_the_configuration_and_its_ownership(before in writes(), config in arbitrary_object()) {
        let live = history(&before);
        let result = try_apply(live.as_ref(), config.clone(), "me", true).unwrap();
        let merged = merge::merge(
            &Value::Object(result.fields().clone()), &Value::Object(object(config.clone()).into_fields()), Some(&pod()),
        );
        prop_assert_eq!(&merged, &Value::Object(result.fields().clone()), "all of the configuration is there");
        prop_assert_eq!(owned(&result, "me", Apply), content(&object(config.clone())).paths(10_000));
        let all = Managed::of(&result).union().paths(10_000);
        for path in leaves(&content(&result)) {
            prop_assert!(all.contains(&path), "nobody owns {path} of {result}");
        }
        prop_assert_eq!(&try_apply(Some(&result), config, "me", false).unwrap(), &result, "again changes nothing");
    }

    #[test]
    fn empty_apply_restores_the_object_before(before in writes(), config in arbitrary_object()) {
        let Some(live) = history(&before) else { return Ok(()) };
        let Ok(shared) = try_apply(Some(&live), config, "guest", false) else { return Ok(()) };
        let left = try_apply(Some(&shared), json!({}), "guest", false).unwrap();
        prop_assert_eq!(content(&left), content(&live));
        prop_assert_eq!(Managed::of(&left), Managed::of(&live));
    }

    #[test]
    fn client_records_never_break_the_record(
        old in arbitrary_json(), new in arbitrary_json(), managed in arbitrary_json(), config in arbitrary_json(),
    ) {
        let any_object = |value: &Value| {
            let mut object = object(json!({"metadata": {}, "data": value, "spec": value, "status": value}));
            object.set_metadata("labels", value.clone());
            object.set_metadata("finalizers", value.clone());
            object
        };
        let (mut old, mut new) = (any_object(&old), any_object(&new));
        old.set_metadata("managedFields", json!([managed]));
        new.set_metadata("managedFields", managed.clone());
        for schema in [None, Some(&pod())] {
            let _ = apply(Some(&old), &any_object(&config), schema, &by("me"), false);
            let _ = apply(Some(&old), &any_object(&config), schema, &by(last_applied::KUBECTL), true);
            let mut odd = new.clone();
            record_update(Some(&old), &mut odd, schema, &by("me"));
            let mut made = new.clone();
            record_update(None, &mut made, schema, &by("me"));
            prop_assert!(Managed::parse(made.metadata().unwrap().get("managedFields")).is_some());
        }
        let mut odd: Object = serde_json::from_value(json!({"metadata": managed})).unwrap();
        record_update(None, &mut odd, None, &by(""));
    }
}

proptest! {
    #[test]
    fn valid_client_records_are_continued(
        invented in fields_of_clients(), live in arbitrary_object(), next in arbitrary_object(), applies in any::<bool>(),
    ) {
        let operation = if applies { "Apply" } else { "Update" };
        let entry = json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": invented,
            "manager": "client", "operation": operation});
        let mut made = object(live);
        made.set_metadata("managedFields", json!([entry]));
        let mut new = object(next.clone());
        new.set_metadata("managedFields", json!([entry]));
        record_update(Some(&made), &mut new, Some(&pod()), &later("writer"));
        let again = try_apply(Some(&made), next.clone(), "client", true).unwrap();
        prop_assert_eq!(owned(&again, "client", Apply), content(&object(next.clone())).paths(10_000));
        let twice = try_apply(Some(&again), next, "client", true).unwrap();
        prop_assert_eq!(twice, again);
    }
}

#[test]
fn list_elements_of_different_types_are_distinct() {
    let text = Element::value(json!("1"));
    assert_ne!(text, Element::value(json!(1)));
    assert_eq!(text.to_string(), "[=\"1\"]");
}
