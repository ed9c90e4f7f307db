//! The table that the benchmark prints.

/// One line: what, measured, budget, and whether it is met.
#[derive(Default)]
pub(crate) struct Table(Vec<[String; 4]>);

impl Table {
    /// A figure with a budget.
    pub(crate) fn budget(&mut self, what: &str, measured: String, budget: &str, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.0.push([what.into(), measured, budget.into(), verdict.into()]);
    }

    /// A figure without one.
    pub(crate) fn figure(&mut self, what: &str, measured: String) {
        self.0.push([what.into(), measured, String::new(), String::new()]);
    }

    pub(crate) fn print(&self) {
        let mut widths = [4, 8, 6];
        for row in &self.0 {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let [what, measured, budget] = widths;
        println!("{:what$}   {:>measured$}   {:budget$}   ", "WHAT", "MEASURED", "BUDGET");
        for [name, value, limit, verdict] in &self.0 {
            println!("{name:what$}   {value:>measured$}   {limit:budget$}   {verdict}");
        }
    }
}
