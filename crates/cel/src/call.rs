//! Dispatches function calls.

use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::tz::TimeZone;

use super::meter::{Meter, Outcome, failed, truncated};
use super::quantity::Quantity;
use super::regexes::Tools;
use super::semver::Semver;
use super::value::{Computed, Text, Val};
use super::{convert, lists, named, net, texts, times};

/// Calls a function. The receiver of a method is the first value.
pub(super) fn call<'a>(name: &str, values: &[Val<'a>], tools: &mut Tools<'_>) -> Outcome<Val<'a>> {
    tools.meter.spend(1)?;
    let found = match found(name, values, tools)? {
        Some(found) => Some(found),
        None => convert::call(name, values, tools.meter)?,
    };
    found.map_or_else(
        || {
            let kinds: Vec<&str> = values.iter().map(Val::kind).collect();
            failed(format!("no such overload: {name}({})", kinds.join(", ")))
        },
        Ok,
    )
}

fn found<'a>(name: &str, values: &[Val<'a>], tools: &mut Tools<'_>) -> Outcome<Option<Val<'a>>> {
    if let Some(format) = name.strip_prefix("format.") {
        return Ok(format_named(format, values));
    }
    if let ("sets.contains" | "sets.equivalent" | "sets.intersects", [one, two]) = (name, values) {
        return lists::sets(name, one, two, tools.meter).map(|holds| Some(Val::Bool(holds)));
    }
    if name.starts_with("optional.") {
        return Ok(Some(match (name, values) {
            ("optional.of", [value]) => Val::some(value.clone()),
            ("optional.ofNonZeroValue", [value]) if !is_zero(value) => Val::some(value.clone()),
            _ => Val::Optional(None),
        }));
    }
    let Some((first, rest)) = values.split_first() else { return Ok(None) };
    Ok(match (first, name, rest) {
        (Val::Text(text), ..) => {
            return match texts::call(name, text, rest, tools)? {
                Some(value) => Ok(Some(value)),
                None => of_text(name, text, rest, tools.meter),
            };
        }
        (Val::Items(..) | Val::List(_), ..) => return lists::call(name, first, rest, tools.meter),
        (Val::Fields(..) | Val::Map(_) | Val::Object(..), "size", []) => {
            first.length().map(|length| Val::Int(length as i64))
        }
        (Val::Bytes(bytes), "size", []) => Some(Val::Int(bytes.len() as i64)),
        (Val::Time(time), _, []) => times::of_time(name, *time, TimeZone::UTC).map(Val::Int),
        (Val::Time(time), _, [Val::Text(zone)]) => match times::zone(zone) {
            Some(zone) => times::of_time(name, *time, zone).map(Val::Int),
            None => return failed(format!("unknown time zone {:?}", truncated(zone))),
        },
        (Val::Span(span), _, []) => times::of_span(name, *span).map(Val::Int),
        (Val::Optional(value), ..) => return optional(name, value, rest),
        (Val::Quantity(quantity), ..) => return of_quantity(name, *quantity, rest),
        (Val::Semver(version), ..) => {
            tools.meter.bytes(version.weight())?;
            of_semver(name, version, rest)
        }
        (Val::Url(url), _, []) => return of_url(name, url, tools.meter),
        (Val::Ip(address), "family", []) => Some(Val::Int(if address.is_ipv4() { 4 } else { 6 })),
        (Val::Ip(address), what, []) if what.starts_with("is") => Some(Val::Bool(net::is(*address, what))),
        (Val::Cidr(address, bits), ..) => {
            if let [Val::Text(text)] = rest {
                tools.meter.bytes(text.len())?;
            }
            return of_cidr(name, (*address, *bits), rest);
        }
        (Val::Format(format), "validate", [Val::Text(text)]) => {
            tools.meter.bytes(text.len())?;
            let problem = named::problem(format, text);
            Some(Val::optional(problem.map(|problem| Val::list(vec![Val::text(problem)]))))
        }
        _ => None,
    })
}

fn format_named<'a>(format: &str, values: &[Val<'a>]) -> Option<Val<'a>> {
    let known =
        |name: &str| named::NAMES.iter().find(|known| **known == name).map(|known| Val::Format(known));
    match (format, values) {
        ("named", [Val::Text(name)]) => Some(Val::optional(known(name))),
        (name, []) => known(name),
        _ => None,
    }
}

/// Functions that convert a string.
fn of_text<'a>(name: &str, text: &Text<'a>, rest: &[Val<'a>], meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
    let is = |found: bool| Ok(Some(Val::Bool(found)));
    let made = |found: Option<Val<'a>>, problem: &str| match found {
        Some(found) => Ok(Some(found)),
        None => failed(format!("{problem}: {:?}", truncated(text))),
    };
    let normalize = match rest {
        [] => false,
        [Val::Bool(normalize)] => *normalize,
        _ => return Ok(None),
    };
    if matches!(name, "isURL" | "url" | "isSemver" | "semver") {
        // Each part becomes a separate string.
        meter.spend(text.matches(['&', '.']).count().saturating_mul(4))?;
    }
    match name {
        "isURL" => is(net::Url::parse(text).is_some()),
        "url" => made(
            net::Url::parse(text).map(|url| Val::Url(Rc::new(url))),
            "URL parse error during conversion from string",
        ),
        "isIP" => is(net::ip(text).is_some()),
        "ip" => made(net::ip(text).map(Val::Ip), "IP Address parse error during conversion from string"),
        "ip.isCanonical" => match net::ip(text) {
            Some(address) => is(address.to_string() == **text),
            None => {
                failed(format!("IP Address parse error during conversion from string: {:?}", truncated(text)))
            }
        },
        "isCIDR" => is(net::cidr(text).is_some()),
        "cidr" => made(
            net::cidr(text).map(|(address, bits)| Val::Cidr(address, bits)),
            "network address parse error during conversion from string",
        ),
        "isQuantity" => is(Quantity::parse(text).is_some()),
        "quantity" => made(
            Quantity::parse(text).map(Val::Quantity),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        "isSemver" => is(Semver::parse(text, normalize).is_some()),
        "semver" => made(
            Semver::parse(text, normalize).map(|version| Val::Semver(Rc::new(version))),
            "semver parse error during conversion from string",
        ),
        _ => Ok(None),
    }
}

fn optional<'a>(
    name: &str,
    value: &Option<Rc<Computed<Val<'a>>>>,
    rest: &[Val<'a>],
) -> Outcome<Option<Val<'a>>> {
    Ok(Some(match (name, rest, value) {
        ("hasValue", [], value) => Val::Bool(value.is_some()),
        ("value", [], Some(value)) | ("orValue", [_], Some(value)) => (***value).clone(),
        ("value", [], None) => return failed("optional.none() dereference"),
        ("orValue", [other], None) => other.clone(),
        ("or", [_], Some(value)) => Val::Optional(Some(Rc::clone(value))),
        ("or", [other], None) => other.clone(),
        _ => return Ok(None),
    }))
}

fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0) => true,
        Val::Double(number) => *number == 0.0,
        Val::Text(text) => text.is_empty(),
        Val::Bytes(bytes) => bytes.is_empty(),
        Val::Span(span) => span.is_zero(),
        other => other.length() == Some(0),
    }
}

fn of_quantity<'a>(name: &str, quantity: Quantity, rest: &[Val<'a>]) -> Outcome<Option<Val<'a>>> {
    let other = match rest {
        [Val::Quantity(other)] => Some(*other),
        [Val::Int(number)] => Some(Quantity::of(*number)),
        _ => None,
    };
    let sum = |sum: Option<Quantity>| {
        sum.map_or_else(|| failed("quantity overflow"), |sum| Ok(Some(Val::Quantity(sum))))
    };
    Ok(match (name, other) {
        ("isInteger", None) => Some(Val::Bool(quantity.integer().is_some())),
        ("asInteger", None) => match quantity.integer() {
            Some(number) => Some(Val::Int(number)),
            None => return failed("cannot convert value to integer"),
        },
        ("asApproximateFloat", None) => Some(Val::Double(quantity.double())),
        ("sign", None) => Some(Val::Int(quantity.sign())),
        ("add", Some(other)) => return sum(quantity.add(other)),
        ("sub", Some(other)) => return sum(quantity.subtract(other)),
        ("isLessThan", Some(other)) => Some(Val::Bool(quantity < other)),
        ("isGreaterThan", Some(other)) => Some(Val::Bool(quantity > other)),
        ("compareTo", Some(other)) => Some(Val::Int(quantity.cmp(&other) as i64)),
        _ => None,
    })
}

fn of_semver<'a>(name: &str, version: &Semver, rest: &[Val<'a>]) -> Option<Val<'a>> {
    let number = |number: u64| Val::Int(i64::try_from(number).unwrap_or(i64::MAX));
    match (name, rest) {
        ("major", []) => Some(number(version.major)),
        ("minor", []) => Some(number(version.minor)),
        ("patch", []) => Some(number(version.patch)),
        ("isLessThan", [Val::Semver(other)]) => Some(Val::Bool(version.compare(other).is_lt())),
        ("isGreaterThan", [Val::Semver(other)]) => Some(Val::Bool(version.compare(other).is_gt())),
        ("compareTo", [Val::Semver(other)]) => Some(Val::Int(version.compare(other) as i64)),
        _ => None,
    }
}

fn of_url<'a>(name: &str, url: &net::Url, meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
    let part = match name {
        "getScheme" => url.scheme.as_str(),
        "getHost" => url.host.as_str(),
        "getHostname" => url.hostname(),
        "getPort" => url.port(),
        "getEscapedPath" => url.path.as_str(),
        "getQuery" => {
            let mut values: BTreeMap<&str, Vec<Val<'a>>> = BTreeMap::new();
            for (name, value) in &url.query {
                meter.spend(4)?;
                meter.bytes(name.len() + value.len())?;
                values.entry(name).or_default().push(Val::text(value.as_str()));
            }
            let entries = values.into_iter().map(|(name, values)| (Val::text(name), Val::list(values)));
            return Ok(Some(Val::map(entries.collect())));
        }
        _ => return Ok(None),
    };
    // Finding the part reads the whole host.
    meter.bytes(url.host.len() + part.len())?;
    Ok(Some(Val::text(part)))
}

fn of_cidr<'a>(name: &str, network: (core::net::IpAddr, u8), rest: &[Val<'a>]) -> Outcome<Option<Val<'a>>> {
    let inner = |(address, bits): (core::net::IpAddr, u8)| {
        Val::Bool(bits >= network.1 && net::contains(network, address))
    };
    Ok(match (name, rest) {
        ("ip", []) => Some(Val::Ip(network.0)),
        ("masked", []) => Some(Val::Cidr(net::masked(network.0, network.1), network.1)),
        ("prefixLength", []) => Some(Val::Int(network.1.into())),
        ("containsIP", [Val::Ip(address)]) => Some(Val::Bool(net::contains(network, *address))),
        ("containsIP", [Val::Text(text)]) => match net::ip(text) {
            Some(address) => Some(Val::Bool(net::contains(network, address))),
            None => {
                return failed(format!(
                    "IP Address parse error during conversion from string: {:?}",
                    truncated(text)
                ));
            }
        },
        ("containsCIDR", [Val::Cidr(address, bits)]) => Some(inner((*address, *bits))),
        ("containsCIDR", [Val::Text(text)]) => match net::cidr(text) {
            Some(other) => Some(inner(other)),
            None => {
                return failed(format!(
                    "network address parse error during conversion from string: {:?}",
                    truncated(text)
                ));
            }
        },
        _ => None,
    })
}
