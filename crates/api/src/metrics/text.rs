//! The Prometheus text format, version 0.0.4. Pure.

use std::fmt::Write;
use std::time::Duration;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Cumulative counts of observations by bucket, with their sum and number.
    Histogram,
}

/// A sample's value. Without a number the sample is omitted.
pub trait Value {
    /// Returns the number; `None` omits the sample.
    fn number(self) -> Option<f64>;
}

impl Value for f64 {
    fn number(self) -> Option<f64> {
        Some(self)
    }
}

impl Value for u64 {
    fn number(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Value for i64 {
    fn number(self) -> Option<f64> {
        Some(self as f64)
    }
}

/// 1 for true, 0 for false.
impl Value for bool {
    fn number(self) -> Option<f64> {
        Some(f64::from(u8::from(self)))
    }
}

impl Value for Duration {
    fn number(self) -> Option<f64> {
        Some(self.as_secs_f64())
    }
}

impl<V: Value> Value for Option<V> {
    fn number(self) -> Option<f64> {
        self?.number()
    }
}

/// Writes metric families. Without labels the value is one [`Value`]: `Gauge NAME = VALUE,
/// "HELP";`. With one label it is an iterator of rows: `Counter NAME[LABEL] = ROWS, "HELP";`, each
/// row `("value of the label", VALUE)`. With several, `(["value", "value"], VALUE)`.
#[macro_export]
macro_rules! families {
    ($out:expr; $($kind:ident $name:ident $([$($label:ident),+])? = $value:expr, $help:expr;)*) => {$(
        $crate::families!(@rows $out, $kind, $name, [$($($label),+)?], $value, $help);
    )*};
    (@rows $out:expr, $kind:ident, $name:ident, [], $value:expr, $help:expr) => {
        $crate::families!(@write $out, $kind, $name, [], [([""; 0], $value)], $help)
    };
    (@rows $out:expr, $kind:ident, $name:ident, [$label:ident], $value:expr, $help:expr) => {
        let rows = $value.into_iter().map(|(label, value)| ([label], value));
        $crate::families!(@write $out, $kind, $name, [stringify!($label)], rows, $help)
    };
    (@rows $out:expr, $kind:ident, $name:ident, [$($label:ident),+], $value:expr, $help:expr) => {
        $crate::families!(@write $out, $kind, $name, [$(stringify!($label)),+], $value, $help)
    };
    (@write $out:expr, $kind:ident, $name:ident, $labels:expr, $rows:expr, $help:expr) => {
        $out.family(stringify!($name), $crate::MetricsType::$kind, $help);
        $out.samples($labels, $rows);
    };
}

/// Writes metric families: first [`MetricsWriter::family`], then its samples.
#[derive(Debug)]
pub struct MetricsWriter<'o> {
    out: &'o mut String,
    family: String,
}

impl<'o> MetricsWriter<'o> {
    /// The content type of the format.
    pub(crate) const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Creates a writer that appends to a text.
    pub fn new(out: &'o mut String) -> Self {
        Self { out, family: String::new() }
    }

    /// Begins a family. The name consists of letters, digits and underscores, and is unique.
    pub fn family(&mut self, name: &str, kind: Type, help: &str) {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        name.clone_into(&mut self.family);
        let _ = write!(self.out, "# HELP {name} ");
        self.escaped(help, false);
        let _ = writeln!(self.out, "\n# TYPE {name} {kind}");
    }

    /// Writes the samples that have a number, with the values of their labels.
    pub fn samples<const N: usize, L: AsRef<str>, V: Value>(
        &mut self,
        labels: [&str; N],
        rows: impl IntoIterator<Item = ([L; N], V)>,
    ) {
        for (values, number) in rows {
            let Some(number) = number.number() else { continue };
            let labels: Vec<_> = labels.into_iter().zip(values.iter().map(AsRef::as_ref)).collect();
            self.sample("", &labels, number);
        }
    }

    /// Writes a sample of the family; `suffix` is empty except for the parts of histograms. Label
    /// values are arbitrary; label names are like those of families.
    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.out, "{}{suffix}", self.family);
        for (index, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.out, "{}{name}=\"", if index == 0 { "{" } else { "," });
            self.escaped(value, true);
            self.push("\"");
        }
        self.push(if labels.is_empty() { " " } else { "} " });
        self.number(value);
        self.push("\n");
    }

    /// Writes a histogram: the counts of the buckets, one more than bounds, and the sum.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: impl Iterator<Item = u64>,
        sum: f64,
    ) {
        let mut all = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            all += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let labels: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample("_bucket", &labels, all as f64);
        }
        self.sample("_sum", labels, sum);
        self.sample("_count", labels, all as f64);
    }

    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn number(&mut self, value: f64) {
        match value {
            _ if value.is_nan() => self.push("NaN"),
            _ if value == f64::INFINITY => self.push("+Inf"),
            _ if value == f64::NEG_INFINITY => self.push("-Inf"),
            _ => {
                let _ = write!(self.out, "{value}");
            }
        }
    }

    fn escaped(&mut self, text: &str, quoted: bool) {
        for letter in text.chars() {
            match letter {
                '\\' => self.push("\\\\"),
                '\n' => self.push("\\n"),
                '"' if quoted => self.push("\\\""),
                _ => self.out.push(letter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Sample = (String, Vec<(String, String)>, f64);

    /// Parses a sample as Prometheus does: name, labels, value.
    fn parse(line: &str) -> Option<Sample> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let mut labels = Vec::new();
        let mut rest = rest;
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                let (label, after) = rest.split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.push((label.to_owned(), value));
                if let Some(after) = after.strip_prefix(',') {
                    rest = after;
                } else {
                    rest = after.strip_prefix('}')?;
                    break;
                }
            }
        }
        let value = rest.strip_prefix(' ')?;
        let value = if value == "+Inf" { "inf" } else { value };
        Some((name.to_owned(), labels, value.parse().ok()?))
    }

    /// Reads up to the closing quote.
    fn quoted(text: &str) -> Option<(String, &str)> {
        let mut value = String::new();
        let mut letters = text.char_indices();
        while let Some((index, letter)) = letters.next() {
            match letter {
                '"' => return Some((value, &text[index + 1..])),
                '\\' => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                _ => value.push(letter),
            }
        }
        None
    }

    #[test]
    fn family_is_described_and_escaped() {
        let mut out = String::new();
        let mut writer = MetricsWriter::new(&mut out);
        writer.family("a_total", Type::Counter, "What\\it \"is\"\nabout.");
        writer.samples(["x"], [(["a\"b\\c\nd"], 1.5)]);
        writer.samples([], [([""; 0], f64::INFINITY)]);
        let expected = "# HELP a_total What\\\\it \"is\"\\nabout.\n# TYPE a_total counter\n\
                        a_total{x=\"a\\\"b\\\\c\\nd\"} 1.5\na_total +Inf\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let mut out = String::new();
        let mut writer = MetricsWriter::new(&mut out);
        writer.family("h", Type::Histogram, "");
        writer.histogram(&[], &[0.1, 1.0], [1, 0, 2].into_iter(), 9.0);
        let samples: Vec<_> = out.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                "h_bucket{le=\"0.1\"} 1",
                "h_bucket{le=\"1\"} 1",
                "h_bucket{le=\"+Inf\"} 3",
                "h_sum 9",
                "h_count 3"
            ]
        );
    }

    #[test]
    fn families_with_any_number_of_labels_are_written() {
        let mut out = String::new();
        let mut writer = MetricsWriter::new(&mut out);
        families! { writer;
            Gauge g = 0.5, "G.";
            Counter c_total = 7_u64, "C.";
            Counter d_total[l] = [("a", true), ("b", false)], "D.";
            Gauge e_seconds[l, type] = [(["a", "b"], Duration::from_millis(1500))], "E.";
            Gauge never = None::<i64>, "None.";
        }
        let expected = "# HELP g G.\n# TYPE g gauge\ng 0.5\n# HELP c_total C.\n# TYPE c_total counter\nc_total 7\n\
                        # HELP d_total D.\n# TYPE d_total counter\nd_total{l=\"a\"} 1\nd_total{l=\"b\"} 0\n\
                        # HELP e_seconds E.\n# TYPE e_seconds gauge\ne_seconds{l=\"a\",type=\"b\"} 1.5\n\
                        # HELP never None.\n# TYPE never gauge\n";
        assert_eq!(out, expected);
    }

    proptest! {
        #[test]
        fn label_values_round_trip(values in prop::collection::vec("(?s).{0,20}|[\"\\\\\n{},=]{0,8}", 0..4), number: f64) {
            let mut out = String::new();
            let mut writer = MetricsWriter::new(&mut out);
            writer.family("m", Type::Gauge, values.first().map_or("", String::as_str));
            let labels: Vec<(&str, &str)> = values.iter().map(|value| ("l", value.as_str())).collect();
            writer.sample("", &labels, number);
            let lines: Vec<&str> = out.split('\n').collect();
            prop_assert_eq!(lines.len(), 4, "help, type, sample and the end: {:?}", out);
            let (name, found, value) = parse(lines[2]).expect("can be read");
            prop_assert_eq!(name, "m");
            let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (&**name, &**value)).collect();
            prop_assert_eq!(found, labels);
            prop_assert!(value == number || value.is_nan() && number.is_nan());
        }
    }
}
