//! The functions of lists. Pure.

use std::cmp::Ordering;

use super::meter::{Meter, Outcome, failed};
use super::operate::operate;
use super::texts;
use super::tree::Operator;
use super::value::{Val, is_among};

/// Calls a function of a list; `None` if there is none for these.
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
            let sorted = |pair: &[Val<'a>]| match pair {
                [one, two] => one.compare(two).is_some_and(Ordering::is_le),
                _ => true,
            };
            meter.spend(items.len())?;
            Val::Bool(items.windows(2).all(sorted))
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
        ("sort", []) => {
            meter.spend(items.len() * 16)?;
            let mut items = items;
            items.sort_by(|one, two| one.compare(two).unwrap_or(Ordering::Equal));
            Val::list(items)
        }
        _ => return Ok(None),
    }))
}

/// Calls a function of two lists as sets.
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

fn most<'a>(items: &[Val<'a>], wanted: Ordering, name: &str, meter: &mut Meter) -> Outcome<Val<'a>> {
    let Some((first, rest)) = items.split_first() else {
        return failed(format!("{name} called on empty list"));
    };
    let mut found = first;
    for item in rest {
        meter.spend(1)?;
        match item.compare(found) {
            Some(order) if order == wanted => found = item,
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
