//! Output formats: tables as in `kubectl`, ages, key-value sheets, YAML and JSON. Pure.

use std::fmt::Write as _;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::Value;

use super::CliError;
use edgesync_object::time::duration;
use edgesync_object::yaml;

/// Spaces between the columns of a table.
const GAP: usize = 3;
/// Placeholder of a missing value.
pub const NONE: &str = "<none>";
/// Placeholder of an unknown time.
const UNKNOWN: &str = "<unknown>";

/// The output format of `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// `kind/name` on each line.
    Name,
    Yaml,
    Json,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "table" | "" => Ok(Self::Table),
            "wide" => Ok(Self::Wide),
            "name" => Ok(Self::Name),
            "yaml" => Ok(Self::Yaml),
            "json" => Ok(Self::Json),
            _ => Err(format!("unknown output format '{word}': expected table, wide, name, yaml or json")),
        }
    }
}

/// A table with upper-case headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table.
    pub fn new<H: AsRef<str>>(headers: impl IntoIterator<Item = H>) -> Self {
        let headers = headers.into_iter().map(|header| header.as_ref().to_uppercase()).collect();
        Self { headers, rows: Vec::new() }
    }

    /// Adds a row. Control characters are escaped, so that external text cannot steer the terminal.
    /// Missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let plain = |cell: String| {
            if cell.chars().any(char::is_control) { cell.escape_debug().to_string() } else { cell }
        };
        self.rows.push(cells.into_iter().map(plain).take(self.headers.len()).collect());
    }

    /// Sorts the rows by the cells of some columns, the most significant first.
    pub(super) fn sort_by(&mut self, columns: &[usize]) {
        self.rows.sort_by(|a, b| {
            let others = columns.iter().map(|column| b.get(*column));
            columns.iter().map(|column| a.get(*column)).cmp(others)
        });
    }

    /// Removes a column of times if none of them is known.
    pub(super) fn remove_if_unknown(&mut self, header: &str) {
        let Some(at) = self.headers.iter().position(|other| other == header) else { return };
        if self.rows.iter().all(|row| row.get(at).is_some_and(|cell| cell == UNKNOWN)) {
            self.headers.remove(at);
            for row in &mut self.rows {
                row.remove(at);
            }
        }
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the column widths: those of the widest cells.
    #[must_use]
    pub fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.headers.len()];
        for line in std::iter::once(&self.headers).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        widths
    }

    /// Formats the table. The last column is not padded.
    #[must_use]
    pub fn render(&self) -> String {
        let widths = self.widths();
        let lines = std::iter::once(&self.headers).chain(&self.rows);
        lines.map(|cells| padded(&widths, cells)).collect()
    }
}

/// Formats a further row of a printed table with its column widths.
pub(super) fn line(widths: &[usize], cells: impl IntoIterator<Item = String>) -> String {
    let mut row = Table { headers: vec![String::new(); widths.len()], rows: Vec::new() };
    row.row(cells);
    padded(widths, &row.rows.remove(0))
}

fn padded(widths: &[usize], cells: &[String]) -> String {
    let mut out = String::new();
    for (width, cell) in widths.iter().zip(cells) {
        let _ = write!(out, "{cell:<fill$}", fill = width + GAP);
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
    out
}

/// Formats the age of a time as `kubectl` does: `5s`, `3m12s`, `2h`, `4d`, `1y20d`. Invalid times
/// are unknown.
#[must_use]
pub fn age(now: Timestamp, since: &str) -> String {
    match since.parse::<Timestamp>() {
        Ok(since) => duration(now.as_second() - since.as_second()),
        Err(_) => UNKNOWN.to_owned(),
    }
}

/// Formats a number of bytes, with one decimal from 1 KiB on.
#[must_use]
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        // A value that would round to 1024.0 moves to the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Fields that hold data by key, whose keys are shown unchanged.
const DATA_MAPS: [&str; 2] = ["labels", "annotations"];

/// Formats a JSON value as a sheet: a line per field, names as words except for the keys of data,
/// nested objects indented, lists of scalars on one line.
#[must_use]
pub fn key_values(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(_) => sheet(&mut out, value, 0, words),
        plain => {
            out.push_str(&cell(plain));
            out.push('\n');
        }
    }
    out
}

/// Formats the name of a field.
type Show = fn(&str) -> String;

fn sheet(out: &mut String, value: &Value, depth: usize, show: Show) {
    let fields: Vec<(String, &Value, Show)> = match value {
        Value::Object(fields) => {
            let shown = |name: &str| if DATA_MAPS.contains(&name) { escaped as Show } else { words };
            fields.iter().map(|(name, value)| (show(name), value, shown(name))).collect()
        }
        Value::Array(items) => items.iter().map(|item| ("-".to_owned(), item, words as Show)).collect(),
        _ => return,
    };
    let indent = depth * 2;
    let plain = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.iter().all(|item| !item.is_object() && !item.is_array()),
        _ => true,
    };
    let names = fields.iter().filter(|(_, value, _)| plain(value)).map(|(name, ..)| name.chars().count());
    let width = names.max().unwrap_or(0) + 1;
    for (name, value, show) in fields {
        let name = if name == "-" { name } else { format!("{name}:") };
        if plain(value) {
            let _ = writeln!(out, "{:indent$}{name:<width$}{:GAP$}{}", "", "", cell(value));
        } else {
            let _ = writeln!(out, "{:indent$}{name}", "");
            sheet(out, value, depth + 1, show);
        }
    }
}

/// Formats a scalar, or a list of scalars, on one line.
#[must_use]
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => NONE.to_owned(),
        Value::String(text) if text.chars().any(char::is_control) => text.escape_debug().to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(items) if items.is_empty() => NONE.to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(fields) if fields.is_empty() => NONE.to_owned(),
        Value::Object(_) => value.to_string(),
    }
}

/// Returns a name with escaped control characters.
fn escaped(name: &str) -> String {
    if name.chars().any(char::is_control) { name.escape_debug().to_string() } else { name.to_owned() }
}

/// Formats `lastReportAt` as `Last report at`. Names that are not camelCase are left unchanged.
fn words(name: &str) -> String {
    if !name.chars().all(char::is_alphanumeric) || !name.starts_with(char::is_lowercase) {
        return escaped(name);
    }
    let mut out = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        match letter {
            first if out.is_empty() => out.extend(first.to_uppercase()),
            upper if upper.is_uppercase() => {
                out.push(' ');
                out.extend(upper.to_lowercase());
            }
            other => out.push(other),
        }
    }
    out
}

/// Formats a value as YAML or JSON; other formats give the sheet.
///
/// # Errors
/// The value cannot be written as YAML.
pub fn render(value: &Value, output: Output) -> Result<String, CliError> {
    match output {
        Output::Yaml => yaml::write(value).map_err(|error| CliError::Show(error.to_string())),
        Output::Json => Ok(format!("{value:#}\n")),
        Output::Table | Output::Wide | Output::Name => Ok(key_values(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_three_spaces_apart_without_padding_at_the_end() {
        let mut table = Table::new(["name", "DATA", "age"]);
        table.row(["kube-root-ca.crt".into(), "1".into(), "4d".into()]);
        table.row(["ä".into(), "12".into(), String::new()]);
        let expected = "NAME               DATA   AGE\nkube-root-ca.crt   1      4d\nä                  12\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn rows_are_sorted_by_columns_and_unknown_ages_left_out() {
        let mut table = Table::new(["NODE", "OBJECT", "AGE"]);
        for (node, object) in [("b", "x"), ("a", "z"), ("a", "y")] {
            table.row([node.into(), object.into(), UNKNOWN.into()]);
        }
        table.sort_by(&[0, 1]);
        let mut known = table.clone();
        table.remove_if_unknown("AGE");
        assert_eq!(table.render(), "NODE   OBJECT\na      y\na      z\nb      x\n");
        known.row(["c".into(), "x".into(), "5s".into()]);
        known.remove_if_unknown("AGE");
        assert!(known.render().starts_with("NODE   OBJECT   AGE\n"), "{}", known.render());
    }

    #[test]
    fn cells_cannot_steer_the_terminal() {
        let mut table = Table::new(["NAME"]);
        table.row(["\u{1b}[2Jgone\n".into(), "too many".into()]);
        assert_eq!(table.render(), "NAME\n\\u{1b}[2Jgone\\n\n");
        assert_eq!(cell(&json!("a\u{7}")), "a\\u{7}");
    }

    #[test]
    fn ages_are_formatted_as_in_kubectl() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (5, "5s"),
            (119, "119s"),
            (120, "2m"),
            (192, "3m12s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_600, "3h30m"),
            (100_000, "27h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
        let now: Timestamp = "2024-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(age(now, "2024-01-01T21:00:00Z"), "3h");
        assert_eq!(age(now, ""), UNKNOWN);
        assert_eq!(age(now, "yesterday"), UNKNOWN);
    }

    #[test]
    fn sizes_use_the_units_of_the_configuration() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_575, "1.0 MiB"),
            (1 << 30, "1.0 GiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn sheet_shows_fields_as_words_and_nested_objects() {
        let status = json!({
            "node": "edge-1",
            "inSync": true,
            "link": {"lastReportAt": null, "topics": ["a", "b"], "v1/ConfigMap": 7},
            "faults": [{"name": "x"}],
        });
        let expected = "\
Faults:
  -
    Name:   x
In sync:   yes
Link:
  Last report at:   <none>
  Topics:           a, b
  v1/ConfigMap:     7
Node:      edge-1
";
        assert_eq!(key_values(&status), expected);
    }

    #[test]
    fn keys_of_labels_and_annotations_are_unchanged() {
        let node = json!({
            "node": "edge-1",
            "labels": {"site": "north", "rackNumber": "7"},
            "recorded": {"annotations": {"owner": "ada"}},
        });
        let expected = "\
Labels:
  rackNumber:   7
  site:         north
Node:   edge-1
Recorded:
  Annotations:
    owner:   ada
";
        assert_eq!(key_values(&node), expected);
    }

    #[test]
    fn unknown_formats_are_refused_with_the_list() {
        assert_eq!("yaml".parse(), Ok(Output::Yaml));
        assert!("xml".parse::<Output>().unwrap_err().contains("table, wide, name, yaml or json"));
        assert_eq!(render(&json!({"a": "on"}), Output::Yaml).unwrap(), "a: \"on\"\n");
    }
}
