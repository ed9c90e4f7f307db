//! Dispatches the commands of `edgesync-cloud`.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::args_cloud::{AdmitArgs, CloudArgs, CloudCommand, FleetArgs, NodeArgs, NodeCommand, PageCommand};
use super::nodes;
use super::server::{Fleet, body, client};
use super::{enrollment, explain, maintenance_cloud, rollout};
use edgesync_admin::cloud::{
    AdmitRequest, Admitted, Confirmed, PageInvitation, Removed, RevokedCertificates, RevokedPageKeys,
};
use edgesync_admin::{InvalidResponse, NodeAction, Route, read};
use edgesync_api::ClientError;
use edgesync_cli::program::{self, Exit, Threads};
use edgesync_cli::progress::Progress;
use edgesync_cli::records;
use edgesync_cli::{CliError, EXIT_FAILED, Peer, Terminal, apply, check, get, report};
use edgesync_fleet::STAY_ANNOTATION;
use edgesync_fleet::config::Config;
use edgesync_object::time::rfc3339;
use edgesync_runtime::memory;

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
        CloudCommand::Apply { manifests, server } => program::run_command(async |terminal| {
            let namespace = manifests.namespace.as_deref();
            apply::run(&client(server).await?, &manifests.files, namespace, terminal).await
        }),
        CloudCommand::Delete { manifests, ignore_not_found, server } => {
            program::run_command(async |terminal| {
                let namespace = manifests.namespace.as_deref();
                apply::delete(&client(server).await?, &manifests.files, namespace, ignore_not_found, terminal)
                    .await
            })
        }
        CloudCommand::Get { get, server } => program::run_command(async |terminal| {
            get::run(&client(server).await?, &get.query(), Timestamp::now(), terminal).await
        }),
        CloudCommand::Nodes(args) => program::run_command(async |terminal| nodes::run(args, terminal).await),
        CloudCommand::ExplainPlacement(args) => {
            program::run_command(async |terminal| explain::run(args, terminal).await)
        }
        CloudCommand::Rollout(command) => {
            program::run_command(async |terminal| rollout::run(command, terminal).await)
        }
        CloudCommand::Page { command: None, server } => program::run_command(async |terminal| {
            let answer: Value = client(server).await?.post(&Route::Page.path(), &Value::Null).await?;
            Ok(writeln!(terminal.out, "{}", read::<PageInvitation>(&answer)?.url)?)
        }),
        CloudCommand::Page { command: Some(PageCommand::Revoke(server)), .. } => {
            program::run_command(async |terminal| {
                let path = Route::RevokePageKeys.path();
                let answer: Value = client(server).await?.post(&path, &Value::Null).await?;
                read::<RevokedPageKeys>(&answer)?;
                Ok(writeln!(terminal.out, "all keys of the page revoked")?)
            })
        }
        CloudCommand::Syncs { node, output, server } => program::run_command(async |terminal| {
            let now = Timestamp::now();
            records::syncs_of(&Fleet::open(server).await?, node.as_deref(), output.output, now, terminal)
                .await
        }),
        CloudCommand::ConfirmDeletions(NodeArgs { nodes, server }) => {
            program::run_command(async |terminal| {
                each_node(server, &nodes, NodeAction::ConfirmDeletions, AdmitRequest::default(), terminal)
                    .await
            })
        }
        CloudCommand::Node(command) => {
            program::run_command(async |terminal| change_nodes(command, terminal).await)
        }
        CloudCommand::Token(command) => {
            program::run_command(async |terminal| enrollment::token(command, terminal).await)
        }
        CloudCommand::BrokerConfig(broker) => {
            program::run_command(async |terminal| enrollment::broker_config(broker, terminal).await)
        }
        CloudCommand::Kubeconfig(args) => {
            program::run_command(async |terminal| enrollment::kubeconfig(args, terminal).await)
        }
        CloudCommand::Operator(command) => {
            program::run_command(async |terminal| enrollment::operator(command, terminal).await)
        }
        CloudCommand::Check { config, output } => {
            let report =
                Progress::during("running checks", |_| check::wait(crate::check::run(&config.path)))?;
            check::show(&report, output.output)
        }
        CloudCommand::Backup { file, config } => maintenance_cloud::backup(&config.path, &file),
        CloudCommand::Restore { file, config } => maintenance_cloud::restore(&config.path, &file),
        CloudCommand::Verify(config) => maintenance_cloud::verify(&config.path),
        CloudCommand::SupportBundle { file, config } => {
            maintenance_cloud::support_bundle(&config.path, file.as_deref())
        }
        CloudCommand::Completions { shell } => program::completions::<CloudArgs>(shell),
        CloudCommand::Sleep { duration } => program::run_command(async |_| {
            tokio::time::sleep(duration).await;
            Ok(())
        }),
        CloudCommand::Run(config) => {
            program::serve::<Config>(&config.path, Threads::Two, crate::service::run)
        }
        CloudCommand::Signer(config) => {
            program::serve::<Config>(&config.path, Threads::Two, crate::service::run_signer)
        }
    }
}

/// Whether the command succeeded for all nodes.
struct Done(bool);

impl Exit for Done {
    fn code(&self) -> u8 {
        if self.0 { 0 } else { EXIT_FAILED }
    }
}

/// Runs a command that changes nodes.
async fn change_nodes(command: NodeCommand, terminal: &mut Terminal<'_>) -> Result<Done, CliError> {
    let mut request = AdmitRequest::default();
    let (NodeArgs { nodes, server }, action) = match command {
        NodeCommand::Remove(nodes) => (nodes, NodeAction::Remove),
        NodeCommand::Admit(AdmitArgs { nodes, broker_updated }) => {
            request.broker_updated = broker_updated;
            (nodes, NodeAction::Admit)
        }
        NodeCommand::Revoke(nodes) => (nodes, NodeAction::Revoke),
        NodeCommand::Forget(nodes) => (nodes, NodeAction::Forget),
        NodeCommand::Stay { duration, nodes } => return stay(nodes, duration, terminal).await,
    };
    each_node(server, &nodes, action, request, terminal).await
}

/// Asks nodes to stay connected, by an annotation of their Nodes.
async fn stay(
    NodeArgs { nodes, server }: NodeArgs,
    duration: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<Done, CliError> {
    let fleet = Fleet::open(server).await?;
    let now = Timestamp::now();
    let until = now.checked_add(duration).map_err(|error| CliError::Usage(format!("--for: {error}")))?;
    let until = (until > now).then(|| rfc3339(until));
    for node in &nodes {
        fleet.annotate_node(node, STAY_ANNOTATION, until.as_deref()).await?;
        match &until {
            Some(until) => writeln!(terminal.out, "node '{node}' asked to stay until {until}")?,
            None => writeln!(terminal.out, "node '{node}' follows its plan")?,
        }
    }
    Ok(Done(true))
}

/// Changes nodes one by one and prints each result. A failure is printed, and the next node
/// follows.
async fn each_node(
    server: FleetArgs,
    nodes: &[String],
    action: NodeAction,
    request: AdmitRequest,
    terminal: &mut Terminal<'_>,
) -> Result<Done, CliError> {
    let fleet = Fleet::open(server).await?;
    let body = match action {
        NodeAction::Admit => body(&request)?,
        _ => Value::Null,
    };
    let mut all = true;
    for node in nodes {
        let changed = async {
            let answer = fleet.call(Route::ChangeNode(node, action), &body).await?;
            Ok(done(node, action, &request, &answer)?)
        };
        match changed.await {
            Ok(done) => writeln!(terminal.out, "{done}")?,
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

/// Formats the result for a node.
fn done(
    node: &str,
    action: NodeAction,
    request: &AdmitRequest,
    answer: &Value,
) -> Result<String, InvalidResponse> {
    Ok(match action {
        NodeAction::ConfirmDeletions => match read::<Confirmed>(answer)?.confirmed {
            0 => format!("node '{node}': no removals held back"),
            _ => format!("node '{node}': held removals confirmed"),
        },
        NodeAction::Remove if read::<Removed>(answer)?.removed => {
            format!("node '{node}' removed from the fleet")
        }
        NodeAction::Remove => format!("node '{node}' already removed"),
        NodeAction::Admit if request.broker_updated => format!(
            "node '{node}': {} recorded as refused by the broker",
            enrollment::certificates_counted(read::<RevokedCertificates>(answer)?.certificates)
        ),
        NodeAction::Admit if read::<Admitted>(answer)?.admitted => {
            format!("node '{node}' admitted; it reconnects within an hour")
        }
        NodeAction::Admit => format!("node '{node}' was not removed"),
        NodeAction::Forget => format!("node '{node}' forgotten; any device may join under this name"),
        NodeAction::Revoke => format!(
            "node '{node}': {certificates} revoked; it needs a new token for its name to return\n\
             hint: with an external broker, install the new revocation list ('edgesync-cloud broker-config'), then run \
             'edgesync-cloud node admit {node} --broker-updated'",
            certificates =
                enrollment::certificates_counted(read::<RevokedCertificates>(answer)?.certificates)
        ),
    })
}
