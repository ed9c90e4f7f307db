//! Strategic merge patch: a merge patch that merges lists as the schema says, with directives. Pure.
//!
//! What `kubectl apply`, `edit`, `label` and `patch` send for the built-in kinds. The directives:
//!
//! | in the patch | does |
//! |---|---|
//! | `$patch: replace` | the object, or the list that holds it, is taken as it is in the patch |
//! | `$patch: delete` | the object, or the items with the same merge key, are removed |
//! | `$patch: merge` | nothing: merging is what happens anyway |
//! | `$retainKeys: […]` | all other fields of the object are removed |
//! | `$deleteFromPrimitiveList/<field>: […]` | these values are removed from the list |
//! | `$setElementOrder/<field>: […]` | the order of the items of the list |
//!
//! Any other name is a field, `$ref` for instance.

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

/// Merges a patch into an object. What the schema does not know is merged as by a merge patch (RFC 7386).
///
/// # Errors
/// 400 for a patch that is no object, a directive that is unknown or not for its place, an item
/// without its merge key, an order that does not fit the items.
pub(crate) fn strategic(document: Value, patch: &Value, schema: &Schema) -> Result<Value> {
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request("a strategic merge patch must be an object"));
    };
    let merged = merge_object(fields_of(Some(document)), patch, Some(schema), &Path::Root)?;
    Ok(Value::Object(merged.unwrap_or_default()))
}

/// The object after the patch; `None` if the patch deletes it.
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
    if let Some(kept) = patch.get(RETAIN_KEYS) {
        retain(&mut fields, patch, kept, path)?;
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

/// The fields of an object; none if it is anything else.
fn fields_of(value: Option<Value>) -> Fields {
    if let Some(Value::Object(fields)) = value { fields } else { Fields::new() }
}

/// What `$patch` says of an object.
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

/// Removes the fields that are not among those to retain. The patch may set no other field.
fn retain(fields: &mut Fields, patch: &Fields, kept: &Value, path: &Path<'_>) -> Result<()> {
    let kept: Option<HashSet<&str>> =
        kept.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
    let kept = kept.ok_or_else(|| path.refuse("`$retainKeys` must be a list of strings"))?;
    let stray = patch.iter().find(|(name, value)| {
        let directive = *name == DIRECTIVE
            || *name == RETAIN_KEYS
            || name.starts_with(ORDER)
            || name.starts_with(REMOVALS);
        !directive && !value.is_null() && !kept.contains(name.as_str())
    });
    if let Some((name, _)) = stray {
        let why = format!("`$retainKeys` must list '{}', which the patch sets", cut(name));
        return Err(path.refuse(&why));
    }
    fields.retain(|name, _| kept.contains(name.as_str()));
    Ok(())
}

/// All that a patch says of one field.
#[derive(Default)]
struct Edit<'a> {
    /// The value under its own name.
    value: Option<&'a Value>,
    /// `$setElementOrder`.
    order: Option<&'a [Value]>,
    /// `$deleteFromPrimitiveList`.
    removals: Option<&'a [Value]>,
}

/// What a patch says, by field.
fn edits<'a>(patch: &'a Fields, path: &Path<'_>) -> Result<BTreeMap<&'a str, Edit<'a>>> {
    let list = |name: &str, value: &'a Value| {
        let items = value.as_array().map(Vec::as_slice);
        items.ok_or_else(|| path.refuse(&format!("`{}` must be a list", cut(name))))
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
    /// The field after the patch; `None` if it is not there any more. A list that has been merged and is
    /// empty is not there either.
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

/// Where in the patch something is wrong. Built on the way down, read only when it is needed.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn refuse(&self, why: &str) -> Status {
        let place = if let Self::Root = self { String::new() } else { format!(" at `{self}`") };
        Status::bad_request(format!("the strategic merge patch cannot be applied{place}: {why}"))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(&cut(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", cut(name)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// At most so much of a client's text is repeated.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
