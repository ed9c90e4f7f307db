//! How the types of the tables are encoded as Protocol Buffers: numbers of fields and what is behind them.
//! Depends on the tables alone.

use std::sync::Arc;

use super::{Block, Field, Table, block_name, with_table};

/// The message that encodes a type.
#[derive(Debug)]
pub struct Message {
    /// Ordered by the numbers, none of which is there twice.
    fields: Vec<MessageField>,
    /// Whether JSON has, instead of an object, the value of the last field that is there.
    pub one: bool,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageField {
    numbers: Numbers,
    /// Its name in JSON.
    pub name: &'static str,
    /// How many values it has.
    pub many: Many,
    /// What each value is.
    pub content: Content,
    /// Whether an empty value differs from none. Elsewhere encoders write empty values all the same.
    pub keeps_empty: bool,
}

/// The number of a field after those of the messages that it is embedded in; 0 where there are no more.
type Numbers = [u32; DEEPEST];
/// The most messages that are embedded in each other, the outermost included.
const DEEPEST: usize = 3;

/// Which message of a type is read: the type's own, or one that is embedded in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Within {
    numbers: Numbers,
    depth: usize,
}

impl Within {
    /// The place of a field, if messages are embedded so deep.
    fn place(mut self, number: u32) -> Option<Numbers> {
        *self.numbers.get_mut(self.depth)? = number;
        Some(self.numbers)
    }
}

/// How many values a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Many {
    /// At most one.
    One,
    /// A list of values.
    List,
    /// Entries, each a message with a text (1) and a value (2).
    Map,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A text.
    Text,
    /// True or false.
    Boolean,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A number of double precision.
    Double,
    /// Bytes, which are Base64 in JSON.
    Bytes,
    /// A message of seconds (1) and nanoseconds (2), of which JSON has the seconds; empty for no time.
    Time,
    /// The same, of which JSON has the microseconds.
    MicroTime,
    /// A message with a text (1).
    Quantity,
    /// A message with a type (1; 1 for a text), a number (2) and a text (3).
    IntOrString,
    /// A message with JSON text (1).
    Json,
    /// Nothing that is read.
    Unread,
    /// The message of a type, for [`message`].
    Message(&'static str),
}

/// What stands behind a number.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A field.
    Field(&'a MessageField),
    /// A message whose fields are among those of this one.
    Embedded(Within),
    /// Nothing that is known.
    Nothing,
}

impl Message {
    /// What a number stands for, in the message itself or in one that is embedded in it.
    pub fn find(&self, within: Within, number: u32) -> Found<'_> {
        let Some(wanted) = within.place(number) else { return Found::Nothing };
        match self.fields.binary_search_by_key(&wanted, |field| field.numbers) {
            Ok(index) => self.fields.get(index).map_or(Found::Nothing, Found::Field),
            Err(next) => {
                let depth = within.depth + 1;
                let next = self.fields.get(next).and_then(|field| field.numbers.get(..depth));
                if next.is_some() && next == wanted.get(..depth) {
                    Found::Embedded(Within { numbers: wanted, depth })
                } else {
                    Found::Nothing
                }
            }
        }
    }

    /// The fields, in the order of their numbers.
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
        for (place, number) in numbers.split('.').enumerate() {
            *path.get_mut(place)? = number.parse().ok()?;
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

/// The message of a type in the tables; `None` if it has no numbers. Cheap after the first call.
#[must_use]
pub fn message(name: &str) -> Option<Arc<Message>> {
    with_table(|table| table.message(name))
}

/// The message of a built-in kind, or of `DeleteOptions`, which are the same in all groups; `None` for kinds that
/// have none. The core group is empty.
#[must_use]
pub fn message_of_kind(group: &str, version: &str, kind: &str) -> Option<Arc<Message>> {
    match kind {
        "DeleteOptions" => message(kind),
        _ => message(&block_name(group, version, kind)),
    }
}
