//! `edgesync join`: from a token to a running agent's configuration.

use std::io::Write;
use std::path::PathBuf;

use super::calls::CallError;
use super::files::FilesError;
use super::token::Token;
use crate::config::{ConfigErrors, JoinUrl};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The join service.
    pub cloud: JoinUrl,
    /// The token.
    pub token: Token,
    /// The node's name; that of the token, of the configuration or of the host if none is given.
    pub node: Option<String>,
    /// The configuration that is written, or edited if it exists.
    pub config: PathBuf,
    /// Whether another identity is replaced.
    pub force: bool,
}

/// Why a device has not joined; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A call to the cloud.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The configuration that exists is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// There is an identity of another cloud or another name already.
    #[error("this device has joined {cloud} as '{node}' already; --force replaces that identity")]
    Joined {
        /// The join service in the configuration.
        cloud: String,
        /// The node's name.
        node: String,
    },
    /// The broker does not let the node in.
    #[error(
        "the identity is in place, but {broker} does not let the node in: {problem}; run 'edgesync check'"
    )]
    Broker {
        /// The broker.
        broker: String,
        /// Why not.
        problem: String,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Joins: the CA, a key, a certificate, the membership, files, one connection to the broker, and what to do next on
/// `out`. Joined to the same cloud under the same name with a certificate that is still good, it only checks the
/// connection: running it twice is safe.
///
/// # Errors
/// See [`JoinError`]. Until the files are in place nothing has changed.
pub async fn run(options: &JoinOptions, out: &mut (dyn Write + Send)) -> Result<(), JoinError> {
    todo!()
}
