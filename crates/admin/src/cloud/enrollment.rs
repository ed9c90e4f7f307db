//! Tokens, operators, brokers and the page; changes of nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::Labels;

/// Request for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// Restricts the token to one node.
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
    /// `usable`, or the reason why it is not.
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    pub items: Vec<Token>,
}

impl Answer for TokenList {
    const NAME: &'static str = "token list";
}

/// A new token with its secret part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    #[serde(flatten)]
    pub record: Token,
    pub token: String,
    /// Address of the join service, if known.
    #[serde(deserialize_with = "nullable")]
    pub cloud: Option<String>,
}

impl Answer for NewToken {
    const NAME: &'static str = "new token";
}

/// Response to revoking a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedToken {
    pub id: String,
    /// `false` if the token was already unusable.
    pub revoked: bool,
}

impl Answer for RevokedToken {
    const NAME: &'static str = "revoked token";
}

/// Request for an operator certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorCertificate<R> {
    pub user: String,
    /// A role of the API.
    pub role: R,
    pub lifetime_seconds: u64,
}

/// An operator's certificate, without its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    pub serial: String,
    pub name: String,
    pub role: String,
    pub created: Timestamp,
    pub expires: Timestamp,
    #[serde(deserialize_with = "nullable")]
    pub revoked: Option<Timestamp>,
    /// `usable`, or the reason why it is not.
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorList {
    pub items: Vec<Operator>,
}

impl Answer for OperatorList {
    const NAME: &'static str = "operator list";
}

/// A new certificate with its key, and the CA of the API, all as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOperator {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

impl Answer for NewOperator {
    const NAME: &'static str = "new operator";
}

/// Response to revoking an operator's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedOperators {
    pub operator: String,
    /// Number of revoked certificates.
    pub certificates: usize,
}

impl Answer for RevokedOperators {
    const NAME: &'static str = "revoked certificates";
}

/// Request for broker configuration files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerConfigRequest {
    /// Broker software: `mosquitto` or `emqx`; any other is refused (400).
    pub broker: String,
    /// Directory that the files will be installed in.
    pub directory: String,
    /// Host names in the broker's certificate; if empty, those of the configuration.
    pub names: Vec<String>,
    pub port: u16,
}

/// Broker configuration files: contents by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BrokerFiles(pub BTreeMap<String, String>);

impl Answer for BrokerFiles {
    const NAME: &'static str = "broker configuration";
}

/// URL of the page with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInvitation {
    pub url: String,
    pub role: String,
    pub expires: String,
}

impl Answer for PageInvitation {
    const NAME: &'static str = "page invitation";
}

/// Response to revoking all keys of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedPageKeys {
    /// Always true: a failure is an error.
    pub revoked: bool,
}

impl Answer for RevokedPageKeys {
    const NAME: &'static str = "revoked page keys";
}

/// Request to readmit a node. Without a body it is [`AdmitRequest::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmitRequest {
    /// Whether the external broker refuses the node's revoked certificates.
    pub broker_updated: bool,
}

/// Response to revoking a node's certificates, or to recording that the broker refuses them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedCertificates {
    pub node: String,
    /// Number of affected certificates.
    pub certificates: usize,
}

impl Answer for RevokedCertificates {
    const NAME: &'static str = "node";
}

/// Response to removing a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    pub node: String,
    /// `false` if the node was already removed.
    pub removed: bool,
}

impl Answer for Removed {
    const NAME: &'static str = "node";
}

/// Response to readmitting a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    pub node: String,
    /// `false` if the node was not removed.
    pub admitted: bool,
}

impl Answer for Admitted {
    const NAME: &'static str = "node";
}

/// Response to confirming held-back removals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    pub node: String,
    /// Number of confirmed removals.
    pub confirmed: u64,
}

impl Answer for Confirmed {
    const NAME: &'static str = "node";
}
