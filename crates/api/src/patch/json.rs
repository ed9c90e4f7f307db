//! JSON Patch (RFC 6902) with JSON pointers (RFC 6901). Pure.
//!
//! An invalid patch is 400; an operation that does not fit the document is 422. A patch of a few
//! bytes can cause much work (copies of copies, moves within a long list), so copies and work are
//! bounded.

use serde_json::Value;

use edgesync_object::status::{Cause, Details, Reason, Result};
use edgesync_object::{MAX_DEPTH, Status};

/// Maximum number of operations of one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Maximum number of bytes that moves may touch; a shifted list item counts as [`ITEM_BYTES`]. Well
/// under a second of work.
const MAX_MOVED: usize = 256 << 20;
/// Cost of a shifted list item.
const ITEM_BYTES: usize = 8;

/// Applies the operations in order, all or none. Copies may add at most `limit` bytes of JSON text
/// in total.
///
/// # Errors
/// 400 for an invalid patch, 422 for an operation that does not fit the document or a failed test,
/// 413 for more than 10,000 operations or copies and moves beyond the limits.
pub(crate) fn json(document: Value, patch: &Value, limit: usize) -> Result<Value> {
    let Value::Array(operations) = patch else {
        return Err(Status::bad_request("a JSON patch must be a list of operations"));
    };
    if operations.len() > MAX_OPERATIONS {
        let count = operations.len();
        return Err(too_much(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        )));
    }
    let mut patcher = Patcher { document, copies_left: limit, moves_left: MAX_MOVED };
    for (index, operation) in operations.iter().enumerate() {
        let refused = |problem| match problem {
            Problem::Malformed(why) => {
                Status::bad_request(format!("operation {index} of the JSON patch is malformed: {why}"))
            }
            Problem::Unfit(why) => unfit(index, why),
            Problem::Copies => too_much(format!("the JSON patch must not copy more than {limit} bytes")),
            Problem::Moves => too_much("the JSON patch moves too much".into()),
        };
        Operation::read(operation).and_then(|one| patcher.execute(one)).map_err(refused)?;
    }
    Ok(patcher.document)
}

/// Error of an operation.
enum Problem {
    Malformed(String),
    Unfit(String),
    Copies,
    Moves,
}

fn unfit(index: usize, why: String) -> Status {
    let cause = Cause { reason: "FieldValueInvalid".into(), message: why, field: format!("patch[{index}]") };
    Status::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with(Details { causes: vec![cause], ..Details::default() })
}

fn too_much(message: String) -> Status {
    Status::new(Reason::RequestEntityTooLarge, message)
}

enum Operation<'a> {
    Add(Pointer, &'a Value),
    Remove(Pointer),
    Replace(Pointer, &'a Value),
    Move { from: Pointer, to: Pointer },
    Copy { from: Pointer, to: Pointer },
    Test(Pointer, &'a Value),
}

impl<'a> Operation<'a> {
    fn read(operation: &'a Value) -> Result<Self, Problem> {
        let field = |name: &str| {
            operation.get(name).ok_or_else(|| Problem::Malformed(format!("it must have the field `{name}`")))
        };
        let text = |name: &str| {
            field(name)?.as_str().ok_or_else(|| Problem::Malformed(format!("`{name}` must be a string")))
        };
        let pointer = |name: &str| Pointer::read(text(name)?);
        match text("op")? {
            "add" => Ok(Self::Add(pointer("path")?, field("value")?)),
            "remove" => Ok(Self::Remove(pointer("path")?)),
            "replace" => Ok(Self::Replace(pointer("path")?, field("value")?)),
            "move" => Ok(Self::Move { from: pointer("from")?, to: pointer("path")? }),
            "copy" => Ok(Self::Copy { from: pointer("from")?, to: pointer("path")? }),
            "test" => Ok(Self::Test(pointer("path")?, field("value")?)),
            other => {
                let known = "must be add, remove, replace, move, copy or test";
                Err(Problem::Malformed(format!("`op` {known}, and is {:?}", truncate(other))))
            }
        }
    }
}

/// A JSON pointer: the names and positions from the root.
struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    fn read(text: &str) -> Result<Self, Problem> {
        let malformed = || Problem::Malformed(format!("'{}' must be a JSON pointer", truncate(text)));
        let tokens = match text.strip_prefix('/') {
            Some(rest) => rest.split('/').map(unescape).collect::<Option<_>>().ok_or_else(malformed)?,
            None if text.is_empty() => Vec::new(),
            None => return Err(malformed()),
        };
        Ok(Self { text: truncate(text), tokens })
    }

    /// Error: the pointer leads to nothing.
    fn missing(&self) -> Problem {
        Problem::Unfit(format!("'{}' does not exist", self.text))
    }

    /// Error: the parent cannot hold a value.
    fn no_container(&self) -> Problem {
        Problem::Unfit(format!("the parent of '{}' does not exist", self.text))
    }
}

/// Decodes `~1` as a slash and `~0` as a tilde; no other tilde is allowed.
fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => ('~', rest),
            (None, Some(rest)) => ('/', rest),
            (None, None) => return None,
        };
        plain.push(sign);
        plain.push_str(rest);
    }
    Some(plain)
}

/// Truncates a client's text for a message.
fn truncate(text: &str) -> String {
    text.chars().take(128).collect()
}

/// A document being patched.
struct Patcher {
    document: Value,
    copies_left: usize,
    moves_left: usize,
}

impl Patcher {
    fn execute(&mut self, operation: Operation<'_>) -> Result<(), Problem> {
        match operation {
            Operation::Add(path, value) => {
                check_depth(&path, measure(value).depth)?;
                self.add(&path, value.clone())
            }
            Operation::Remove(path) => self.remove(&path).map(drop),
            Operation::Replace(path, value) => {
                check_depth(&path, measure(value).depth)?;
                let place = get_mut(&mut self.document, &path.tokens).ok_or_else(|| path.missing())?;
                place.clone_from(value);
                Ok(())
            }
            Operation::Move { from, to } => self.move_value(&from, &to),
            Operation::Copy { from, to } => {
                let value = get(&self.document, &from.tokens).ok_or_else(|| from.missing())?;
                let size = measure(value);
                check_depth(&to, size.depth)?;
                self.copies_left = self.copies_left.checked_sub(size.bytes).ok_or(Problem::Copies)?;
                let value = value.clone();
                self.add(&to, value)
            }
            Operation::Test(path, value) => self.test(&path, value),
        }
    }

    /// Adds a value to an object, replacing one of the same name, or to a list, before the item at
    /// the position.
    fn add(&mut self, path: &Pointer, value: Value) -> Result<(), Problem> {
        let Some((last, parent)) = path.tokens.split_last() else {
            self.document = value;
            return Ok(());
        };
        match get_mut(&mut self.document, parent) {
            Some(Value::Object(fields)) => drop(fields.insert(last.clone(), value)),
            Some(Value::Array(items)) => {
                let at = if last == "-" { Some(items.len()) } else { position(last) };
                let at = at.filter(|at| *at <= items.len()).ok_or_else(|| path.missing())?;
                charge_shift(&mut self.moves_left, items.len() - at)?;
                items.insert(at, value);
            }
            _ => return Err(path.no_container()),
        }
        Ok(())
    }

    fn remove(&mut self, path: &Pointer) -> Result<Value, Problem> {
        let Some((last, parent)) = path.tokens.split_last() else { return Ok(self.document.take()) };
        match get_mut(&mut self.document, parent) {
            Some(Value::Object(fields)) => fields.remove(last).ok_or_else(|| path.missing()),
            Some(Value::Array(items)) => {
                let at = position(last).filter(|at| *at < items.len()).ok_or_else(|| path.missing())?;
                charge_shift(&mut self.moves_left, items.len() - at)?;
                Ok(items.remove(at))
            }
            _ => Err(path.missing()),
        }
    }

    fn move_value(&mut self, from: &Pointer, to: &Pointer) -> Result<(), Problem> {
        if to.tokens.len() > from.tokens.len() && to.tokens.starts_with(&from.tokens) {
            let why = format!("'{}' cannot be moved into itself", from.text);
            return Err(Problem::Unfit(why));
        }
        let size = measure(get(&self.document, &from.tokens).ok_or_else(|| from.missing())?);
        check_depth(to, size.depth)?;
        self.moves_left = self.moves_left.checked_sub(size.bytes).ok_or(Problem::Moves)?;
        let value = self.remove(from)?;
        self.add(to, value)
    }

    /// A missing field equals null: objects of this API do not distinguish them.
    fn test(&self, path: &Pointer, expected: &Value) -> Result<(), Problem> {
        let found = match (get(&self.document, &path.tokens), path.tokens.split_last()) {
            (Some(found), _) => found,
            (None, Some((_, parent))) if get(&self.document, parent).is_some_and(Value::is_object) => {
                &Value::Null
            }
            (None, _) => return Err(path.missing()),
        };
        if equal(found, expected) {
            return Ok(());
        }
        Err(Problem::Unfit(format!("the test failed: '{}' has another value", path.text)))
    }
}

/// Checks that the result stays within the depth limit of objects.
fn check_depth(path: &Pointer, depth: usize) -> Result<(), Problem> {
    if path.tokens.len() + depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Problem::Unfit(format!("the document must not nest deeper than {MAX_DEPTH} levels")))
}

fn charge_shift(left: &mut usize, items: usize) -> Result<(), Problem> {
    *left = left.checked_sub(items.saturating_mul(ITEM_BYTES)).ok_or(Problem::Moves)?;
    Ok(())
}

fn get<'v>(root: &'v Value, tokens: &[String]) -> Option<&'v Value> {
    tokens.iter().try_fold(root, |value, token| match value {
        Value::Object(fields) => fields.get(token),
        Value::Array(items) => items.get(position(token)?),
        _ => None,
    })
}

fn get_mut<'v>(root: &'v mut Value, tokens: &[String]) -> Option<&'v mut Value> {
    tokens.iter().try_fold(root, |value, token| match value {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => items.get_mut(position(token)?),
        _ => None,
    })
}

/// Parses a position in a list: digits without leading zeros.
fn position(token: &str) -> Option<usize> {
    let plain = token.bytes().all(|byte| byte.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
    if plain { token.parse().ok() } else { None }
}

/// Compares as JSON: numbers by value, 1 equals 1.0.
fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => left == right,
    }
}

/// Depth of a value, and the approximate length of its JSON text.
#[derive(Clone, Copy)]
struct Size {
    depth: usize,
    bytes: usize,
}

fn measure(value: &Value) -> Size {
    let container = |sizes: &mut dyn Iterator<Item = Size>| {
        let empty = Size { depth: 0, bytes: 0 };
        let inner = sizes.fold(empty, |all, one| Size {
            depth: all.depth.max(one.depth),
            bytes: all.bytes + one.bytes + 1,
        });
        Size { depth: inner.depth + 1, bytes: inner.bytes + 2 }
    };
    match value {
        Value::Array(items) => container(&mut items.iter().map(measure)),
        Value::Object(fields) => container(&mut fields.iter().map(|(name, field)| {
            let size = measure(field);
            Size { bytes: size.bytes + name.len() + 3, ..size }
        })),
        Value::String(text) => Size { depth: 0, bytes: text.len() + 2 },
        // The approximate length of whole numbers, true, false and null.
        _ => Size { depth: 0, bytes: 5 },
    }
}

#[cfg(test)]
mod tests;
