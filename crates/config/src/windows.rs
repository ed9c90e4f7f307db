//! Windows of `[[files]]`, and the time zones of the system.

use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use toml::Spanned;
use toml::de::DeValue;

use super::binding::{Raw, Refusals, quote};
use super::selection::{read_table, table};
use edgesync_files::calendar::Window;
use edgesync_files::rule::Rule;

/// Maximum number of windows of a rule.
const MAX_WINDOWS: usize = 32;
/// Database of the system, unless `TZDIR` names another.
const ZONES: &str = "/usr/share/zoneinfo";
/// Maximum length of a zone's name, and size of its file, in bytes.
const MAX_ZONE_NAME: usize = 64;
const MAX_ZONE_SIZE: u64 = 64 << 10;
const KEYS: [&str; 2] = ["at", "zone"];
const APPLY: &str =
    "a window such as { at = \"Mon-Fri 02:00-04:00\", zone = \"Europe/Berlin\" }, or a list of them";
const AT: &str = "days and times such as \"Mon-Fri 02:00-04:00\"";
const ZONE: &str = "a time zone such as \"Europe/Berlin\" or \"UTC\"";

/// Reads one window of a rule, or a list of windows. A zone that the device does not have is no
/// error: it closes them, and not the whole configuration.
///
/// # Errors
/// All wrong parts of them.
pub(super) fn windows(value: &Spanned<DeValue<'_>>, rule: &mut Rule) -> Result<(), Refusals> {
    let DeValue::Array(list) = value.get_ref() else {
        return window(value, rule);
    };
    if list.is_empty() || list.len() > MAX_WINDOWS {
        return Err(format!(
            "must have 1 to {MAX_WINDOWS} windows; without apply, changes take effect at any time"
        )
        .into());
    }
    let mut refusals = Refusals::default();
    for value in list {
        refusals.add("", &value.span(), window(value, rule));
    }
    refusals.result()
}

fn window(value: &Spanned<DeValue<'_>>, rule: &mut Rule) -> Result<(), Refusals> {
    let (mut at, mut zone) = (None, TimeZone::UTC);
    let refusals = read_table(table(value, APPLY)?, &KEYS, |key, value| {
        let text = |what: &str| match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            other => Err(Refusals::from(Raw::Toml(other).expected(what))),
        };
        Some(match key {
            // Also without its zone the text has to be valid.
            "at" => text(AT).and_then(|text| {
                Window::parse(&text, TimeZone::UTC).map_err(|error| error.to_string())?;
                at = Some(text);
                Ok(())
            }),
            "zone" => text(ZONE).and_then(|name| {
                check_zone(&name)?;
                match find_zone(&name, &zones()) {
                    Ok(found) => zone = found,
                    Err(why) => rule.unknown_zone = Some(why),
                }
                Ok(())
            }),
            _ => return None,
        })
    });
    refusals.result()?;
    let at = at.ok_or_else(|| format!("at is missing: must be {AT}"))?;
    rule.apply.push(Window::parse(&at, zone).map_err(|error| error.to_string())?);
    Ok(())
}

fn zones() -> PathBuf {
    std::env::var_os("TZDIR").map_or_else(|| ZONES.into(), PathBuf::from)
}

/// Checks the syntax of a zone's name, so that it leads to no file elsewhere.
fn check_zone(name: &str) -> Result<(), String> {
    let is_word = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+".contains(&byte);
        !word.is_empty() && word.bytes().all(plain)
    };
    if name.len() > MAX_ZONE_NAME || !name.split('/').all(is_word) {
        return Err(format!("must be {ZONE}, not {}", quote(name)));
    }
    Ok(())
}

/// Reads a zone from the system's database. The error is for the people who wait for its windows.
fn find_zone(name: &str, zones: &Path) -> Result<TimeZone, String> {
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let path = zones.join(name);
    let unknown = |why: &dyn std::fmt::Display| {
        let hint = if zones.is_dir() { "correct the name" } else { "install tzdata, or use \"UTC\"" };
        format!("windows are closed: time zone {}: {}: {why}; hint: {hint}", quote(name), path.display())
    };
    let found = std::fs::metadata(&path).map_err(|error| unknown(&error))?;
    if !found.is_file() || found.len() > MAX_ZONE_SIZE {
        return Err(unknown(&"not a time zone"));
    }
    let data = std::fs::read(&path).map_err(|error| unknown(&error))?;
    TimeZone::tzif(name, &data).map_err(|_| unknown(&"not a time zone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{edge, parse};

    fn rules(line: &str) -> Result<usize, String> {
        let text = format!("[[files]]\nname = \"a\"\nto = \"/x/y\"\n{line}\n");
        let loaded = parse::<edge::Config>(Path::new("x.toml"), &text, []);
        let config = loaded.map(|loaded| loaded.config).map_err(|errors| errors.to_string())?;
        Ok(config.files.rules[0].apply.len())
    }

    #[test]
    fn one_window_or_several_are_read() {
        assert_eq!(rules("apply = { at = \"Mon-Fri 02:00-04:00\" }\noverridable = true"), Ok(1));
        assert_eq!(
            rules("apply = [{ at = \"22:00-02:00\" }, { at = \"Sun 00:00-24:00\", zone = \"UTC\" }]"),
            Ok(2)
        );
        assert_eq!(
            rules("unless = \"/run/busy\"\ncondition = [\"/bin/x\"]\ncondition_network = true"),
            Ok(0)
        );
    }

    #[test]
    fn invalid_windows_are_reported_with_their_requirement() {
        for (line, expected) in [
            ("apply = \"02:00-04:00\"", "files.apply: must be a window such as"),
            ("apply = []", "must have 1 to 32 windows"),
            ("apply = {}", "at is missing: must be days and times"),
            ("apply = { at = 2 }", "files.apply.at: must be days and times"),
            ("apply = { at = \"Mo 02:00-04:00\" }", "day \"Mo\" is unknown: must be Mon, Tue"),
            ("apply = { at = \"02:00-02:00\" }", "begins and ends at 02:00"),
            ("apply = { at = \"02:00-04:00\", zone = \"../passwd\" }", "must be a time zone such as"),
            ("apply = { at = \"02:00-04:00\", zone = \"/etc/passwd\" }", "must be a time zone such as"),
            ("apply = { at = \"02:00-04:00\", zon = \"UTC\" }", "did you mean 'zone'?"),
            ("apply = [{ at = \"02:00-04:00\" }, { at = \"x\" }]", "must be days and times"),
            ("overridable = true", "overridable requires apply"),
            ("condition_network = true", "condition_network requires condition"),
            ("condition = [\"ask-plc\"]", "files.condition: must name its program by an absolute path"),
            ("unless = \"run/busy\"", "files.unless: must be an absolute path such as"),
        ] {
            let error = rules(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn zone_that_the_device_lacks_closes_the_windows_of_its_rule_only() {
        let text = "[[files]]\nname = \"a\"\nto = \"/x/a\"\napply = { at = \"02:00-04:00\", zone = \"No/Where\" }\n\
                    [[files]]\nname = \"b\"\nto = \"/x/b\"\napply = { at = \"02:00-04:00\" }\n";
        let loaded = parse::<edge::Config>(Path::new("x.toml"), text, []).unwrap();
        let [a, b] = loaded.config.files.rules.as_slice() else { panic!("two rules") };
        let why = a.unknown_zone.as_deref().unwrap();
        assert!(why.contains("time zone \"No/Where\": ") && why.contains("/No/Where: No such file"), "{why}");
        assert_eq!((a.apply.len(), b.apply.len(), &b.unknown_zone), (1, 1, &None));
        assert_eq!(loaded.warnings, [format!("rule \"a\": {why}")]);
    }

    #[test]
    fn zones_are_those_of_the_system() {
        let missing = find_zone("Europe/Berlin", Path::new("/no/such/directory")).unwrap_err();
        assert!(missing.contains("hint: install tzdata"), "{missing}");
        if Path::new(ZONES).is_dir() {
            let berlin = find_zone("Europe/Berlin", Path::new(ZONES)).unwrap();
            assert_eq!(berlin.iana_name(), Some("Europe/Berlin"));
            assert!(find_zone("Europe", Path::new(ZONES)).is_err());
            assert!(find_zone("tzdata.zi", Path::new(ZONES)).is_err());
        }
    }
}
