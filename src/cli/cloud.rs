//! The program `edgesync-cloud`.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use super::args_cloud::{CloudArgs, CloudCommand, DemoArgs, ServerArgs};
use super::program::{self, Threads};
use super::records::{self, RecordColumn};
use super::{Peer, apply, edge, get};
use crate::api::{Client, ClientError, encode};
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
            Ok(apply::run(&client(server), &manifests.files, namespace, terminal).await?.exit_code())
        }),
        CloudCommand::Delete { manifests, ignore_not_found, server } => program::ask(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            let client = client(server);
            let summary =
                apply::delete(&client, &manifests.files, namespace, ignore_not_found, terminal).await?;
            Ok(summary.exit_code())
        }),
        CloudCommand::Get { get, server } => program::ask(async |terminal| {
            get::run(&client(server), &get.query(), Timestamp::now(), terminal).await?;
            Ok(0)
        }),
        CloudCommand::Nodes { output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::table(&client(server), NODES_PATH, NODE_COLUMNS, output.output, now, terminal).await?;
            Ok(0)
        }),
        CloudCommand::Syncs { node, output, server } => program::ask(async |terminal| {
            let now = Timestamp::now();
            records::syncs(&client(server), node.as_deref(), output.output, now, terminal).await?;
            Ok(0)
        }),
        CloudCommand::ConfirmDeletions { node, server } => program::ask(async |terminal| {
            let path = format!("{NODES_PATH}/{}/confirm-deletions", encode(&node));
            client(server).post::<Value>(&path, &Value::Null).await?;
            writeln!(terminal.out, "node '{node}': what was held back will be deleted")?;
            Ok(0)
        }),
        CloudCommand::RemoveNode { node, server } => program::ask(async |terminal| {
            let said = if ask_of_node(server, &node, "remove", "/removed").await? {
                "removed from the fleet"
            } else {
                "has been removed already"
            };
            writeln!(terminal.out, "node '{node}' {said}")?;
            Ok(0)
        }),
        CloudCommand::AdmitNode { node, server } => program::ask(async |terminal| {
            let said = if ask_of_node(server, &node, "admit", "/admitted").await? {
                "may come back: it is asked to, or will within the hour"
            } else {
                "was not removed"
            };
            writeln!(terminal.out, "node '{node}' {said}")?;
            Ok(0)
        }),
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

/// Has something done with a node. Tells whether it has made a difference.
async fn ask_of_node(server: ServerArgs, node: &str, verb: &str, field: &str) -> Result<bool, ClientError> {
    let path = format!("{NODES_PATH}/{}/{verb}", encode(node));
    let answer = client(server).post::<Value>(&path, &Value::Null).await?;
    Ok(answer.pointer(field).and_then(Value::as_bool).unwrap_or(false))
}

fn client(server: ServerArgs) -> Client {
    Client::new(server.address)
}
