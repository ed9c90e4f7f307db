//! Protocol Buffers encoding of the tables' types: field numbers and their contents. Depends on the
//! tables only.

use std::sync::Arc;

use super::{Block, Field, Table, block_name, with_table};

/// Message that encodes a type.
#[derive(Debug)]
pub struct Message {
    /// Ordered by numbers, which are unique.
    fields: Vec<MessageField>,
    /// Whether JSON has the value of the last present field instead of an object.
    pub one: bool,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageField {
    numbers: Numbers,
    /// Name of the field in JSON.
    pub name: &'static str,
    /// Multiplicity of the field.
    pub many: Many,
    /// Content of each value.
    pub content: Content,
    /// Whether an empty value differs from an absent one. Elsewhere encoders may still write empty
    /// values.
    pub keeps_empty: bool,
}

/// Number of a field after those of the messages that embed it; 0 for unused levels.
type Numbers = [u32; MAX_DEPTH];
/// Maximum depth of embedded messages, the outermost included.
const MAX_DEPTH: usize = 3;

/// Position in a type's message: the message itself, or one embedded in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Within {
    numbers: Numbers,
    depth: usize,
}

impl Within {
    /// Returns the path of a field, unless it is embedded too deep.
    fn path_of(mut self, number: u32) -> Option<Numbers> {
        *self.numbers.get_mut(self.depth)? = number;
        Some(self.numbers)
    }
}

/// Multiplicity of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Many {
    /// At most one value.
    One,
    /// A list of values.
    List,
    /// Entries, each a message with a string (1) and a value (2).
    Map,
}

/// Content of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A UTF-8 string, preceded by its length.
    Text,
    /// A varint: `false` if 0, else `true`.
    Boolean,
    /// A varint, truncated to a signed integer of 32 bits.
    Int32,
    /// A varint, the two's complement of a signed integer of 64 bits.
    Int64,
    /// Eight bytes, a double-precision number; infinities and NaN are invalid in JSON.
    Double,
    /// Bytes, Base64 in JSON.
    Bytes,
    /// A message of seconds (1) and nanoseconds (2), truncated to seconds in JSON; empty for no
    /// time.
    Time,
    /// The same, truncated to microseconds in JSON.
    MicroTime,
    /// A message with a string (1).
    Quantity,
    /// A message with a type (1; 1 for a string), a number (2) and a string (3).
    IntOrString,
    /// A message with JSON text (1).
    Json,
    /// Content that is skipped.
    Unread,
    /// Message of another type, for [`message`].
    Message(&'static str),
}

/// Meaning of a field number.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A field of the message.
    Field(&'a MessageField),
    /// An embedded message whose fields belong to this one in JSON.
    Embedded(Within),
    /// A number without a meaning.
    Nothing,
}

impl Message {
    /// Finds a number in the message itself or in one embedded in it.
    pub fn find(&self, within: Within, number: u32) -> Found<'_> {
        let Some(path) = within.path_of(number) else { return Found::Nothing };
        match self.fields.binary_search_by_key(&path, |field| field.numbers) {
            Ok(index) => self.fields.get(index).map_or(Found::Nothing, Found::Field),
            Err(next) => {
                let depth = within.depth + 1;
                let next = self.fields.get(next).and_then(|field| field.numbers.get(..depth));
                if next.is_some() && next == path.get(..depth) {
                    Found::Embedded(Within { numbers: path, depth })
                } else {
                    Found::Nothing
                }
            }
        }
    }

    /// Returns the fields in the order of their numbers.
    pub fn fields(&self) -> impl DoubleEndedIterator<Item = &MessageField> {
        self.fields.iter()
    }

    fn new(block: Block) -> Option<Self> {
        const METADATA: MessageField = MessageField {
            numbers: [1, 0, 0],
            name: "metadata",
            many: Many::One,
            content: Content::Message("ObjectMeta"),
            keeps_empty: false,
        };
        let mut fields = if block.kind { vec![METADATA] } else { Vec::new() };
        for line in block.fields.lines() {
            fields.push(MessageField::new(&Field::new(line)?)?);
        }
        fields.sort_unstable_by_key(|field| field.numbers);
        Some(Self { fields, one: block.one })
    }
}

impl MessageField {
    fn new(field: &Field) -> Option<Self> {
        let (numbers, kept) =
            field.numbers.strip_suffix('?').map_or((field.numbers, false), |numbers| (numbers, true));
        let mut path = Numbers::default();
        for (level, number) in numbers.split('.').enumerate() {
            *path.get_mut(level)? = number.parse().ok()?;
        }
        let (many, kind) = match (field.kind.strip_prefix("[]"), field.kind.strip_prefix("{}")) {
            (Some(items), _) => (Many::List, items),
            (_, Some(values)) => (Many::Map, values),
            _ => (Many::One, field.kind),
        };
        let wire = field.flags.split(' ').find_map(|flag| flag.strip_prefix("wire="));
        Some(Self {
            numbers: path,
            name: field.name,
            many,
            content: wire.map_or_else(|| Content::new(kind), Content::Message),
            keeps_empty: kept || field.required,
        })
    }
}

impl Content {
    fn new(kind: &'static str) -> Self {
        match kind {
            "str" => Self::Text,
            "bool" => Self::Boolean,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "num" => Self::Double,
            "bytes" => Self::Bytes,
            "time" => Self::Time,
            "micro" => Self::MicroTime,
            "quantity" => Self::Quantity,
            "port" => Self::IntOrString,
            "any" | "obj" => Self::Json,
            "unread" => Self::Unread,
            name => Self::Message(name),
        }
    }
}

impl Table {
    fn message(&mut self, name: &str) -> Option<Arc<Message>> {
        let (name, block) = self.block(name)?;
        if let Some(known) = self.messages.get(name) {
            return Some(Arc::clone(known));
        }
        let message = Arc::new(Message::new(block)?);
        self.messages.insert(name, Arc::clone(&message));
        Some(message)
    }
}

/// Returns the message of a type in the tables; `None` if it has no numbers. Cheap after the first
/// call.
#[must_use]
pub fn message(name: &str) -> Option<Arc<Message>> {
    with_table(|table| table.message(name))
}

/// Returns the message of a built-in kind, or of `DeleteOptions`, which are the same in all groups;
/// `None` for kinds without one. The core group is empty.
#[must_use]
pub fn message_of_kind(group: &str, version: &str, kind: &str) -> Option<Arc<Message>> {
    match kind {
        "DeleteOptions" => message(kind),
        _ => message(&block_name(group, version, kind)),
    }
}
