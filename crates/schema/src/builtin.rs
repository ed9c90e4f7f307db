//! Schemas of the built-in kinds, parsed on demand from tables of text. Depends on `schema` only.
//!
//! A table is a list of types. A line that starts with a letter opens a type: its name, flags, then
//! `: ` and a description. `@` opens a kind instead, `@group/version Kind`; it has `apiVersion`,
//! `kind` and `metadata` in addition to its fields. Lines that start with `#` are comments. Each
//! line that starts with a space is a field: its name (with `!` if it is required), its number, its
//! type, flags, then ` # ` and a description.
//!
//! Each kind and type occurs once.
//!
//! Numbers are those of the Protocol Buffers encoding, as `:3`; `:2.1` is field 1 of a message in
//! field 2 whose fields JSON has in the type itself, and `:2.2.1` is one level deeper. `?`
//! distinguishes an empty value from an absent one, as pointers do in Go; so does a required field.
//! See [`message`].
//!
//! Types: `str`, `bool`, `int32`, `int64`, `num`, `time`, `micro` (a time with microseconds),
//! `bytes` (Base64), `quantity`, `port` (a number or a name), `any`, `unread` (the same, but
//! omitted from Protocol Buffers), `obj` (an object with unknown fields), the name of a type, `[]T`
//! for lists and `{}T` for maps.
//!
//! | flag | meaning |
//! |---|---|
//! | `=A\|B` | only these texts |
//! | `default=JSON` | what a missing field becomes; JSON without spaces |
//! | `set`, `map=a,b` | the list's type, with its keys |
//! | `atomic` | an object or a map that an apply owns as one value |
//! | `merge`, `merge=key` | a strategic merge patch merges the items |
//! | `retain` | it understands `$retainKeys` |
//! | `wire=T` | its message is that of the type T |
//!
//! In JSON, a type with the flag `one` is the value of its last present field; one with `open`
//! preserves unknown fields.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Limits, ListType, MICRO_TIME, PatchStrategy, Schema, TIME, Type};

mod message;

pub use message::{Content, Found, Many, Message, MessageField, Within, message, message_of_kind};

/// Texts of the tables.
const TABLES: &[&str] = &[
    include_str!("builtin/base.txt"),
    include_str!("builtin/status.txt"),
    include_str!("builtin/workloads.txt"),
    include_str!("builtin/services.txt"),
    include_str!("builtin/cluster.txt"),
];
/// Maximum nesting of types. Built-in kinds stay far below; deeper types are `Any`.
const MAX_NESTING: usize = 32;

/// Returns the schema of a built-in kind; `None` for other kinds. The core group is empty. Cheap
/// after the first call per kind.
#[must_use]
pub fn builtin(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
    let name = block_name(group, version, kind);
    with_table(|table| {
        let (&name, _) = table.blocks.get_key_value(name.as_str())?;
        Some(table.named(name, 0))
    })
}

/// Returns the name of a kind in the tables.
fn block_name(group: &str, version: &str, kind: &str) -> String {
    if group.is_empty() { format!("{version} {kind}") } else { format!("{group}/{version} {kind}") }
}

/// Returns the schema of `metadata`.
#[must_use]
pub fn object_meta() -> Arc<Schema> {
    with_table(|table| table.named("ObjectMeta", 0))
}

/// Adds the fields of every object: `apiVersion`, `kind` and `metadata`.
pub(super) fn add_object_fields(properties: &mut BTreeMap<Arc<str>, Arc<Schema>>) {
    with_table(|table| table.add_object_fields(properties, 0));
}

fn with_table<T>(use_it: impl FnOnce(&mut Table) -> T) -> T {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    let table = TABLE.get_or_init(|| Mutex::new(Table::new(TABLES)));
    // A panic elsewhere leaves at worst a type unparsed, which is then parsed again.
    use_it(&mut table.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A type in the text.
#[derive(Clone, Copy)]
struct Block {
    kind: bool,
    atomic: bool,
    one: bool,
    open: bool,
    description: &'static str,
    fields: &'static str,
}

/// All types, with a cache of parsed ones.
struct Table {
    blocks: HashMap<&'static str, Block>,
    read: HashMap<&'static str, Arc<Schema>>,
    messages: HashMap<&'static str, Arc<Message>>,
}

impl Table {
    fn new(texts: &[&'static str]) -> Self {
        let mut blocks = HashMap::new();
        for text in texts {
            let mut rest: &'static str = text;
            while !rest.is_empty() {
                let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
                let end = end_of_fields(after);
                let (fields, next) = after.split_at_checked(end).unwrap_or((after, ""));
                rest = next;
                if !line.starts_with(['#', ' ']) && !line.is_empty() {
                    let (name, block) = Block::new(line, fields);
                    blocks.insert(name, block);
                }
            }
        }
        Self { blocks, read: HashMap::new(), messages: HashMap::new() }
    }

    /// Returns the schema of a type name or expression, shared by all its users.
    fn named(&mut self, expression: &'static str, depth: usize) -> Arc<Schema> {
        if let Some(known) = self.read.get(expression) {
            return Arc::clone(known);
        }
        let schema = Arc::new(self.resolve(expression, &[], depth));
        self.read.insert(expression, Arc::clone(&schema));
        schema
    }

    /// Parses a type. `choices` are the allowed values of the innermost type.
    fn resolve(&mut self, expression: &'static str, choices: &[&str], depth: usize) -> Schema {
        if depth > MAX_NESTING {
            return anything();
        }
        if let Some(inner) = expression.strip_prefix("[]") {
            let items = Some(self.inner(inner, choices, depth));
            return Schema { kind: Type::Array, items, ..Schema::default() };
        }
        if let Some(inner) = expression.strip_prefix("{}") {
            let additional = Some(self.inner(inner, choices, depth));
            return Schema { kind: Type::Object, additional, ..Schema::default() };
        }
        if let Some(mut schema) = scalar(expression) {
            if !choices.is_empty() {
                let choices = choices.iter().map(|&choice| choice.into()).collect();
                schema.limits = Some(Box::new(Limits { choices, ..Limits::default() }));
            }
            return schema;
        }
        self.block(expression).map_or_else(anything, |(_, block)| self.object(block, depth))
    }

    /// Finds a type by name. Kinds of the core group are also used as types.
    fn block(&self, name: &str) -> Option<(&'static str, Block)> {
        let block = self.blocks.get_key_value(name).or_else(|| {
            let core = format!("v1 {name}");
            self.blocks.get_key_value(core.as_str())
        });
        block.map(|(&name, &block)| (name, block))
    }

    fn inner(&mut self, expression: &'static str, choices: &[&str], depth: usize) -> Arc<Schema> {
        if choices.is_empty() {
            self.named(expression, depth + 1)
        } else {
            Arc::new(self.resolve(expression, choices, depth + 1))
        }
    }

    fn object(&mut self, block: Block, depth: usize) -> Schema {
        let mut schema = Schema {
            kind: Type::Object,
            description: block.description.into(),
            atomic_map: block.atomic,
            preserve_unknown: block.open,
            ..Schema::default()
        };
        if block.kind {
            self.add_object_fields(&mut schema.properties, depth);
        }
        for line in block.fields.lines() {
            let Some(field) = Field::new(line) else { continue };
            let name: Arc<str> = field.name.into();
            if field.required {
                schema.required.push(Arc::clone(&name));
            } else if !field.numbers.is_empty() && !field.numbers.ends_with('?') {
                schema.omitted.push(Arc::clone(&name));
            }
            schema.properties.insert(name, self.field(&field, depth));
        }
        schema
    }

    fn field(&mut self, field: &Field, depth: usize) -> Arc<Schema> {
        if field.flags.is_empty() && field.description.is_empty() {
            return self.named(field.kind, depth + 1);
        }
        let choices = field.flags.split(' ').find_map(|flag| flag.strip_prefix('='));
        let mut schema = match choices {
            None => self.named(field.kind, depth + 1).as_ref().clone(),
            Some(choices) => {
                let choices: Vec<&str> = choices.split('|').collect();
                self.resolve(field.kind, &choices, depth + 1)
            }
        };
        for flag in field.flags.split(' ') {
            apply_flag(&mut schema, flag);
        }
        if !field.description.is_empty() {
            schema.description = field.description.into();
        }
        Arc::new(schema)
    }

    fn add_object_fields(&mut self, properties: &mut BTreeMap<Arc<str>, Arc<Schema>>, depth: usize) {
        for line in [
            " apiVersion str # APIVersion defines the group and version that the object is written in.",
            " kind str # Kind of the object.",
            " metadata ObjectMeta # Name, labels, versions, owners.",
        ] {
            if let Some(field) = Field::new(line) {
                properties.insert(field.name.into(), self.field(&field, depth));
            }
        }
    }
}

impl Block {
    /// Parses the line that opens a type.
    fn new(line: &'static str, fields: &'static str) -> (&'static str, Self) {
        let (head, description) = line.split_once(": ").unwrap_or((line, ""));
        let (head, atomic) = head.strip_suffix(" atomic").map_or((head, false), |head| (head, true));
        let (head, one) = head.strip_suffix(" one").map_or((head, false), |head| (head, true));
        let (head, open) = head.strip_suffix(" open").map_or((head, false), |head| (head, true));
        let (name, kind) = head.strip_prefix('@').map_or((head, false), |name| (name, true));
        (name, Self { kind, atomic, one, open, description, fields })
    }
}

/// Returns the length of the lines that start with a space.
fn end_of_fields(text: &str) -> usize {
    text.split_inclusive('\n').take_while(|line| line.starts_with(' ')).map(str::len).sum()
}

/// A field line of a type.
struct Field {
    name: &'static str,
    required: bool,
    numbers: &'static str,
    kind: &'static str,
    flags: &'static str,
    description: &'static str,
}

impl Field {
    fn new(line: &'static str) -> Option<Self> {
        let (field, description) = line.split_once(" # ").unwrap_or((line, ""));
        let (name, rest) = field.trim_start().split_once(' ')?;
        let (kind, flags) = rest.split_once(' ').unwrap_or((rest, ""));
        let (name, numbers) = name.split_once(':').unwrap_or((name, ""));
        let (name, required) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        Some(Self { name, required, numbers, kind, flags, description })
    }
}

fn apply_flag(schema: &mut Schema, flag: &str) {
    let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
    match (name, value) {
        ("set", None) => schema.list = ListType::Set,
        ("map", Some(keys)) => schema.list = ListType::Map(keys.split(',').map(Into::into).collect()),
        ("atomic", None) => schema.atomic_map = true,
        ("merge", key) => {
            schema.patch = PatchStrategy::Merge { key: key.map(Into::into), retain_keys: false };
        }
        ("retain", None) => match &mut schema.patch {
            PatchStrategy::Merge { retain_keys, .. } => *retain_keys = true,
            patch => *patch = PatchStrategy::RetainKeys,
        },
        ("default", Some(json)) => schema.default = serde_json::from_str(json).ok(),
        _ => {}
    }
}

fn scalar(name: &str) -> Option<Schema> {
    let (kind, format) = match name {
        "str" => (Type::String, ""),
        "bool" => (Type::Boolean, ""),
        "int32" => (Type::Integer, "int32"),
        "int64" => (Type::Integer, "int64"),
        "num" => (Type::Number, "double"),
        "time" => (Type::String, TIME),
        "micro" => (Type::String, MICRO_TIME),
        "bytes" => (Type::String, "byte"),
        "quantity" => (Type::IntOrString, "quantity"),
        "port" => (Type::IntOrString, "int-or-string"),
        "obj" => return Some(Schema { kind: Type::Object, preserve_unknown: true, ..Schema::default() }),
        "any" | "unread" => return Some(anything()),
        _ => return None,
    };
    Some(Schema { kind, format: format.into(), ..Schema::default() })
}

fn anything() -> Schema {
    Schema { preserve_unknown: true, ..Schema::default() }
}

#[cfg(test)]
mod tests;
