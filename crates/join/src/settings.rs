//! Editor for the configuration file: sets keys and preserves everything else. Pure.

use toml::de::{DeTable, DeValue};

/// Section, key, and TOML text of the value.
pub type Setting<'a> = (&'a str, &'a str, String);

/// Formats a string as TOML text.
#[must_use]
pub fn string(text: &str) -> String {
    // TOML accepts JSON's escapes in strings.
    serde_json::Value::from(text).to_string()
}

/// Sets keys in the text of a configuration. Replaces a line that sets the key (or a comment `#key
/// = …` that shows its default) in its section; otherwise inserts the key right after the header of
/// its section, which is appended if it is missing.
///
/// # Errors
/// The result does not have the requested values (a key inside a multi-line string, a section
/// written as an inline table or with dots); names the key to edit by hand.
pub(crate) fn set_all(text: &str, settings: &[Setting<'_>]) -> Result<String, String> {
    let mut lines = text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
    for setting in settings {
        set(&mut lines, setting);
    }
    let edited = lines.concat();
    check(text, &edited, settings)?;
    Ok(edited)
}

/// Returns the strings that the text sets in a section: one, or those of a list.
pub(crate) fn get(text: &str, section: &str, key: &str) -> Option<Vec<String>> {
    let table = DeTable::parse(text).ok()?;
    match find(table.get_ref(), section, key)? {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Array(items) => {
            items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
        }
        _ => None,
    }
}

/// Sets one key, line by line.
fn set(lines: &mut Vec<String>, (section, key, value): &Setting<'_>) {
    let end_of_line = match lines.first() {
        Some(first) if first.ends_with("\r\n") => "\r\n",
        _ => "\n",
    };
    let Some(start) = lines.iter().position(|line| header(line) == Some(section)) else {
        if let Some(last) = lines.last_mut() {
            if !last.ends_with('\n') {
                last.push_str(end_of_line);
            }
            lines.push(end_of_line.to_owned());
        }
        lines.push(format!("[{section}]{end_of_line}"));
        lines.push(format!("{key} = {value}{end_of_line}"));
        return;
    };
    let body =
        lines.iter().enumerate().skip(start + 1).take_while(|(_, line)| !line.trim_start().starts_with('['));
    let find = |content: fn(&str) -> Option<&str>| {
        body.clone().find(|(_, line)| content(line).is_some_and(|rest| sets(rest, key))).map(|(at, _)| at)
    };
    let set_now = find(|line| Some(line.trim_start()));
    match set_now.or_else(|| find(|line| line.trim_start().strip_prefix('#').map(str::trim_start))) {
        Some(at) => {
            let remark = set_now.map_or("", |_| remark(&lines[at]));
            let space = if remark.is_empty() { "" } else { " " };
            lines[at] = format!("{key} = {value}{space}{remark}{end_of_line}");
        }
        None => {
            if !lines[start].ends_with('\n') {
                lines[start].push_str(end_of_line);
            }
            lines.insert(start + 1, format!("{key} = {value}{end_of_line}"));
        }
    }
}

/// Returns the section name in a line such as `[link]`.
fn header(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    Some(name.trim().trim_matches(['"', '\'']))
}

/// Returns whether a line sets the key.
fn sets(line: &str, key: &str) -> bool {
    line.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key)
}

/// Returns the comment after the value in a line that sets a key.
fn remark(line: &str) -> &str {
    let Ok(table) = DeTable::parse(line) else { return "" };
    let end = table.get_ref().values().map(|value| value.span().end).max();
    end.and_then(|end| line.get(end..)).unwrap_or_default().trim()
}

/// Verifies that the texts differ in the settings only.
fn check(old: &str, new: &str, settings: &[Setting<'_>]) -> Result<(), String> {
    let by_hand = |section: &str, key: &str, why: &str| {
        format!(
            "set {key} in [{section}]: {why}; hint: set it by hand, in a section [{section}] with one key per line"
        )
    };
    let first = settings.first().map_or(("", ""), |(section, key, _)| (*section, *key));
    let parse = |text| DeTable::parse(text).map_err(|error| by_hand(first.0, first.1, error.message()));
    let (old, new) = (parse(old)?, parse(new)?);
    let (old, new) = (old.get_ref(), new.get_ref());
    for (section, key, value) in settings {
        let expected = DeValue::parse(value).map_err(|error| by_hand(section, key, error.message()))?;
        if !find(new, section, key).is_some_and(|found| same(found, expected.get_ref())) {
            return Err(by_hand(section, key, "unsupported syntax of its present value"));
        }
    }
    let all = old.iter().chain(new);
    for (section, table) in all {
        let section = section.get_ref().as_ref();
        let keys = match table.get_ref() {
            DeValue::Table(table) => table.keys().map(|key| key.get_ref().as_ref()).collect(),
            _ => vec![""],
        };
        for key in
            keys.into_iter().filter(|key| !settings.iter().any(|(s, k, _)| (*s, *k) == (section, *key)))
        {
            let unchanged = match (find(old, section, key), find(new, section, key)) {
                (Some(old), Some(new)) => same(old, new),
                _ => false,
            };
            if !unchanged {
                return Err(by_hand(first.0, first.1, &format!("that would change {key} in [{section}]")));
            }
        }
    }
    Ok(())
}

/// Returns the value of a key in a section; the value itself if it is no section.
fn find<'v, 'd>(table: &'v DeTable<'d>, section: &str, key: &str) -> Option<&'v DeValue<'d>> {
    match table.get(section)?.get_ref() {
        DeValue::Table(table) => table.get(key).map(toml::Spanned::get_ref),
        other => Some(other),
    }
}

/// Returns whether two values are equal, regardless of their positions.
fn same(a: &DeValue<'_>, b: &DeValue<'_>) -> bool {
    match (a, b) {
        (DeValue::Table(a), DeValue::Table(b)) => {
            let other = |key: &str| b.get(key).map(toml::Spanned::get_ref);
            a.len() == b.len()
                && a.iter().all(|(key, a)| other(key.get_ref()).is_some_and(|b| same(a.get_ref(), b)))
        }
        (DeValue::Array(a), DeValue::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a.get_ref(), b.get_ref()))
        }
        (DeValue::String(a), DeValue::String(b)) => a == b,
        (DeValue::Integer(a), DeValue::Integer(b)) => (a.as_str(), a.radix()) == (b.as_str(), b.radix()),
        (DeValue::Float(a), DeValue::Float(b)) => a.as_str() == b.as_str(),
        (DeValue::Boolean(a), DeValue::Boolean(b)) => a == b,
        (DeValue::Datetime(a), DeValue::Datetime(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn setting(section: &'static str, key: &'static str, value: &str) -> Setting<'static> {
        (section, key, string(value))
    }

    fn edit(text: &str, settings: &[Setting<'_>]) -> String {
        set_all(text, settings).unwrap()
    }

    #[test]
    fn comment_with_the_default_becomes_the_setting() {
        let text = "# top\n[node]\n\n# The name.\n#name = \"\"\n\n[link]\n#broker = \"x\"\n# name = no\n";
        let edited = edit(text, &[setting("node", "name", "a"), setting("link", "broker", "mqtts://b")]);
        let expected =
            "# top\n[node]\n\n# The name.\nname = \"a\"\n\n[link]\nbroker = \"mqtts://b\"\n# name = no\n";
        assert_eq!(edited, expected);
    }

    #[test]
    fn existing_line_is_edited_and_keeps_its_comment() {
        let text = "[ link ] # us\n#broker = 1\n  broker=\"#old\" # ours\r\nprefix = \"p\"\n";
        let expected = "[ link ] # us\n#broker = 1\nbroker = \"new\" # ours\nprefix = \"p\"\n";
        assert_eq!(edit(text, &[setting("link", "broker", "new")]), expected);
        assert_eq!(edit(expected, &[setting("link", "broker", "new")]), expected);
    }

    #[test]
    fn missing_sections_and_keys_are_added() {
        let identity = setting("identity", "directory", "/d");
        assert_eq!(edit("", std::slice::from_ref(&identity)), "[identity]\ndirectory = \"/d\"\n");
        let both = [identity.clone(), setting("identity", "cloud", "c")];
        let expected = "[log]\nlevel = \"info\"\n\n[identity]\ncloud = \"c\"\ndirectory = \"/d\"\n";
        assert_eq!(edit("[log]\nlevel = \"info\"", &both), expected);
        assert_eq!(edit("[identity]", std::slice::from_ref(&identity)), "[identity]\ndirectory = \"/d\"\n");
        let sub = "[identity]\n[identity.more]\ndirectory = 1\n";
        assert_eq!(
            edit(sub, &[identity]),
            "[identity]\ndirectory = \"/d\"\n[identity.more]\ndirectory = 1\n"
        );
    }

    #[test]
    fn strings_and_lists_of_strings_are_read() {
        let get = |text: &str| get(text, "link", "broker");
        assert_eq!(get("[link]\nbroker = \"a\"\n"), Some(vec!["a".to_owned()]));
        let several = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(get("[link]\nbroker = [\n\"a\", # one\n\"b\"]\n"), several);
        for text in ["", "[link]\n", "[link]\nbroker = 7\n", "[link]\nbroker = [7]\n", "[link"] {
            assert_eq!(get(text), None, "{text}");
        }
    }

    #[test]
    fn windows_line_ends_are_preserved() {
        let edited = edit(
            "[node]\r\nname = \"a\"\r\n",
            &[setting("node", "name", "b"), setting("link", "prefix", "p")],
        );
        assert_eq!(edited, "[node]\r\nname = \"b\"\r\n\r\n[link]\r\nprefix = \"p\"\r\n");
    }

    #[test]
    fn uneditable_key_is_refused_by_name() {
        for text in [
            "link = { broker = \"a\" }\n",
            "link.broker = \"a\"\n",
            "[link]\nprefix = \"\"\"\nbroker = \"x\"\n\"\"\"\n",
            "[link]\nbroker = [\n\"a\",\n\"b\"]\n",
            "[link]\nbroker = \"a\"\n[link]\n",
            "[link\n",
            "[log]\nlevel = \"\"\"\n[link]\nbroker = \"x\"\n\"\"\"\n[link]\nbroker = \"new\"\n",
        ] {
            let error = set_all(text, &[setting("link", "broker", "new")]).unwrap_err();
            assert!(error.contains("broker in [link]") && error.contains("by hand"), "{text}: {error}");
        }
    }

    #[test]
    fn documented_file_accepts_all_settings() {
        let text = include_str!("../../../config/edgesync.toml");
        let settings = [
            setting("node", "name", "pump-7"),
            setting("link", "broker", "mqtts://cloud.example:8883"),
            setting("link", "prefix", "plant/v1"),
            setting("identity", "directory", "/var/lib/edgesync/identity/0"),
            setting("identity", "cloud", "https://cloud.example:10002"),
        ];
        let edited = edit(text, &settings);
        for comment in text.lines().filter(|line| line.starts_with("# ")) {
            assert!(edited.contains(comment), "{comment}");
        }
        assert_eq!(edited.matches("\nbroker = ").count(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_edited_correctly_or_refused(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "[link]", "[node]", "broker = 'a' # b", "#broker = 1", "x = '''", "'''", "link.broker = 2",
                    "broker = [", "]", "# words", "", "[link.more]", "\"broker\" = 3", "name = \"\"\"", "\"\"\"",
                ]),
                0..12,
            ),
            value in "\\PC{0,12}",
        ) {
            let text = lines.join("\n");
            if let Ok(edited) = set_all(&text, &[("link", "broker", string(&value))]) {
                let table = DeTable::parse(&edited).unwrap();
                let found = find(table.get_ref(), "link", "broker").and_then(DeValue::as_str);
                prop_assert_eq!(found, Some(value.as_str()));
                let words = |text: &str| text.matches("# words").count();
                prop_assert_eq!(words(&text), words(&edited));
            }
        }

        #[test]
        fn any_string_becomes_a_value(value in any::<String>()) {
            // The one control character that JSON does not escape.
            prop_assume!(!value.contains('\u{7f}'));
            let text = string(&value);
            let parsed = DeValue::parse(&text).unwrap();
            prop_assert_eq!(parsed.get_ref().as_str(), Some(value.as_str()));
        }
    }
}
