//! Functions of lists and sets.

use std::cmp::Ordering;

use super::meter::{Meter, Outcome, failed};
use super::operate::operate;
use super::texts;
use super::tree::Operator;
use super::value::{Val, is_among};

/// Calls a function of a list; `None` if there is no such overload.
pub(super) fn call<'a>(
    name: &str,
    list: &Val<'a>,
    rest: &[Val<'a>],
    meter: &mut Meter,
) -> Outcome<Option<Val<'a>>> {
    if name == "size" {
        return Ok(list.length().map(|length| Val::Int(length as i64)));
    }
    let items = list.items(meter)?;
    Ok(Some(match (name, rest) {
        ("isSorted", []) => {
            let mut sorted = true;
            for (one, two) in items.iter().zip(items.iter().skip(1)) {
                if !one.compare(two, meter)?.is_some_and(Ordering::is_le) {
                    sorted = false;
                    break;
                }
            }
            Val::Bool(sorted)
        }
        ("sum", []) => sum(&items, meter)?,
        ("min", []) => most(&items, Ordering::Less, name, meter)?,
        ("max", []) => most(&items, Ordering::Greater, name, meter)?,
        ("indexOf", [sought]) => Val::Int(place_of(items.iter().enumerate(), sought, meter)?),
        ("lastIndexOf", [sought]) => Val::Int(place_of(items.iter().enumerate().rev(), sought, meter)?),
        ("join", []) => texts::join(&items, "", meter)?,
        ("join", [Val::Text(by)]) => texts::join(&items, by, meter)?,
        ("slice", [Val::Int(start), Val::Int(end)]) => {
            let range = usize::try_from(*start).ok().zip(usize::try_from(*end).ok());
            match range.and_then(|(start, end)| items.get(start..end)) {
                Some(part) => Val::list(part.to_vec()),
                None => {
                    return failed(format!("cannot slice({start}, {end}), list is length {}", items.len()));
                }
            }
        }
        ("reverse", []) => Val::list(items.into_iter().rev().collect()),
        ("distinct", []) => {
            let mut kept = Vec::new();
            for item in items {
                if !is_among(&item, &kept, meter)? {
                    kept.push(item);
                }
            }
            Val::list(kept)
        }
        ("sort", []) => Val::list(sorted(items, meter)?),
        _ => return Ok(None),
    }))
}

/// Calls a function of two lists, taken as sets.
pub(super) fn sets<'a>(name: &str, one: &Val<'a>, two: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
    let (one, two) = (one.items(meter)?, two.items(meter)?);
    let all = |part: &[Val<'a>], whole: &[Val<'a>], meter: &mut Meter| {
        for item in part {
            if !is_among(item, whole, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match name {
        "sets.contains" => all(&two, &one, meter),
        "sets.equivalent" => Ok(all(&two, &one, meter)? && all(&one, &two, meter)?),
        _ => {
            for item in &two {
                if is_among(item, &one, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

fn sum<'a>(items: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let Some((first, rest)) = items.split_first() else { return Ok(Val::Int(0)) };
    let mut sum = first.clone();
    for item in rest {
        meter.spend(1)?;
        sum = operate(Operator::Add, &sum, item, meter)?;
    }
    Ok(sum)
}

/// Sorts items of one comparable type.
fn sorted<'a>(mut items: Vec<Val<'a>>, meter: &mut Meter) -> Outcome<Vec<Val<'a>>> {
    let Some(first) = items.first() else { return Ok(items) };
    // About this many comparisons per item.
    let times = items.len().ilog2() as usize + 1;
    for item in &items {
        let bytes = match item {
            Val::Text(text) => text.len(),
            Val::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        meter.bytes(bytes.saturating_mul(times))?;
        meter.spend(times)?;
        // Only NaN differs from itself.
        if item.kind() != first.kind() || item.order(item).is_none() {
            return failed(format!("no such overload: sort of {} and {}", first.kind(), item.kind()));
        }
    }
    items.sort_by(|one, two| one.order(two).unwrap_or(Ordering::Equal));
    Ok(items)
}

fn most<'a>(items: &[Val<'a>], expected: Ordering, name: &str, meter: &mut Meter) -> Outcome<Val<'a>> {
    let Some((first, rest)) = items.split_first() else {
        return failed(format!("{name} called on empty list"));
    };
    let mut found = first;
    for item in rest {
        match item.compare(found, meter)? {
            Some(order) if order == expected => found = item,
            Some(_) => {}
            None => {
                return failed(format!("no such overload: {name} of {} and {}", item.kind(), found.kind()));
            }
        }
    }
    Ok(found.clone())
}

fn place_of<'v, 'a: 'v>(
    items: impl Iterator<Item = (usize, &'v Val<'a>)>,
    sought: &Val<'a>,
    meter: &mut Meter,
) -> Outcome<i64> {
    for (place, item) in items {
        if item.equals(sought, meter)? {
            return Ok(place as i64);
        }
    }
    Ok(-1)
}
