//! docs/figures.md: all figures of one run, with what they were measured on. The page ends with a checksum over itself, so
//! that a figure that was edited by hand is found (`tests/repository/figures.rs`).

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use edgesync::store::checksum::checksum64;

use crate::table::Table;

const PAGE: &str = "docs/figures.md";
const INTRODUCTION: &str = "\
# Figures

`cargo bench -- --document` wrote this page from one run of all sections; do not edit it. A rate or a time means little
without the machine, so the first section is what the same machine did in the same run without edgesync. *MISSED* marks a
budget that was not met. EdgeCore is that of KubeEdge 1.23. Its figures were measured at another time and on another
machine: they show the order of magnitude and are not comparable to the digit.
";

/// Writes the page.
pub(crate) fn write(table: &Table) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let cores = std::thread::available_parallelism()?;
    let text = format!(
        "{INTRODUCTION}\nRun on {date}, on {cores} cores, at commit {}.\n{}",
        commit(root)?,
        table.to_markdown()
    );
    let seal = format!("\n<!-- checksum {:016x} -->\n", checksum64(&[text.as_bytes()]));
    std::fs::write(root.join(PAGE), text + &seal).with_context(|| format!("writing {PAGE}"))
}

fn commit(root: &Path) -> anyhow::Result<String> {
    let run = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root).output()?;
    Ok(String::from_utf8(run.stdout)?.trim().to_owned())
}
