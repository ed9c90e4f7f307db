//! The program `edgesync-cloud`.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_cloud::{AdmitArgs, CloudArgs, CloudCommand, NodeArgs, NodeCommand, ShowArgs};
use super::program::{self, Threads};
use super::records::{self, RecordColumn};
use super::server::{Fleet, client};
use super::{CliError, Peer, apply, get, pairing};
use crate::api::encode;
use crate::config::cloud::Config;
use crate::process::memory;

/// What the cloud side answers about its nodes: an object with `items`.
pub const NODES_PATH: &str = "/edgesync/v1/nodes";

/// Where the page is, with a key.
pub const PAGE_PATH: &str = "/edgesync/v1/page";

/// What `nodes` shows of each of them.
const NODE_COLUMNS: &[RecordColumn] = &[
    RecordColumn::value("name", "/name"),
    RecordColumn::value("state", "/state"),
    RecordColumn::value("ready", "/ready"),
    RecordColumn::value("objects", "/objects"),
    RecordColumn::value("pending", "/pending"),
    RecordColumn::value("rejected", "/rejected"),
    RecordColumn::value("held back", "/heldBack"),
    RecordColumn::rare("in effect", "/filesInEffect"),
    RecordColumn::rare("not in effect", "/filesNotInEffect"),
    RecordColumn::age("last renewal", "/lastRenewal"),
    RecordColumn::age("last report", "/lastReport"),
    RecordColumn::value("agent", "/agentVersion"),
];

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
        CloudCommand::Nodes(ShowArgs { output, server }) => program::ask(async |terminal| {
            let answer = Fleet::open(server).await?.get(NODES_PATH).await?;
            records::table_of(&answer, NODE_COLUMNS, output.output, Timestamp::now(), terminal)
        }),
        CloudCommand::Page(server) => program::ask(async |terminal| {
            let answer: Value = client(server).await?.post(PAGE_PATH, &Value::Null).await?;
            Ok(writeln!(terminal.out, "{}", answer["url"].as_str().unwrap_or_default())?)
        }),
        CloudCommand::Syncs { node, output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::syncs_of(&Fleet::open(server).await?, node.as_deref(), output.output, now, terminal)
                .await
        }),
        CloudCommand::ConfirmDeletions(NodeArgs { node, server }) => program::ask(async |terminal| {
            let path = format!("{NODES_PATH}/{}/confirm-deletions", encode(&node));
            let answer = Fleet::open(server).await?.post(&path, &Value::Null).await?;
            let said = match answer["confirmed"].as_u64() {
                Some(0) => "nothing is held back",
                _ => "what was held back will be deleted",
            };
            Ok(writeln!(terminal.out, "node '{node}': {said}")?)
        }),
        CloudCommand::Node(command) => program::ask(async |terminal| {
            let said = change_node(command).await?;
            Ok(writeln!(terminal.out, "{said}")?)
        }),
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
        CloudCommand::Run(config) => program::serve::<Config>(&config.path, Threads::Two, crate::cloud::run),
    }
}

/// Has something done with a node, and says what was done.
async fn change_node(command: NodeCommand) -> Result<String, CliError> {
    let mut wanted = json!({});
    let (NodeArgs { node, server }, verb) = match command {
        NodeCommand::Remove(node) => (node, "remove"),
        NodeCommand::Admit(AdmitArgs { node, broker_updated }) => {
            wanted["brokerUpdated"] = broker_updated.into();
            (node, "admit")
        }
        NodeCommand::Revoke(node) => (node, "revoke"),
        NodeCommand::Forget(node) => (node, "forget"),
    };
    let path = format!("{NODES_PATH}/{}/{verb}", encode(&node));
    let answer = Fleet::open(server).await?.post(&path, &wanted).await?;
    let is = |field: &str| answer[field].as_bool().unwrap_or(false);
    Ok(match verb {
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
    })
}
