//! Writes docs/figures.md: the figures of each section's last run, with the machine's own. The page
//! ends with a checksum over itself, which reveals manual edits (`tests/repository/figures.rs`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use edgesync_store::checksum::checksum64;
use edgesync_testkit::programs;

use crate::YARDSTICK;
use crate::table::Table;

const PAGE: &str = "docs/figures.md";
const INTRODUCTION: &str = "\
# Figures

`cargo bench -- --document` writes this page; with names of sections it replaces only those. Do not edit it. Rates and times
depend on the machine, so each section states what the same machine did in the same run without edgesync: rows per second of a
bare SQLite loop, with 256 rows of 1 KB per transaction and with one; the median time to append and sync 4 KB; messages of 1 KB
per second through mosquitto at QoS 1 between two bare clients. *MISSED* marks a budget that was not met. EdgeCore is that of
KubeEdge 1.23. Its figures were measured at another time on another machine: compare the order of magnitude only.
";

/// Writes the page: this run's sections, and the page's earlier version of the others. `order` has
/// the titles.
pub(crate) fn write<'a>(table: &Table, order: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let root = programs::root();
    let (date, cores) = (jiff::Timestamp::now().strftime("%Y-%m-%d"), std::thread::available_parallelism()?);
    let run = format!(
        "Run on {date}, on {cores} cores, at commit {}. Without edgesync: {}.",
        commit(root)?,
        table.values(YARDSTICK)
    );
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let page = page.split("\n<!--").next().unwrap_or_default();
    let kept = page.split("\n## ").skip(1).filter_map(|section| section.split_once("\n\n"));
    let mut sections: HashMap<&str, String> = kept.map(|(title, text)| (title, text.to_owned())).collect();
    sections.extend(table.to_markdown().map(|(title, figures)| (title, format!("{run}\n\n{figures}"))));
    let mut text = INTRODUCTION.to_owned();
    for (title, section) in order.filter_map(|title| Some((title, sections.get(title)?))) {
        write!(text, "\n## {title}\n\n{section}")?;
    }
    let checksum = format!("\n<!-- checksum {:016x} -->\n", checksum64(&[text.as_bytes()]));
    std::fs::write(root.join(PAGE), text + &checksum).with_context(|| format!("writing {PAGE}"))
}

fn commit(root: &Path) -> anyhow::Result<String> {
    let run = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root).output()?;
    Ok(String::from_utf8(run.stdout)?.trim().to_owned())
}
