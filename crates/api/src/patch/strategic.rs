//! Strategic merge patch: a merge patch that merges lists by the schema, with directives. Pure.
//!
//! `kubectl apply`, `edit`, `label` and `patch` send it for built-in kinds. The directives:
//!
//! | directive | effect |
//! |---|---|
//! | `$patch: replace` | replaces the object, or the list that contains it, by the patch |
//! | `$patch: delete` | removes the object, or the items with the same merge key |
//! | `$patch: merge` | none: merging is the default |
//! | `$retainKeys: […]` | removes all other fields of the object |
//! | `$deleteFromPrimitiveList/<field>: […]` | removes these values from the list |
//! | `$setElementOrder/<field>: […]` | sets the order of the list's items |
//!
//! Any other name is a field, such as `$ref`.

mod list;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde_json::{Map, Value};

use edgesync_object::Status;
use edgesync_object::status::Result;
use edgesync_schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const REMOVALS: &str = "$deleteFromPrimitiveList/";

type Fields = Map<String, Value>;

/// Merges a patch into an object. Fields without a schema are merged as by a merge patch (RFC
/// 7386).
///
/// # Errors
/// 400 for a patch that is no object, a directive that is unknown or misplaced, an item without its
/// merge key, an order that does not match the items.
pub(crate) fn strategic(document: Value, patch: &Value, schema: &Schema) -> Result<Value> {
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request("a strategic merge patch must be an object"));
    };
    let merged = merge_object(fields_of(Some(document)), patch, Some(schema), &Path::Root)?;
    Ok(Value::Object(merged.unwrap_or_default()))
}

/// Merges an object; `None` if the patch deletes it.
fn merge_object(
    mut fields: Fields,
    patch: &Fields,
    schema: Option<&Schema>,
    path: &Path<'_>,
) -> Result<Option<Fields>> {
    match Directive::of(patch, path)? {
        Directive::Delete => return Ok(None),
        Directive::Replace => fields.clear(),
        Directive::Merge => {}
    }
    if let Some(retained) = patch.get(RETAIN_KEYS) {
        retain(&mut fields, patch, retained, path)?;
    }
    for (name, edit) in edits(patch, path)? {
        let path = Path::Field(path, name);
        let schema = schema.and_then(|schema| schema.field(name)).map(AsRef::as_ref);
        if let Some(new) = edit.apply(fields.remove(name), schema, &path)? {
            fields.insert(name.to_owned(), new);
        }
    }
    Ok(Some(fields))
}

/// Returns the fields of an object; none for other values.
fn fields_of(value: Option<Value>) -> Fields {
    if let Some(Value::Object(fields)) = value { fields } else { Fields::new() }
}

/// The `$patch` directive of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

impl Directive {
    fn of(patch: &Fields, path: &Path<'_>) -> Result<Self> {
        match patch.get(DIRECTIVE).map(Value::as_str) {
            None | Some(Some("merge")) => Ok(Self::Merge),
            Some(Some("replace")) => Ok(Self::Replace),
            Some(Some("delete")) => Ok(Self::Delete),
            Some(_) => Err(path.refuse("`$patch` must be 'delete', 'merge' or 'replace'")),
        }
    }
}

/// Removes the fields that are not retained. The patch must not set other fields.
fn retain(fields: &mut Fields, patch: &Fields, retained: &Value, path: &Path<'_>) -> Result<()> {
    let retained: Option<HashSet<&str>> =
        retained.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
    let retained = retained.ok_or_else(|| path.refuse("`$retainKeys` must be a list of strings"))?;
    let unlisted = patch.iter().find(|(name, value)| {
        let directive = *name == DIRECTIVE
            || *name == RETAIN_KEYS
            || name.starts_with(ORDER)
            || name.starts_with(REMOVALS);
        !directive && !value.is_null() && !retained.contains(name.as_str())
    });
    if let Some((name, _)) = unlisted {
        let reason = format!("`$retainKeys` must list '{}', which the patch sets", truncate(name));
        return Err(path.refuse(&reason));
    }
    fields.retain(|name, _| retained.contains(name.as_str()));
    Ok(())
}

/// All changes of a patch to one field.
#[derive(Default)]
struct Edit<'a> {
    value: Option<&'a Value>,
    /// The list of `$setElementOrder`.
    order: Option<&'a [Value]>,
    /// The list of `$deleteFromPrimitiveList`.
    removals: Option<&'a [Value]>,
}

/// Groups the changes of a patch by field.
fn edits<'a>(patch: &'a Fields, path: &Path<'_>) -> Result<BTreeMap<&'a str, Edit<'a>>> {
    let list = |name: &str, value: &'a Value| {
        let items = value.as_array().map(Vec::as_slice);
        items.ok_or_else(|| path.refuse(&format!("`{}` must be a list", truncate(name))))
    };
    let mut edits: BTreeMap<&str, Edit<'_>> = BTreeMap::new();
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix(ORDER) {
            edits.entry(field).or_default().order = Some(list(name, value)?);
        } else if let Some(field) = name.strip_prefix(REMOVALS) {
            edits.entry(field).or_default().removals = Some(list(name, value)?);
        } else if name != DIRECTIVE && name != RETAIN_KEYS {
            edits.entry(name).or_default().value = Some(value);
        }
    }
    Ok(edits)
}

impl Edit<'_> {
    /// Returns the patched field; `None` if it is removed. A merged list that became empty is
    /// removed too.
    fn apply(self, old: Option<Value>, schema: Option<&Schema>, path: &Path<'_>) -> Result<Option<Value>> {
        let for_lists = self.order.is_some() || self.removals.is_some();
        match self.value {
            Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => list::merge(old, Some(items), &self, schema, path),
            None => list::merge(old, None, &self, schema, path),
            Some(_) if for_lists => {
                Err(path.refuse("it must be a list, to have an order of elements or removals"))
            }
            Some(Value::Object(patch)) => {
                Ok(merge_object(fields_of(old), patch, schema, path)?.map(Value::Object))
            }
            Some(scalar) => Ok(Some(scalar.clone())),
        }
    }
}

/// Position in the patch for error messages. Built while descending, formatted only on error.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn refuse(&self, reason: &str) -> Status {
        let location = if let Self::Root = self { String::new() } else { format!(" at `{self}`") };
        Status::bad_request(format!("the strategic merge patch cannot be applied{location}: {reason}"))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(&truncate(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", truncate(name)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Truncates a client's text for a message.
fn truncate(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
