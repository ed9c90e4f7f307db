//! `edgesync-cloud token`, `broker-config`, `kubeconfig` and `operator`.

use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_cloud::{BrokerArgs, KubeconfigArgs, OperatorCommand, ShowArgs, TokenCommand};
use super::server::Fleet;
use edgesync_api::{Address, Kubeconfig, encode};
use edgesync_cli::records::{self, RecordColumn};
use edgesync_cli::{CliError, Terminal};
use edgesync_config::units::show_duration;
use edgesync_object::Labels;
use edgesync_store::durable;
use edgesync_transport::tls::{Certificate, Identity, TlsError};

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

/// What `operator list` shows.
const OPERATOR_COLUMNS: &[RecordColumn] = &[
    RecordColumn::value("name", "/name"),
    RecordColumn::value("role", "/role"),
    RecordColumn::value("state", "/state"),
    RecordColumn::value("serial", "/serial"),
    RecordColumn::age("age", "/created"),
    RecordColumn::value("expires", "/expires"),
];

/// Creates, lists or revokes tokens.
pub(super) async fn token(command: TokenCommand, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    match command {
        TokenCommand::Create { node, labels, ttl, uses, server } => {
            let labels: Labels = labels.into_iter().collect();
            let wanted = json!({ "node": node, "ttlSeconds": ttl.as_secs(), "uses": uses, "labels": labels });
            let made = Fleet::open(server).await?.post(TOKENS_PATH, &wanted).await?;
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
            let answer = Fleet::open(server).await?.get(TOKENS_PATH).await?;
            records::table_of(&answer, TOKEN_COLUMNS, output.output, Timestamp::now(), terminal)?;
        }
        TokenCommand::Revoke { id, server } => {
            let path = format!("{TOKENS_PATH}/{}/revoke", encode(&id));
            let answer = Fleet::open(server).await?.post(&path, &Value::Null).await?;
            let was = if answer["revoked"] == true { "revoked" } else { "was of no use any more" };
            writeln!(terminal.out, "token '{id}' {was}")?;
        }
    }
    Ok(())
}

/// Prints the files for a broker, or writes them to a new directory.
pub(super) async fn broker_config(args: BrokerArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let fleet = Fleet::open(args.server).await?;
    let installed = args.installed.clone().or_else(|| args.output.as_ref()?.to_str().map(str::to_owned));
    let wanted = json!({
        "broker": args.flavor,
        "directory": installed.as_deref().unwrap_or("/etc/mosquitto/edgesync"),
        "names": args.names,
        "port": args.port,
    });
    let answer = fleet.post(BROKER_CONFIG_PATH, &wanted).await?;
    let answer = answer.as_object().cloned().unwrap_or_default();
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
pub(super) async fn kubeconfig(args: KubeconfigArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let fleet = Fleet::open(args.server).await?;
    let server = match (args.api, fleet.address()) {
        (Some(server), _) => server.to_string(),
        (None, Some(address @ Address::Tls { .. })) => address.to_string(),
        (None, _) => {
            return Err(CliError::Usage(
                "--api https://HOST:PORT is needed: the address of the API as the operator reaches it"
                    .to_owned(),
            ));
        }
    };
    let wanted = json!({ "user": args.user, "role": args.role, "lifetimeSeconds": args.lifetime.as_secs() });
    let answer = fleet.post(OPERATORS_PATH, &wanted).await?;
    let pem = |field: &str| answer[field].as_str().unwrap_or_default();
    let wrong = |error: TlsError| CliError::Show(error.to_string());
    let what = "the answer of the cloud side";
    let config = Kubeconfig {
        server,
        authority: Certificate::all_from_pem(what, pem("ca")).map_err(wrong)?,
        user: args.user,
        identity: Identity::from_pem(what, &format!("{}{}", pem("certificate"), pem("key")))
            .map_err(wrong)?,
    };
    let text = config.to_yaml().map_err(|error| CliError::Show(error.to_string()))?;
    if close_to_others(&std::io::stdout())? {
        writeln!(terminal.err, "There is a key in it: the file is now readable by its owner only.")?;
    }
    Ok(terminal.out.write_all(text.as_bytes())?)
}

/// If the output goes to a file that others could read, they can no more; true if it was so.
fn close_to_others(output: &impl AsFd) -> std::io::Result<bool> {
    let file = std::fs::File::from(output.as_fd().try_clone_to_owned()?);
    let metadata = file.metadata()?;
    let is_open = metadata.is_file() && metadata.permissions().mode() & 0o077 != 0;
    if is_open {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(is_open)
}

/// Lists or revokes certificates of operators.
pub(super) async fn operator(command: OperatorCommand, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    match command {
        OperatorCommand::List(ShowArgs { output, server }) => {
            let answer = Fleet::open(server).await?.get(OPERATORS_PATH).await?;
            records::table_of(&answer, OPERATOR_COLUMNS, output.output, Timestamp::now(), terminal)?;
        }
        OperatorCommand::Revoke { which, server } => {
            let path = format!("{OPERATORS_PATH}/{}/revoke", encode(&which));
            let answer = Fleet::open(server).await?.post(&path, &Value::Null).await?;
            writeln!(terminal.out, "operator '{which}': {} certificates revoked", answer["certificates"])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_could_read_is_closed_to_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_permissions(Permissions::from_mode(0o644)).unwrap();
        assert!(close_to_others(file.as_file()).unwrap());
        assert_eq!(file.as_file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!close_to_others(file.as_file()).unwrap());
        let (_, pipe) = std::io::pipe().unwrap();
        assert!(!close_to_others(&pipe).unwrap());
    }
}
