//! The cloud side that a command asks.

use super::CliError;
use super::args_cloud::{SERVER_VARIABLE, SOCKET, ServerArgs};
use crate::api::{Address, Client, Kubeconfig};

/// A client of the API that is asked: the one that is named, or that of the kubeconfig, or that of the variable, or else
/// that of this machine.
pub(super) fn client(server: ServerArgs) -> Result<Client, CliError> {
    let Some(file) = &server.kubeconfig else {
        return match server.address.map_or_else(of_variable, |address| Ok(Some(address)))? {
            Some(Address::Tls { .. }) => Err(CliError::Usage(
                "an https:// address needs --kubeconfig FILE, which 'edgesync-cloud kubeconfig' makes"
                    .to_owned(),
            )),
            Some(address) => Ok(Client::new(address)),
            None => Ok(Client::new(Address::Unix(SOCKET.into()))),
        };
    };
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let config = Kubeconfig::read(&file.display().to_string(), &text).map_err(wrong)?;
    let address = match server.address {
        Some(address) => address,
        None => config.server.parse().map_err(|error| wrong(format!("its server: {error}")))?,
    };
    match address {
        Address::Tls { .. } => {
            Ok(Client::with_tls(address, config.tls().map_err(|error| wrong(error.to_string()))?))
        }
        address => Ok(Client::new(address)),
    }
}

/// The address that the variable names, if it is set.
fn of_variable() -> Result<Option<Address>, CliError> {
    let Some(text) = std::env::var_os(SERVER_VARIABLE) else { return Ok(None) };
    let address = text.to_string_lossy().parse();
    address.map(Some).map_err(|error| CliError::Usage(format!("{SERVER_VARIABLE}: {error}")))
}
