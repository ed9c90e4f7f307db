//! Calls of the join service: those of KubeEdge (`GET /ca.crt`, `GET /edge.crt` with a body), and
//! edgesync's own (`GET /edgesync/v1/join`). Each uses one connection; answers are limited in size.

use std::error::Error;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::Membership;
use super::token::Token;
use edgesync_api::exchange::{HttpRequest, HttpResponse, exchange};
use edgesync_config::JoinUrl;
use edgesync_transport::dial::{DialError, Dialer};
use edgesync_transport::tls::{Certificate, Client, HandshakeError, Inner, TlsError, Trust};

/// Time limit of one call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an answer in bytes.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum length of a shown message of the service, in characters.
const MAX_MESSAGE: usize = 500;
/// Path of the call beyond those of KubeEdge.
pub const MEMBERSHIP: &str = "/edgesync/v1/join";
/// Hint for an answer that looks like another service's.
const OTHER_SERVICE: &str = "hint: is this the address of the join service? its default port is 10002";

/// A join service and the way to it.
#[derive(Clone, Debug)]
pub struct JoinService {
    url: JoinUrl,
    dialer: Dialer,
}

impl JoinService {
    /// Creates the service at an address that `dialer` connects to.
    #[must_use]
    pub fn new(url: JoinUrl, dialer: Dialer) -> Self {
        Self { url, dialer }
    }

    /// Records that the latest call has succeeded at a service with a trusted certificate: its
    /// address is used where its name does not resolve.
    pub(crate) fn worked(&self) {
        self.dialer.worked(None);
    }

    /// Opens a connection.
    async fn dial(&self) -> Result<tokio::net::TcpStream, CallError> {
        let Self { url, dialer } = self;
        let dialed = dialer.open(&url.host, url.port, CALL_TIMEOUT / 2).await;
        dialed.map_err(|error| {
            let problem = match &error {
                DialError::Dns { .. } => format!("{error}; hint: check the name, and the DNS of this device"),
                DialError::Refused { .. } => {
                    "connection refused; hint: check the port, and that the join service of edgesync-cloud or CloudCore \
                     runs there"
                        .to_owned()
                }
                DialError::TimedOut { after, .. } => {
                    format!("no response within {after:?}; hint: check the network and firewalls on the way")
                }
                DialError::Network { message, .. } => format!("{message}; hint: check the network"),
                // It has a hint of its own.
                DialError::Proxy { .. } => error.to_string(),
            };
            unreachable(url, problem)
        })
    }
}

/// Reason why a call has no answer; each states a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The name has no address, nothing listens, the network fails, or the call takes too long.
    #[error("connect to {url}: {problem}")]
    Unreachable {
        /// Address of the service.
        url: JoinUrl,
        /// Error of the system.
        problem: String,
    },
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    /// The CA of the service is not the one of the token.
    #[error(
        "CA of {url} is {found}, but the token is for {expected}; hint: use a token of this cloud; if it is one, a proxy intercepts the connection"
    )]
    OtherCa {
        /// Address of the service.
        url: JoinUrl,
        /// Fingerprint of the received CA.
        found: String,
        /// Fingerprint in the token.
        expected: String,
    },
    /// The answer is no HTTP, or too large.
    #[error("unreadable response of {url}: {problem}; {OTHER_SERVICE}")]
    Unreadable {
        /// Address of the service.
        url: JoinUrl,
        /// Problem of the answer.
        problem: String,
    },
    /// The service refuses (4xx), with its message.
    #[error("refused by the cloud: {message}")]
    Refused {
        /// HTTP status code: 4xx except 404.
        code: u16,
        /// Message of the service, without control characters.
        message: String,
    },
    /// The service fails (5xx) or sends an unexpected answer.
    #[error("unexpected response of {url}, status {code}: {problem}")]
    Unexpected {
        /// Address of the service.
        url: JoinUrl,
        /// HTTP status code; 200 if only the content is unexpected.
        code: u16,
        /// Problem of the answer.
        problem: String,
    },
    /// Key or certificate cannot be used here.
    #[error(transparent)]
    Local(TlsError),
}

impl CallError {
    /// Returns whether no service answered at all.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Tls(HandshakeError::Network { .. }))
    }
}

/// Makes one call over its own connection.
async fn call(service: &JoinService, tls: &Client, question: HttpRequest) -> Result<HttpResponse, CallError> {
    let url = &service.url;
    let call = async {
        let stream = service.dial().await?;
        let stream = tls.connect_for(Inner::Http, &url.host, stream).await?;
        let authority = url.to_string();
        let authority = authority.trim_start_matches("https://");
        exchange(stream, authority, question, MAX_ANSWER).await.map_err(|error| broken(url, error.as_ref()))
    };
    let late =
        || unreachable(url, "no response within 30 s; hint: check the network and firewalls on the way");
    timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}

fn unreachable(url: &JoinUrl, problem: impl Into<String>) -> CallError {
    CallError::Unreachable { url: url.clone(), problem: problem.into() }
}

/// Converts the error of an exchange: a TLS alert, a broken connection, or no HTTP.
fn broken(url: &JoinUrl, error: &(dyn Error + Send + Sync + 'static)) -> CallError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    let mut words = Vec::new();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match HandshakeError::of_io(&url.host, error) {
                Some(error) => CallError::Tls(error),
                None => unreachable(url, format!("connection lost: {error}; hint: check the network")),
            };
        }
        words.push(error.to_string());
        cause = error.source();
    }
    CallError::Unreadable { url: url.clone(), problem: printable(&words.join(": ")) }
}

/// Returns foreign text without control characters, truncated.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect::<String>().trim().to_owned()
}

/// Returns the message in the body: that of a Status, or plain text.
fn message(reply: &HttpResponse) -> String {
    let status = serde_json::from_slice::<serde_json::Value>(&reply.body).ok();
    let message = status.as_ref().and_then(|status| status.get("message")?.as_str());
    let text = String::from_utf8_lossy(&reply.body);
    let text = printable(message.unwrap_or(&text));
    if text.is_empty() { format!("status {} without a message", reply.code) } else { text }
}

/// Converts an unsuccessful answer.
fn refusal(url: &JoinUrl, reply: &HttpResponse) -> CallError {
    match reply.code {
        400..=403 | 405..=499 => CallError::Refused { code: reply.code, message: message(reply) },
        _ => unexpected(url, reply, message(reply)),
    }
}

fn unexpected(url: &JoinUrl, reply: &HttpResponse, problem: impl Into<String>) -> CallError {
    CallError::Unexpected { url: url.clone(), code: reply.code, problem: problem.into() }
}

fn get(path: &str) -> HttpRequest {
    HttpRequest { method: "GET".into(), path: path.into(), ..HttpRequest::default() }
}

/// Fetches the CA and verifies it against the token. Also returns the service's time, which is
/// unverified and only used in messages. The connection itself verifies nothing; the fingerprint
/// does.
///
/// # Errors
/// See [`CallError`].
pub(crate) async fn fetch_ca(
    service: &JoinService,
    token: &Token,
) -> Result<(Certificate, Option<Timestamp>), CallError> {
    let url = &service.url;
    let tls = Client::unverified().map_err(CallError::Local)?;
    let reply = call(service, &tls, get("/ca.crt")).await?;
    if reply.code != 200 {
        let problem = format!("no /ca.crt: {}; {OTHER_SERVICE}", message(&reply));
        return Err(unexpected(url, &reply, problem));
    }
    let ca = Certificate::from_der("/ca.crt", &reply.body)
        .map_err(|error| unexpected(url, &reply, format!("{error}; {OTHER_SERVICE}")))?;
    let found = ca.fingerprint();
    if found != token.ca_fingerprint() {
        let expected = token.ca_fingerprint().to_owned();
        return Err(CallError::OtherCa { url: url.clone(), found, expected });
    }
    Ok((ca, date(&reply)))
}

/// Parses the time in the header `Date` (RFC 9110, section 5.6.7).
fn date(reply: &HttpResponse) -> Option<Timestamp> {
    let (_, text) = reply.headers.iter().find(|(name, _)| name == "date")?;
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// Credential of a request for a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// A token that permits a join, sent as a bearer token (RFC 6750, section 2.1).
    Token(&'a Token),
    /// The certificate that `tls` presents, for its renewal; it may be expired.
    Certificate,
}

/// Requests a certificate with a signing request (PKCS#10, DER): `GET /edge.crt` with a body and
/// the header `NodeName`. Returns the issued certificate. This function verifies that it is for
/// this node; [`edgesync_transport::tls::Identity::new`] verifies that it is for this key, and the
/// next call with it that it is from the CA.
///
/// # Errors
/// See [`CallError`].
pub async fn fetch_certificate(
    service: &JoinService,
    tls: &Client,
    trust: &Trust,
    node: &str,
    request: &[u8],
    credential: Credential<'_>,
) -> Result<Certificate, CallError> {
    let url = &service.url;
    let mut question = get("/edge.crt");
    question.body = request.to_vec();
    question.headers.push(("nodename".into(), node.to_owned()));
    if let Credential::Token(token) = credential {
        question.headers.push(("authorization".into(), format!("Bearer {}", token.bearer())));
    }
    let reply = call(service, tls, question).await?;
    if reply.code != 200 {
        return Err(refusal(url, &reply));
    }
    let certificate = Certificate::from_der("/edge.crt", &reply.body)
        .map_err(|error| unexpected(url, &reply, error.to_string()))?;
    if certificate.subject().requested_node() != Some(node) || trust.0.contains(&certificate) {
        let found = printable(&certificate.subject().common_name);
        let problem = format!("certificate is for '{found}', not for node '{node}'");
        return Err(unexpected(url, &reply, problem));
    }
    Ok(certificate)
}

/// Returns whether the service is a CloudCore of KubeEdge: a CloudCore does not know the call for
/// which edgesync-cloud requires a certificate. `tls` presents none.
///
/// # Errors
/// See [`CallError`].
pub async fn is_cloud_core(service: &JoinService, tls: &Client) -> Result<bool, CallError> {
    let url = &service.url;
    let reply = call(service, tls, get(MEMBERSHIP)).await?;
    match reply.code {
        404 => Ok(true),
        200 | 401 | 403 => Ok(false),
        _ => Err(refusal(url, &reply)),
    }
}

/// Fetches the membership with the certificate that `tls` presents. `None` if the service does not
/// know the call: a CloudCore.
///
/// # Errors
/// See [`CallError`].
pub async fn fetch_membership(service: &JoinService, tls: &Client) -> Result<Option<Membership>, CallError> {
    let url = &service.url;
    let reply = call(service, tls, get(MEMBERSHIP)).await?;
    match reply.code {
        404 => Ok(None),
        200 => match serde_json::from_slice(&reply.body) {
            Ok(membership) => Ok(Some(membership)),
            Err(error) => Err(unexpected(url, &reply, printable(&error.to_string()))),
        },
        _ => Err(refusal(url, &reply)),
    }
}

#[cfg(test)]
mod tests;
