//! The program `edgesync-cloud`.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_cloud::{AdmitArgs, CloudArgs, CloudCommand, FleetArgs, NodeArgs, NodeCommand};
use super::nodes::{self, NODES_PATH};
use super::server::{Fleet, client};
use super::{explain, maintenance_cloud, pairing};
use edgesync_api::{ClientError, encode};
use edgesync_cli::program::{self, Exit, Threads};
use edgesync_cli::records;
use edgesync_cli::{CliError, EXIT_FAILED, Peer, Terminal, apply, check, get, report};
use edgesync_fleet::config::Config;
use edgesync_runtime::memory;

/// Where the page is, with a key.
pub const PAGE_PATH: &str = "/edgesync/v1/page";

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    memory::limit_arenas();
    match program::parse::<CloudArgs>(std::env::args_os()) {
        Ok(args) => program::exit(dispatch(args.command), Peer::CLOUD),
        Err(code) => ExitCode::from(code),
    }
}

fn dispatch(command: CloudCommand) -> anyhow::Result<u8> {
    match command {
        CloudCommand::CheckConfig { config, check } => {
            program::check_config::<Config>(&config.path, check.quiet)
        }
        CloudCommand::Apply { manifests, server } => program::ask(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            apply::run(&client(server).await?, &manifests.files, namespace, terminal).await
        }),
        CloudCommand::Delete { manifests, ignore_not_found, server } => program::ask(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            apply::delete(&client(server).await?, &manifests.files, namespace, ignore_not_found, terminal)
                .await
        }),
        CloudCommand::Get { get, server } => program::ask(async |terminal| {
            get::run(&client(server).await?, &get.query(), Timestamp::now(), terminal).await
        }),
        CloudCommand::Nodes(args) => program::ask(async |terminal| nodes::run(args, terminal).await),
        CloudCommand::ExplainPlacement(args) => {
            program::ask(async |terminal| explain::run(args, terminal).await)
        }
        CloudCommand::Page(server) => program::ask(async |terminal| {
            let answer: Value = client(server).await?.post(PAGE_PATH, &Value::Null).await?;
            Ok(writeln!(terminal.out, "{}", answer["url"].as_str().unwrap_or_default())?)
        }),
        CloudCommand::Syncs { node, output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::syncs_of(&Fleet::open(server).await?, node.as_deref(), output.output, now, terminal)
                .await
        }),
        CloudCommand::ConfirmDeletions(NodeArgs { nodes, server }) => program::ask(async |terminal| {
            each_node(server, &nodes, "confirm-deletions", &Value::Null, terminal).await
        }),
        CloudCommand::Node(command) => program::ask(async |terminal| change_nodes(command, terminal).await),
        CloudCommand::Token(command) => {
            program::ask(async |terminal| pairing::token(command, terminal).await)
        }
        CloudCommand::BrokerConfig(broker) => {
            program::ask(async |terminal| pairing::broker_config(broker, terminal).await)
        }
        CloudCommand::Kubeconfig(args) => {
            program::ask(async |terminal| pairing::kubeconfig(args, terminal).await)
        }
        CloudCommand::Operator(command) => {
            program::ask(async |terminal| pairing::operator(command, terminal).await)
        }
        CloudCommand::Check { config, output } => {
            check::show(&check::wait(crate::check::run(&config.path))?, output.output)
        }
        CloudCommand::Backup { file, config } => maintenance_cloud::backup(&config.path, &file),
        CloudCommand::Restore { file, config } => maintenance_cloud::restore(&config.path, &file),
        CloudCommand::Verify(config) => maintenance_cloud::verify(&config.path),
        CloudCommand::SupportBundle { file, config } => {
            maintenance_cloud::support_bundle(&config.path, file.as_deref())
        }
        CloudCommand::Completions { shell } => program::completions::<CloudArgs>(shell),
        CloudCommand::Run(config) => {
            program::serve::<Config>(&config.path, Threads::Two, crate::service::run)
        }
    }
}

/// Whether all nodes could be done what was asked for.
struct Done(bool);

impl Exit for Done {
    fn code(&self) -> u8 {
        if self.0 { 0 } else { EXIT_FAILED }
    }
}

/// Has something done with some nodes.
async fn change_nodes(command: NodeCommand, terminal: &mut Terminal<'_>) -> Result<Done, CliError> {
    let mut wanted = json!({});
    let (NodeArgs { nodes, server }, verb) = match command {
        NodeCommand::Remove(nodes) => (nodes, "remove"),
        NodeCommand::Admit(AdmitArgs { nodes, broker_updated }) => {
            wanted["brokerUpdated"] = broker_updated.into();
            (nodes, "admit")
        }
        NodeCommand::Revoke(nodes) => (nodes, "revoke"),
        NodeCommand::Forget(nodes) => (nodes, "forget"),
    };
    each_node(server, &nodes, verb, &wanted, terminal).await
}

/// Has something done with one node after the other, and says what was done. What fails is told, and the rest goes on.
async fn each_node(
    server: FleetArgs,
    nodes: &[String],
    verb: &str,
    wanted: &Value,
    terminal: &mut Terminal<'_>,
) -> Result<Done, CliError> {
    let fleet = Fleet::open(server).await?;
    let mut all = true;
    for node in nodes {
        let path = format!("{NODES_PATH}/{}/{verb}", encode(node));
        match fleet.post(&path, wanted).await {
            Ok(answer) => writeln!(terminal.out, "{}", done(node, verb, wanted, &answer))?,
            Err(error)
                if nodes.len() == 1 || matches!(error, CliError::Client(ClientError::Connect { .. })) =>
            {
                return Err(error);
            }
            Err(error) => {
                terminal.out.flush()?;
                report(&error, Peer::CLOUD, terminal.err);
                all = false;
            }
        }
    }
    Ok(Done(all))
}

/// What was done with a node.
fn done(node: &str, verb: &str, wanted: &Value, answer: &Value) -> String {
    let is = |field: &str| answer[field].as_bool().unwrap_or(false);
    match verb {
        "confirm-deletions" if answer["confirmed"] == 0 => format!("node '{node}': nothing is held back"),
        "confirm-deletions" => format!("node '{node}': what was held back will be deleted"),
        "remove" if is("removed") => format!("node '{node}' removed from the fleet"),
        "remove" => format!("node '{node}' has been removed already"),
        "admit" if is("admitted") => {
            format!("node '{node}' may come back: it is asked to, or will within the hour")
        }
        "admit" if wanted["brokerUpdated"] == true => {
            format!(
                "node '{node}': {} revoked certificates count as refused by the broker",
                answer["certificates"]
            )
        }
        "admit" => format!("node '{node}' was not removed"),
        "forget" => format!("node '{node}': forgotten; any device may join under this name"),
        _ => format!(
            "node '{node}': {certificates} certificates revoked; it comes back with a new token for its name only\n\
             An external broker must be given the new revocation list: 'edgesync-cloud broker-config'. It is listened to there \
             again after that, and 'edgesync-cloud node admit {node} --broker-updated'",
            certificates = answer["certificates"]
        ),
    }
}
