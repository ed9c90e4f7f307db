//! The head of a Kubernetes object: what the protocol and the store need to know of it, read without
//! building the rest.

use std::borrow::Cow;

use serde::Deserialize;

/// `apiVersion`, `kind` and the identifying part of `metadata`, borrowed from the JSON text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head<'a> {
    /// Group and version.
    #[serde(borrow, default)]
    pub api_version: Cow<'a, str>,
    /// Kind in CamelCase.
    #[serde(borrow, default)]
    pub kind: Cow<'a, str>,
    /// The identifying part of the metadata.
    #[serde(borrow, default)]
    pub metadata: HeadMeta<'a>,
}

/// The identifying part of `metadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadMeta<'a> {
    /// Name, empty if absent.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// Namespace, empty for cluster-scoped objects.
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    /// UID, empty if absent.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Version, empty if absent.
    #[serde(borrow, default)]
    pub resource_version: Cow<'a, str>,
}

/// The deepest nesting of objects and arrays that is accepted: a limit that every reader of the
/// object can rely on (`serde_json` itself stops at 128).
pub const MAX_DEPTH: usize = 100;

/// Whether JSON text nests deeper than [`MAX_DEPTH`]. The text is taken to be well-formed.
#[must_use]
pub fn too_deep(json: &str) -> bool {
    let mut depth = 0usize;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                // Skip the string: brackets in it do not count, an escaped quote does not end it.
                while let Some(inner) = bytes.next() {
                    match inner {
                        b'\\' => {
                            bytes.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_read_and_the_rest_is_skipped() {
        let json = r#"{"kind":"Pod","apiVersion":"v1","spec":{"x":[1]},
            "metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{}}}"#;
        let head: Head<'_> = serde_json::from_str(json).unwrap();
        assert_eq!((&*head.kind, &*head.metadata.name, &*head.metadata.resource_version), ("Pod", "a", "7"));
    }

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!too_deep(&nested(MAX_DEPTH)));
        assert!(too_deep(&nested(MAX_DEPTH + 1)));
        let text = format!(r#"{{"a":"\"{}","b":{}}}"#, "[".repeat(500), nested(3));
        assert!(!too_deep(&text));
    }
}
