//! Tokens, operators, brokers and the page; and changes of nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::Labels;

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// The only node that may use it.
    pub node: Option<String>,
    pub ttl_seconds: u64,
    pub uses: u32,
    #[serde(default)]
    pub labels: Labels,
}

/// A token without its secret part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    pub id: String,
    #[serde(deserialize_with = "nullable")]
    pub node: Option<String>,
    pub created: Timestamp,
    pub expires: Timestamp,
    pub uses: u32,
    pub used: u32,
    #[serde(deserialize_with = "nullable")]
    pub revoked: Option<Timestamp>,
    pub labels: Labels,
    /// `usable`, or why it is not.
    pub state: String,
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    pub items: Vec<Token>,
}

impl Answer for TokenList {
    const NAME: &'static str = "the list of tokens";
}

/// A new token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    #[serde(flatten)]
    pub record: Token,
    pub token: String,
    /// Where nodes join, as far as it is known.
    #[serde(deserialize_with = "nullable")]
    pub cloud: Option<String>,
}

impl Answer for NewToken {
    const NAME: &'static str = "the answer about the new token";
}

/// A token was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedToken {
    pub id: String,
    /// `false` if it was of no use any more.
    pub revoked: bool,
}

impl Answer for RevokedToken {
    const NAME: &'static str = "the answer about the token";
}

/// Asks for the certificate of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorCertificate<R> {
    pub user: String,
    /// A role of the API.
    pub role: R,
    pub lifetime_seconds: u64,
}

/// A certificate of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    pub serial: String,
    pub name: String,
    pub role: String,
    pub created: Timestamp,
    pub expires: Timestamp,
    #[serde(deserialize_with = "nullable")]
    pub revoked: Option<Timestamp>,
    /// `usable`, or why it is not.
    pub state: String,
}

/// All certificates of operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorList {
    pub items: Vec<Operator>,
}

impl Answer for OperatorList {
    const NAME: &'static str = "the list of operators";
}

/// A new certificate with its key, and the authority of the API, all as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOperator {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

impl Answer for NewOperator {
    const NAME: &'static str = "the answer about the new operator";
}

/// Certificates of an operator were revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedOperators {
    pub operator: String,
    /// How many.
    pub certificates: usize,
}

impl Answer for RevokedOperators {
    const NAME: &'static str = "the answer about the operator";
}

/// Asks for the files of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerConfigRequest {
    /// `mosquitto` or `emqx`.
    pub broker: String,
    /// Where the files will be installed.
    pub directory: String,
    /// Names of the broker in its certificate; those of the configuration if empty.
    pub names: Vec<String>,
    pub port: u16,
}

/// Files of a broker: contents by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BrokerFiles(pub BTreeMap<String, String>);

impl Answer for BrokerFiles {
    const NAME: &'static str = "the answer about the broker";
}

/// Where the page is, with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInvitation {
    pub url: String,
    pub role: String,
    pub expires: String,
}

impl Answer for PageInvitation {
    const NAME: &'static str = "the answer about the page";
}

/// Asks that a node is admitted. Without a body it is [`AdmitRequest::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmitRequest {
    /// The external broker refuses the node's revoked certificates.
    pub broker_updated: bool,
}

/// Certificates of a node were revoked, or noted as refused by the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedCertificates {
    pub node: String,
    /// How many.
    pub certificates: usize,
}

impl Answer for RevokedCertificates {
    const NAME: &'static str = "the answer about the node";
}

/// A node was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    pub node: String,
    /// `false` if it had been before.
    pub removed: bool,
}

impl Answer for Removed {
    const NAME: &'static str = "the answer about the node";
}

/// A node may come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    pub node: String,
    /// `false` if it was not removed.
    pub admitted: bool,
}

impl Answer for Admitted {
    const NAME: &'static str = "the answer about the node";
}

/// Removals that were held back go out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    pub node: String,
    /// How many.
    pub confirmed: u64,
}

impl Answer for Confirmed {
    const NAME: &'static str = "the answer about the node";
}
