//! Documents of enrollment: replaced by compare-and-swap, and durable with what they change of a
//! Node.

use super::*;
use edgesync_object::Labels;
use edgesync_object::node_labels::NodeLabels;

fn token(id: &str, node: Option<&str>, version: u64, text: &str) -> Document {
    let (id, node, text) = (id.to_owned(), node.map(node_name), text.to_owned());
    Document { kind: "token", id, node, version, text }
}

async fn put(store: &CloudStore, document: Document) -> Option<u64> {
    store.put_document(document, NodeEffect::None).await.unwrap()
}

#[tokio::test]
async fn write_replaces_the_named_version_and_survives_a_crash() {
    let fixture = fixture();
    let store = &fixture.store;
    let first = put(store, token("t", None, 0, "1")).await.unwrap();
    assert_eq!(put(store, token("t", None, 0, "2")).await, None, "it is there already");
    let second = put(store, token("t", None, first, "2")).await.unwrap();
    assert_eq!(put(store, token("t", None, first, "3")).await, None);
    let crashed = fixture.after_crash();
    assert_eq!(crashed.store.document("token", "t").await.unwrap(), Some(token("t", None, second, "2")));
    assert!(!store.delete_document("token", "t", first).await.unwrap());
    assert!(store.delete_document("token", "t", second).await.unwrap());
    assert_eq!(put(store, token("t", None, second, "3")).await, None, "it is gone");
    let again = put(store, token("t", None, 0, "1")).await.unwrap();
    assert!(again > second, "a document that is made again is another one");
    // Documents are not objects, and their text must be JSON.
    assert_eq!(store.resources().await.unwrap(), []);
    assert!(store.put_document(token("u", None, 0, "{"), NodeEffect::None).await.is_err());
}

#[tokio::test]
async fn documents_are_found_by_the_node_that_they_are_for() {
    let Fixture { store, .. } = &fixture();
    for (id, node) in [("1", Some("a")), ("2", Some("b")), ("3", None)] {
        put(store, token(id, node, 0, "{}")).await.unwrap();
    }
    admit_node(store, "a").await.unwrap();
    let ids = async |node: Option<&str>| {
        let node = node.map(node_name);
        let found = store.documents("token", node.as_ref()).await.unwrap();
        found.into_iter().map(|document| document.id).collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(Some("a")).await, ids(None).await),
        (vec!["1".into()], ["1", "2", "3"].map(str::to_owned).into())
    );
}

#[tokio::test]
async fn member_and_node_get_their_labels_in_one_commit() {
    let fixture = fixture();
    let store = &fixture.store;
    let labels = |site: &str| Labels::from([("site".to_owned(), site.to_owned())]);
    let label = async |store: &CloudStore, site: &str| {
        let member = json!({ "labels": labels(site) });
        assert!(put_member(store, "a", member, NodeEffect::Label(node_name("a"))).await.unwrap());
    };
    let given = async |store: &CloudStore| {
        let node = object(&store.get(kind("nodes").key("", "a")).await.unwrap());
        let mut given = NodeLabels::of(&node).assigned;
        given.remove("kubernetes.io/hostname");
        given
    };
    label(store, "north").await;
    let report = Some(serde_json::from_value(json!({"labels": {"site": "south"}})).unwrap());
    let says = NodeChange { node: node_name("a"), report, conditions: Vec::new() };
    store.change_nodes(vec![says]).await.unwrap();
    assert_eq!(given(store).await, labels("north"));
    label(store, "west").await;
    assert_eq!(given(&fixture.after_crash().store).await, labels("west"));
    // A write on an outdated version does not change the Node.
    let late = Document { text: json!({ "labels": {} }).to_string(), ..token("a", None, 1, "") };
    let effect = NodeEffect::Delete(node_name("a"));
    let late = store.put_document(Document { kind: "member", ..late }, effect).await.unwrap();
    assert_eq!((late, given(store).await), (None, labels("west")));
}

/// The effect was left out when the document named no node.
#[tokio::test]
async fn effect_names_its_node_itself() {
    let Fixture { store, .. } = &fixture();
    let report = Some(serde_json::from_value(json!({})).unwrap());
    let says = NodeChange { node: node_name("a"), report, conditions: Vec::new() };
    store.change_nodes(vec![says]).await.unwrap();
    let write = async |version: u64, effect: NodeEffect| {
        let text = json!({ "labels": { "site": "north" } }).to_string();
        let member = Document { kind: "member", text, ..token("a", None, version, "") };
        store.put_document(member, effect).await.unwrap().unwrap()
    };
    let version = write(0, NodeEffect::Label(node_name("a"))).await;
    let node = object(&store.get(kind("nodes").key("", "a")).await.unwrap());
    assert_eq!(node.labels()["site"], "north");
    write(version, NodeEffect::Delete(node_name("a"))).await;
    assert!(store.get(kind("nodes").key("", "a")).await.is_err());
}

#[tokio::test]
async fn hostname_label_is_the_name_of_the_node_not_the_tokens() {
    let Fixture { store, .. } = &fixture();
    let join = async |site: &str| {
        let member = json!({"labels": {"kubernetes.io/hostname": "evil", "site": site}});
        assert!(put_member(store, "a", member, NodeEffect::Label(node_name("a"))).await.unwrap());
    };
    let shown = async || {
        let labels = object(&store.get(kind("nodes").key("", "a")).await.unwrap()).labels();
        (labels["kubernetes.io/hostname"].clone(), labels["site"].clone())
    };
    join("north").await;
    let report = Some(serde_json::from_value(json!({})).unwrap());
    let says = NodeChange { node: node_name("a"), report, conditions: Vec::new() };
    store.change_nodes(vec![says]).await.unwrap();
    assert_eq!(shown().await, ("a".to_owned(), "north".to_owned()));
    // The node exists when it joins again.
    join("west").await;
    assert_eq!(shown().await, ("a".to_owned(), "west".to_owned()));
}
