//! The command line of `edgesync-cloud`.

// The words are in the help texts; fields that only flatten a group have none of their own.
#![allow(missing_docs)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::args::{self, CheckArgs, GetArgs, OutputArgs};
use super::args_edge::EXIT_CODES;
use crate::api::Address;

/// The cloud side of edgesync: keeps Kubernetes objects, places them on nodes, brings nodes into sync.
#[derive(Parser, Clone, Debug, PartialEq, Eq)]
#[command(
    name = "edgesync-cloud",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = EXIT_CODES
)]
pub struct CloudArgs {
    #[command(subcommand)]
    pub command: CloudCommand,
}

/// What `edgesync-cloud` does.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum CloudCommand {
    /// Run the cloud side
    Run {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Check a configuration and print what is in force and where each value comes from
    CheckConfig {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        check: CheckArgs,
    },
    /// Create the objects of manifests, or replace those that differ
    Apply {
        #[command(flatten)]
        manifests: ManifestArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete the objects of manifests
    Delete {
        #[command(flatten)]
        manifests: ManifestArgs,
        /// An object that does not exist is no error
        #[arg(long)]
        ignore_not_found: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show objects
    Get {
        #[command(flatten)]
        get: GetArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the nodes: whether they are ready, connected and in sync, and what is pending
    Nodes {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the versions that nodes have reported: ObjectSync records
    Syncs {
        /// Only those of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Let a node delete what was held back because it would lose too much at once
    ConfirmDeletions {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a node from the fleet, with all that is known of it; it is told when it comes back
    RemoveNode {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Let a node that was removed come back
    AdmitNode {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the product: broker, cloud and agent in a temporary directory, a killed agent, a cut link
    Demo {
        #[command(flatten)]
        demo: DemoArgs,
    },
}

/// The manifests of `apply` and `delete`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ManifestArgs {
    /// File, directory, or - for standard input; may be given more than once
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<String>,
    /// Namespace of objects that name none [default: default]
    #[arg(short, long)]
    pub namespace: Option<String>,
}

/// Which configuration file.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ConfigArgs {
    /// Configuration file
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        env = "EDGESYNC_CLOUD_CONFIG",
        default_value = "/etc/edgesync/edgesync-cloud.toml",
        value_parser = args::path
    )]
    pub path: PathBuf,
}

/// Which cloud side is asked.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ServerArgs {
    /// Address of the running cloud side's API
    #[arg(
        long = "server",
        value_name = "ADDRESS",
        env = "EDGESYNC_CLOUD_SERVER",
        default_value = "http://127.0.0.1:10551"
    )]
    pub address: Address,
}

/// The size of the demo, and what is left of it.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoArgs {
    /// How many objects are applied
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    pub objects: u32,
    /// Leave everything running at the end, and print how to look at it
    #[arg(long)]
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cloud::Config;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_consistent() {
        CloudArgs::command().debug_assert();
    }

    #[test]
    fn the_default_server_is_where_the_cloud_side_listens() {
        let command = CloudArgs::command();
        let nodes = command.find_subcommand("nodes").unwrap();
        let server = nodes.get_arguments().find(|argument| argument.get_id() == "address").unwrap();
        let default = server.get_default_values()[0].to_str().unwrap();
        assert_eq!(default.parse(), Ok(Address::Tcp(Config::default().api.listen)));
    }

    #[test]
    fn manifests_are_given_as_with_kubectl() {
        let words = ["edgesync-cloud", "apply", "-f", "a.yaml", "-f", "-", "-n", "shop"];
        let args = CloudArgs::try_parse_from(words).unwrap();
        let CloudCommand::Apply { manifests, .. } = args.command else { panic!("{args:?}") };
        assert_eq!(manifests.files, ["a.yaml", "-"]);
        for wrong in [
            &["edgesync-cloud", "apply"][..],
            &["edgesync-cloud", "demo", "--objects", "1"],
            &["edgesync-cloud", "nodes", "--server", "example.com"],
        ] {
            assert!(CloudArgs::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
