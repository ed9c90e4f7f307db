//! Tokens and certificates of operators as objects of the cluster, and the labels by which all of these are found. Pure.
//!
//! A token is a Secret: who may write those may let devices in. It has no signature in it, so who only reads it cannot.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use edgesync_cloud_store::operators::OperatorRecord;
use edgesync_cloud_store::pairing::TokenRecord;
use edgesync_object::Object;
use edgesync_transport::tls::certificate::sha256_hex;

/// The label of all objects that pairing keeps in a cluster: which of them it is.
pub(super) const LABEL: &str = "edgesync.io/pairing";
/// The label with a node that an object is about: a hash, since names may be longer than values of labels.
const NODE_HASH: &str = "edgesync.io/pairing-node";
const TOKEN: &str = "token";
const OPERATOR: &str = "operator";
/// The `type` of the Secrets.
const TOKEN_TYPE: &str = "edgesync.io/token";
/// The keys of the documents.
const TOKEN_KEY: &str = "token.json";
const OPERATOR_KEY: &str = "operator.json";

/// A selector of all objects with this value of [`LABEL`].
pub(super) fn selector(value: &str) -> String {
    format!("{LABEL}={value}")
}

/// A selector of all tokens.
pub(super) fn tokens() -> String {
    selector(TOKEN)
}

/// A selector of the tokens that are bound to a node.
pub(super) fn tokens_of(node: &str) -> String {
    format!("{},{NODE_HASH}={}", selector(TOKEN), hash(node))
}

/// A selector of all certificates of operators.
pub(super) fn operators() -> String {
    selector(OPERATOR)
}

/// The labels of an object about a node.
pub(super) fn of_hash(node: &str, value: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([(LABEL, value.to_owned()), (NODE_HASH, hash(node))])
}

/// 128 bits of it: values of labels have at most 63 characters.
fn hash(node: &str) -> String {
    sha256_hex(node.as_bytes()).chars().take(32).collect()
}

/// The name of the object of a token.
pub(super) fn token_name(id: &str) -> String {
    format!("edgesync-token.{id}")
}

/// A token as a new object.
pub(super) fn token_object(token: &TokenRecord, namespace: &str) -> Object {
    let labels = match &token.node {
        Some(node) => json!(of_hash(node, TOKEN)),
        None => json!({ LABEL: TOKEN }),
    };
    let mut object = object(&token_name(&token.id), namespace, labels);
    object.fields_mut().insert("type".to_owned(), TOKEN_TYPE.into());
    write_token(&mut object, token);
    object
}

/// Writes a token into its object, whose other fields stay.
pub(super) fn write_token(object: &mut Object, token: &TokenRecord) {
    let text = BASE64_STANDARD.encode(serde_json::to_vec(token).unwrap_or_default());
    object.fields_mut().insert("data".to_owned(), json!({ TOKEN_KEY: text }));
}

/// Reads a token.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_token(object: &Object) -> Result<TokenRecord, String> {
    let bytes = secret(object, TOKEN_KEY)?;
    let token: TokenRecord =
        serde_json::from_slice(&bytes).map_err(|error| format!("'{TOKEN_KEY}': {error}"))?;
    named(token_name(&token.id) == object.name(), &token.id).map(|()| token)
}

/// The bytes under a key of a Secret.
///
/// # Errors
/// There are none.
pub(crate) fn secret(object: &Object, key: &str) -> Result<Vec<u8>, String> {
    let text = text(object, key)?;
    BASE64_STANDARD.decode(text).map_err(|error| format!("'{key}' is no base64: {error}"))
}

/// A new Secret with these contents.
pub(crate) fn secret_object((namespace, name): (&str, &str), kind: &str, data: &[(&str, &[u8])]) -> Object {
    let mut object = object(name, namespace, json!({}));
    object.remove_metadata("labels");
    object.fields_mut().insert("type".to_owned(), kind.into());
    let data: BTreeMap<_, _> =
        data.iter().map(|(key, bytes)| (*key, BASE64_STANDARD.encode(bytes))).collect();
    object.fields_mut().insert("data".to_owned(), json!(data));
    object
}

/// A certificate of an operator as a new object.
pub(super) fn operator_object(operator: &OperatorRecord, namespace: &str) -> Object {
    let name = format!("edgesync-operator.{}", operator.serial);
    let mut object = object(&name, namespace, json!({ LABEL: OPERATOR }));
    write_operator(&mut object, operator);
    object
}

/// Writes it into its object, whose other fields stay.
pub(super) fn write_operator(object: &mut Object, operator: &OperatorRecord) {
    write(object, OPERATOR_KEY, operator);
}

/// Reads it.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_operator(object: &Object) -> Result<OperatorRecord, String> {
    let operator: OperatorRecord = read(object, OPERATOR_KEY)?;
    let name = format!("edgesync-operator.{}", operator.serial);
    named(name == object.name(), &operator.serial).map(|()| operator)
}

/// What [`LABEL`] says of an object.
pub(super) fn is_operator(object: &Object) -> bool {
    object.labels().get(LABEL).is_some_and(|value| value == OPERATOR)
}

/// Writes a document into a ConfigMap, as JSON that a person can read.
pub(super) fn write(object: &mut Object, key: &str, document: &impl Serialize) {
    // Texts, times and numbers always have a JSON.
    let text = serde_json::to_string_pretty(document).unwrap_or_default();
    object.fields_mut().insert("data".to_owned(), json!({ key: text }));
}

/// Reads a document of a ConfigMap.
///
/// # Errors
/// There is none, or it is another one.
pub(super) fn read<T: DeserializeOwned>(object: &Object, key: &str) -> Result<T, String> {
    serde_json::from_str(text(object, key)?).map_err(|error| format!("'{key}': {error}"))
}

/// Whether a document is of the object that it stands in.
///
/// # Errors
/// It says another name.
pub(super) fn named(is_right: bool, says: &str) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(format!("what it holds is of '{says}'")) }
}

/// A new object.
pub(super) fn object(name: &str, namespace: &str, labels: Value) -> Object {
    let mut object = Object::default();
    object.set_metadata("name", name);
    object.set_metadata("namespace", namespace);
    object.set_metadata("labels", labels);
    object
}

fn text<'a>(object: &'a Object, key: &str) -> Result<&'a str, String> {
    let text = object.fields().get("data").and_then(|data| data.get(key)?.as_str());
    text.ok_or_else(|| format!("it has no '{key}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::Labels;
    use edgesync_object::name::{check_label_value, check_subdomain};
    use jiff::Timestamp;

    fn token(node: Option<&str>) -> TokenRecord {
        TokenRecord {
            id: "0011223344556677".into(),
            node: node.map(str::to_owned),
            created: Timestamp::UNIX_EPOCH,
            expires: Timestamp::from_second(60).unwrap(),
            uses: 2,
            used: 1,
            revoked: None,
            labels: Labels::from([("site".into(), "north".into())]),
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written_and_found_by_its_node() {
        let node = "n".repeat(253);
        let object = token_object(&token(Some(&node)), "edgesync");
        check_subdomain(object.name()).unwrap();
        object.labels().values().for_each(|value| check_label_value(value).unwrap());
        assert_eq!(read_token(&object), Ok(token(Some(&node))));
        assert!(tokens_of(&node).contains(&object.labels()[NODE_HASH]));
        assert!(!token_object(&token(None), "edgesync").labels().contains_key(NODE_HASH));
    }

    #[test]
    fn an_object_of_another_name_or_with_other_data_is_no_token_and_no_operator() {
        let mut other = token_object(&token(None), "edgesync");
        other.set_metadata("name", token_name("7"));
        assert!(read_token(&other).unwrap_err().contains("0011223344556677"));
        let mut nothing = token_object(&token(None), "edgesync");
        nothing.fields_mut().remove("data");
        assert!(read_token(&nothing).unwrap_err().contains(TOKEN_KEY));
        assert!(read_operator(&nothing).unwrap_err().contains(OPERATOR_KEY));
    }
}
