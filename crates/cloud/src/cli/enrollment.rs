//! `edgesync-cloud token`, `broker-config`, `kubeconfig` and `operator`.

use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

use serde_json::Value;

use super::args_cloud::{
    BrokerArgs, FleetArgs, KubeconfigArgs, OperatorCommand, ServerArgs, ShowArgs, TokenCommand,
};
use super::server::{Fleet, body};
use edgesync_admin::cloud::{
    BrokerConfigRequest, BrokerFiles, NewOperator, NewToken, Operator, OperatorCertificate, OperatorList,
    RevokedOperators, RevokedToken, Token, TokenList, TokenRequest,
};
use edgesync_admin::{Route, read};
use edgesync_api::{Address, Kubeconfig};
use edgesync_cli::output::Output;
use edgesync_cli::records::{self, RecordColumn};
use edgesync_cli::{CliError, Terminal};
use edgesync_config::units::show_duration;
use edgesync_object::label_pairs;
use edgesync_store::durable;
use edgesync_transport::tls::{Certificate, Identity, TlsError};

/// Columns of `token list`.
const TOKEN_COLUMNS: [&RecordColumn<Token>; 7] = [
    &RecordColumn::value("id", |token| token.id.as_str().into()),
    &RecordColumn::value("node", |token| token.node.as_deref().into()),
    &RecordColumn::value("state", |token| token.state.as_str().into()),
    &RecordColumn::value("uses", |token| token.uses.into()),
    &RecordColumn::value("used", |token| token.used.into()),
    &RecordColumn::age("age", |token| token.created.to_string().into()),
    &RecordColumn::value("expires", |token| token.expires.to_string().into()),
];

/// Further columns of `token list -o wide`.
const TOKEN_WIDE: [&RecordColumn<Token>; 1] =
    [&RecordColumn::value("labels", |token| label_pairs(&token.labels).into())];

/// Columns of `operator list`.
const OPERATOR_COLUMNS: [&RecordColumn<Operator>; 6] = [
    &RecordColumn::value("name", |operator| operator.name.as_str().into()),
    &RecordColumn::value("role", |operator| operator.role.as_str().into()),
    &RecordColumn::value("state", |operator| operator.state.as_str().into()),
    &RecordColumn::value("serial", |operator| operator.serial.as_str().into()),
    &RecordColumn::age("age", |operator| operator.created.to_string().into()),
    &RecordColumn::value("expires", |operator| operator.expires.to_string().into()),
];

/// Creates, lists or revokes tokens.
pub(super) async fn token(command: TokenCommand, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    match command {
        TokenCommand::Create { node, labels, ttl, uses, server } => {
            let labels = labels.into_iter().collect();
            let request = TokenRequest { node: node.clone(), ttl_seconds: ttl.as_secs(), uses, labels };
            let made = Fleet::open(server).await?.call(Route::CreateToken, &body(&request)?).await?;
            let made: NewToken = read(&made)?;
            // Standard output carries nothing else, for scripts.
            writeln!(terminal.out, "{}", made.token)?;
            let service = made.cloud.as_deref().unwrap_or("https://HOST:10002");
            let bound = node.map_or_else(|| "any new node".to_owned(), |node| format!("node {node}"));
            let uses = if uses == 1 { "1 use".to_owned() } else { format!("{uses} uses") };
            writeln!(
                terminal.err,
                "Token for {bound}, {uses}, expires in {}. On the device:\n    edgesync join --cloud {service} --token -",
                show_duration(ttl)
            )?;
        }
        TokenCommand::List(ShowArgs { output, server }) => {
            let answer = Fleet::open(server).await?.call(Route::Tokens, &Value::Null).await?;
            list_tokens(&answer, output.output, terminal)?;
        }
        TokenCommand::Revoke { id, server } => {
            let answer = Fleet::open(server).await?.call(Route::RevokeToken(&id), &Value::Null).await?;
            let is_revoked = read::<RevokedToken>(&answer)?.revoked;
            let result = if is_revoked { "revoked" } else { "already expired, used up or revoked" };
            writeln!(terminal.out, "token '{id}' {result}")?;
        }
    }
    Ok(())
}

/// Prints tokens, with the labels of their nodes in wide output.
fn list_tokens(answer: &Value, output: Output, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let wide: &[_] = if output == Output::Wide { &TOKEN_WIDE } else { &[] };
    let columns = [&TOKEN_COLUMNS[..], wide].concat();
    records::table_of(answer, |list: TokenList| list.items, &columns, output, terminal)
}

/// Prints the files for a broker, or writes them to a new directory.
pub(super) async fn broker_config(args: BrokerArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    // A cluster's kubeconfig is refused with the reason: the files need a replica's configuration.
    let ServerArgs { address, kubeconfig } = args.server;
    let fleet = Fleet::open(FleetArgs { address, kubeconfig, context: None, namespace: None }).await?;
    let installed = args.installed.clone().or_else(|| args.output.as_ref()?.to_str().map(str::to_owned));
    let request = BrokerConfigRequest {
        broker: args.flavor,
        directory: installed.unwrap_or_else(|| "/etc/mosquitto/edgesync".to_owned()),
        names: args.names,
        port: args.port,
    };
    let answer = fleet.call(Route::BrokerConfig, &body(&request)?).await?;
    let BrokerFiles(files) = read(&answer)?;
    let Some(directory) = &args.output else {
        for (name, content) in files {
            writeln!(terminal.out, "# ---- {name}\n{content}")?;
        }
        return Ok(());
    };
    std::fs::DirBuilder::new().mode(0o700).create(directory).map_err(|error| {
        CliError::Usage(format!("--output: create directory {}: {error}", directory.display()))
    })?;
    for (name, content) in files {
        let path = directory.join(name);
        durable::write_new(&path, content.as_bytes(), 0o600)?;
        writeln!(terminal.out, "{}", path.display())?;
    }
    writeln!(
        terminal.err,
        "hint: change the owner to the broker's user; the configuration begins with instructions for installing"
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
                "--api https://HOST:PORT is required: the address of the API as the operator uses it"
                    .to_owned(),
            ));
        }
    };
    let (user, role, lifetime_seconds) = (args.user.clone(), args.role, args.lifetime.as_secs());
    let request = OperatorCertificate { user, role, lifetime_seconds };
    let answer = fleet.call(Route::CreateOperator, &body(&request)?).await?;
    let made: NewOperator = read(&answer)?;
    let wrong = |error: TlsError| CliError::Show(error.to_string());
    let source = "response of the cloud side";
    let config = Kubeconfig {
        server,
        authority: Certificate::all_from_pem(source, &made.ca).map_err(wrong)?,
        user: args.user,
        identity: Identity::from_pem(source, &format!("{}{}", made.certificate, made.key)).map_err(wrong)?,
    };
    let text = config.to_yaml().map_err(|error| CliError::Show(error.to_string()))?;
    if close_to_others(&std::io::stdout())? {
        writeln!(terminal.err, "The file contains a private key; its mode is now 0600.")?;
    }
    Ok(terminal.out.write_all(text.as_bytes())?)
}

/// Makes an output file private that other users could read. Returns whether it was so.
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
            let answer = Fleet::open(server).await?.call(Route::Operators, &Value::Null).await?;
            let items = |list: OperatorList| list.items;
            records::table_of(&answer, items, &OPERATOR_COLUMNS, output.output, terminal)?;
        }
        OperatorCommand::Revoke { which, server } => {
            let answer =
                Fleet::open(server).await?.call(Route::RevokeOperators(&which), &Value::Null).await?;
            let certificates = read::<RevokedOperators>(&answer)?.certificates;
            writeln!(terminal.out, "operator '{which}': {} revoked", certificates_counted(certificates))?;
        }
    }
    Ok(())
}

/// Formats a number of certificates: `1 certificate`, `2 certificates`.
pub(super) fn certificates_counted(number: usize) -> String {
    format!("{number} certificate{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::samples;
    use edgesync_object::Labels;
    use serde_json::json;

    fn listed(labels: Labels, output: Output) -> String {
        let mut list = samples::token_list();
        list.items[0].labels = labels;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut terminal = Terminal { input: &mut std::io::empty(), out: &mut out, err: &mut err };
        list_tokens(&json!(list), output, &mut terminal).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn wide_list_of_tokens_has_their_labels() {
        let labels = Labels::from([("rack", "7"), ("site", "north")].map(|(k, v)| (k.into(), v.into())));
        let wide = listed(labels.clone(), Output::Wide);
        let (header, row) = wide.split_once('\n').unwrap();
        assert!(header.ends_with("   LABELS") && row.ends_with("rack=7,site=north\n"), "{wide}");
        assert!(listed(Labels::new(), Output::Wide).ends_with("<none>\n"));
        assert!(!listed(labels, Output::Table).contains("LABELS"));
    }

    #[test]
    fn numbers_of_certificates_have_their_plural() {
        assert_eq!(
            [0, 1, 2].map(certificates_counted),
            ["0 certificates", "1 certificate", "2 certificates"]
        );
    }

    #[test]
    fn an_output_file_is_made_private() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_permissions(Permissions::from_mode(0o644)).unwrap();
        assert!(close_to_others(file.as_file()).unwrap());
        assert_eq!(file.as_file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!close_to_others(file.as_file()).unwrap());
        let (_, pipe) = std::io::pipe().unwrap();
        assert!(!close_to_others(&pipe).unwrap());
    }
}
