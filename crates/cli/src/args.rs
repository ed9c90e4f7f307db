//! Command-line arguments shared by both programs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::get::Query;
use super::output::Output;

/// The output of `check-config`.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckArgs {
    /// Print problems only
    #[arg(short, long)]
    pub quiet: bool,
}

/// The format of a result.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputArgs {
    /// Output format: table, wide, name, yaml or json
    #[arg(short, long, value_name = "FORMAT", default_value = "table", hide_default_value = true)]
    pub output: Output,
}

/// The objects to show.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct GetArgs {
    /// Kind as in kubectl: configmaps, cm, ConfigMap, deployments.apps; or KIND/NAME
    #[arg(value_name = "KIND")]
    pub kind: String,
    /// Names [default: all objects]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace [default: default]
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=db
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Also print changes, until interrupted
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl GetArgs {
    /// Converts the arguments to a query.
    #[must_use]
    pub fn query(self) -> Query {
        Query {
            kind: self.kind,
            names: self.names,
            namespace: self.namespace,
            all_namespaces: self.all_namespaces,
            selector: self.selector,
            watch: self.watch,
            output: self.output.output,
        }
    }
}

/// Parses a duration as in the configuration: `30s`, `24h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    edgesync_config::units::read_duration(text)
}

/// Parses a node label: `site=north`.
pub fn label(text: &str) -> Result<(String, String), String> {
    edgesync_config::units::read_label(text)
}

/// Parses a path; an empty one is refused.
pub fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("must not be empty".into()) } else { Ok(text.into()) }
}
