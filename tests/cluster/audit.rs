//! The audit log of an API server: which requests it got.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fmt;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use edgesync_testkit::site::Site;

/// The audit log of an API server: one line per request, written before its response.
pub(crate) struct Audit {
    site: Site,
}

/// A request in the audit log.
pub(crate) struct Request {
    pub(crate) user: String,
    pub(crate) verb: String,
    /// The URI, with `%XX` decoded.
    pub(crate) uri: String,
    /// Whether the server has permitted it.
    pub(crate) is_allowed: bool,
    /// The namespace in the path; empty without one.
    pub(crate) namespace: String,
    /// The plural of the kind in the path; empty without one.
    pub(crate) resource: String,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.uri)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_allowed { "allowed" } else { "forbidden" };
        write!(f, "{} {self}: {verdict}", self.user)
    }
}

impl Audit {
    pub(crate) fn new() -> Self {
        let site = Site::new();
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}],
        });
        fs::write(site.path("policy.json"), policy.to_string()).unwrap();
        Self { site }
    }

    fn log(&self) -> PathBuf {
        self.site.path("audit.log")
    }

    /// Returns the arguments of the API server.
    pub(crate) fn arguments(&self) -> [String; 2] {
        let policy = self.site.path("policy.json");
        [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", self.log().display()),
        ]
    }

    /// Returns the requests that did not come from kubectl.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let log = fs::read_to_string(self.log()).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_other =
            |line: &Value| line["userAgent"].as_str().is_none_or(|agent| !agent.starts_with("kubectl"));
        lines.filter(is_other).map(|line| request(&line)).collect()
    }
}

fn request(line: &Value) -> Request {
    let text = |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Request {
        user: text("/user/username"),
        verb: text("/verb"),
        uri: decoded(&text("/requestURI")),
        is_allowed: text("/annotations/authorization.k8s.io~1decision") == "allow",
        namespace: text("/objectRef/namespace"),
        resource: text("/objectRef/resource"),
    }
}

/// Decodes `%XX` in a URI.
fn decoded(uri: &str) -> String {
    let mut parts = uri.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[2..]);
            }
            None => {
                plain.push('%');
                plain.push_str(part);
            }
        }
    }
    plain
}
