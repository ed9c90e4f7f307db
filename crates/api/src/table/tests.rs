//! Tables and the contents of their rows.

mod arbitrary;
mod others;
mod workloads;

use std::sync::Arc;

use super::*;
use edgesync_object::kinds as known;

fn now() -> Timestamp {
    "2024-01-02T00:00:00Z".parse().unwrap()
}

fn kind(known: &known::KnownKind) -> Kind {
    Kind::without_schema(Arc::new(known.resource()))
}

/// `Name=cell …` of an object, with an asterisk at wide columns.
fn shown(view: &TableView, object: &Value) -> String {
    let (definitions, row) = (view.definitions(), view.row(object.clone(), now()));
    let columns = definitions.as_array().unwrap().iter().zip(row["cells"].as_array().unwrap());
    let shown = columns.map(|(column, cell)| {
        let mark = if column["priority"] == 0 { "" } else { "*" };
        let cell = cell.as_str().map_or_else(|| format!("{cell}"), |text| format!("'{text}'"));
        format!("{mark}{}={cell}", column["name"].as_str().unwrap())
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The row of a built-in kind, without name and age, which are checked here.
fn cells(word: &str, mut object: Value) -> String {
    let known = known::by_word(word).unwrap();
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2024-01-01T23:00:00Z");
    let shown = shown(&TableView::new(&kind(known), Include::Metadata, META_V1), &object);
    let rest = shown.strip_prefix("Name='x' ").unwrap_or_else(|| panic!("{shown}"));
    assert!(rest.contains("Age='60m'"), "{shown}");
    rest.replace(" Age='60m'", "").replace("Age='60m'", "").trim().to_owned()
}

fn custom(columns: &[(&str, &str, &str)]) -> TableView {
    let mut kind = kind(known::by_word("devices").unwrap());
    kind.custom = true;
    kind.columns = columns
        .iter()
        .map(|(name, kind, path)| PrinterColumn {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            json_path: (*path).to_owned(),
            description: "d".to_owned(),
            priority: 1,
            ..PrinterColumn::default()
        })
        .collect();
    TableView::new(&kind, Include::Metadata, META_V1)
}

#[test]
fn custom_columns_follow_the_name() {
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2024-01-01T23:00:00Z"},
        "spec": {"n": 3, "f": 2.5, "t": "text", "b": true, "l": [1, "a", null], "m": {"k": 1}, "nothing": null,
            "at": ["2024-01-01T23:00:00Z", "2024-01-01T22:59:00Z"], "odd": "yesterday"}});
    let view = custom(&[
        ("n", "integer", ".spec.n"),
        ("whole", "integer", ".spec.f"),
        ("f", "number", ".spec.f"),
        ("t", "string", ".spec.t"),
        ("b", "boolean", ".spec.b"),
        ("l", "string", ".spec.l"),
        ("m", "string", ".spec.m"),
        ("all", "string", ".spec.l[*]"),
        ("ages", "date", ".spec.at[*]"),
        ("age", "date", ".metadata.creationTimestamp"),
        ("odd", "date", ".spec.odd"),
        ("type", "integer", ".spec.t"),
        ("none", "string", ".spec.none"),
        ("null", "string", ".spec.nothing"),
        ("wrong", "string", "spec["),
    ]);
    assert_eq!(
        shown(&view, &object),
        "Name='x' *n=3 *whole=2 *f=2.5 *t='text' *b=true *l='[1,\"a\",null]' *m='{\"k\":1}' *all='1,a' \
         *ages='60m,61m' *age='60m' *odd='<invalid>' *type=null *none=null *null=null *wrong=null"
    );
    assert_eq!(
        view.definitions()[1],
        json!({"name": "n", "type": "integer", "format": "", "description": "d", "priority": 1})
    );
    assert_eq!(shown(&custom(&[]), &object), "Name='x' Age='60m'");
    assert_eq!(custom(&[]).definitions()[1]["type"], "date");
}

#[test]
fn row_carries_the_included_part_of_its_object() {
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "x", "resourceVersion": "7"}, "data": {}});
    let known = kind(known::by_word("cm").unwrap());
    let row = |include| TableView::new(&known, include, META_V1).row(object.clone(), now())["object"].clone();
    assert_eq!(row(Include::Nothing), Value::Null);
    assert_eq!(row(Include::Object), object);
    let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "x", "resourceVersion": "7"}});
    assert_eq!(row(Include::Metadata), metadata);
    assert_eq!(partial(object, META_V1), metadata);
    assert_eq!(partial(json!({"metadata": 1}), META_V1)["metadata"], json!({}));
    assert_eq!(partial(json!([]), META_V1)["metadata"], json!({}));
}

#[test]
fn include_is_parsed_from_the_query() {
    assert_eq!(Include::from_query(None), Ok(Include::Metadata));
    assert_eq!(Include::from_query(Some("")), Ok(Include::Metadata));
    assert_eq!(Include::from_query(Some("Metadata")), Ok(Include::Metadata));
    assert_eq!(Include::from_query(Some("None")), Ok(Include::Nothing));
    assert_eq!(Include::from_query(Some("Object")), Ok(Include::Object));
    assert_eq!(Include::from_query(Some("object")).unwrap_err().code, 400);
}

#[test]
fn watch_sends_definitions_once_and_bookmark_versions() {
    let view = View::Table(TableView::new(&kind(known::by_word("cm").unwrap()), Include::Metadata, META_V1));
    let object = json!({"metadata": {"name": "x", "resourceVersion": "7"}, "data": {"a": ""}});
    let first = view.object(object.clone(), true, now());
    assert_eq!((&first["kind"], &first["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(first["metadata"], json!({"resourceVersion": "7"}));
    assert_eq!(first["columnDefinitions"].as_array().map(Vec::len), Some(3));
    assert_eq!(first["rows"][0]["cells"], json!(["x", 1, "<unknown>"]));
    let later = view.object(object.clone(), false, now());
    assert_eq!((&later["columnDefinitions"], &later["rows"]), (&Value::Null, &first["rows"]));
    let bookmark = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "9",
        "annotations": {"k8s.io/initial-events-end": "true"}}});
    let shown = view.object(bookmark.clone(), false, now());
    assert_eq!(shown["metadata"]["resourceVersion"], "9");
    assert_eq!(shown["rows"][0]["object"]["metadata"], bookmark["metadata"]);
    assert_eq!(View::Metadata(META_V1).object(object.clone(), false, now())["kind"], "PartialObjectMetadata");
    assert_eq!(View::Whole.object(object.clone(), false, now()), object);
}

#[test]
fn older_version_is_used_throughout() {
    let known = kind(known::by_word("cm").unwrap());
    let object = json!({"metadata": {"name": "x", "resourceVersion": "7"}});
    let table = View::Table(TableView::new(&known, Include::Metadata, META_V1BETA1));
    let shown = table.object(object.clone(), true, now());
    assert_eq!(shown["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(shown["rows"][0]["object"]["apiVersion"], "meta.k8s.io/v1beta1");
    let metadata = View::Metadata(META_V1BETA1).object(object, true, now());
    assert_eq!(metadata["apiVersion"], "meta.k8s.io/v1beta1");
}
