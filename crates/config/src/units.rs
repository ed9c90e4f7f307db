//! Forms of values: durations, sizes, counts, shares, switches, words, paths, labels.
//!
//! Each form has exactly one notation, so that a file is unambiguous: durations and sizes are
//! strings with a unit (`"20s"`, `"256KiB"`), counts are plain integers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::binding::{Binding, Raw, Refusal, Refusals, quote, toml_string};
use edgesync_object::name;

/// A kibibyte (IEC 80000-13), in bytes.
pub const KIB: u64 = 1 << 10;
/// A mebibyte: 1024 KiB, in bytes.
pub const MIB: u64 = 1 << 20;
/// A gibibyte: 1024 MiB, in bytes.
pub const GIB: u64 = 1 << 30;
/// A tebibyte: 1024 GiB, in bytes.
pub(crate) const TIB: u64 = 1 << 40;

const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];

const DURATION: &str = "a duration: a whole number with the unit ms, s, m, h or d, such as \"20s\"";
const SIZE: &str = "a size: a whole number with the unit B, KiB, MiB, GiB or TiB, such as \"256KiB\"";

/// Returns a duration of whole seconds.
#[must_use]
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Returns a duration of whole minutes.
#[must_use]
pub const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// Returns a duration of whole hours.
#[must_use]
pub const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

/// Parses a number with a unit, such as `20s`; returns the value in the smallest unit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Formats a value in the largest unit that divides it; `units` end with the smallest one.
fn show_unit(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    match units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", value / factor),
        None => format!("0{zero}"),
    }
}

/// Formats a duration as in the configuration, truncated to milliseconds.
#[must_use]
pub fn show_duration(value: Duration) -> String {
    show_unit(u64::try_from(value.as_millis()).unwrap_or(u64::MAX), &DURATION_UNITS, "s")
}

/// Formats a size in bytes as in the configuration.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    show_unit(bytes, &SIZE_UNITS, "B")
}

fn within<T: PartialOrd>(
    value: T,
    range: &RangeInclusive<T>,
    show: impl Fn(&T) -> String,
) -> Result<T, Refusal> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = (show(range.start()), show(range.end()));
    Err(format!("must be between {min} and {max}, not {}", show(&value)).into())
}

/// Binding for a value written as a string.
struct Text<'a, T, P, S> {
    value: &'a mut T,
    what: &'static str,
    parse: P,
    show: S,
}

impl<T, P, S> Binding for Text<'_, T, P, S>
where
    P: Fn(&str) -> Result<T, Refusal>,
    S: Fn(&T) -> String,
{
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        *self.value = match raw {
            Raw::Toml(DeValue::String(text)) => (self.parse)(text)?,
            Raw::Toml(_) => return Err(raw.expected(self.what).into()),
            Raw::Variable(text) => (self.parse)(text)?,
        };
        Ok(())
    }

    fn show(&self) -> String {
        toml_string(&(self.show)(self.value))
    }
}

/// Binding for a value written as a string, with its own parser; `what` is the end of "must be …".
pub fn text<'a, T>(
    value: &'a mut T,
    what: &'static str,
    parse: impl Fn(&str) -> Result<T, String> + 'a,
    show: impl Fn(&T) -> String + 'a,
) -> impl Binding + 'a {
    Text { value, what, parse: move |text: &str| parse(text).map_err(Refusal::from), show }
}

/// As [`text`], with the empty string for none.
pub fn optional<'a, T: Display>(
    value: &'a mut Option<T>,
    what: &'static str,
    parse: impl Fn(&str) -> Result<T, String> + 'a,
) -> impl Binding + 'a {
    let parse = move |text: &str| if text.is_empty() { Ok(None) } else { parse(text).map(Some) };
    text(value, what, parse, |value: &Option<T>| value.as_ref().map_or(String::new(), T::to_string))
}

/// Binding for a duration such as `"20s"`, within limits.
pub fn duration(value: &mut Duration, range: RangeInclusive<Duration>) -> impl Binding + '_ {
    let parse = move |text: &str| parse_duration(text, &range);
    Text { value, what: DURATION, parse, show: |value: &Duration| show_duration(*value) }
}

/// Binding for a duration within limits, or `"never"`.
pub(crate) fn duration_or_never(
    value: &mut Option<Duration>,
    range: RangeInclusive<Duration>,
) -> impl Binding + '_ {
    let parse = move |text: &str| never(text, |text| parse_duration(text, &range));
    let show = |value: &Option<Duration>| value.map_or("never".into(), show_duration);
    Text { value, what: "a duration such as \"20s\", or \"never\"", parse, show }
}

/// Binding for a size in bytes such as `"256KiB"`, within limits.
pub fn size<T>(value: &mut T, range: RangeInclusive<u64>) -> impl Binding + '_
where
    T: Copy + TryFrom<u64> + TryInto<u64>,
{
    let parse = move |text: &str| fit(parse_size(text, &range)?);
    Text { value, what: SIZE, parse, show: |value: &T| show_size(wide(*value)) }
}

/// Binding for a size in bytes within limits, or `"never"`.
pub fn size_or_never<T>(value: &mut Option<T>, range: RangeInclusive<u64>) -> impl Binding + '_
where
    T: Copy + TryFrom<u64> + TryInto<u64>,
{
    let parse = move |text: &str| never(text, |text| fit(parse_size(text, &range)?));
    let show = |value: &Option<T>| value.map_or("never".into(), |value| show_size(wide(value)));
    Text { value, what: "a size such as \"256KiB\", or \"never\"", parse, show }
}

fn parse_duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, Refusal> {
    let millis = with_unit(text, &DURATION_UNITS).ok_or_else(|| Raw::Variable(text).expected(DURATION))?;
    within(Duration::from_millis(millis), range, |value| show_duration(*value))
}

/// Parses a duration within limits.
///
/// # Errors
/// The text is no duration, or it is out of range; with the requirement.
pub(super) fn parse_duration_within(
    text: &str,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
    parse_duration(text, range).map_err(|refusal| refusal.message)
}

/// Parses a duration as in the configuration.
///
/// # Errors
/// The text is no duration, with the requirement.
pub fn read_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text, &(Duration::ZERO..=Duration::MAX)).map_err(|refusal| refusal.message)
}

fn parse_size(text: &str, range: &RangeInclusive<u64>) -> Result<u64, Refusal> {
    let bytes = with_unit(text, &SIZE_UNITS).ok_or_else(|| Raw::Variable(text).expected(SIZE))?;
    within(bytes, range, |value| show_size(*value))
}

fn never<T>(text: &str, parse: impl Fn(&str) -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    if text == "never" { Ok(None) } else { parse(text).map(Some) }
}

fn fit<T: TryFrom<u64>>(value: u64) -> Result<T, Refusal> {
    T::try_from(value).map_err(|_| format!("{value} exceeds the limit of this machine").into())
}

fn wide(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

/// Binding for a whole number.
struct Count<'a, T> {
    value: &'a mut T,
    range: RangeInclusive<u64>,
}

/// Binding for a plain integer within limits.
pub fn count<T>(value: &mut T, range: RangeInclusive<u64>) -> impl Binding + '_
where
    T: Copy + TryFrom<u64> + TryInto<u64>,
{
    Count { value, range }
}

impl<T: Copy + TryFrom<u64> + TryInto<u64>> Binding for Count<'_, T> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        let (min, max) = (self.range.start(), self.range.end());
        let refused = || raw.expected(&format!("a whole number between {min} and {max}"));
        let number = match raw {
            Raw::Toml(DeValue::Integer(n)) => {
                u64::from_str_radix(n.as_str(), n.radix()).map_err(|_| refused())?
            }
            Raw::Toml(_) => return Err(refused().into()),
            Raw::Variable(text) => text.parse().map_err(|_| refused())?,
        };
        if !self.range.contains(&number) {
            return Err(refused().into());
        }
        *self.value = fit(number)?;
        Ok(())
    }

    fn show(&self) -> String {
        wide(*self.value).to_string()
    }
}

/// Binding for a share.
struct Share<'a>(&'a mut f64);

/// Binding for a number from 0 to 1.
pub fn share(value: &mut f64) -> impl Binding + '_ {
    Share(value)
}

impl Binding for Share<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        let number = match raw {
            Raw::Toml(DeValue::Float(number)) => number.as_str().parse::<f64>().ok(),
            Raw::Toml(DeValue::Integer(number)) => number.as_str().parse().ok(),
            Raw::Toml(_) => None,
            Raw::Variable(text) => text.parse().ok(),
        };
        match number {
            Some(number) if (0.0..=1.0).contains(&number) => *self.0 = number,
            _ => {
                return Err(raw.expected("a share between 0.0 and 1.0, such as 0.1 for ten per cent").into());
            }
        }
        Ok(())
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Binding for a switch.
struct Flag<'a>(&'a mut bool);

/// Binding for `true` or `false`.
pub fn flag(value: &mut bool) -> impl Binding + '_ {
    Flag(value)
}

impl Binding for Flag<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        *self.0 = match raw {
            Raw::Toml(DeValue::Boolean(flag)) => *flag,
            Raw::Variable("true") => true,
            Raw::Variable("false") => false,
            _ => return Err(raw.expected("true or false, without quotes").into()),
        };
        Ok(())
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Binding for one of a few words.
pub fn choice<'a, T: Copy + PartialEq>(
    value: &'a mut T,
    words: &'static [(&'static str, T)],
) -> impl Binding + 'a {
    let list = words.iter().map(|(word, _)| quote(word)).collect::<Vec<_>>().join(", ");
    let parse = move |text: &str| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| format!("must be one of {list}, not {}", quote(text)))
    };
    let show = |value: &T| words.iter().find(|(_, v)| v == value).map_or("", |(word, _)| word).to_owned();
    text(value, "a string", parse, show)
}

/// Marks the inner binding as a path.
struct AsPath<S>(S);

impl<S: Binding> Binding for AsPath<S> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        self.0.set(raw)
    }

    fn show(&self) -> String {
        self.0.show()
    }

    fn is_path(&self) -> bool {
        true
    }
}

/// Binding for a path that is not empty.
pub fn path(value: &mut PathBuf) -> impl Binding + '_ {
    let what = "a path such as \"/var/lib/edgesync/edgesync.db\"";
    let parse =
        move |text: &str| parse_path(text).ok_or_else(|| format!("must be {what}, not {}", quote(text)));
    AsPath(text(value, what, parse, |value: &PathBuf| value.display().to_string()))
}

/// Binding for a path, or the empty string for none.
pub fn optional_path(value: &mut Option<PathBuf>) -> impl Binding + '_ {
    let show =
        |value: &Option<PathBuf>| value.as_ref().map_or(String::new(), |path| path.display().to_string());
    AsPath(text(value, "a path, or \"\" for none", |text| Ok(parse_path(text)), show))
}

/// Binding for a path, or the empty string for one derived from other keys.
pub fn path_or_derived(value: &mut PathBuf) -> impl Binding + '_ {
    let parse = |text: &str| Ok(parse_path(text).unwrap_or_default());
    AsPath(text(value, "a path, or \"\"", parse, |value: &PathBuf| value.display().to_string()))
}

fn parse_path(text: &str) -> Option<PathBuf> {
    (!text.is_empty() && !text.contains('\0')).then(|| PathBuf::from(text))
}

/// Binding for permission bits in octal, such as `"0660"`.
pub fn file_mode(value: &mut u32) -> impl Binding + '_ {
    let what = "permission bits in octal such as \"0660\"";
    let parse = move |text: &str| match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && (3..=4).contains(&text.len()) => Ok(mode),
        _ => Err(format!("must be {what}, not {}", quote(text))),
    };
    text(value, what, parse, |mode: &u32| format!("{mode:04o}"))
}

/// Binding for a loopback address, or `"off"`; `why` ends the refusal of any other.
pub(crate) fn loopback_or_off<'a>(value: &'a mut Option<SocketAddr>, why: &'static str) -> impl Binding + 'a {
    let what = "a loopback address with a port such as \"127.0.0.1:10550\", or \"off\"";
    let parse = move |text: &str| match text.parse::<SocketAddr>() {
        _ if text.is_empty() || text == "off" => Ok(None),
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        Ok(address) => Err(format!("must be {what}, not {address}: {why}")),
        Err(_) => Err(format!("must be {what}, not {}", quote(text))),
    };
    text(value, what, parse, |value: &Option<SocketAddr>| value.map_or("off".into(), |v| v.to_string()))
}

/// Binding for an address to listen on, or `"off"`.
pub fn address_or_off(value: &mut Option<SocketAddr>) -> impl Binding + '_ {
    let what = "an address with a port such as \"127.0.0.1:10551\", or \"off\"";
    let parse = move |text: &str| match text.parse::<SocketAddr>() {
        _ if text.is_empty() || text == "off" => Ok(None),
        Ok(address) => Ok(Some(address)),
        Err(_) => Err(format!("must be {what}, not {}", quote(text))),
    };
    text(value, what, parse, |value: &Option<SocketAddr>| value.map_or("off".into(), |v| v.to_string()))
}

/// Binding for a list of strings, parsed one by one.
struct List<'a, T, P> {
    value: &'a mut Vec<T>,
    what: &'static str,
    parse: P,
}

/// Binding for a list of strings that `parse` accepts; `a,b` in a variable. `what` is the end of
/// "must be …".
pub fn list<'a, T: ToString>(
    value: &'a mut Vec<T>,
    what: &'static str,
    parse: impl Fn(&str) -> Result<T, String> + 'a,
) -> impl Binding + 'a {
    List { value, what, parse }
}

/// Binding for a list of words that `check` accepts; `a,b` in a variable. `what` is the end of
/// "must be …".
pub fn words<'a>(
    value: &'a mut Vec<String>,
    what: &'static str,
    check: impl Fn(&str) -> Result<(), String> + 'a,
) -> impl Binding + 'a {
    list(value, what, move |word| check(word).map(|()| word.to_owned()))
}

/// Binding for labels of a node.
struct Labels<'a>(&'a mut BTreeMap<String, String>);

/// Binding for a table of Kubernetes labels; `key=value,…` in a variable.
pub fn labels(value: &mut BTreeMap<String, String>) -> impl Binding + '_ {
    Labels(value)
}

impl Binding for Labels<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        let (mut labels, mut refusals) = (BTreeMap::new(), Refusals::default());
        match raw {
            Raw::Toml(DeValue::Table(table)) => {
                for (key, value) in table {
                    let read = match value.get_ref() {
                        DeValue::String(text) => check_label(key.get_ref(), text).map(|()| {
                            labels.insert(key.get_ref().to_string(), text.to_string());
                        }),
                        other => Err(Raw::Toml(other).expected("a string").message),
                    };
                    refusals.add("", &value.span(), read);
                }
            }
            Raw::Toml(_) => return Err(raw.expected("a table such as { site = \"north\" }").into()),
            Raw::Variable(text) => {
                for pair in text.split(',').filter(|pair| !pair.is_empty()) {
                    let (key, value) = pair
                        .split_once('=')
                        .ok_or_else(|| raw.expected("labels such as site=north,rack=4"))?;
                    check_label(key, value)?;
                    labels.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        refusals.result()?;
        *self.0 = labels;
        Ok(())
    }

    fn show(&self) -> String {
        let pair =
            |(key, value): (&String, &String)| format!("{} = {}", toml_string(key), toml_string(value));
        match self.0.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", self.0.iter().map(pair).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl<T: ToString, P: Fn(&str) -> Result<T, String>> Binding for List<'_, T, P> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        let (mut values, mut refusals) = (Vec::new(), Refusals::default());
        match raw {
            Raw::Toml(DeValue::Array(items)) => {
                for item in items {
                    let read = match item.get_ref() {
                        DeValue::String(text) => (self.parse)(text).map(|value| values.push(value)),
                        other => Err(Raw::Toml(other).expected("a string").message),
                    };
                    refusals.add("", &item.span(), read);
                }
            }
            Raw::Toml(_) => return Err(raw.expected(self.what).into()),
            Raw::Variable(text) => {
                for word in text.split(',').filter(|word| !word.is_empty()) {
                    values.push((self.parse)(word)?);
                }
            }
        }
        refusals.result()?;
        *self.value = values;
        Ok(())
    }

    fn show(&self) -> String {
        format!(
            "[{}]",
            self.value.iter().map(|value| toml_string(&value.to_string())).collect::<Vec<_>>().join(", ")
        )
    }
}

/// Parses a label `key=value`.
///
/// # Errors
/// The label is invalid, with the reason.
pub fn read_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{} is not KEY=VALUE", quote(text)))?;
    check_label(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

fn check_label(key: &str, value: &str) -> Result<(), String> {
    let named = |problem| format!("label {}: {problem}", quote(key));
    name::check_label_key(key).map_err(named)?;
    name::check_label_value(value).map_err(named)
}

/// Checks that `low` is at most `high`; the error names both.
pub fn ordered<T: PartialOrd + Copy>(
    (low_key, low): (&str, T),
    (high_key, high): (&str, T),
    show: impl Fn(T) -> String,
) -> Result<(), String> {
    if low <= high {
        return Ok(());
    }
    let (low, high) = (show(low), show(high));
    Err(format!("{low_key} ({low}) must not be more than {high_key} ({high})"))
}
