//! The command line of `edgesync`.

// The help texts document the items; fields that only flatten a group have none.
#![allow(missing_docs)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use edgesync_cli::EXIT_CODES;
use edgesync_cli::args::{self, CheckArgs, GetArgs, OutputArgs};
use edgesync_config::{CloudCoreUrl, JoinUrl};

/// A reliable sync agent for edge nodes: Kubernetes objects, persisted and reported.
#[derive(Parser, Clone, Debug, PartialEq, Eq)]
#[command(name = "edgesync", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub struct EdgeArgs {
    #[command(subcommand)]
    pub command: EdgeCommand,
}

/// The subcommands of `edgesync`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum EdgeCommand {
    /// Run the agent
    Run(ConfigArgs),
    /// Check a configuration and print what is in force and where each value comes from
    CheckConfig {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        check: CheckArgs,
    },
    /// Join a cloud with a token: get a certificate, write the configuration, check the connection
    Join {
        #[command(flatten)]
        join: JoinArgs,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Check everything the agent needs, and say what to do where something is wrong
    #[command(after_help = "Exit codes: 0 nothing failed (warnings may be there), 1 something failed.")]
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show whether all is well, and what is not
    Status {
        /// All there is to know
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Show what has happened on the node: its Events, the newest last
    Events(ShowArgs),
    /// Show how many messages and bytes went in both directions, today (UTC) and in total
    Traffic(ShowArgs),
    /// Show the objects that the node holds
    Get {
        #[command(flatten)]
        get: GetArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Show the versions that the node holds, as it reports them: its ObjectSync records
    Syncs(ShowArgs),
    /// Show which objects are in effect in files, by the rules of this device
    Files {
        #[command(subcommand)]
        command: Option<FilesCommand>,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Write files and reload programs for the agent
    ///
    /// Listens on the socket that systemd passes (LISTEN_FDS, or standard input), and exits after a
    /// minute without a request. With --socket it needs no systemd, and runs until SIGTERM.
    FilesHelper {
        #[command(flatten)]
        config: ConfigArgs,
        /// Create this socket, with mode 0600, and listen on it; the agent's key is helper.socket
        #[arg(long, value_name = "PATH", value_parser = args::path)]
        socket: Option<PathBuf>,
        /// Owner of that socket: the user of the agent
        #[arg(
            long,
            value_name = "USER[:GROUP]",
            default_value = "",
            hide_default_value = true,
            requires = "socket"
        )]
        socket_owner: String,
    },
    /// Keys of what is sealed in the database
    #[command(subcommand)]
    Seal(SealCommand),
    /// Copy the database to a new file, consistent, while the agent runs or not
    #[command(after_help = "Exit codes: 0 copied and sound, 1 not copied, or as damaged as the database.")]
    Backup {
        /// The new file; it must not exist
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Check the database: each row, count and digest; and with --online that the cloud records the
    /// same
    #[command(
        after_help = "Exit codes: 0 sound; with --online: mended if it was not, and the cloud records the same; \
                            1 damaged, or the cloud did not confirm; 69 no agent answers."
    )]
    Verify {
        /// Have the running agent compare with the cloud, too
        #[arg(long)]
        online: bool,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Replace a damaged database by what can be read of it; the agent must be stopped
    #[command(after_help = "Exit codes: 0 sound now (what is lost is shown, and sent again by the cloud), \
                            1 not repaired: the agent runs, or the disk is full or broken.")]
    Repair(ConfigArgs),
    /// Collect what a report of a problem needs, without secrets, in one archive
    SupportBundle {
        /// The new file [default: edgesync-support-<node>-<time>.tar.zst]
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Print what makes a shell complete the words of this program
    Completions {
        /// Which shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
}

/// Output and socket of commands that query the agent.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ShowArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// The subcommands of `edgesync files`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum FilesCommand {
    /// Show what would be written and removed; nothing is done
    Check(ShowArgs),
    /// Bring the objects of a rule into effect now, also those that failed
    Apply {
        /// The rule
        #[arg(value_name = "NAME")]
        rule: String,
        #[command(flatten)]
        show: ShowArgs,
    },
}

/// The subcommands of `edgesync seal`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum SealCommand {
    /// Make a new key, seal everything with it, and forget the old one; the agent goes on meanwhile
    Rotate(SocketArgs),
}

/// The arguments of `edgesync join`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct JoinArgs {
    /// Address of the cloud's join service
    #[arg(long, value_name = "https://HOST:PORT")]
    pub cloud: JoinUrl,
    /// The token; or - to read it from standard input, which keeps it out of the process list
    #[arg(long, env = "EDGESYNC_JOIN_TOKEN", hide_env_values = true)]
    pub token: String,
    /// Name of the node [default: that of the token, of the configuration, or of the host]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address of CloudCore's WebSocket, if the cloud is KubeEdge's
    /// [default: the host of --cloud, port 10000]
    #[arg(long, value_name = "wss://HOST:PORT")]
    pub cloudcore: Option<CloudCoreUrl>,
    /// Replace the identity that this device has
    #[arg(long)]
    pub force: bool,
}

/// The configuration file.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ConfigArgs {
    /// Configuration file
    #[arg(
        id = "config",
        short = 'c',
        long = "config",
        value_name = "FILE",
        env = "EDGESYNC_CONFIG",
        default_value = "/etc/edgesync/edgesync.toml",
        value_parser = args::path
    )]
    pub path: PathBuf,
}

/// The socket of the queried agent.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct SocketArgs {
    /// Socket of the running agent
    #[arg(
        long = "socket",
        value_name = "PATH",
        env = "EDGESYNC_SOCKET",
        default_value = "/run/edgesync/edgesync.sock",
        value_parser = args::path
    )]
    pub path: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use edgesync_config::edge::Config;

    #[test]
    fn the_definition_is_consistent() {
        EdgeArgs::command().debug_assert();
    }

    #[test]
    fn the_default_socket_is_the_one_the_agent_opens() {
        let args = EdgeArgs::try_parse_from(["edgesync", "status", "--socket", "/x"]).unwrap();
        let EdgeCommand::Status { show: ShowArgs { socket, .. }, .. } = args.command else {
            panic!("{args:?}")
        };
        assert_eq!(socket.path, PathBuf::from("/x"));
        let command = EdgeArgs::command();
        let status = command.find_subcommand("status").unwrap();
        let socket = status.get_arguments().find(|argument| argument.get_id() == "path").unwrap();
        assert_eq!(socket.get_default_values(), [Config::default().api.socket.as_os_str()]);
    }

    #[test]
    fn get_takes_the_arguments_of_kubectl() {
        let words = ["edgesync", "get", "cm", "a", "b", "-n", "shop", "-l", "app=web", "-o", "yaml"];
        let args = EdgeArgs::try_parse_from(words).unwrap();
        let EdgeCommand::Get { get, .. } = args.command else { panic!("{args:?}") };
        let query = get.query();
        assert_eq!((query.kind.as_str(), query.names.len()), ("cm", 2));
        assert_eq!(query.namespace.as_deref(), Some("shop"));
        assert_eq!(query.selector, "app=web");
        for wrong in [
            &["edgesync", "get"][..],
            &["edgesync", "get", "cm", "-A", "-n", "x"],
            &["edgesync", "get", "cm", "-o", "xml"],
            &["edgesync", "run", "--config", ""],
            &["edgesync"],
        ] {
            assert!(EdgeArgs::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
