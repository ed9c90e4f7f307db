//! The program `edgesync-cloud`.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use super::args_cloud::{CloudArgs, CloudCommand, DemoArgs, NodeArgs, NodeCommand, ServerArgs};
use super::program::{self, Threads};
use super::records::{self, RecordColumn};
use super::{CliError, Peer, apply, edge, get, pairing};
use crate::api::{Address, Client, encode};
use crate::cloud::demo::{self, DemoOptions};
use crate::config::cloud::Config;
use crate::memory;

/// What the cloud side answers about its nodes: an object with `items`.
pub const NODES_PATH: &str = "/edgesync/v1/nodes";

/// What `nodes` shows of each of them.
const NODE_COLUMNS: &[RecordColumn] = &[
    RecordColumn::value("name", "/name"),
    RecordColumn::value("state", "/state"),
    RecordColumn::value("ready", "/ready"),
    RecordColumn::value("objects", "/objects"),
    RecordColumn::value("pending", "/pending"),
    RecordColumn::value("rejected", "/rejected"),
    RecordColumn::value("held back", "/heldBack"),
    RecordColumn::age("last renewal", "/lastRenewal"),
    RecordColumn::age("last report", "/lastReport"),
    RecordColumn::value("agent", "/agentVersion"),
];

/// Runs the program with the arguments of the process. Called as `edgesync` it is the agent: one file
/// is then a complete installation.
#[must_use]
pub fn main() -> ExitCode {
    memory::limit_arenas();
    let args = std::env::args_os().collect::<Vec<_>>();
    if called(&args) == Some("edgesync") {
        return edge::run(args);
    }
    match program::parse::<CloudArgs>(args) {
        Ok(args) => program::exit(dispatch(args.command), Peer::CLOUD),
        Err(code) => ExitCode::from(code),
    }
}

/// The name by which the program was called, without directories.
fn called(args: &[OsString]) -> Option<&str> {
    Path::new(args.first()?).file_name()?.to_str()
}

fn dispatch(command: CloudCommand) -> anyhow::Result<u8> {
    match command {
        CloudCommand::CheckConfig { config, check } => {
            program::check_config::<Config>(&config.path, check.quiet)
        }
        CloudCommand::Apply { manifests, server } => program::ask(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            Ok(apply::run(&client(server)?, &manifests.files, namespace, terminal).await?.exit_code())
        }),
        CloudCommand::Delete { manifests, ignore_not_found, server } => program::ask(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            let client = client(server)?;
            let summary =
                apply::delete(&client, &manifests.files, namespace, ignore_not_found, terminal).await?;
            Ok(summary.exit_code())
        }),
        CloudCommand::Get { get, server } => program::ask(async |terminal| {
            get::run(&client(server)?, &get.query(), Timestamp::now(), terminal).await?;
            Ok(0)
        }),
        CloudCommand::Nodes { output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::table(&client(server)?, NODES_PATH, NODE_COLUMNS, output.output, now, terminal).await?;
            Ok(0)
        }),
        CloudCommand::Syncs { node, output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::syncs(&client(server)?, node.as_deref(), output.output, now, terminal).await?;
            Ok(0)
        }),
        CloudCommand::ConfirmDeletions { node, server } => program::ask(async |terminal| {
            let path = format!("{NODES_PATH}/{}/confirm-deletions", encode(&node));
            client(server)?.post::<Value>(&path, &Value::Null).await?;
            writeln!(terminal.out, "node '{node}': what was held back will be deleted")?;
            Ok(0)
        }),
        CloudCommand::Node { command } => program::ask(async |terminal| {
            let said = change_node(command).await?;
            writeln!(terminal.out, "{said}")?;
            Ok(0)
        }),
        CloudCommand::Token { command } => {
            program::ask(async |terminal| pairing::token(command, terminal).await)
        }
        CloudCommand::BrokerConfig { broker, server } => {
            program::ask(async |terminal| pairing::broker_config(&client(server)?, &broker, terminal).await)
        }
        CloudCommand::Kubeconfig { operator, server } => {
            program::ask(async |terminal| pairing::kubeconfig(&client(server)?, &operator, terminal).await)
        }
        CloudCommand::Run { config } => {
            program::serve::<Config>(&config.path, Threads::Two, crate::cloud::run)
        }
        CloudCommand::Demo { demo } => {
            let DemoArgs { objects, keep } = demo;
            let mut out = io::stdout();
            let is_terminal = out.is_terminal();
            Ok(program::wait(demo::run(DemoOptions { objects, keep }, &mut out, is_terminal))?)
        }
    }
}

/// Has something done with a node, and says what was done.
async fn change_node(command: NodeCommand) -> Result<String, CliError> {
    let (NodeArgs { node, server }, verb) = match command {
        NodeCommand::Remove { node } => (node, "remove"),
        NodeCommand::Admit { node } => (node, "admit"),
        NodeCommand::Revoke { node } => (node, "revoke"),
    };
    let path = format!("{NODES_PATH}/{}/{verb}", encode(&node));
    let answer = client(server)?.post::<Value>(&path, &Value::Null).await?;
    let is = |field: &str| answer[field].as_bool().unwrap_or(false);
    Ok(match verb {
        "remove" if is("removed") => format!("node '{node}' removed from the fleet"),
        "remove" => format!("node '{node}' has been removed already"),
        "admit" if is("admitted") => {
            format!("node '{node}' may come back: it is asked to, or will within the hour")
        }
        "admit" => format!("node '{node}' was not removed"),
        _ => format!(
            "node '{node}': {} certificates revoked; it comes back with a new token only\n\
             An external broker must be given the new revocation list: edgesync-cloud broker-config",
            answer["certificates"]
        ),
    })
}

/// A client of the API that is asked.
pub(super) fn client(server: ServerArgs) -> Result<Client, CliError> {
    match (&server.address, &server.kubeconfig) {
        (Address::Tls { .. }, Some(file)) => {
            let tls = pairing::credentials(file)?;
            Ok(Client::with_tls(server.address, tls))
        }
        (Address::Tls { .. }, None) => Err(CliError::Usage(
            "an https:// address needs --kubeconfig FILE, which 'edgesync-cloud kubeconfig' makes".to_owned(),
        )),
        _ => Ok(Client::new(server.address)),
    }
}
