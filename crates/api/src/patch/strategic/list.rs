//! Merges a list by a strategic merge patch. Pure.
//!
//! Items in the patch come in the order of the patch, or of `$setElementOrder`; items of the
//! document alone keep their order and stay before their successors. So a new item comes first
//! unless an order places it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Directive, Edit, Fields, Path, fields_of, merge_object};
use edgesync_object::status::Result;
use edgesync_schema::{PatchStrategy, Schema};

/// Merges a list; `None` if there is none, or if it became empty by merging.
pub(super) fn merge(
    old: Option<Value>,
    new: Option<&Vec<Value>>,
    edit: &Edit<'_>,
    schema: Option<&Schema>,
    path: &Path<'_>,
) -> Result<Option<Value>> {
    let mut items = match old {
        Some(Value::Array(items)) => items,
        // Not a list: nothing to remove or to order.
        Some(other) if new.is_none() => return Ok(Some(other)),
        _ => Vec::new(),
    };
    if let Some(removals) = edit.removals {
        remove_scalars(&mut items, removals, path)?;
    }
    let merged = match schema.map(|schema| &schema.patch) {
        Some(PatchStrategy::Merge { key: Some(key), .. }) => {
            let schema = schema.and_then(|schema| schema.items.as_deref());
            Merge { key, schema, path }.objects(items, new.map_or(&[], Vec::as_slice), edit.order)?
        }
        Some(PatchStrategy::Merge { key: None, .. }) => {
            scalars(items, new.map_or(&[], Vec::as_slice), edit.order, path)?
        }
        _ if edit.order.is_some() => return Err(path.refuse("only lists that are merged take an order")),
        _ => match new {
            Some(new) => return replaced(new, path).map(Some),
            None => items,
        },
    };
    Ok((!merged.is_empty()).then_some(Value::Array(merged)))
}

/// Replaces an atomic list, without items that only carry the directive.
fn replaced(new: &[Value], path: &Path<'_>) -> Result<Value> {
    let mut items = Vec::with_capacity(new.len());
    for (position, item) in new.iter().enumerate() {
        let directive = match item {
            Value::Object(fields) => Directive::of(fields, &Path::Item(path, position))?,
            _ => Directive::Merge,
        };
        match directive {
            Directive::Merge => items.push(item.clone()),
            Directive::Replace => {}
            Directive::Delete => {
                let why = "`$patch` must not be 'delete' in a list that is not merged";
                return Err(Path::Item(path, position).refuse(why));
            }
        }
    }
    Ok(Value::Array(items))
}

/// Returns the identity of a scalar: its JSON text.
fn scalar_id(value: &Value) -> Option<String> {
    (!value.is_object() && !value.is_array() && !value.is_null()).then(|| value.to_string())
}

fn remove_scalars(items: &mut Vec<Value>, removals: &[Value], path: &Path<'_>) -> Result<()> {
    let removed: Option<HashSet<String>> = removals.iter().map(scalar_id).collect();
    let removed = removed.ok_or_else(|| path.refuse("only scalars can be deleted from a list of scalars"))?;
    items.retain(|item| scalar_id(item).is_none_or(|id| !removed.contains(&id)));
    Ok(())
}

/// An item during the merge.
struct Element {
    /// Its identity; an item of the document may have none.
    id: Option<String>,
    /// Its index in the document.
    index: Option<usize>,
    value: Value,
}

/// Merges scalars as a set.
fn scalars(old: Vec<Value>, new: &[Value], order: Option<&[Value]>, path: &Path<'_>) -> Result<Vec<Value>> {
    let why = "items must be scalars: the list has no merge key";
    let ids = |values: &[Value]| {
        values.iter().map(scalar_id).collect::<Option<Vec<_>>>().ok_or_else(|| path.refuse(why))
    };
    let named = ids(new)?;
    let mut seen = HashSet::new();
    let mut elements = Vec::with_capacity(old.len() + new.len());
    for (index, value) in old.into_iter().enumerate() {
        let id = scalar_id(&value);
        if id.clone().is_none_or(|id| seen.insert(id)) {
            elements.push(Element { id, index: Some(index), value });
        }
    }
    for (value, id) in new.iter().zip(&named) {
        if seen.insert(id.clone()) {
            elements.push(Element { id: Some(id.clone()), index: None, value: value.clone() });
        }
    }
    let order = order.map(ids).transpose()?;
    order_items(elements, &named, order.as_deref(), path)
}

/// Merges a list of objects.
struct Merge<'a> {
    key: &'a str,
    /// Schema of an item.
    schema: Option<&'a Schema>,
    path: &'a Path<'a>,
}

impl Merge<'_> {
    fn id(&self, item: &Value) -> Option<String> {
        item.get(self.key).and_then(scalar_id)
    }

    /// Returns the identities of items; each must have one.
    fn ids(&self, items: &[Value]) -> Result<Vec<String>> {
        let id = |(position, item)| {
            self.id(item).ok_or_else(|| {
                let why = format!("it must be an object with the merge key `{}`", self.key);
                Path::Item(self.path, position).refuse(&why)
            })
        };
        items.iter().enumerate().map(id).collect()
    }

    fn objects(&self, old: Vec<Value>, new: &[Value], order: Option<&[Value]>) -> Result<Vec<Value>> {
        let order = order.map(|order| self.ids(order)).transpose()?;
        let Changes { replace, deleted, named, changes } = self.changes(new)?;
        let mut elements: Vec<Element> = Vec::with_capacity(old.len() + changes.len());
        if !replace {
            let old = old.into_iter().enumerate();
            let old = old.map(|(index, value)| Element { id: self.id(&value), index: Some(index), value });
            elements.extend(old.filter(|one| one.id.as_ref().is_none_or(|id| !deleted.contains(id))));
        }
        // With no items before, all are added as they are, even with equal keys: two ports with the
        // same number, TCP and UDP for instance.
        let match_all = !elements.is_empty();
        let mut seen = HashMap::new();
        for (index, element) in elements.iter().enumerate() {
            if let Some(id) = &element.id {
                seen.entry(id.clone()).or_insert(index);
            }
        }
        for ((position, change), id) in changes.into_iter().zip(&named) {
            let path = Path::Item(self.path, position);
            let merged =
                |fields| merge_object(fields, change, self.schema, &path).map(Option::unwrap_or_default);
            match seen.entry(id.clone()) {
                Entry::Occupied(index) if match_all => {
                    if let Some(element) = elements.get_mut(*index.get()) {
                        let fields = fields_of(Some(element.value.take()));
                        element.value = Value::Object(merged(fields)?);
                    }
                }
                entry => {
                    entry.or_insert(elements.len());
                    let value = Value::Object(merged(Fields::new())?);
                    elements.push(Element { id: Some(id.clone()), index: None, value });
                }
            }
        }
        order_items(elements, &named, order.as_deref(), self.path)
    }

    /// Sorts the items of a patch by their directive.
    fn changes<'p>(&self, new: &'p [Value]) -> Result<Changes<'p>> {
        let mut all = Changes::default();
        for (position, item) in new.iter().enumerate() {
            let path = Path::Item(self.path, position);
            let Value::Object(fields) = item else { return Err(path.refuse("it must be an object")) };
            let directive = Directive::of(fields, &path)?;
            if directive == Directive::Replace {
                all.replace = true;
                continue;
            }
            let id = self
                .id(item)
                .ok_or_else(|| path.refuse(&format!("it must have the merge key `{}`", self.key)))?;
            if directive == Directive::Delete {
                all.deleted.insert(id);
            } else {
                all.named.push(id);
                all.changes.push((position, fields));
            }
        }
        Ok(all)
    }
}

/// The changes of a patch to a list of objects.
#[derive(Default)]
struct Changes<'p> {
    /// Whether only the items of the patch remain.
    replace: bool,
    /// Identities of the items to remove.
    deleted: HashSet<String>,
    /// Identities of `changes`, in the same order.
    named: Vec<String>,
    /// Items to merge or to add, with their index in the patch.
    changes: Vec<(usize, &'p Fields)>,
}

/// Orders the items as the module describes. `named` are those of the patch.
fn order_items(
    elements: Vec<Element>,
    named: &[String],
    order: Option<&[String]>,
    path: &Path<'_>,
) -> Result<Vec<Value>> {
    let explicit = order.is_some();
    let order = order.unwrap_or(named);
    let mut ranks: HashMap<&str, usize> = HashMap::with_capacity(order.len());
    for (rank, id) in order.iter().enumerate() {
        ranks.entry(id).or_insert(rank);
    }
    let rank = |id: &String| ranks.get(id.as_str()).copied();
    let named: Option<Vec<usize>> = named.iter().map(rank).collect();
    if explicit && !named.is_some_and(|ranks| ranks.is_sorted()) {
        return Err(path.refuse("its items must be in `$setElementOrder`, in the same order"));
    }
    let (mut ordered, rest): (Vec<_>, Vec<_>) = elements
        .into_iter()
        .enumerate()
        .map(|(position, element)| ((element.id.as_ref().and_then(rank), position), element))
        .partition(|((rank, _), _)| rank.is_some());
    ordered.sort_unstable_by_key(|(index, _)| *index);
    let mut rest = rest.into_iter().map(|(_, element)| element).peekable();
    let mut result = Vec::with_capacity(ordered.len() + rest.len());
    for (_, element) in ordered {
        while let Some(before) = rest.next_if(|one| element.index.is_some() && one.index < element.index) {
            result.push(before.value);
        }
        result.push(element.value);
    }
    result.extend(rest.map(|element| element.value));
    Ok(result)
}
