//! Entry point of the program `edgesync`.

use std::process::ExitCode;

use jiff::Timestamp;

use super::args_edge::{EdgeArgs, EdgeCommand, FilesCommand, SealCommand, ShowArgs, SocketArgs};
use super::{check, events, files, holds, join, maintenance, seal, status, sync, traffic};
use crate::agent;
use edgesync_admin::Route;
use edgesync_api::{Address, Client};
use edgesync_cli::output::Output;
use edgesync_cli::program::Threads;
use edgesync_cli::{Peer, get, program, records};
use edgesync_config::edge::Config;
use edgesync_helper::OwnSockets;
use edgesync_runtime::{Service, memory};

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    memory::limit_arenas();
    match program::parse::<EdgeArgs>(std::env::args_os()) {
        Ok(args) => program::exit(dispatch(args.command), Peer::AGENT),
        Err(code) => ExitCode::from(code),
    }
}

fn dispatch(command: EdgeCommand) -> anyhow::Result<u8> {
    match command {
        EdgeCommand::CheckConfig { config, check } => {
            program::check_config::<Config>(&config.path, check.quiet)
        }
        EdgeCommand::Status { verbose, show: ShowArgs { output, socket } } => {
            program::run_command(async |terminal| {
                let (client, output) = (client(socket), output.output);
                if verbose || output == Output::Wide {
                    return records::sheet(&client, Route::Status, output, terminal).await;
                }
                records::answer(&client, Route::Status, output, status::summary, terminal).await
            })
        }
        EdgeCommand::Events(ShowArgs { output, socket }) => {
            program::run_command(async |terminal| events::run(&client(socket), output.output, terminal).await)
        }
        EdgeCommand::Traffic(ShowArgs { output, socket }) => program::run_command(async |terminal| {
            records::answer(&client(socket), Route::Traffic, output.output, traffic::tables, terminal).await
        }),
        EdgeCommand::Get { get, socket } => program::run_command(async |terminal| {
            get::run(&client(socket), &get.query(), Timestamp::now(), terminal).await
        }),
        EdgeCommand::Syncs(ShowArgs { output, socket }) => program::run_command(async |terminal| {
            records::syncs(&client(socket), None, output.output, Timestamp::now(), terminal).await
        }),
        EdgeCommand::Join { join, config } => join::run(&join, &config.path),
        EdgeCommand::Check { config, output } => check::run(&config.path, output.output),
        EdgeCommand::Files { command: None, show } => files::show(show),
        EdgeCommand::Files { command: Some(FilesCommand::Check(show)), .. } => files::check(show),
        EdgeCommand::Files { command: Some(FilesCommand::Apply { rule, show }), .. } => {
            files::apply(&rule, show)
        }
        EdgeCommand::FilesHelper { config, socket, socket_owner, hold_socket, hold_group } => {
            let sockets = socket.as_deref().map(|agent| OwnSockets {
                agent,
                owner: &socket_owner,
                holds: hold_socket.as_deref(),
                holds_group: &hold_group,
            });
            files::help(&config.path, sockets)
        }
        EdgeCommand::Hold { rule, time, why, holds } => holds::hold(&rule, time, &why, &holds.path),
        EdgeCommand::Holds { output, holds } => holds::list(output.output, &holds.path),
        EdgeCommand::Release { id, rule, holds } => holds::release(id, rule, &holds.path),
        EdgeCommand::Seal(SealCommand::Rotate(socket)) => {
            program::run_command(async |terminal| seal::rotate(&client(socket), terminal).await)
        }
        EdgeCommand::Sync(socket) => {
            program::run_command(async |terminal| sync::run(&client(socket), terminal).await)
        }
        EdgeCommand::Backup { file, config } => maintenance::backup(&config.path, &file),
        EdgeCommand::Verify { online, config, socket } => {
            maintenance::verify(&config.path, online.then(|| client(socket)))
        }
        EdgeCommand::Repair(config) => maintenance::repair(&config.path),
        EdgeCommand::SupportBundle { file, config, socket } => {
            maintenance::support_bundle(&config.path, file.as_deref(), &client(socket))
        }
        EdgeCommand::Completions { shell } => program::completions::<EdgeArgs>(shell),
        EdgeCommand::Run(config) => program::serve::<Config>(&config.path, Threads::One, run_agent),
    }
}

/// Runs the agent as a task of its own: whenever something wakes the future of `block_on`, tokio
/// makes one more system call, to look for events.
async fn run_agent(service: Service<Config>) -> anyhow::Result<()> {
    tokio::spawn(agent::run(service)).await?
}

fn client(socket: SocketArgs) -> Client {
    Client::new(Address::Unix(socket.path))
}
