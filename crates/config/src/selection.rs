//! Tables that select objects, shared by `[[files]]` and `[[placement]]`.

use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::binding::{Binding as _, Raw, Refusals};
use super::units;
use edgesync_object::Selector;
use edgesync_object::matching::ObjectMatch;

const OBJECTS: &str = "a table such as { kinds = [\"configmaps\"], namespaces = [\"plant\"] }";
const OBJECT_KEYS: [&str; 4] = ["kinds", "namespaces", "names", "selector"];
const KINDS: &str = "a list of kinds such as [\"configmaps\", \"deployments.apps\"]";
const NAMESPACES: &str = "a list of name patterns such as [\"plant-*\"]";
const NAMES: &str = "a list of names such as [\"web\"]";
const SELECTOR: &str = "a label selector such as \"app=web\"";

/// Returns the table of a value; `what` is the end of "must be …".
///
/// # Errors
/// The value is no table.
pub fn table<'v, 't>(value: &'v Spanned<DeValue<'t>>, what: &str) -> Result<&'v DeTable<'t>, Refusals> {
    let value = value.get_ref();
    value.as_table().ok_or_else(|| Raw::Toml(value).expected(what).into())
}

/// Reads a table: passes each key and its value to `read`, which returns `None` for an unknown
/// key, and collects all errors.
pub fn read_table(
    table: &DeTable<'_>,
    known: &[&str],
    mut read: impl FnMut(&str, &Spanned<DeValue<'_>>) -> Option<Result<(), Refusals>>,
) -> Refusals {
    let mut refusals = Refusals::default();
    for (key, value) in table {
        let name: &str = key.get_ref();
        match read(name, value) {
            Some(read) => refusals.add(name, &value.span(), read),
            None => refusals.unknown(key, known),
        }
    }
    refusals
}

/// Parses a string in the form of its type.
///
/// # Errors
/// The text has another form.
pub fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads `objects = { kinds = […], namespaces = […], names = […], selector = "…" }`.
///
/// # Errors
/// All wrong parts of the table.
pub fn read_objects(value: &Spanned<DeValue<'_>>, objects: &mut ObjectMatch) -> Result<(), Refusals> {
    let refusals = read_table(table(value, OBJECTS)?, &OBJECT_KEYS, |key, value| {
        let raw = Raw::Toml(value.get_ref());
        Some(match key {
            "kinds" => units::list(&mut objects.kinds, KINDS, parse).set(raw),
            "namespaces" => units::list(&mut objects.namespaces, NAMESPACES, parse).set(raw),
            "names" => units::words(&mut objects.names, NAMES, |_| Ok(())).set(raw),
            "selector" => selector(raw, &mut objects.selector),
            _ => return None,
        })
    });
    refusals.result()
}

/// Reads a label selector.
///
/// # Errors
/// The value is no selector.
pub fn selector(raw: Raw<'_>, into: &mut Selector) -> Result<(), Refusals> {
    units::text(into, SELECTOR, parse, Selector::to_string).set(raw)
}
