//! The Prometheus text format, version 0.0.4. Pure.

use std::fmt::Write;

/// What the values of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// Writes families of metrics: first [`MetricsWriter::family`], then its samples.
#[derive(Debug)]
pub struct MetricsWriter<'o> {
    out: &'o mut String,
    family: &'static str,
}

impl<'o> MetricsWriter<'o> {
    /// The content type of what is written.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Writes to the end of a text.
    pub fn new(out: &'o mut String) -> Self {
        Self { out, family: "" }
    }

    /// Begins a family. The name is made of letters, digits and underscores, and is used once.
    pub fn family(&mut self, name: &'static str, kind: Type, help: &str) {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        self.family = name;
        self.put("# HELP ");
        self.put(name);
        self.put(" ");
        self.escaped(help, false);
        let _ = writeln!(self.out, "\n# TYPE {name} {kind}");
    }

    /// Writes a sample of the family; `suffix` is empty but for the parts of histograms. Values of labels may
    /// be anything; names are like those of families.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.put(self.family);
        self.put(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            self.put(if at == 0 { "{" } else { "," });
            self.put(name);
            self.put("=\"");
            self.escaped(value, true);
            self.put("\"");
        }
        self.put(if labels.is_empty() { " " } else { "} " });
        self.number(value);
        self.put("\n");
    }

    /// Writes a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, Type::Gauge, help);
        self.sample("", &[], value);
    }

    /// Writes a counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, Type::Counter, help);
        self.sample("", &[], value as f64);
    }

    /// Writes a counter with one label: a sample for each of its values.
    pub fn counters<'v>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, u64)>,
    ) {
        self.family(name, Type::Counter, help);
        for (value, count) in values {
            self.sample("", &[(label, value)], count as f64);
        }
    }

    /// Writes a histogram: how many values fell into each bucket, of which there is one more than bounds, and
    /// their sum.
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

    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn number(&mut self, value: f64) {
        match value {
            _ if value.is_nan() => self.put("NaN"),
            _ if value == f64::INFINITY => self.put("+Inf"),
            _ if value == f64::NEG_INFINITY => self.put("-Inf"),
            _ => {
                let _ = write!(self.out, "{value}");
            }
        }
    }

    fn escaped(&mut self, text: &str, quoted: bool) {
        for letter in text.chars() {
            match letter {
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '"' if quoted => self.put("\\\""),
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

    /// Reads a sample as Prometheus does: name, labels, value.
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
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => return Some((value, &text[at + 1..])),
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
    fn a_family_is_described_and_escaped() {
        let mut out = String::new();
        let mut writer = MetricsWriter::new(&mut out);
        writer.family("a_total", Type::Counter, "What\\it \"is\"\nabout.");
        writer.sample("", &[("x", "a\"b\\c\nd")], 1.5);
        writer.sample("", &[], f64::INFINITY);
        let expected = "# HELP a_total What\\\\it \"is\"\\nabout.\n# TYPE a_total counter\n\
                        a_total{x=\"a\\\"b\\\\c\\nd\"} 1.5\na_total +Inf\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up() {
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
    fn families_of_one_sample_or_one_label_are_written_at_once() {
        let mut out = String::new();
        let mut writer = MetricsWriter::new(&mut out);
        writer.gauge("g", "G.", 0.5);
        writer.counter("c_total", "C.", 7);
        writer.counters("d_total", "D.", "l", [("a", 1), ("b", 0)]);
        let expected = "# HELP g G.\n# TYPE g gauge\ng 0.5\n# HELP c_total C.\n# TYPE c_total counter\nc_total 7\n\
                        # HELP d_total D.\n# TYPE d_total counter\nd_total{l=\"a\"} 1\nd_total{l=\"b\"} 0\n";
        assert_eq!(out, expected);
    }

    proptest! {
        #[test]
        fn whatever_a_label_holds_is_read_back(values in prop::collection::vec("(?s).{0,20}|[\"\\\\\n{},=]{0,8}", 0..4), number: f64) {
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
