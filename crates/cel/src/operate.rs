//! Binary operators.

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::Value;

use super::meter::{Meter, Outcome, failed};
use super::tree::Operator;
use super::types::Merge;
use super::value::{Val, is_among, spend_value};

/// Applies an operator to two values.
pub(super) fn operate<'a>(
    name: Operator,
    left: &Val<'a>,
    right: &Val<'a>,
    meter: &mut Meter,
) -> Outcome<Val<'a>> {
    let mut ordered = |accepts: fn(Ordering) -> bool| match left.compare(right, meter)? {
        Some(order) => Ok(Val::Bool(accepts(order))),
        // NaN is neither less nor greater than anything.
        None if left.double().is_some() && right.double().is_some() => Ok(Val::Bool(false)),
        None => no_overload(name, left, right),
    };
    match name {
        Operator::Equal => Ok(Val::Bool(left.equals(right, meter)?)),
        Operator::NotEqual => Ok(Val::Bool(!left.equals(right, meter)?)),
        Operator::Less => ordered(Ordering::is_lt),
        Operator::LessOrEqual => ordered(Ordering::is_le),
        Operator::Greater => ordered(Ordering::is_gt),
        Operator::GreaterOrEqual => ordered(Ordering::is_ge),
        Operator::In => is_in(left, right, meter),
        Operator::Add => add(left, right, meter),
        _ => arithmetic(name, left, right),
    }
}

fn no_overload<'a>(name: Operator, left: &Val<'a>, right: &Val<'a>) -> Outcome<Val<'a>> {
    failed(format!("no such overload: {}({}, {})", name.name(), left.kind(), right.kind()))
}

fn is_in<'a>(value: &Val<'a>, of: &Val<'a>, meter: &mut Meter) -> Outcome<Val<'a>> {
    let found = match of {
        Val::Items(..) | Val::List(_) => {
            let mut found = false;
            for place in 0..of.length().unwrap_or_default() {
                if let Some(item) = of.item(place, meter)?
                    && item.equals(value, meter)?
                {
                    found = true;
                    break;
                }
            }
            found
        }
        Val::Fields(..) | Val::Map(_) => of.get(value, meter)?.is_some(),
        _ => return no_overload(Operator::In, value, of),
    };
    Ok(Val::Bool(found))
}

fn add<'a>(left: &Val<'a>, right: &Val<'a>, meter: &mut Meter) -> Outcome<Val<'a>> {
    match (left, right) {
        (Val::Text(one), Val::Text(two)) => {
            meter.bytes(one.len() + two.len())?;
            Ok(Val::text([&**one, &**two].concat()))
        }
        (Val::Bytes(one), Val::Bytes(two)) => {
            meter.bytes(one.len() + two.len())?;
            Ok(Val::Bytes([&**one, &**two].concat().into()))
        }
        (Val::Items(..) | Val::List(_), Val::Items(..) | Val::List(_)) => {
            let (ours, theirs) = (left.items(meter)?, right.items(meter)?);
            joined(left, ours, theirs, meter).map(Val::list)
        }
        (Val::Time(time), Val::Span(span)) | (Val::Span(span), Val::Time(time)) => {
            time.checked_add(*span).map(Val::Time).or_else(|_| failed("timestamp overflow"))
        }
        _ => arithmetic(Operator::Add, left, right),
    }
}

/// Concatenates two lists by the topology of the left one: a set keeps each item once, a map the
/// later of two items with the same keys.
fn joined<'a>(
    left: &Val<'a>,
    mut ours: Vec<Val<'a>>,
    theirs: Vec<Val<'a>>,
    meter: &mut Meter,
) -> Outcome<Vec<Val<'a>>> {
    let merge = if let Val::Items(_, _, merge) = left { merge } else { &Merge::Atomic };
    for item in theirs {
        let place = match merge {
            Merge::Atomic => None,
            Merge::Set => {
                if is_among(&item, &ours, meter)? {
                    continue;
                }
                None
            }
            Merge::Map(keys) => {
                let mut place = None;
                for (at, known) in ours.iter().enumerate() {
                    if same_keys(known, &item, keys, meter)? {
                        place = Some(at);
                        break;
                    }
                }
                place
            }
        };
        match place.and_then(|place| ours.get_mut(place)) {
            Some(known) => *known = item,
            None => ours.push(item),
        }
    }
    Ok(ours)
}

fn same_keys(one: &Val<'_>, two: &Val<'_>, keys: &[Arc<str>], meter: &mut Meter) -> Outcome<bool> {
    meter.spend(1)?;
    let (Val::Object(one, _), Val::Object(two, _)) = (one, two) else { return Ok(false) };
    for key in keys {
        meter.bytes(key.len())?;
        let (one, two) = (one.get(&**key), two.get(&**key));
        match (one, two) {
            (Some(Value::String(one)), Some(Value::String(two))) => meter.bytes(one.len().min(two.len()))?,
            (Some(one), Some(_)) => spend_value(one, meter)?,
            _ => {}
        }
        if one != two {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Applies an operator to two integers of one type.
macro_rules! whole {
    ($name:expr, $one:expr, $two:expr) => {{
        let result = match $name {
            Operator::Divide if $two == 0 => return failed("division by zero"),
            Operator::Modulo if $two == 0 => return failed("modulus by zero"),
            Operator::Add => $one.checked_add($two),
            Operator::Subtract => $one.checked_sub($two),
            Operator::Multiply => $one.checked_mul($two),
            Operator::Divide => $one.checked_div($two),
            _ => $one.checked_rem($two),
        };
        result.map_or_else(|| failed("integer overflow"), Ok)
    }};
}

fn arithmetic<'a>(name: Operator, left: &Val<'a>, right: &Val<'a>) -> Outcome<Val<'a>> {
    match (left, right) {
        (Val::Int(one), Val::Int(two)) => whole!(name, *one, *two).map(Val::Int),
        (Val::Uint(one), Val::Uint(two)) => whole!(name, *one, *two).map(Val::Uint),
        (Val::Double(one), Val::Double(two)) => match name {
            Operator::Add => Ok(Val::Double(one + two)),
            Operator::Subtract => Ok(Val::Double(one - two)),
            Operator::Multiply => Ok(Val::Double(one * two)),
            Operator::Divide => Ok(Val::Double(one / two)),
            _ => no_overload(name, left, right),
        },
        (Val::Time(one), Val::Time(two)) if name == Operator::Subtract => {
            Ok(Val::Span(one.duration_since(*two)))
        }
        (Val::Time(one), Val::Span(two)) if name == Operator::Subtract => {
            one.checked_sub(*two).map(Val::Time).or_else(|_| failed("timestamp overflow"))
        }
        (Val::Span(one), Val::Span(two)) => spans(name, *one, *two).map_or_else(
            || {
                if matches!(name, Operator::Add | Operator::Subtract) {
                    failed("duration overflow")
                } else {
                    no_overload(name, left, right)
                }
            },
            |span| Ok(Val::Span(span)),
        ),
        _ => no_overload(name, left, right),
    }
}

fn spans(name: Operator, one: SignedDuration, two: SignedDuration) -> Option<SignedDuration> {
    match name {
        Operator::Add => one.checked_add(two),
        Operator::Subtract => one.checked_sub(two),
        _ => None,
    }
}
