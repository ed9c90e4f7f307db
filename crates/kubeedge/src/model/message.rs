//! The wire format of messages.

use serde_json::{Value, json};

use super::Deletes;

/// A message of the node.
pub struct NodeMessage {
    pub id: String,
    pub parent: String,
    pub source: String,
    pub operation: String,
    pub resource: String,
    pub content: Value,
}

/// Parses a message; `None` ends the connection.
pub(super) fn read(text: &str) -> Option<NodeMessage> {
    let mut message: Value = serde_json::from_str(text).ok()?;
    let content = message["content"].take();
    let text = |value: &Value| match value {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let (header, route) = (&message["header"], &message["route"]);
    Some(NodeMessage {
        id: text(&header["msg_id"])?,
        parent: text(&header["parent_msg_id"])?,
        source: text(&route["source"])?,
        operation: text(&route["operation"])?,
        resource: text(&route["resource"])?,
        content,
    })
}

impl NodeMessage {
    /// Returns namespace (empty for `null`), type and name.
    pub fn parts(&self) -> Option<(&str, &str, &str)> {
        let mut parts = self.resource.splitn(3, '/');
        let (namespace, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some((if namespace == "null" { "" } else { namespace }, kind, name))
    }

    pub fn answer(&self, source: &str, content: Value) -> Draft {
        Draft {
            source: source.to_owned(),
            operation: "response",
            resource: self.resource.clone(),
            version: String::new(),
            parent: self.id.clone(),
            content,
        }
    }
}

/// A message for the node, without id and time.
#[derive(Clone, Debug)]
pub struct Draft {
    pub source: String,
    pub operation: &'static str,
    pub resource: String,
    pub version: String,
    pub parent: String,
    pub content: Value,
}

impl Draft {
    pub fn text(&self, id: &str, wall: u64, deletes: Deletes) -> String {
        let parent = match self.parent.as_str() {
            "" => String::new(),
            parent => format!(r#""parent_msg_id":"{parent}","#),
        };
        let content = self.content(deletes);
        let version = match self.version.as_str() {
            version if !version.is_empty() && (self.operation != "delete" || deletes == Deletes::Stock) => {
                format!(r#","resourceversion":"{version}""#)
            }
            _ => String::new(),
        };
        let Self { source, operation, .. } = self;
        let resource = Value::from(self.resource.as_str());
        format!(
            "{{\"header\":{{\"msg_id\":\"{id}\",{parent}\"timestamp\":{wall}{version}}},\"route\":{{\"source\":\"{source}\",\
             \"group\":\"resource\",\"operation\":\"{operation}\",\"resource\":{resource}}},\"content\":{content}}}\n"
        )
    }

    fn content(&self, deletes: Deletes) -> Value {
        if self.operation != "delete" || deletes == Deletes::Stock {
            return self.content.clone();
        }
        let mut bare = bare(&self.content["metadata"]);
        if deletes == Deletes::EmptyUid {
            bare["metadata"]["uid"] = json!("");
        }
        bare
    }
}

/// Returns the content of a delete for an object deleted while the node was away.
pub(super) fn bare(metadata: &Value) -> Value {
    let mut bare = json!({"name": metadata["name"], "uid": metadata["uid"]});
    if metadata["namespace"].is_string() {
        bare["namespace"] = metadata["namespace"].clone();
    }
    json!({"metadata": bare})
}

/// Returns a Kubernetes Status of a failure.
pub(super) fn failure(code: u16, reason: &str, message: String, details: Value) -> Value {
    json!({"ErrStatus": {"metadata": {}, "status": "Failure", "message": message, "reason": reason,
        "details": details, "code": code}})
}
