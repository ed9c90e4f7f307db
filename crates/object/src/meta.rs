//! Head of a Kubernetes object: the fields for protocol and store, parsed without building the
//! rest; and in-place replacement of single fields in the JSON text.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr2, memchr2_iter, memmem};
use serde::Deserialize;

/// `apiVersion`, `kind` and the identifying part of `metadata`, borrowed from the JSON text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head<'a> {
    /// Group and version, as `apiVersion`.
    #[serde(borrow, default)]
    pub api_version: Cow<'a, str>,
    /// Kind in CamelCase, such as `ConfigMap`; empty if absent.
    #[serde(borrow, default)]
    pub kind: Cow<'a, str>,
    /// Identifying part of the metadata.
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

/// Maximum nesting of objects and arrays: a limit that every reader of objects can rely on
/// (`serde_json` itself stops at 128).
pub const MAX_DEPTH: usize = 100;

/// Returns whether well-formed JSON text nests deeper than [`MAX_DEPTH`].
#[must_use]
pub fn too_deep(json: &str) -> bool {
    nests_deeper(json, MAX_DEPTH)
}

/// Returns whether well-formed JSON text nests deeper than `levels`.
pub(super) fn nests_deeper(json: &str, levels: usize) -> bool {
    // Most objects have fewer opening brackets than levels are allowed, wherever these are.
    if memchr2_iter(b'{', b'[', json.as_bytes()).nth(levels).is_none() {
        return false;
    }
    let mut depth = 0usize;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > levels {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                // Skips the string: its brackets do not count, and an escaped quote does not end
                // it.
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

/// Replaces `metadata.resourceVersion` in an object's JSON text; all other bytes stay. Adds the
/// field, and `metadata`, where missing. Returns text that is no JSON object unchanged.
///
/// Of duplicate keys the last one counts, as for parsers.
#[must_use]
pub fn with_resource_version(json: &str, version: u64) -> String {
    spliced(json, in_metadata(json, "resourceVersion", &format!("\"{version}\"")))
}

/// As [`with_resource_version`], for `metadata.managedFields`; `fields` is JSON text.
#[must_use]
pub fn with_managed_fields(json: &str, fields: &str) -> String {
    spliced(json, in_metadata(json, "managedFields", fields))
}

/// Replaces `status`, which is JSON text, in an object's JSON text; all other bytes stay. Appends
/// the field where missing. Returns text that is no JSON object unchanged.
#[must_use]
pub fn with_status(json: &str, status: &str) -> String {
    if let Some(text) = with_field(json, "status", status) {
        return text;
    }
    let added = Members::of(json, 0).map(|members| match members.clone().last() {
        Some((_, last)) => (last.end..last.end, format!(",\"status\":{status}")),
        None => (members.at..members.at, format!("\"status\":{status}")),
    });
    spliced(json, added)
}

/// Returns the JSON text of a member of a JSON object, by its path.
#[must_use]
pub fn member<'j>(json: &'j str, path: &[&str]) -> Option<&'j str> {
    path.iter().try_fold(json, |json, name| json.get(Members::of(json, 0)?.last_named(name)?))
}

/// Replaces a part of the text.
fn spliced(json: &str, splice: Option<(Range<usize>, String)>) -> String {
    let Some((at, text)) = splice else { return json.to_owned() };
    let (Some(before), Some(after)) = (json.get(..at.start), json.get(at.end..)) else {
        return json.to_owned();
    };
    [before, &text, after].concat()
}

/// Replaces the value of an existing top-level field in an object's JSON text; all other bytes
/// stay. `None` without such a field. `value` is JSON text.
#[must_use]
pub fn with_field(json: &str, name: &str, value: &str) -> Option<String> {
    let at = Members::of(json, 0)?.last_named(name)?;
    Some([json.get(..at.start)?, value, json.get(at.end..)?].concat())
}

/// Removes `metadata.managedFields` from an object's JSON text; all other bytes stay. This
/// bookkeeping of writers is often half of an object. The text must not have duplicate keys.
#[must_use]
pub fn without_managed_fields(json: String) -> String {
    if !may_have_key(&json, "managedFields") {
        return json;
    }
    let Some(cut) = managed_fields(&json) else { return json };
    match (json.get(..cut.start), json.get(cut.end..)) {
        (Some(before), Some(after)) => [before, after].concat(),
        _ => json,
    }
}

/// Annotation in which `kubectl apply` keeps the applied configuration: a second copy of the
/// object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Parts of an object that are not transmitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedFields {
    /// Omits `metadata.managedFields` if set.
    pub managed_fields: bool,
    /// Omits the annotation [`LAST_APPLIED`] if set.
    pub last_applied: bool,
}

impl OmittedFields {
    /// Removes these parts from the text of an object.
    #[must_use]
    pub fn of(self, json: String) -> String {
        let json = if self.managed_fields { without_managed_fields(json) } else { json };
        if self.last_applied { without_last_applied(json) } else { json }
    }
}

/// As [`without_managed_fields`], for the annotation [`LAST_APPLIED`].
#[must_use]
pub(crate) fn without_last_applied(json: String) -> String {
    // The slash before these words may be escaped as `\/`.
    if !may_have_key(&json, "last-applied-configuration") {
        return json;
    }
    let cut = || {
        let metadata = Members::of(&json, 0)?.last_named("metadata")?;
        let annotations = Members::of(&json, metadata.start)?.last_named("annotations")?;
        let is_only = Members::of(&json, annotations.start)?.count() == 1;
        let cut = named_member(&json, annotations.start, LAST_APPLIED)?;
        if is_only { named_member(&json, metadata.start, "annotations") } else { Some(cut) }
    };
    match cut().map(|cut| (json.get(..cut.start), json.get(cut.end..))) {
        Some((Some(before), Some(after))) => [before, after].concat(),
        _ => json,
    }
}

/// Returns whether the text can have a key with this word, of letters and hyphens. Most objects do
/// not, which a plain search finds much faster than a walk through the members.
fn may_have_key(json: &str, word: &str) -> bool {
    let has = |needle: &str| memmem::find(json.as_bytes(), needle.as_bytes()).is_some();
    has(word) || has("\\u")
}

fn managed_fields(json: &str) -> Option<Range<usize>> {
    let metadata = Members::of(json, 0)?.last_named("metadata")?;
    named_member(json, metadata.start, "managedFields")
}

/// Returns the range of a member in the object that begins at `at`, including one adjacent comma.
fn named_member(json: &str, at: usize, name: &str) -> Option<Range<usize>> {
    let mut before = None;
    for (key, value) in Members::of(json, at)? {
        if !is_name(json.get(key.clone())?, name) {
            before = Some(value.end);
            continue;
        }
        let after = skip_space(json, value.end);
        return Some(match (before, byte(json, after)) {
            (_, Some(b',')) => key.start..after + 1,
            (Some(before), _) => before..value.end,
            (None, _) => key.start..value.end,
        });
    }
    None
}

/// Returns the range to replace, and the new text, to set a field of the metadata.
fn in_metadata(json: &str, name: &str, value: &str) -> Option<(Range<usize>, String)> {
    let top = Members::of(json, 0)?;
    let field = format!("\"{name}\":{value}");
    let Some(metadata) = top.clone().last_named("metadata") else {
        return Some((top.at..top.at, with_comma(format!("\"metadata\":{{{field}}}"), top)));
    };
    match Members::of(json, metadata.start) {
        Some(fields) => Some(match fields.clone().last_named(name) {
            Some(old) => (old, value.to_owned()),
            None => (fields.at..fields.at, with_comma(field, fields)),
        }),
        None => Some((metadata, format!("{{{field}}}"))),
    }
}

/// Adds a comma to a member that precedes others.
fn with_comma(mut member: String, mut others: Members<'_>) -> String {
    if others.next().is_some() {
        member.push(',');
    }
    member
}

/// Iterator over a JSON object's members: the ranges of keys and values in the text.
#[derive(Clone)]
struct Members<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Members<'a> {
    /// Returns the members of the object at a position, ignoring white space.
    fn of(json: &'a str, at: usize) -> Option<Self> {
        let at = skip_space(json, at);
        (byte(json, at)? == b'{').then_some(Self { json, at: at + 1 })
    }

    fn last_named(self, name: &str) -> Option<Range<usize>> {
        let json = self.json;
        self.filter(|(key, _)| json.get(key.clone()).is_some_and(|key| is_name(key, name)))
            .last()
            .map(|(_, value)| value)
    }
}

impl Iterator for Members<'_> {
    type Item = (Range<usize>, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut at = skip_space(self.json, self.at);
        if byte(self.json, at)? == b',' {
            at = skip_space(self.json, at + 1);
        }
        if byte(self.json, at)? != b'"' {
            return None;
        }
        let key = at..string_end(self.json, at)?;
        at = skip_space(self.json, key.end);
        if byte(self.json, at)? != b':' {
            return None;
        }
        at = skip_space(self.json, at + 1);
        let value = at..value_end(self.json, at)?;
        self.at = value.end;
        Some((key, value))
    }
}

/// Returns whether a quoted key, possibly with escapes, equals a name.
fn is_name(key: &str, name: &str) -> bool {
    let plain = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    plain == Some(name)
        || (key.contains('\\') && serde_json::from_str(key).is_ok_and(|key: String| key == name))
}

fn byte(json: &str, at: usize) -> Option<u8> {
    json.as_bytes().get(at).copied()
}

fn skip_space(json: &str, mut at: usize) -> usize {
    while matches!(byte(json, at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Returns the end of the string that starts here, after its closing quote.
fn string_end(json: &str, start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr2(b'"', b'\\', json.as_bytes().get(at..)?)?;
        match byte(json, at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Returns the end of the value that starts here.
fn value_end(json: &str, start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0usize);
    loop {
        match byte(json, at)? {
            b'"' => at = string_end(json, at)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' => (at, depth) = (at + 1, depth.checked_sub(1)?),
            // Separators within an array or object.
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth > 0 => {
                at += 1;
                continue;
            }
            b',' | b':' => return None,
            _ => at = scalar_end(json, at),
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Returns the end of a number, `true`, `false` or `null`.
fn scalar_end(json: &str, start: usize) -> usize {
    let ends = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
    let rest = json.as_bytes().get(start..).unwrap_or_default();
    start + rest.iter().position(ends).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn version_is_replaced_and_other_bytes_stay() {
        let odd = "{ \"kind\" : \"X\",\n \"spec\":{\"metadata\":{\"resourceVersion\":\"1\"},\"a\":\"}\\\"{\"},\r\n\"metadata\"\t:\
            { \"ann\" : {\"resourceVersion\":\"2\"}, \"resource\\u0056ersion\" : \"3\" , \"n\":[{\"resourceVersion\":4}] } } ";
        assert_eq!(with_resource_version(odd, 77), odd.replace("\"3\"", "\"77\""));
        let escaped = r#"{"m\u0065tadata":{"resourceVersion":"1"}}"#;
        assert_eq!(with_resource_version(escaped, 2), r#"{"m\u0065tadata":{"resourceVersion":"2"}}"#);
    }

    #[test]
    fn missing_version_or_metadata_is_added() {
        for (json, expected) in [
            ("{}", r#"{"metadata":{"resourceVersion":"5"}}"#),
            (r#" { "a" : 1}"#, r#" {"metadata":{"resourceVersion":"5"}, "a" : 1}"#),
            (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"5"}}"#),
            (r#"{"metadata":{ "x":1}}"#, r#"{"metadata":{"resourceVersion":"5", "x":1}}"#),
            (r#"{"metadata":null,"z":1}"#, r#"{"metadata":{"resourceVersion":"5"},"z":1}"#),
            (r#"{"metadata":[{"resourceVersion":1}]}"#, r#"{"metadata":{"resourceVersion":"5"}}"#),
            (r#"{"metadata":{"resourceVersion":7}}"#, r#"{"metadata":{"resourceVersion":"5"}}"#),
            (
                r#"{"metadata":{"resourceVersion":null ,"b":0}}"#,
                r#"{"metadata":{"resourceVersion":"5" ,"b":0}}"#,
            ),
        ] {
            assert_eq!(with_resource_version(json, 5), expected, "{json}");
        }
    }

    #[test]
    fn top_level_field_is_replaced_but_not_added() {
        let json = r#"{"metadata":{"spec":1},"spec":{"a":"}"} ,"x":2}"#;
        let expected = r#"{"metadata":{"spec":1},"spec":{"b":3} ,"x":2}"#;
        assert_eq!(with_field(json, "spec", r#"{"b":3}"#).as_deref(), Some(expected));
        assert_eq!(with_field(json, "status", "{}"), None);
        assert_eq!(with_field("no json", "spec", "{}"), None);
    }

    #[test]
    fn last_of_duplicate_keys_counts() {
        let twice = r#"{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"1","resourceVersion":"2"}}"#;
        let value: Value = serde_json::from_str(&with_resource_version(twice, 9)).unwrap();
        assert_eq!(value, json!({"metadata": {"resourceVersion": "9"}}));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f32>().prop_map(|number| json!(number)),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            let key = prop_oneof![Just("metadata".to_owned()), Just("resourceVersion".to_owned()), ".{0,4}"];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..5)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn status_is_replaced_or_appended() {
        for (json, expected) in [
            (r#"{"kind":"X", "status" : {"a":[1]} ,"z":1}"#, r#"{"kind":"X", "status" : {"b":2} ,"z":1}"#),
            (r#"{"kind":"X","spec":{"status":1} }"#, r#"{"kind":"X","spec":{"status":1},"status":{"b":2} }"#),
            ("{}", r#"{"status":{"b":2}}"#),
            ("[]", "[]"),
            ("no json", "no json"),
        ] {
            assert_eq!(with_status(json, r#"{"b":2}"#), expected);
        }
    }

    #[test]
    fn member_is_found_by_its_path() {
        let json = r#"{"a":1,"status":{"uid":"u","status":{"a":[1, 2]}}}"#;
        assert_eq!(member(json, &["status", "status"]), Some(r#"{"a":[1, 2]}"#));
        assert_eq!(member(json, &["a"]), Some("1"));
        assert_eq!(member(json, &[]), Some(json));
        for path in [&["b"][..], &["a", "b"], &["status", "uid", "u"]] {
            assert_eq!(member(json, path), None);
        }
    }

    proptest! {
        #[test]
        fn field_replacement_in_text_equals_that_in_the_tree(value in any_json(), field in any_json(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let after = with_status(&with_managed_fields(&text, &field.to_string()), &format!("{field:#}"));
            let after: Value = serde_json::from_str(&after).unwrap();
            let (mut expected, field): (Value, Value) =
                (serde_json::from_str(&text).unwrap(), serde_json::from_str(&field.to_string()).unwrap());
            if let Value::Object(fields) = &mut expected {
                let mut object = crate::Object::from(std::mem::take(fields));
                object.set_metadata("managedFields", field.clone());
                *fields = object.into_fields();
                fields.insert("status".to_owned(), field);
            }
            prop_assert_eq!(after, expected);
        }

        #[test]
        fn version_replacement_in_text_equals_that_in_the_tree(value in any_json(), pretty: bool, version: u64) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let after: Value = serde_json::from_str(&with_resource_version(&text, version)).unwrap();
            let mut expected: Value = serde_json::from_str(&text).unwrap();
            if let Value::Object(fields) = &mut expected {
                let mut object = crate::Object::from(std::mem::take(fields));
                object.set_metadata("resourceVersion", version.to_string());
                *fields = object.into_fields();
            }
            prop_assert_eq!(after, expected);
        }

        #[test]
        fn invalid_text_never_panics(text in ".*", cut in 0..60usize) {
            let sound = r#"{"a":[1,{"b":"\\"}],"metadata":{"c":"d","resourceVersion":"1"}}"#;
            let _ = with_resource_version(&text, 1);
            let _ = (with_status(&text, "1"), member(&text, &["a", "b"]));
            let _ = with_status(&sound[..cut.min(sound.len())], "1");
            let _ = with_resource_version(&sound[..cut.min(sound.len())], 1);
            let _ = with_resource_version(&format!("{{\"metadata\":{text}"), 1);
        }
    }

    #[test]
    fn head_is_parsed_and_the_rest_is_skipped() {
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

    #[test]
    fn only_managed_fields_are_removed() {
        for (json, expected) in [
            (
                r#"{"metadata":{"managedFields":[{"a":"}"}],"name":"n"},"x":1}"#,
                r#"{"metadata":{"name":"n"},"x":1}"#,
            ),
            (
                r#"{"metadata":{"labels":{}, "managedFields" : [] },"x":1}"#,
                r#"{"metadata":{"labels":{} },"x":1}"#,
            ),
            (r#"{"metadata":{"managedFields":null}}"#, r#"{"metadata":{}}"#),
            (
                r#"{"data":{"managedFields":1},"metadata":{}}"#,
                r#"{"data":{"managedFields":1},"metadata":{}}"#,
            ),
            (r#"{"metadata":{"managed\u0046ields":[1],"x":1}}"#, r#"{"metadata":{"x":1}}"#),
            (r#"{"metadata":7}"#, r#"{"metadata":7}"#),
            ("no json", "no json"),
        ] {
            assert_eq!(without_managed_fields(json.to_owned()), expected);
        }
    }

    #[test]
    fn only_the_last_applied_annotation_is_removed() {
        let object =
            |annotations: &str| format!(r#"{{"metadata":{{{annotations}"name":"n"}},"data":{{"a":"b"}}}}"#);
        let last =
            r#""kubectl.kubernetes.io/last-applied-configuration":"{\"metadata\":{\"annotations\":{}}}\n""#;
        for (annotations, expected) in [
            (format!(r#""annotations":{{{last}}},"#), String::new()),
            (format!(r#""annotations":{{{last},"x":"y"}},"#), r#""annotations":{"x":"y"},"#.to_owned()),
            (format!(r#""annotations":{{"x":"y", {last} }},"#), r#""annotations":{"x":"y" },"#.to_owned()),
            (format!(r#""annotations":{{{}}},"#, last.replacen('/', r"\/", 1)), String::new()),
            (r#""annotations":{"x":"y"},"#.to_owned(), r#""annotations":{"x":"y"},"#.to_owned()),
            (r#""annotations":{},"#.to_owned(), r#""annotations":{},"#.to_owned()),
            (r#""annotations":null,"#.to_owned(), r#""annotations":null,"#.to_owned()),
        ] {
            assert_eq!(without_last_applied(object(&annotations)), object(&expected));
        }
        let elsewhere = format!(r#"{{"data":{{{last}}},"metadata":{{}}}}"#);
        assert_eq!(without_last_applied(elsewhere.clone()), elsewhere);
    }
}
