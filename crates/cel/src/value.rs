//! Values: borrowed views of typed JSON, and values that expressions make.

use core::net::IpAddr;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Number, Value};

use super::meter::{Meter, Outcome, failed, truncated};
use super::net::Url;
use super::quantity::Quantity;
use super::semver::Semver;
use super::spans;
use super::types::{Merge, ObjectOf, Type};

/// A string, borrowed from the object or owned.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Of(&'a str),
    Own(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Of(text) => text,
            Self::Own(text) => text,
        }
    }
}

/// A collection made by an expression, with its nesting level.
#[derive(Clone, Debug)]
pub(crate) struct Computed<T> {
    level: usize,
    of: T,
}

impl<T> Deref for Computed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

/// A value during evaluation, borrowed or computed.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    Time(Timestamp),
    Span(SignedDuration),
    /// A list in the object, with its item type and its topology.
    Items(&'a [Value], &'a Type, &'a Merge),
    List(Rc<Computed<Vec<Val<'a>>>>),
    /// An object with declared fields.
    Object(&'a Map<String, Value>, &'a ObjectOf),
    /// A map of the object and the type of its values.
    Fields(&'a Map<String, Value>, &'a Type),
    Map(Rc<Computed<Vec<(Val<'a>, Val<'a>)>>>),
    Optional(Option<Rc<Computed<Val<'a>>>>),
    Kind(Rc<str>),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Rc<Url>),
    Quantity(Quantity),
    Semver(Rc<Semver>),
    Format(&'static str),
}

static DYN: Type = Type::Dyn;

impl<'a> Val<'a> {
    pub(super) fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(Text::Own(text.into()))
    }

    pub(super) fn list(items: Vec<Val<'a>>) -> Self {
        let level = 1 + items.iter().map(Self::level).max().unwrap_or_default();
        Self::List(Rc::new(Computed { level, of: items }))
    }

    /// Creates a map. Keys have no level.
    pub(super) fn map(entries: Vec<(Val<'a>, Val<'a>)>) -> Self {
        let level = 1 + entries.iter().map(|(_, value)| value.level()).max().unwrap_or_default();
        Self::Map(Rc::new(Computed { level, of: entries }))
    }

    pub(super) fn some(value: Val<'a>) -> Self {
        Self::Optional(Some(Rc::new(Computed { level: 1 + value.level(), of: value })))
    }

    pub(super) fn optional(value: Option<Val<'a>>) -> Self {
        value.map_or(Self::Optional(None), Self::some)
    }

    /// Returns the nesting level of lists, maps and optionals that an expression made.
    pub(super) fn level(&self) -> usize {
        match self {
            Self::List(items) => items.level,
            Self::Map(entries) => entries.level,
            Self::Optional(Some(value)) => value.level,
            _ => 0,
        }
    }

    /// Returns whether the value may be a map key.
    pub(super) fn may_be_key(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::Int(_) | Self::Uint(_) | Self::Text(_))
    }

    /// Views a JSON value as its declared type. Timestamps, durations and bytes are parsed at each
    /// access.
    ///
    /// # Errors
    /// The value is not of its type.
    pub(super) fn view(value: &'a Value, of: &'a Type, meter: &mut Meter) -> Outcome<Self> {
        Ok(match (value, of) {
            (Value::Null, _) => Self::Null,
            (Value::Bool(value), _) => Self::Bool(*value),
            (Value::Number(number), of) => number_of(number, of)?,
            (Value::String(text), of) => text_of(text, of, meter)?,
            (Value::Array(items), Type::List(list)) => Self::Items(items, &list.item, &list.merge),
            (Value::Array(items), _) => Self::Items(items, &DYN, &Merge::Atomic),
            (Value::Object(fields), Type::Object(object)) => Self::Object(fields, object),
            (Value::Object(fields), Type::Map(map)) => Self::Fields(fields, &map.1),
            (Value::Object(fields), _) => Self::Fields(fields, &DYN),
        })
    }

    /// Returns the name of the value's type in messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Time(_) => "google.protobuf.Timestamp",
            Self::Span(_) => "google.protobuf.Duration",
            Self::Items(..) | Self::List(_) => "list",
            Self::Object(..) => "object",
            Self::Fields(..) | Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Kind(_) => "type",
            Self::Ip(_) => "net.IP",
            Self::Cidr(..) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
        }
    }

    /// Returns the number of items or fields.
    pub(super) fn length(&self) -> Option<usize> {
        match self {
            Self::Items(items, ..) => Some(items.len()),
            Self::List(items) => Some(items.len()),
            Self::Object(fields, _) | Self::Fields(fields, _) => Some(fields.len()),
            Self::Map(items) => Some(items.len()),
            _ => None,
        }
    }

    /// Returns an item of a list.
    pub(super) fn item(&self, index: usize, meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
        match self {
            Self::Items(items, of, _) => items.get(index).map(|item| Self::view(item, of, meter)).transpose(),
            Self::List(items) => Ok(items.get(index).cloned()),
            _ => Ok(None),
        }
    }

    /// Returns all items of a list.
    pub(super) fn items(&self, meter: &mut Meter) -> Outcome<Vec<Val<'a>>> {
        meter.spend(self.length().unwrap_or_default())?;
        match self {
            Self::Items(items, of, _) => items.iter().map(|item| Self::view(item, of, meter)).collect(),
            Self::List(items) => Ok(items.to_vec()),
            other => failed(format!("no such overload: {} is not a list", other.kind())),
        }
    }

    /// Returns the entries of a map.
    pub(super) fn entries(&self, meter: &mut Meter) -> Outcome<Vec<(Val<'a>, Val<'a>)>> {
        meter.spend(self.length().unwrap_or_default())?;
        match self {
            Self::Fields(fields, of) => fields
                .iter()
                .map(|(name, value)| Ok((Self::Text(Text::Of(name)), Self::view(value, of, meter)?)))
                .collect(),
            Self::Map(items) => Ok(items.to_vec()),
            other => failed(format!("no such overload: {} is not a map", other.kind())),
        }
    }

    /// Returns the value of a key or a declared field.
    pub(super) fn get(&self, key: &Val<'a>, meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
        if let Self::Text(key) = key {
            meter.bytes(key.len())?;
        }
        match (self, key) {
            (Self::Object(fields, of), Self::Text(key)) => {
                let Some(field) = of.fields.get(&**key) else { return Ok(None) };
                fields.get(&*field.name).map(|value| Self::view(value, &field.of, meter)).transpose()
            }
            (Self::Fields(fields, of), Self::Text(key)) => {
                fields.get(&**key).map(|value| Self::view(value, of, meter)).transpose()
            }
            (Self::Map(items), key) => {
                for (known, value) in items.iter() {
                    if known.equals(key, meter)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Compares two values for equality, as CEL defines it.
    pub(super) fn equals(&self, other: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
        meter.spend(1)?;
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::Text(one), Self::Text(two)) => {
                meter.bytes(one.len().min(two.len()))?;
                **one == **two
            }
            (Self::Bytes(one), Self::Bytes(two)) => {
                meter.bytes(one.len().min(two.len()))?;
                one == two
            }
            (Self::Time(one), Self::Time(two)) => one == two,
            (Self::Span(one), Self::Span(two)) => one == two,
            (Self::Kind(one), Self::Kind(two)) => one == two,
            (Self::Ip(one), Self::Ip(two)) => one == two,
            (Self::Cidr(one, bits), Self::Cidr(two, more)) => one == two && bits == more,
            (Self::Url(one), Self::Url(two)) => {
                meter.bytes(one.weight())?;
                one == two
            }
            (Self::Quantity(one), Self::Quantity(two)) => one == two,
            (Self::Semver(one), Self::Semver(two)) => {
                meter.bytes(one.weight())?;
                one.compare(two) == Ordering::Equal
            }
            (Self::Format(one), Self::Format(two)) => one == two,
            (Self::Optional(one), Self::Optional(two)) => match (one, two) {
                (None, None) => true,
                (Some(one), Some(two)) => one.equals(two, meter)?,
                _ => false,
            },
            (Self::Items(..) | Self::List(_), Self::Items(..) | Self::List(_)) => {
                self.same_items(other, meter)?
            }
            (Self::Object(one, _), Self::Object(two, _)) => {
                spend_weight(one, meter)?;
                one == two
            }
            (
                Self::Fields(..) | Self::Map(_) | Self::Object(..),
                Self::Fields(..) | Self::Map(_) | Self::Object(..),
            ) => self.same_fields(other, meter)?,
            _ => self.compare(other, meter)? == Some(Ordering::Equal),
        })
    }

    fn same_fields(&self, other: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
        if self.length() != other.length() {
            return Ok(false);
        }
        for (key, value) in self.entries(meter)? {
            match other.get(&key, meter)? {
                Some(found) if value.equals(&found, meter)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Compares lists by the topology of the left one: order counts only in an atomic list.
    fn same_items(&self, other: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
        if self.length() != other.length() {
            return Ok(false);
        }
        let (ours, theirs) = (self.items(meter)?, other.items(meter)?);
        if matches!(self, Self::Items(_, _, Merge::Set | Merge::Map(_))) {
            for item in &ours {
                if !is_among(item, &theirs, meter)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        for (one, two) in ours.iter().zip(&theirs) {
            if !one.equals(two, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Orders two values; `None` if they are not comparable.
    pub(super) fn compare(&self, other: &Val<'a>, meter: &mut Meter) -> Outcome<Option<Ordering>> {
        let shorter = match (self, other) {
            (Self::Text(one), Self::Text(two)) => one.len().min(two.len()),
            (Self::Bytes(one), Self::Bytes(two)) => one.len().min(two.len()),
            _ => 0,
        };
        meter.bytes(shorter)?;
        Ok(self.order(other))
    }

    /// Orders two values; strings and bytes are paid for already.
    pub(super) fn order(&self, other: &Val<'a>) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(one), Self::Bool(two)) => Some(one.cmp(two)),
            (Self::Int(one), Self::Int(two)) => Some(one.cmp(two)),
            (Self::Uint(one), Self::Uint(two)) => Some(one.cmp(two)),
            (Self::Double(one), Self::Double(two)) => one.partial_cmp(two),
            (Self::Int(one), Self::Uint(two)) => Some(i128::from(*one).cmp(&i128::from(*two))),
            (Self::Uint(one), Self::Int(two)) => Some(i128::from(*one).cmp(&i128::from(*two))),
            (Self::Double(one), Self::Int(_) | Self::Uint(_)) => one.partial_cmp(&other.double()?),
            (Self::Int(_) | Self::Uint(_), Self::Double(two)) => self.double()?.partial_cmp(two),
            (Self::Text(one), Self::Text(two)) => Some((**one).cmp(two)),
            (Self::Bytes(one), Self::Bytes(two)) => Some(one.cmp(two)),
            (Self::Time(one), Self::Time(two)) => Some(one.cmp(two)),
            (Self::Span(one), Self::Span(two)) => Some(one.cmp(two)),
            _ => None,
        }
    }

    /// Converts a number to a float.
    pub(super) fn double(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Uint(number) => Some(*number as f64),
            Self::Double(number) => Some(*number),
            _ => None,
        }
    }
}

/// Returns whether a list contains a value.
pub(super) fn is_among<'a>(value: &Val<'a>, items: &[Val<'a>], meter: &mut Meter) -> Outcome<bool> {
    for item in items {
        if value.equals(item, meter)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Spends the cost of comparing an object.
fn spend_weight(fields: &Map<String, Value>, meter: &mut Meter) -> Outcome<()> {
    meter.spend(1)?;
    fields.iter().try_for_each(|(key, value)| {
        meter.bytes(key.len())?;
        spend_value(value, meter)
    })
}

/// Spends the cost of comparing a JSON value.
pub(super) fn spend_value(value: &Value, meter: &mut Meter) -> Outcome<()> {
    match value {
        Value::String(text) => meter.bytes(text.len()),
        Value::Array(items) => {
            meter.spend(1)?;
            items.iter().try_for_each(|item| spend_value(item, meter))
        }
        Value::Object(fields) => spend_weight(fields, meter),
        _ => meter.spend(1),
    }
}

fn number_of<'a>(number: &Number, of: &Type) -> Outcome<Val<'a>> {
    let whole = number.as_i64().or_else(|| {
        // Beyond 2^63 the cast saturates, and the comparison below fails.
        let float = number.as_f64()?;
        let whole = float as i64;
        (whole as f64 == float && *of == Type::Int && whole != i64::MAX).then_some(whole)
    });
    match (of, whole, number.as_f64()) {
        (Type::Double, _, Some(number)) | (_, None, Some(number)) if *of != Type::Int => {
            Ok(Val::Double(number))
        }
        (_, Some(whole), _) => Ok(Val::Int(whole)),
        _ => failed("integer overflow"),
    }
}

fn text_of<'a>(text: &'a str, of: &Type, meter: &mut Meter) -> Outcome<Val<'a>> {
    if matches!(of, Type::Bytes | Type::Time | Type::Span) {
        meter.bytes(text.len())?;
    }
    Ok(match of {
        Type::Bytes => match STANDARD.decode(text.replace(['\n', '\r'], "")) {
            Ok(bytes) => Val::Bytes(bytes.into()),
            Err(_) => return failed("byte formatted string is not Base64"),
        },
        Type::Time => Val::Time(spans::time(text)?),
        Type::Span => Val::Span(spans::span(text)?),
        _ => Val::Text(Text::Of(text)),
    })
}

/// Formats a value for a failure; a string is cut.
impl fmt::Display for Val<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Uint(number) => write!(f, "{number}"),
            Self::Double(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(truncated(text)),
            other => f.write_str(other.kind()),
        }
    }
}
