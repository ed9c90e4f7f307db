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

/// The cloud side of edgesync: keeps Kubernetes objects, places them on nodes, brings nodes into
/// sync.
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
    /// Check a configuration and print what is in force and where each value comes from
    CheckConfig {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        check: CheckArgs,
    },
    /// Create the objects of manifests, or change those that differ
    ///
    /// This is a server-side apply in the name "edgesync-cloud": the fields of a manifest get its
    /// values, whoever has set them before; fields that an earlier apply has set and that are not
    /// in the manifest any more are removed; all others stay. Fields that the kind does not have
    /// are refused. Objects that no manifest names are left alone. What fails is told, and the rest
    /// goes on.
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
    Nodes(NodesArgs),
    /// Say why an object is on a node, or is not: what each rule of placement says, and what holds
    /// it back
    ExplainPlacement(ExplainArgs),
    /// Say where the page is that shows the fleet in a browser, with a key that is good for twelve
    /// hours
    Page(ServerArgs),
    /// Show the versions that nodes have reported: ObjectSync records
    Syncs {
        /// Only those of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        server: FleetArgs,
    },
    /// Let nodes delete what was held back because they would lose too much at once
    ConfirmDeletions(NodeArgs),
    /// Remove, admit, revoke or forget a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Tokens with which devices join
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print what an external broker needs to tell nodes apart by their certificates
    BrokerConfig(BrokerArgs),
    /// Print a kubeconfig with a new certificate of an operator
    Kubeconfig(KubeconfigArgs),
    /// Operators and their certificates
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Check what the cloud side needs, and say what to do where something is wrong
    #[command(after_help = "Exit codes: 0 nothing failed (warnings may be there), 1 something failed.")]
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Copy the database to a new file, consistent, while the cloud side runs or not
    #[command(after_help = "Exit codes: 0 copied and sound, 1 not copied, or as damaged as the database.")]
    Backup {
        /// The new file; it must not exist
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Put a backup in the place of the database, which is set aside; the cloud side must be
    /// stopped
    #[command(
        after_help = "Exit codes: 0 restored, 1 not restored: the copy is damaged, or the cloud side runs."
    )]
    Restore {
        /// The backup; it stays
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Check the database: each row, index and page, while the cloud side runs or not
    #[command(after_help = "Exit codes: 0 sound, 1 damaged or not to be read.")]
    Verify(ConfigArgs),
    /// Collect what a report of a problem needs, without secrets, in one archive
    SupportBundle {
        /// The new file [default: edgesync-cloud-support-<time>.tar.zst]
        #[arg(value_name = "FILE", value_parser = args::path)]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print what makes a shell complete the words of this program
    Completions {
        /// Which shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
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
    /// The object; without it, what each rule says of the node
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
    /// Names of nodes that are shown in full, with what they reject; all in a table if none is
    /// given
    #[arg(value_name = "NODE", conflicts_with_all = ["states", "selector", "sort_by"], value_parser = node_name)]
    pub names: Vec<String>,
    /// Only nodes in this state, such as "offline"; may be given more than once
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = STATES)]
    pub states: Vec<String>,
    /// Label selector, such as site=north
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub selector: String,
    /// In which order
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
pub const STATES: [&str; 12] = [
    "in sync",
    "syncing",
    "live",
    "held back",
    "repairing",
    "connecting",
    "offline",
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

/// The commands of `node`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum NodeCommand {
    /// Remove nodes from the fleet, with all that is known of them; they are told when they come
    /// back
    Remove(NodeArgs),
    /// Let nodes that were removed come back
    Admit(AdmitArgs),
    /// Revoke all certificates and tokens of nodes and cut their connections: they come back with a
    /// new token only
    Revoke(NodeArgs),
    /// Revoke and remove nodes that never come back, and free their names: any token lets a device
    /// in under them again
    Forget(NodeArgs),
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct AdmitArgs {
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// The node has joined again after it was revoked, and the external broker has the new
    /// revocation list
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
    /// Make a token and print it; it is not shown again
    Create {
        /// The only node that may use it, also to replace the device of that name
        /// [default: any name that was never used]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Label that the Node of whoever joins with it gets; may be given more than once
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = args::label)]
        labels: Vec<(String, String)>,
        /// How long it can be used
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = args::duration)]
        ttl: Duration,
        /// How often it can be used
        #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = uses)]
        uses: u32,
        #[command(flatten)]
        server: FleetArgs,
    },
    /// Show the tokens that exist, without their secret part
    List(ShowArgs),
    /// Make a token useless
    Revoke {
        /// Its id, as "token list" shows it
        #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
        id: String,
        #[command(flatten)]
        server: FleetArgs,
    },
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct BrokerArgs {
    /// Which broker
    #[arg(value_name = "BROKER", value_parser = ["mosquitto", "emqx"])]
    pub flavor: String,
    /// Write the files to this new directory, readable by their owner only; without it they are
    /// printed
    #[arg(long, value_name = "DIRECTORY", value_parser = args::path)]
    pub output: Option<PathBuf>,
    /// Where the files will be, as the broker sees it
    /// [default: the directory of --output, or /etc/mosquitto/edgesync]
    #[arg(long, value_name = "DIRECTORY")]
    pub installed: Option<String>,
    /// Host name or address by which nodes reach the broker; may be given more than once
    /// [default: pairing.names]
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Port that the broker listens on
    #[arg(long, default_value_t = 8883)]
    pub port: u16,
    #[command(flatten)]
    pub server: FleetArgs,
}

/// The commands of `operator`.
#[derive(Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum OperatorCommand {
    /// Show the certificates of operators
    List(ShowArgs),
    /// Revoke certificates of an operator and cut their connections
    Revoke {
        /// Name of the operator, for all of them, or the serial number of one, as "operator list"
        /// shows it
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
    /// What the operator may do: view everything but Secrets; edit what is in namespaces; or be an
    /// admin
    #[arg(long, value_name = "ROLE", default_value = "admin", value_parser = ["view", "edit", "admin"])]
    pub role: String,
    /// How long the certificate is good
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = args::duration)]
    pub lifetime: Duration,
    /// Address of the API, as the operator reaches it [default: the one that is asked]
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
    /// Namespace of objects that name none [default: default]
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
    /// Address of the running cloud side's API: its socket, or https://HOST:PORT with --kubeconfig
    /// [default: the server of --kubeconfig, or else of the variable EDGESYNC_CLOUD_SERVER, or else
    /// /run/edgesync-cloud/edgesync-cloud.sock]
    #[arg(long = "server", value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// A kubeconfig of "edgesync-cloud kubeconfig", for a cloud side on another machine
    #[arg(long, value_name = "FILE", env = "EDGESYNC_CLOUD_KUBECONFIG", value_parser = args::path)]
    pub kubeconfig: Option<PathBuf>,
}

/// The fleet: the API of a cloud side, or a Kubernetes cluster without a cloud side in between.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct FleetArgs {
    /// Address of the running cloud side's API: its socket, or https://HOST:PORT with --kubeconfig
    /// [default: the server of --kubeconfig, or else of the variable EDGESYNC_CLOUD_SERVER, or else
    /// /run/edgesync-cloud/edgesync-cloud.sock]
    #[arg(long = "server", value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// A kubeconfig: that of a Kubernetes cluster with replicas of the cloud side, which is asked
    /// itself; or one of "edgesync-cloud kubeconfig", for a cloud side on another machine
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
    use edgesync_fleet::config::Config;

    #[test]
    fn the_definition_is_consistent() {
        CloudArgs::command().debug_assert();
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
