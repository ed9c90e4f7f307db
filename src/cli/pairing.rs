//! `edgesync-cloud token`, `broker-config` and `kubeconfig`.

use std::os::unix::fs::DirBuilderExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::args_cloud::{BrokerArgs, OperatorArgs, ShowArgs, TokenCommand};
use super::output::Output;
use super::records::{self, RecordColumn};
use super::server::client;
use super::{CliError, Terminal};
use crate::api::encode;
use crate::config::units::show_duration;
use crate::object::Labels;
use crate::store::durable;

const TOKENS_PATH: &str = "/edgesync/v1/tokens";
const BROKER_CONFIG_PATH: &str = "/edgesync/v1/broker-config";
const OPERATORS_PATH: &str = "/edgesync/v1/operators";

/// What `token list` shows.
const TOKEN_COLUMNS: &[RecordColumn] = &[
    RecordColumn::value("id", "/id"),
    RecordColumn::value("node", "/node"),
    RecordColumn::value("state", "/state"),
    RecordColumn::value("uses", "/uses"),
    RecordColumn::value("used", "/used"),
    RecordColumn::age("age", "/created"),
    RecordColumn::value("expires", "/expires"),
];

/// Creates, lists or revokes tokens.
pub(super) async fn token(command: TokenCommand, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    match command {
        TokenCommand::Create { node, labels, ttl, uses, server } => {
            let labels: Labels = labels.into_iter().collect();
            let wanted = json!({ "node": node, "ttlSeconds": ttl.as_secs(), "uses": uses, "labels": labels });
            let made: Value = client(server)?.post(TOKENS_PATH, &wanted).await?;
            // Alone on standard output, so that a script can take it.
            writeln!(terminal.out, "{}", made["token"].as_str().unwrap_or_default())?;
            let service = made["cloud"].as_str().unwrap_or("https://HOST:10002");
            let whom = node.map_or_else(|| "any new node".to_owned(), |node| format!("node '{node}'"));
            let times = if uses == 1 { "once".to_owned() } else { format!("{uses} times") };
            writeln!(
                terminal.err,
                "For {whom}, {times}, within {}. On the device:\n    edgesync join --cloud {service} --token TOKEN",
                show_duration(ttl)
            )?;
        }
        TokenCommand::List(ShowArgs { output, server }) => {
            let now = Timestamp::now();
            records::table(&client(server)?, TOKENS_PATH, TOKEN_COLUMNS, output.output, now, terminal)
                .await?;
        }
        TokenCommand::Revoke { id, server } => {
            let path = format!("{TOKENS_PATH}/{}/revoke", encode(&id));
            let answer: Value = client(server)?.post(&path, &Value::Null).await?;
            let was = if answer["revoked"] == true { "revoked" } else { "was of no use any more" };
            writeln!(terminal.out, "token '{id}' {was}")?;
        }
    }
    Ok(())
}

/// Prints the files for a broker, or writes them to a new directory.
pub(super) async fn broker_config(args: BrokerArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let client = client(args.server)?;
    let installed = args.installed.clone().or_else(|| args.output.as_ref()?.to_str().map(str::to_owned));
    let wanted = json!({
        "broker": args.flavor,
        "directory": installed.as_deref().unwrap_or("/etc/mosquitto/edgesync"),
        "names": args.names,
        "port": args.port,
    });
    let answer: Map<String, Value> = client.post(BROKER_CONFIG_PATH, &wanted).await?;
    let files = answer.iter().map(|(name, content)| (name.as_str(), content.as_str().unwrap_or_default()));
    let Some(directory) = &args.output else {
        for (name, content) in files {
            writeln!(terminal.out, "# ---- {name}\n{content}")?;
        }
        return Ok(());
    };
    std::fs::DirBuilder::new().mode(0o700).create(directory).map_err(|error| {
        CliError::Usage(format!(
            "--output must be a directory that can be made: {}: {error}",
            directory.display()
        ))
    })?;
    for (name, content) in files {
        let path = directory.join(name);
        durable::write_new(&path, content.as_bytes(), 0o600)?;
        writeln!(terminal.out, "{}", path.display())?;
    }
    writeln!(
        terminal.err,
        "Give the files to the broker's user. How to install them is at the top of the configuration."
    )?;
    Ok(())
}

/// Prints a kubeconfig for a new operator.
pub(super) async fn kubeconfig(args: OperatorArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let client = client(args.server)?;
    let wanted = json!({ "user": args.user, "lifetimeSeconds": args.lifetime.as_secs() });
    let answer: Value = client.post(OPERATORS_PATH, &wanted).await?;
    let data = |field: &str| STANDARD.encode(answer[field].as_str().unwrap_or_default());
    let server = args.api.clone().unwrap_or_else(|| client.address().to_string());
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "edgesync",
        "clusters": [{ "name": "edgesync", "cluster": {
            "server": server, "certificate-authority-data": data("ca"),
        }}],
        "users": [{ "name": args.user, "user": {
            "client-certificate-data": data("certificate"), "client-key-data": data("key"),
        }}],
        "contexts": [{ "name": "edgesync", "context": { "cluster": "edgesync", "user": args.user } }],
    });
    let text = super::output::render(&config, Output::Yaml)?;
    terminal.out.write_all(text.as_bytes())?;
    if !server.starts_with("https://") {
        writeln!(
            terminal.err,
            "{server} is without TLS: with api.tls = \"on\" or another address this would be of use."
        )?;
    }
    Ok(())
}
