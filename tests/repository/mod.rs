//! Checks the repository: layers, documents, configuration files, examples and command lines.

mod advice;
// Packages have Helm for this architecture only.
#[cfg(target_arch = "x86_64")]
mod chart;
#[cfg(not(target_arch = "x86_64"))]
mod chart {
    #[test]
    fn chart_is_checked_on_x86_64() {
        eprintln!("notice: packages have Helm for x86-64 only; the chart was not checked");
    }
}
mod cli;
mod comments;
mod commits;
mod conditions;
mod config;
mod crates;
mod devices;
mod documents;
mod figures;
mod frames;
mod generated;
mod image;
mod limits;
mod log;
mod manifests;
mod metrics;
mod page;
mod protocol_examples;
mod releases;
mod sources;
mod strings;
mod units;
mod unused;
