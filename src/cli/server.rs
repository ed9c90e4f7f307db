//! The cloud side that a command asks.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::CliError;
use super::args_cloud::ServerArgs;
use crate::api::{Address, Client};
use crate::object::yaml;
use crate::tls::{self, Certificate, Clock, Identity, Trust};

/// A client of the API that is asked.
pub(super) fn client(server: ServerArgs) -> Result<Client, CliError> {
    match (&server.address, &server.kubeconfig) {
        (Address::Tls { .. }, Some(file)) => {
            let tls = credentials(file)?;
            Ok(Client::with_tls(server.address, tls))
        }
        (Address::Tls { .. }, None) => Err(CliError::Usage(
            "an https:// address needs --kubeconfig FILE, which 'edgesync-cloud kubeconfig' makes".to_owned(),
        )),
        _ => Ok(Client::new(server.address)),
    }
}

/// TLS with the certificate in a kubeconfig.
fn credentials(file: &Path) -> Result<tls::Client, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let config: Value = yaml::parse(&text).map_err(|error| wrong(error.to_string()))?;
    let pem = |pointer: &str| {
        let data =
            config.pointer(pointer).and_then(Value::as_str).and_then(|data| STANDARD.decode(data).ok());
        data.and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| wrong(format!("{pointer} is missing")))
    };
    let name = file.display().to_string();
    let tls = |error: tls::TlsError| wrong(error.to_string());
    let ca = Certificate::all_from_pem(&name, &pem("/clusters/0/cluster/certificate-authority-data")?)
        .map_err(tls)?;
    let chain = pem("/users/0/user/client-certificate-data")? + &pem("/users/0/user/client-key-data")?;
    let identity = Identity::from_pem(&name, &chain).map_err(tls)?;
    tls::Client::new(&Trust::new(ca), Some(&identity), Clock::system([])).map_err(tls)
}
