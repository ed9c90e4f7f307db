//! Conversion between YAML text and JSON values, with limits. Pure; the only module that names the
//! YAML crates.
//!
//! Parsing follows `kubectl`, which uses the scalars of YAML 1.1 (`on` and `yes` are true, `0400`
//! is 256). Writing quotes every string that such a parser, or one of YAML 1.2, would interpret as
//! another type.

use serde::Serialize;
use serde_json::Value;

mod compose;
mod scalar;

/// Reason why text is not a YAML document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct YamlError {
    /// Line in the text, from 1, if known.
    pub line: Option<usize>,
    /// Description of the problem.
    pub problem: String,
}

impl std::fmt::Display for YamlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// One document of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// Number in the stream, from 1; empty documents count too.
    pub number: usize,
    /// Line of the stream on which the text starts, from 1.
    pub line: usize,
    /// Text without the markers.
    pub text: &'a str,
}

impl Document<'_> {
    /// Returns whether there are only blank lines, comments and directives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with(['#', '%']))
    }

    /// Parses the document; lines in errors are those of the stream.
    ///
    /// # Errors
    /// The text is not YAML, or exceeds a limit.
    pub fn parse(&self) -> Result<Value, YamlError> {
        parse(self.text).map_err(|error| {
            let line = error.line.map(|line| line + self.line - 1);
            YamlError { line, ..error }
        })
    }
}

/// Splits a stream at its `---` lines, so that an invalid document does not hide the following
/// ones.
pub fn documents(stream: &str) -> impl Iterator<Item = Document<'_>> {
    let mut rest = Some(stream);
    let (mut number, mut line) = (0, 1);
    std::iter::from_fn(move || {
        let text = rest?;
        let (document, after, skipped) = match next_marker(text) {
            Some((start, end)) => (&text[..start], Some(&text[end..]), &text[..end]),
            None => (text, None, text),
        };
        number += 1;
        let found = Document { number, line, text: document };
        line += skipped.matches('\n').count();
        rest = after;
        // A marker at the start of the stream begins its first document.
        if number == 1 && found.is_empty() && rest.is_some() {
            number = 0;
        }
        Some(found)
    })
}

/// Returns the start of the first `---` line, and the end of its marker.
fn next_marker(text: &str) -> Option<(usize, usize)> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if let Some(after) = line.strip_prefix("---")
            && after.starts_with([' ', '\t', '\r', '\n']) | after.is_empty()
        {
            return Some((start, start + 3));
        }
        start += line.len();
    }
    None
}

/// Parses one document into a JSON value.
///
/// # Errors
/// The text is not YAML, exceeds a limit, has a duplicate key, or a value that JSON lacks.
pub fn parse(text: &str) -> Result<Value, YamlError> {
    compose::compose(text)
}

/// Writes a value as a YAML document with a final newline. A one-line text stays on the line of its
/// key, however long, as kubectl writes it: scripts rely on that.
///
/// # Errors
/// The value cannot be written; values from JSON always can.
pub fn write(value: &impl Serialize) -> Result<String, YamlError> {
    let mut options = serde_saphyr::SerializerOptions::default();
    options.folded_wrap_chars = usize::MAX;
    let mut text = serde_saphyr::to_string_with_options(value, options)
        .map_err(|error| YamlError { line: None, problem: error.to_string() })?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn texts(stream: &str) -> Vec<(usize, usize, &str)> {
        documents(stream)
            .filter(|document| !document.is_empty())
            .map(|document| (document.number, document.line, document.text.trim()))
            .collect()
    }

    #[test]
    fn stream_is_split_at_its_markers() {
        assert_eq!(texts("a: 1\n---\nb: 2\n"), [(1, 1, "a: 1"), (2, 2, "b: 2")]);
        assert_eq!(texts("---\na: 1\n--- # two\nb: 2\n---\n"), [(1, 1, "a: 1"), (2, 3, "# two\nb: 2")]);
        assert_eq!(texts("# only\n\n---\n# comments\n"), []);
        assert_eq!(texts("a: |\n  ---\n  x\n----\n"), [(1, 1, "a: |\n  ---\n  x\n----")]);
        assert_eq!(texts("a: 1\r\n---\r\nb: 2\r\n"), [(1, 1, "a: 1"), (2, 2, "b: 2")]);
        assert_eq!(texts(""), []);
    }

    #[test]
    fn errors_name_the_line_of_the_stream() {
        let second = documents("a: 1\n---\nb: 2\nc: [1\n").nth(1).unwrap();
        let error = second.parse().unwrap_err();
        assert!(error.line.is_some_and(|line| (3..=5).contains(&line)), "{error:?}");
    }

    /// Compares with the corpus, which a test with kubectl itself uses too.
    #[test]
    fn scalars_have_the_types_of_kubectl() {
        let corpus = include_str!("../../../tests/fixtures/yaml/scalars.txt");
        let mut wrong = Vec::new();
        for line in corpus.lines().filter(|line| !line.starts_with('#')) {
            let (text, expected) = line.split_once(" => ").unwrap();
            let read = parse(&format!("v: {text}\n"));
            let found = read.map_or_else(|_| "error".to_owned(), |read| read["v"].to_string());
            if found != expected {
                wrong.push(format!("{line}: {found}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn merged_fields_are_overridden_by_explicit_ones() {
        let text = "b: &b {x: 1, y: 2}\nv: {<<: *b, x: 3}\nw: {x: 3, <<: *b}\nl: {<<: [{x: 4}, *b]}\n";
        let read = parse(text).unwrap();
        assert_eq!(read["v"], json!({"x": 3, "true": 2}));
        assert_eq!(read["w"], json!({"x": 1, "true": 2}));
        assert_eq!(read["l"], json!({"x": 4, "true": 2}));
        assert!(parse("<<: 1\n").is_err());
        assert!(parse("a: 1\n---\nb: 2\n").is_err());
    }

    #[test]
    fn duplicate_key_is_an_error() {
        assert!(parse("a: 1\na: 2\n").is_err());
    }

    #[test]
    fn bombs_are_refused_quickly() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let refs = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(parse(&bomb).is_err());
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 900].join(", "));
        assert!(parse(&long).is_err(), "aliases of a long string");
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&"- ".repeat(100_000)).is_err());
    }

    #[test]
    fn ambiguous_strings_survive_other_parsers() {
        for odd in [
            "true",
            "on",
            "yes",
            "y",
            "n",
            "no",
            "off",
            "null",
            "~",
            "1",
            "0x1f",
            "0o7",
            "007",
            "0b1",
            "0b-1",
            "+_1",
            "1__0",
            "0_",
            "1._5",
            "-.5e+3",
            "09",
            "1_000",
            "1e3",
            ".5",
            "1:30",
            "2024-01-01",
            "2024-01-01T00:00:00Z",
            ".inf",
            ".nan",
            "=",
            "<<",
            "",
            " ",
            "- a",
            "a: b",
            "#x",
            "a #b",
            "@x",
            "`x",
            "%x",
            "!x",
            "&x",
            "*x",
            "|",
            ">",
            "?",
            "---",
            "...",
            "{}",
            "[]",
            "'",
            "\"",
            ",",
        ] {
            let text = write(&json!({ "k": odd })).unwrap();
            assert_eq!(parse(&text).unwrap()["k"], json!(odd), "{text}");
            let plain = text.trim_end() == format!("k: {odd}");
            assert!(!plain, "{odd:?} must be quoted: {text}");
        }
    }

    #[test]
    fn multi_line_texts_survive_a_round_trip() {
        for text in [
            "a\nb\n",
            "a\nb",
            "a\n\n\nb\n\n",
            "\n",
            "\n\na",
            "  indented\nless\n",
            "tab\there\n",
            "trailing \nspace \n",
            "a\r\nb\r\n",
            "#!/bin/sh\nset -e\n\nexec \"$@\"\n",
            "x: y\n- z\n",
            "\u{feff}bom",
            "nul\0",
            "\u{85}\u{2028}",
            "---\n...\n",
            "word ".repeat(50).as_str(),
            &"long ".repeat(60),
            " leading and long ".repeat(20).as_str(),
        ] {
            let value = json!({"data": {"k": text}, "list": [text, {"n": text}]});
            let written = write(&value).unwrap();
            assert_eq!(parse(&written).unwrap(), value, "{written}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[ -~\n\t]{0,120}".prop_map(Value::from),
            "(?s).{0,20}".prop_map(Value::from),
            "[-+.0-9_box]{1,6}".prop_map(Value::from),
            "[yYnNoOeEsSfFtTrRuUlLaA~]{1,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[ -~\n]{0,12}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn long_text_stays_on_the_line_of_its_key() {
        let long = "QUJD".repeat(200);
        let words = "many words ".repeat(40);
        let text = write(&json!({"a": long, "b": {"c": words.trim()}, "d": "one\ntwo\n"})).unwrap();
        assert!(text.contains(&format!("a: {long}\n")), "{text}");
        assert!(text.contains(&format!("  c: {}\n", words.trim())), "{text}");
        assert!(text.contains("d: |\n  one\n  two\n"), "{text}");
    }

    proptest! {
        #[test]
        fn every_json_value_survives_a_round_trip(value in any_json()) {
            let written = write(&value).unwrap();
            let read = parse(&written);
            prop_assert_eq!(read.as_ref(), Ok(&value), "{}", written);
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "(?s).{0,200}") {
            for document in documents(&text) {
                let _ = document.parse();
            }
        }
    }
}
