//! Functions of strings. Indexes count code points.

use super::meter::{Meter, Outcome, failed};
use super::regexes::Tools;
use super::spans;
use super::value::Val;

/// Maximum number of decimal places of `%f` and `%e`.
const MAX_PRECISION: usize = 100;

/// Calls a function of a string; `None` if there is no such overload.
pub(super) fn call<'a>(
    name: &str,
    text: &str,
    rest: &[Val<'a>],
    tools: &mut Tools<'_>,
) -> Outcome<Option<Val<'a>>> {
    tools.meter.bytes(text.len())?;
    for argument in rest {
        if let Val::Text(argument) = argument {
            tools.meter.bytes(argument.len())?;
        }
    }
    let own = |text: String| Ok(Some(Val::text(text)));
    match (name, rest) {
        ("size", []) => Ok(Some(Val::Int(length(text)))),
        ("startsWith", [Val::Text(other)]) => Ok(Some(Val::Bool(text.starts_with(&**other)))),
        ("endsWith", [Val::Text(other)]) => Ok(Some(Val::Bool(text.ends_with(&**other)))),
        ("contains", [Val::Text(other)]) => Ok(Some(Val::Bool(text.contains(&**other)))),
        ("matches", [Val::Text(pattern)]) => {
            let regex = tools.regexes.get(pattern, text.len(), tools.meter)?;
            Ok(Some(Val::Bool(regex.regex.is_match(text))))
        }
        ("find", [Val::Text(pattern)]) => {
            let regex = tools.regexes.get(pattern, text.len(), tools.meter)?;
            own(regex.regex.find(text).map_or_else(String::new, |found| found.as_str().to_owned()))
        }
        ("findAll", [Val::Text(pattern), most @ ..]) => {
            let most = limit(most)?;
            let regex = tools.regexes.get(pattern, text.len(), tools.meter)?;
            let mut found = Vec::new();
            for part in regex.regex.find_iter(text).take(most) {
                // A longest match may read to the end each time.
                regex.pay(text.len() - part.start(), tools.meter)?;
                tools.meter.bytes(part.len() + 16)?;
                found.push(Val::text(part.as_str()));
            }
            Ok(Some(Val::list(found)))
        }
        ("charAt", [Val::Int(place)]) => {
            let place = usize::try_from(*place).ok().filter(|place| *place as i64 <= length(text));
            let Some(place) = place else { return failed("index out of range") };
            own(text.chars().nth(place).map(String::from).unwrap_or_default())
        }
        ("indexOf" | "lastIndexOf", [Val::Text(sought), start @ ..]) => {
            let start = match start {
                [] => None,
                [Val::Int(start)] => Some(bounded(*start, text)?),
                _ => return Ok(None),
            };
            Ok(Some(Val::Int(place_of(text, sought, start, name == "lastIndexOf"))))
        }
        ("lowerAscii", []) => own(text.to_ascii_lowercase()),
        ("upperAscii", []) => own(text.to_ascii_uppercase()),
        ("trim", []) => own(text.trim().to_owned()),
        ("reverse", []) => own(text.chars().rev().collect()),
        ("replace", [Val::Text(from), Val::Text(to), most @ ..]) => {
            replace(text, from, to, limit(most)?, tools.meter)
        }
        ("split", [Val::Text(by), most @ ..]) => split(text, by, limit(most)?, tools.meter),
        ("substring", [Val::Int(start)]) => part(text, *start, length(text)),
        ("substring", [Val::Int(start), Val::Int(end)]) => part(text, *start, *end),
        ("format", [list]) => {
            let values = list.items(tools.meter)?;
            own(format(text, &values, tools.meter)?)
        }
        ("strings.quote", []) => {
            // An escaped character may take ten bytes.
            tools.meter.bytes(text.len().saturating_mul(10))?;
            own(format!("{text:?}"))
        }
        _ => Ok(None),
    }
}

fn length(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// Converts a limit; a negative number is none.
fn limit(most: &[Val<'_>]) -> Outcome<usize> {
    match most {
        [] => Ok(usize::MAX),
        [Val::Int(most)] => Ok(usize::try_from(*most).unwrap_or(usize::MAX)),
        _ => failed("no such overload"),
    }
}

/// Returns the byte offset of a character index.
fn bounded(place: i64, text: &str) -> Outcome<usize> {
    let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    match usize::try_from(place).ok().and_then(|place| places.nth(place)) {
        Some(at) => Ok(at),
        None => failed(format!("index out of range: {place}")),
    }
}

fn place_of(text: &str, sought: &str, start: Option<usize>, last: bool) -> i64 {
    let found = if last {
        // The start is the last index at which the match may begin.
        let end = start.map_or(text.len(), |start| start.saturating_add(sought.len()));
        let end = text.floor_char_boundary(end);
        text.get(..end).and_then(|text| text.rfind(sought))
    } else {
        let start = start.unwrap_or_default();
        text.get(start..).and_then(|text| text.find(sought)).map(|at| at + start)
    };
    found.and_then(|at| text.get(..at)).map_or(-1, length)
}

fn part<'a>(text: &str, start: i64, end: i64) -> Outcome<Option<Val<'a>>> {
    let (from, to) = (bounded(start, text)?, bounded(end, text)?);
    match text.get(from..to) {
        Some(part) => Ok(Some(Val::text(part))),
        None => failed(format!("invalid substring range. start: {start}, end: {end}")),
    }
}

fn replace<'a>(text: &str, from: &str, to: &str, most: usize, meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
    let count = text.matches(from).take(most).count();
    meter.bytes(text.len().saturating_add(count.saturating_mul(to.len())))?;
    Ok(Some(Val::text(text.replacen(from, to, count))))
}

fn split<'a>(text: &str, by: &str, most: usize, meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
    if most == 0 {
        return Ok(Some(Val::list(Vec::new())));
    }
    let mut parts = Vec::new();
    if by.is_empty() {
        meter.spend(text.len())?;
        let mut rest = text;
        while let Some(letter) = rest.chars().next().filter(|_| parts.len() + 1 < most) {
            let (one, after) = rest.split_at_checked(letter.len_utf8()).unwrap_or((rest, ""));
            parts.push(Val::text(one));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Val::text(rest));
        }
        return Ok(Some(Val::list(parts)));
    }
    for part in text.splitn(most, by) {
        meter.spend(2)?;
        parts.push(Val::text(part));
    }
    Ok(Some(Val::list(parts)))
}

/// Joins strings with `by` between them; an item of another type is an error.
pub(super) fn join<'a>(items: &[Val<'a>], by: &str, meter: &mut Meter) -> Outcome<Val<'a>> {
    let mut joined = String::new();
    for (place, item) in items.iter().enumerate() {
        let Val::Text(text) = item else {
            return failed(format!("no such overload: join of {}", item.kind()));
        };
        meter.bytes(text.len() + by.len())?;
        if place > 0 {
            joined.push_str(by);
        }
        joined.push_str(text);
    }
    Ok(Val::text(joined))
}

/// Formats values: `%s`, `%d`, `%f`, `%.2f`, `%e`, `%x`, `%X`, `%o`, `%b`, `%%`.
fn format(text: &str, values: &[Val<'_>], meter: &mut Meter) -> Outcome<String> {
    let mut written = String::new();
    let mut values = values.iter();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        written.push_str(before);
        let end = after.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(after.len());
        let (precision, tail) = after.split_at_checked(end).unwrap_or((after, ""));
        let mut letters = tail.chars();
        let verb = letters.next();
        rest = letters.as_str();
        if verb == Some('%') {
            written.push('%');
            continue;
        }
        if !precision.is_empty() && !precision.starts_with('.') {
            return failed("could not parse formatting clause: widths are not supported");
        }
        let Some(value) = values.next() else {
            return failed("index out of range: too few values to format");
        };
        let precision = precision.strip_prefix('.').and_then(decimal_places);
        let one = formatted(verb, precision, value, meter)?;
        meter.bytes(one.len())?;
        written.push_str(&one);
    }
    written.push_str(rest);
    Ok(written)
}

/// Parses a precision; larger ones than [`MAX_PRECISION`] become that one, whatever the word size
/// of the machine. `None` if it is no number.
fn decimal_places(digits: &str) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().map_or(MAX_PRECISION, |places: usize| places.min(MAX_PRECISION)))
}

fn formatted(
    verb: Option<char>,
    precision: Option<usize>,
    value: &Val<'_>,
    meter: &mut Meter,
) -> Outcome<String> {
    let wrong = || failed(format!("could not format {} as %{}", value.kind(), verb.unwrap_or_default()));
    let whole = match value {
        Val::Int(number) => Some(i128::from(*number)),
        Val::Uint(number) => Some(i128::from(*number)),
        _ => None,
    };
    let signed = |number: i128, digits: String| if number < 0 { format!("-{digits}") } else { digits };
    match (verb, whole, value) {
        (Some('s'), ..) => shown(value, meter),
        (Some('d'), Some(number), _) => Ok(number.to_string()),
        (Some('f'), ..) => match value.double() {
            Some(number) => Ok(format!("{number:.*}", precision.unwrap_or(6))),
            None => wrong(),
        },
        (Some('e'), ..) => match value.double() {
            Some(number) => {
                let text = format!("{number:.*e}", precision.unwrap_or(6));
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or_default();
                let sign = if exponent < 0 { '-' } else { '+' };
                Ok(format!("{digits}e{sign}{:02}", exponent.abs()))
            }
            None => wrong(),
        },
        (Some('x'), Some(number), _) => Ok(signed(number, format!("{:x}", number.unsigned_abs()))),
        (Some('X'), Some(number), _) => Ok(signed(number, format!("{:X}", number.unsigned_abs()))),
        (Some('x'), _, Val::Text(text)) => {
            meter.spend(text.len())?;
            Ok(text.bytes().map(|byte| format!("{byte:02x}")).collect())
        }
        (Some('X'), _, Val::Text(text)) => {
            meter.spend(text.len())?;
            Ok(text.bytes().map(|byte| format!("{byte:02X}")).collect())
        }
        (Some('o'), Some(number), _) => Ok(signed(number, format!("{:o}", number.unsigned_abs()))),
        (Some('b'), Some(number), _) => Ok(signed(number, format!("{:b}", number.unsigned_abs()))),
        (Some('b'), _, Val::Bool(value)) => Ok(u8::from(*value).to_string()),
        _ => wrong(),
    }
}

/// Formats a value for `%s`.
fn shown(value: &Val<'_>, meter: &mut Meter) -> Outcome<String> {
    meter.spend(1)?;
    Ok(match value {
        Val::Items(..) | Val::List(_) => {
            let mut items = Vec::new();
            for item in value.items(meter)? {
                items.push(shown(&item, meter)?);
            }
            meter.bytes(items.iter().map(String::len).sum())?;
            format!("[{}]", items.join(", "))
        }
        Val::Fields(..) | Val::Map(_) => {
            let mut items = Vec::new();
            for (key, value) in value.entries(meter)? {
                items.push(format!("{}: {}", shown(&key, meter)?, shown(&value, meter)?));
            }
            items.sort();
            meter.bytes(items.iter().map(String::len).sum())?;
            format!("{{{}}}", items.join(", "))
        }
        Val::Time(time) => time.to_string(),
        Val::Span(span) => spans::seconds(*span),
        Val::Text(text) => {
            meter.bytes(text.len())?;
            text.to_string()
        }
        other => other.to_string(),
    })
}
