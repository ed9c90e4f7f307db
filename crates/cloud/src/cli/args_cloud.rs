//! The command line of `edgesync-cloud`.

// The help texts document the fields; fields that only flatten a group have none.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use edgesync_api::Address;
use edgesync_cli::EXIT_CODES;
use edgesync_cli::args::{self, CheckArgs, GetArgs, OutputArgs};

/// Cloud side of edgesync: stores Kubernetes objects and syncs them to nodes.
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

/// The commands of `edgesync-cloud`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum CloudCommand {
    /// Run the cloud side
    Run(ConfigArgs),
    /// Run the signer of a fleet in a Kubernetes cluster
    ///
    /// The signer has the keys of CA and tokens, and serves joining and renewal. Replicas
    /// ('edgesync-cloud run' with enrollment.signer) relay devices to it and have no right to the
    /// keys. On its socket it answers the commands for tokens and operators.
    Signer(ConfigArgs),
    /// Validate a configuration and print the effective values
    ///
    /// Each value is printed with its source: the file, an environment variable, or the default.
    CheckConfig {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        check: CheckArgs,
    },
    /// Create or update the objects of manifests
    ///
    /// This is a server-side apply with the field manager "edgesync-cloud", which takes over the
    /// fields of a manifest from other managers. Fields of an earlier apply that the manifest no
    /// longer has are removed; all others stay. Fields unknown to the kind are refused. Objects
    /// without a manifest are not changed. A failure is reported, and the other objects are
    /// applied. Namespaces and definitions of a file are applied before its other objects, up to 16
    /// objects at the same time.
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
        /// Ignore objects that do not exist
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
    /// Show nodes with their state, readiness and pending objects
    Nodes(NodesArgs),
    /// Explain why an object is on a node, or is not
    ExplainPlacement(ExplainArgs),
    /// Show or move the roll-out of a placement rule
    #[command(subcommand)]
    Rollout(RolloutCommands),
    /// Print the URL of the fleet page with a key, or revoke all keys
    ///
    /// The key is valid for twelve hours, and one that an operator has requested no longer than the
    /// certificate of the operator.
    #[command(args_conflicts_with_subcommands = true)]
    Page {
        #[command(subcommand)]
        command: Option<PageCommand>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the reported versions: ObjectSync records
    Syncs {
        /// Only records of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        server: FleetArgs,
    },
    /// Confirm removals that the mass-delete guard holds back
    ConfirmDeletions(NodeArgs),
    /// Remove, admit, revoke or forget a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Create, list or revoke join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print the configuration of an external broker
    BrokerConfig(BrokerArgs),
    /// Print a kubeconfig with a new operator certificate
    Kubeconfig(KubeconfigArgs),
    /// List or revoke operator certificates
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Check the cloud side, with next steps for problems
    #[command(
        after_help = "Exit codes: 0 no check failed (warnings do not count), 1 a check failed, or the cloud side is stopped."
    )]
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Copy the database to a new file
    ///
    /// The copy is a consistent snapshot; the cloud side may be running.
    #[command(after_help = "Exit codes: 0 copied and verified, 1 not copied, or the database is damaged.")]
    Backup {
        /// The new file; it must not exist
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Replace the database by a backup; the cloud side must be stopped
    ///
    /// The replaced database is set aside.
    #[command(
        after_help = "Exit codes: 0 restored, 1 not restored: the backup is damaged, or the cloud side is running."
    )]
    Restore {
        /// The backup; it is not changed
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Verify the rows, indexes and pages of the database
    ///
    /// The cloud side may be running.
    #[command(after_help = "Exit codes: 0 undamaged, 1 damaged or unreadable.")]
    Verify(ConfigArgs),
    /// Write an archive for a problem report, without secrets
    SupportBundle {
        /// The new file [default: edgesync-cloud-support-TIME.tar.zst]
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print shell completions
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Sleep: for the preStop hook of a container, whose image has no other program
    #[command(hide = true)]
    Sleep {
        /// How long to sleep
        #[arg(value_name = "DURATION", value_parser = args::duration)]
        duration: Duration,
    },
}

/// The commands of `edgesync-cloud page`; without one it prints the URL.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum PageCommand {
    /// Revoke all keys of the page
    ///
    /// Open pages stop at once. Keys that an operator has requested end with the certificate of the
    /// operator in any case.
    Revoke(ServerArgs),
}

/// Output format and server of a command that lists.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ShowArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: FleetArgs,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ExplainArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: String,
    /// The object; without it, the rules are compared with the node only
    #[arg(value_name = "KIND/NAME")]
    pub object: Option<String>,
    /// Namespace of the object [default: default]
    #[arg(short, long)]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct NodesArgs {
    /// Names of nodes to show with all details; without names, a table of all nodes
    #[arg(value_name = "NODE", conflicts_with_all = ["states", "selector", "sort_by"], value_parser = node_name)]
    pub names: Vec<String>,
    /// Only nodes in this state, such as "offline"; may be given more than once
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = STATES)]
    pub states: Vec<String>,
    /// Label selector, such as site=north
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Sort order
    #[arg(long, value_name = "FIELD", default_value = "name", value_parser = SORT_WORDS)]
    pub sort_by: String,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: FleetArgs,
}

/// The fields by which nodes can be sorted.
pub(crate) const SORT_WORDS: [&str; 9] = [
    "name",
    "state",
    "objects",
    "pending",
    "rejected",
    "held-back",
    "last-renewal",
    "last-report",
    "certificate",
];

/// The states of a node.
pub const STATES: [&str; 15] = [
    "in sync",
    "syncing",
    "waiting",
    "live",
    "held back",
    "repairing",
    "connecting",
    "offline",
    "away",
    "overdue",
    "never connected",
    "revoked",
    "being removed",
    "removed",
    "unknown",
];

/// Parses a node's name, with or without the prefix that `nodes -o name` prints.
fn node_name(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("node/").unwrap_or(text);
    if name.is_empty() { Err("must not be empty".into()) } else { Ok(name.to_owned()) }
}

/// Parses the address of an API over TLS: an operator's certificate works only there.
fn over_tls(text: &str) -> Result<Address, String> {
    match text.parse() {
        Ok(address @ Address::Tls { .. }) => Ok(address),
        _ => Err("must be an address such as \"https://cloud.example:10551\"".to_owned()),
    }
}

/// Parses the number of uses of a token, 1 to 1,000,000.
fn uses(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "must be a number from 1 to 1000000".to_owned())
}

/// The commands of `rollout`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum RolloutCommands {
    /// Show revisions, waves and failures
    Status(ShowRolloutArgs),
    /// Pause: nothing opens, begins or rolls back by itself
    Pause(RolloutArgs),
    /// End a pause
    Resume(RolloutArgs),
    /// Accept the open waves as they are, and open the next one
    Promote {
        /// Number of the newest revision, to refuse another one
        #[arg(long, value_name = "NUMBER")]
        revision: Option<u64>,
        #[command(flatten)]
        args: RolloutArgs,
    },
    /// Take the newest revision back, and reject what it has changed
    Undo {
        /// Number of the newest revision, to refuse another one
        #[arg(long, value_name = "NUMBER")]
        revision: Option<u64>,
        /// Let nodes go back outside of the windows of their file rules
        #[arg(long = "override-window")]
        override_windows: bool,
        #[command(flatten)]
        args: RolloutArgs,
    },
    /// Show the revisions that have ended
    History(RolloutArgs),
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct RolloutArgs {
    /// Name of a ClusterPlacement or configured rule, or NAMESPACE/NAME of a Placement
    #[arg(value_name = "RULE")]
    pub rule: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ShowRolloutArgs {
    /// Name of a ClusterPlacement or configured rule, or NAMESPACE/NAME of a Placement
    #[arg(value_name = "RULE")]
    pub rule: String,
    /// Show it again whenever it changes
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The commands of `node`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum NodeCommand {
    /// Remove nodes and their records from the fleet; they are notified when they reconnect
    Remove(NodeArgs),
    /// Admit removed nodes again
    Admit(AdmitArgs),
    /// Revoke all certificates and tokens of nodes and close their connections; they need a new
    /// token to return
    Revoke(NodeArgs),
    /// Revoke and remove nodes permanently, and free their names for other devices
    Forget(NodeArgs),
    /// Ask nodes with a plan to stay connected for a while
    ///
    /// A node that is away stays at its next check-in.
    Stay {
        /// How long, from now on; 0s ends an earlier request
        #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = args::duration)]
        duration: Duration,
        #[command(flatten)]
        nodes: NodeArgs,
    },
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct AdmitArgs {
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// The revoked node has joined again, and the external broker has the new revocation list
    #[arg(long)]
    pub broker_updated: bool,
}

/// Names of nodes, and the server.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct NodeArgs {
    /// Names of the nodes
    #[arg(value_name = "NODE", required = true, value_parser = node_name)]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub server: FleetArgs,
}

/// The commands of `token`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum TokenCommand {
    /// Create a token and print it; it is not shown again
    Create {
        /// The only node that may use it, also to replace the device of that name
        /// [default: any unused name]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Label for the Nodes of devices that join with the token; may be given more than once
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = args::label)]
        labels: Vec<(String, String)>,
        /// Lifetime
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = args::duration)]
        ttl: Duration,
        /// Maximum number of uses
        #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = uses)]
        uses: u32,
        #[command(flatten)]
        server: FleetArgs,
    },
    /// Show the tokens, without their secret part
    List(ShowArgs),
    /// Revoke a token
    Revoke {
        /// ID, as in "token list"
        #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
        id: String,
        #[command(flatten)]
        server: FleetArgs,
    },
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct BrokerArgs {
    /// The broker
    #[arg(value_name = "BROKER", value_parser = ["mosquitto", "emqx"])]
    pub flavor: String,
    /// New directory for the files, readable by their owner only; without it they are printed
    #[arg(long, value_name = "DIRECTORY", value_parser = args::path)]
    pub output: Option<PathBuf>,
    /// Directory of the files on the broker's machine
    /// [default: the directory of --output, or /etc/mosquitto/edgesync]
    #[arg(long, value_name = "DIRECTORY")]
    pub installed: Option<String>,
    /// Host name or address of the broker, as nodes use it; may be given more than once
    /// [default: enrollment.names]
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Port that the broker listens on
    #[arg(long, default_value_t = 8883)]
    pub port: u16,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The commands of `operator`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum OperatorCommand {
    /// Show the certificates of operators
    List(ShowArgs),
    /// Revoke certificates of an operator and close their connections
    Revoke {
        /// Name of the operator, for all certificates, or the serial number of one, as in
        /// "operator list"
        #[arg(value_name = "NAME")]
        which: String,
        #[command(flatten)]
        server: FleetArgs,
    },
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct KubeconfigArgs {
    /// Name of the operator, for the audit log
    #[arg(long, value_name = "NAME", default_value = "operator")]
    pub user: String,
    /// Role: view (all but Secrets), edit (also write namespaced objects), or admin
    #[arg(long, value_name = "ROLE", default_value = "admin", value_parser = ["view", "edit", "admin"])]
    pub role: String,
    /// Lifetime of the certificate
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = args::duration)]
    pub lifetime: Duration,
    /// Address of the API, as the operator uses it [default: the server of this command]
    #[arg(long, value_name = "https://HOST:PORT", value_parser = over_tls)]
    pub api: Option<Address>,
    #[command(flatten)]
    pub server: FleetArgs,
}

/// The manifests of `apply` and `delete`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ManifestArgs {
    /// File, directory, or - for standard input; may be given more than once
    #[arg(short, long = "filename", value_name = "FILE", required = true, value_parser = NonEmptyStringValueParser::new())]
    pub files: Vec<String>,
    /// Namespace of objects whose manifest has none [default: default]
    #[arg(short, long)]
    pub namespace: Option<String>,
}

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

/// The API of a cloud side.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ServerArgs {
    /// Address of the cloud side's API: its socket, or https://HOST:PORT with --kubeconfig
    /// [default: the server of --kubeconfig, else the variable EDGESYNC_CLOUD_SERVER, else
    /// /run/edgesync-cloud/edgesync-cloud.sock]
    #[arg(long = "server", value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Kubeconfig from "edgesync-cloud kubeconfig", for a cloud side on another machine
    #[arg(long, value_name = "FILE", env = "EDGESYNC_CLOUD_KUBECONFIG", value_parser = args::path)]
    pub kubeconfig: Option<PathBuf>,
}

/// The fleet: the API of a cloud side, or a Kubernetes cluster without a cloud side in between.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct FleetArgs {
    /// Address of the cloud side's API: its socket, or https://HOST:PORT with --kubeconfig
    /// [default: the server of --kubeconfig, else the variable EDGESYNC_CLOUD_SERVER, else
    /// /run/edgesync-cloud/edgesync-cloud.sock]
    #[arg(long = "server", value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Kubeconfig of a Kubernetes cluster that stores the fleet, or one from "edgesync-cloud
    /// kubeconfig" for a cloud side on another machine
    #[arg(long, value_name = "FILE", env = "EDGESYNC_CLOUD_KUBECONFIG", value_parser = args::path)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the cluster in the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", requires = "kubeconfig", conflicts_with = "address")]
    pub context: Option<String>,
    /// Namespace of edgesync in the cluster [default: edgesync]
    #[arg(short, long, requires = "kubeconfig", conflicts_with = "address")]
    pub namespace: Option<String>,
}

/// Default namespace of edgesync in a cluster.
pub const NAMESPACE: &str = "edgesync";

/// Environment variable with the address of the API, used without `--server` and `--kubeconfig`.
pub(crate) const SERVER_VARIABLE: &str = "EDGESYNC_CLOUD_SERVER";

/// Default socket of the cloud side on this machine.
pub(crate) const SOCKET: &str = "/run/edgesync-cloud/edgesync-cloud.sock";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use edgesync_cli::groups;
    use edgesync_fleet::config::Config;

    #[test]
    fn the_definition_is_consistent() {
        CloudArgs::command().debug_assert();
    }

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        assert_eq!(groups::ungrouped(&CloudArgs::command()), [] as [&str; 0]);
        let help = groups::grouped(CloudArgs::command()).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 90 || line.starts_with("Exit")), "{help}");
    }

    #[test]
    fn the_default_server_is_where_the_cloud_side_listens() {
        assert_eq!(std::path::Path::new(SOCKET), Config::default().api.socket);
        let mut command = CloudArgs::command();
        let help = command.find_subcommand_mut("nodes").unwrap().render_long_help().to_string();
        assert!(help.contains(SOCKET), "{help}");
    }

    #[test]
    fn the_default_namespace_is_that_of_the_configuration() {
        assert_eq!(NAMESPACE, Config::default().kubernetes.namespace);
    }

    #[test]
    fn context_and_namespace_require_a_kubeconfig() {
        let words = ["edgesync-cloud", "nodes", "--kubeconfig", "a", "--context", "c", "-n", "fleet"];
        let args = CloudArgs::try_parse_from(words).unwrap();
        let CloudCommand::Nodes(NodesArgs { server, .. }) = args.command else { panic!("{args:?}") };
        assert_eq!((server.context.as_deref(), server.namespace.as_deref()), (Some("c"), Some("fleet")));
        for wrong in [&["-n", "x", "--server", "/x"][..], &["--context", "c", "--server", "/x"]] {
            let words = [&["edgesync-cloud", "nodes"], wrong].concat();
            assert!(CloudArgs::try_parse_from(&words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn broker_config_takes_no_context_of_a_cluster() {
        let words = ["edgesync-cloud", "broker-config", "emqx", "--kubeconfig", "a"];
        assert!(CloudArgs::try_parse_from(words).is_ok());
        assert!(CloudArgs::try_parse_from([&words[..], &["--context", "c"]].concat()).is_err());
        let mut command = CloudArgs::command();
        let help = command.find_subcommand_mut("broker-config").unwrap().render_long_help().to_string();
        assert!(!help.contains("Kubernetes"), "{help}");
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_hint() {
        for (words, said) in [
            (&["kubeconfig", "--api", "http://cloud.example:10551"][..], "https://cloud.example:10551"),
            (&["kubeconfig", "--api", "cloud"], "https://cloud.example:10551"),
            (&["token", "create", "--uses", "0"], "from 1 to 1000000"),
            (&["token", "revoke", ""], "<ID>"),
            (&["apply", "-f", ""], "--filename <FILE>"),
        ] {
            let error = CloudArgs::try_parse_from([&["edgesync-cloud"], words].concat()).unwrap_err();
            assert!(error.to_string().contains(said), "{words:?}: {error}");
        }
        let words = ["edgesync-cloud", "kubeconfig", "--api", "https://cloud.example:10551"];
        assert!(CloudArgs::try_parse_from(words).is_ok());
    }

    #[test]
    fn manifests_are_given_as_with_kubectl() {
        let words = ["edgesync-cloud", "apply", "-f", "a.yaml", "-f", "-", "-n", "shop"];
        let args = CloudArgs::try_parse_from(words).unwrap();
        let CloudCommand::Apply { manifests, .. } = args.command else { panic!("{args:?}") };
        assert_eq!(manifests.files, ["a.yaml", "-"]);
        for wrong in
            [&["edgesync-cloud", "apply"][..], &["edgesync-cloud", "nodes", "--server", "example.com"]]
        {
            assert!(CloudArgs::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
