//! The table that the benchmark prints, and its Markdown.

use std::fmt::Write as _;

/// One line: name, measured value, budget, verdict.
type Row = [String; 4];

/// The figures, by section.
#[derive(Default)]
pub(crate) struct Table {
    sections: Vec<(String, Vec<Row>)>,
    /// Messages of 1 KB per second that mosquitto carries between two bare clients.
    pub(crate) bare_mosquitto: f64,
}

impl Table {
    /// Starts a section; figures added later belong to it.
    pub(crate) fn section(&mut self, title: &str) {
        self.sections.push((title.to_owned(), Vec::new()));
    }

    /// Adds the sections of another table.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.sections.append(&mut other.sections);
    }

    fn add(&mut self, row: Row) {
        match self.sections.last_mut() {
            Some((_, rows)) => rows.push(row),
            None => self.sections.push((String::new(), vec![row])),
        }
    }

    /// Adds a figure with a budget.
    pub(crate) fn budget(&mut self, what: &str, measured: String, budget: &str, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.add([what.into(), measured, budget.into(), verdict.into()]);
    }

    /// Adds a figure without a budget.
    pub(crate) fn figure(&mut self, what: &str, measured: String) {
        self.add([what.into(), measured, String::new(), String::new()]);
    }

    /// Returns the number of missed budgets.
    pub(crate) fn missed(&self) -> usize {
        self.sections.iter().flat_map(|(_, rows)| rows).filter(|[.., verdict]| verdict == "MISSED").count()
    }

    /// Formats a rate of messages of 1 KB, beside that of mosquitto alone.
    pub(crate) fn of_mosquitto(&self, rate: f64) -> String {
        format!("{rate:.0}/s = {:.0} % of bare mosquitto", 100.0 * rate / self.bare_mosquitto)
    }

    pub(crate) fn print(&self) {
        let mut widths = [4, 8, 6];
        for row in self.sections.iter().flat_map(|(_, rows)| rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let [what, measured, budget] = widths;
        println!("{:what$}   {:>measured$}   {:budget$}   ", "WHAT", "MEASURED", "BUDGET");
        for (title, rows) in &self.sections {
            println!("\n{title}");
            for [name, value, limit, verdict] in rows {
                println!("{name:what$}   {value:>measured$}   {limit:budget$}   {verdict}");
            }
        }
    }

    /// Returns the sections by title, as Markdown.
    pub(crate) fn to_markdown(&self) -> impl Iterator<Item = (&str, String)> {
        self.sections.iter().map(|(title, rows)| {
            let mut text = "| what | measured | budget | |\n|---|---|---|---|\n".to_owned();
            for [name, value, limit, verdict] in rows {
                // Markdown drops spaces at the start of a cell.
                let name =
                    name.strip_prefix("  ").map_or_else(|| name.clone(), |part| format!("&emsp;{part}"));
                let _ = writeln!(text, "| {name} | {value} | {limit} | {verdict} |");
            }
            (title.as_str(), text)
        })
    }

    /// Returns the values of a section, in a line.
    pub(crate) fn values(&self, title: &str) -> String {
        let rows = self.sections.iter().filter(|(found, _)| found == title).flat_map(|(_, rows)| rows);
        rows.map(|[_, value, ..]| value.as_str()).collect::<Vec<_>>().join(", ")
    }
}
