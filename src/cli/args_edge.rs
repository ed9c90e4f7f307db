//! The command line of `edgesync`.

// The help texts document the items; fields that only flatten a group have none.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use edgesync_cli::EXIT_CODES;
use edgesync_cli::args::{self, CheckArgs, GetArgs, OutputArgs};
use edgesync_config::{CloudCoreUrl, JoinUrl};

/// Sync agent for edge nodes: stores Kubernetes objects and reports versions.
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
    /// Validate a configuration and print the effective values
    ///
    /// Each value is printed with its source: the file, an environment variable, or the default.
    CheckConfig {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        check: CheckArgs,
    },
    /// Join a cloud with a token
    ///
    /// Requests a certificate, writes the configuration and tests the connection.
    Join {
        #[command(flatten)]
        join: JoinArgs,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Check the agent, with next steps for problems
    #[command(
        after_help = "Exit codes: 0 no check failed (warnings do not count), 1 a check failed, or the agent is stopped."
    )]
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the health of the agent
    Status {
        /// Show all details
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Show the Events of the node, newest last
    Events(ShowArgs),
    /// Show messages and bytes sent and received, today and in total
    ///
    /// A day begins at midnight UTC.
    Traffic(ShowArgs),
    /// Show the objects held by the node
    Get {
        #[command(flatten)]
        get: GetArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Show the reported versions: ObjectSync records
    Syncs(ShowArgs),
    /// Show which objects are in effect in files
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
        /// Create this socket, with mode 0600, and listen on it; set helper.socket to the same path
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
        /// Create this socket, on which programs hold rules, with mode 0660
        #[arg(long, value_name = "PATH", value_parser = args::path, requires = "socket")]
        hold_socket: Option<PathBuf>,
        /// Group that may hold rules, besides root
        #[arg(
            long,
            value_name = "GROUP",
            default_value = "",
            hide_default_value = true,
            requires = "hold_socket"
        )]
        hold_group: String,
    },
    /// Keep a file rule from changing anything for a while
    ///
    /// Changes arrive and are checked, and take effect after the hold. When the command returns, no
    /// change is in progress. A hold outlives restarts, ends by itself, and is limited by
    /// helper.longest_hold. The user has to be root or in the group of the socket.
    Hold {
        /// Name of the rule
        #[arg(long, value_name = "NAME")]
        rule: String,
        /// Duration, such as 90s, 30m or 2h
        #[arg(long = "for", value_name = "TIME", value_parser = args::duration)]
        time: Duration,
        /// Reason, shown on the device and in the cloud
        #[arg(long, value_name = "TEXT")]
        why: String,
        #[command(flatten)]
        holds: HoldArgs,
    },
    /// Show the holds on file rules
    Holds {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        holds: HoldArgs,
    },
    /// End holds of this user: one, those on a rule, or all
    Release {
        /// Number of the hold, as 'edgesync holds' shows it; root may end those of others
        #[arg(value_name = "ID", conflicts_with = "rule")]
        id: Option<u64>,
        /// Only holds on this rule
        #[arg(long, value_name = "NAME")]
        rule: Option<String>,
        #[command(flatten)]
        holds: HoldArgs,
    },
    /// Manage the keys of sealed objects
    #[command(subcommand)]
    Seal(SealCommand),
    /// Connect now, before the next planned check-in
    ///
    /// With link.connect = "always" it shortens the delay before the next attempt.
    Sync(SocketArgs),
    /// Copy the database to a new file
    ///
    /// The copy is a consistent snapshot; the agent may be running.
    #[command(after_help = "Exit codes: 0 copied and verified, 1 not copied, or the database is damaged.")]
    Backup {
        /// The new file; it must not exist
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Verify the rows, count and digest of the database
    ///
    /// The agent may be running. With --online, the agent repairs damage and compares its objects
    /// with the records of the cloud.
    #[command(
        after_help = "Exit codes: 0 undamaged, or with --online: repaired and equal to the records of the cloud; \
                            1 damaged, or not confirmed by the cloud; 69 agent unreachable."
    )]
    Verify {
        /// Also compare with the cloud, through the running agent
        #[arg(long)]
        online: bool,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Salvage a damaged database; the agent must be stopped
    ///
    /// Readable rows are kept; the cloud sends lost objects again.
    #[command(after_help = "Exit codes: 0 undamaged or repaired (losses are listed), \
                            1 not repaired: the agent is running, or the disk is full or broken.")]
    Repair(ConfigArgs),
    /// Write an archive for a problem report, without secrets
    SupportBundle {
        /// The new file [default: edgesync-support-NODE-TIME.tar.zst]
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Print shell completions
    Completions {
        /// The shell
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
    /// Show the planned changes without applying them
    Check(ShowArgs),
    /// Apply a rule now, including objects that failed before
    Apply {
        /// Name of the rule
        #[arg(value_name = "NAME")]
        rule: String,
        #[command(flatten)]
        show: ShowArgs,
    },
}

/// The subcommands of `edgesync seal`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum SealCommand {
    /// Create a new key, seal all objects with it, and delete the old one
    ///
    /// The agent keeps running.
    Rotate(SocketArgs),
}

/// The arguments of `edgesync join`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct JoinArgs {
    /// Address of the cloud's join service
    #[arg(long, value_name = "https://HOST:PORT")]
    pub cloud: JoinUrl,
    /// The token, or - to read it from standard input, which keeps it out of the process list
    #[arg(long, env = "EDGESYNC_JOIN_TOKEN", hide_env_values = true)]
    pub token: String,
    /// Name of the node [default: from the token, the configuration, or the host name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address of CloudCore's WebSocket, if the cloud is KubeEdge
    /// [default: the host of --cloud, port 10000]
    #[arg(long, value_name = "wss://HOST:PORT")]
    pub cloudcore: Option<CloudCoreUrl>,
    /// Replace the existing identity of this device
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

/// The socket on which programs hold rules.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct HoldArgs {
    /// Socket of the files helper for holds
    #[arg(
        id = "hold_socket",
        long = "socket",
        value_name = "PATH",
        env = "EDGESYNC_HOLD_SOCKET",
        default_value = "/run/edgesync-hold.sock",
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
    use edgesync_cli::groups;
    use edgesync_config::edge::Config;

    #[test]
    fn the_definition_is_consistent() {
        EdgeArgs::command().debug_assert();
    }

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        assert_eq!(groups::ungrouped(&EdgeArgs::command()), [] as [&str; 0]);
        let help = groups::grouped(EdgeArgs::command()).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80 || line.starts_with("Exit")), "{help}");
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
