//! Audit log of administrative requests, and of reads and writes of Secrets. It is part of the
//! program's log under its own target, which no log level silences; the journal stores and bounds
//! it with the rest.
//!
//! An entry is written when the result is known, whatever it is, and before the response is sent.
//! A watch has one entry, when it begins. Client text is quoted; object bodies are never logged.
//!
//! Programs read Secrets as often as they like, so [`ReadThrottle`] limits the entries of reads.
//! Writes and administrative requests have an entry each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::auth::{self, Caller, Peer, Role};
use super::kind::Kind;
use super::request::{ResourcePath, Verb};
use edgesync_admin::cloud::{
    AdmitRequest, BrokerConfigRequest, OperatorCertificate, RolloutAction, RolloutCommand, TokenRequest,
};
use edgesync_admin::{NodeAction, Route};
use edgesync_object::objectsync::is_placement;
use edgesync_object::{Labels, label_pairs};
use edgesync_transport::admission::{LinePermit, LogThrottle};

/// Log target of the entries.
pub const AUDIT: &str = "edgesync::audit";
/// Maximum bytes shown of one field of an administrative request.
const MAX_SHOWN: usize = 512;
/// Maximum number of audit entries about reads of one caller in ten seconds.
const READ_LINES: u32 = 20;
/// Maximum number of callers with such a limit of their own; all others share one.
const MAX_READERS: usize = 256;

/// The author of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actor<'a> {
    pub(super) caller: &'a Caller,
    pub(super) peer: &'a Peer,
}

/// Returns whether a request on objects is audited: reads and writes of Secrets and of kinds that
/// are protected like them, and writes of cluster-scoped objects and placement.
pub(super) fn concerns(verb: Verb, kind: &Kind) -> bool {
    let is_placement_rule = is_placement(&kind.resource);
    kind.secret || (verb.writes() && (is_placement_rule || auth::changes_the_cluster(verb, kind)))
}

/// Limits the entries about reads, for each caller: a caller who reads without end hides the
/// reads of no other.
#[derive(Debug)]
pub(super) struct ReadThrottle {
    /// By the name of the caller, of at most [`MAX_READERS`].
    callers: Mutex<HashMap<Arc<str>, LogThrottle>>,
    /// Shared by the callers beyond them.
    others: LogThrottle,
}

impl Default for ReadThrottle {
    fn default() -> Self {
        Self { callers: Mutex::default(), others: LogThrottle::of(READ_LINES) }
    }
}

impl ReadThrottle {
    /// Counts an entry of a caller, and permits it: that of a write always, that of a read within
    /// the limit.
    pub(super) fn permit_line(&self, verb: Verb, caller: &Arc<str>) -> Option<LinePermit> {
        if verb.writes() {
            return Some(LinePermit { suppressed: None });
        }
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(throttle) = callers.get(caller) {
            return throttle.permit_line();
        }
        if callers.len() >= MAX_READERS {
            return self.others.permit_line();
        }
        let throttle = callers.entry(Arc::clone(caller)).or_insert_with(|| LogThrottle::of(READ_LINES));
        throttle.permit_line()
    }
}

impl Actor<'_> {
    /// Logs a request on objects; `created` is the name of a new one.
    pub(super) fn requested(
        &self,
        verb: Verb,
        kind: &Kind,
        path: &ResourcePath,
        created: Option<&str>,
        code: u16,
        LinePermit { suppressed }: LinePermit,
    ) {
        let part = path.subresource.as_deref().map_or_else(String::new, |part| format!("/{part}"));
        let resource = format!("{}{part}", kind.resource.plural);
        let object = match (path.namespace.as_deref(), path.name.as_deref().or(created).unwrap_or("*")) {
            (Some(namespace), name) => format!("{namespace}/{name}"),
            (None, name) => name.to_owned(),
        };
        let (role, source, user) = (self.caller.role, self.peer.describe(), &*self.caller.name);
        tracing::info!(
            target: AUDIT, user, %role, source, verb = verb.as_str(), resource, object, code, suppressed,
            "audit"
        );
    }

    /// Logs a request below `/edgesync/v1/` with the fields of its body, if that is valid.
    pub(super) fn administered(&self, method: &str, path: &str, body: &Value, code: u16) {
        let source = self.peer.describe();
        let entry = Entry {
            user: &self.caller.name,
            role: self.caller.role,
            source: &source,
            verb: verb_of(method),
            path,
            code,
        };
        // A new route with a body is audited with its type.
        match Route::parse(method, path) {
            Some(Route::CreateToken) => entry.log_request::<TokenRequest>(body),
            Some(Route::CreateOperator) => entry.log_request::<OperatorCertificate<String>>(body),
            Some(Route::BrokerConfig) => entry.log_request::<BrokerConfigRequest>(body),
            Some(Route::MoveRollout(_)) => entry.log_request::<RolloutCommand>(body),
            Some(Route::ChangeNode(_, NodeAction::Admit)) => entry.log_request::<AdmitRequest>(body),
            Some(
                Route::ChangeNode(
                    _,
                    NodeAction::ConfirmDeletions
                    | NodeAction::Remove
                    | NodeAction::Revoke
                    | NodeAction::Forget,
                )
                | Route::ApplyFiles(_)
                | Route::Verify
                | Route::RotateSeal
                | Route::Sync
                | Route::RevokeToken(_)
                | Route::RevokeOperators(_)
                | Route::Page
                | Route::RevokePageKeys
                | Route::Resources
                | Route::Status
                | Route::Traffic
                | Route::Files
                | Route::CheckFiles
                | Route::Summary
                | Route::SummaryHistory
                | Route::Nodes
                | Route::Node(_)
                | Route::NodeHistory(_)
                | Route::NodeObjects(_)
                | Route::Placement(_)
                | Route::Objects
                | Route::Labels
                | Route::Rollouts
                | Route::Rollout(_)
                | Route::RolloutStatus(_)
                | Route::Tokens
                | Route::Operators,
            )
            | None => entry.log(),
        }
    }
}

/// An entry of an administrative request.
struct Entry<'a> {
    user: &'a str,
    role: Role,
    source: &'a str,
    verb: &'static str,
    path: &'a str,
    code: u16,
}

impl Entry<'_> {
    fn log(&self) {
        let Self { user, role, source, verb, path, code } = *self;
        tracing::info!(target: AUDIT, user, %role, source, verb, path, code, "audit");
    }

    /// Logs the fields of a request. An invalid body was refused, and its content is unknown.
    fn log_request<T: Audited + DeserializeOwned>(&self, body: &Value) {
        match T::deserialize(body) {
            Ok(request) => request.log(self),
            Err(_) => self.log(),
        }
    }
}

/// A request whose body is in the audit log.
trait Audited {
    /// Logs the entry with all fields.
    fn log(&self, entry: &Entry<'_>);
}

/// Implements [`Audited`]. A field that is missing in the list does not compile, and neither does
/// one whose type has no form in the log.
macro_rules! audited {
    ($type:ty { $($field:ident),* }) => {
        impl Audited for $type {
            fn log(&self, entry: &Entry<'_>) {
                let Self { $($field),* } = self;
                let Entry { user, role, source, verb, path, code } = *entry;
                tracing::info!(
                    target: AUDIT, user, %role, source, verb, path, code,
                    $(request.$field = Logged::logged($field),)*
                    "audit"
                );
            }
        }
    };
}

audited!(TokenRequest { node, ttl_seconds, uses, labels });
audited!(OperatorCertificate<String> { user, role, lifetime_seconds });
audited!(BrokerConfigRequest { broker, directory, names, port });
audited!(AdmitRequest { broker_updated });
audited!(RolloutCommand { action, revision, open, reason, override_windows });

/// The form of a field in the audit log. The type of a secret would hide it here.
trait Logged {
    type Form: tracing::Value;

    fn logged(&self) -> Self::Form;
}

macro_rules! logged_as_is {
    ($($type:ty),*) => {
        $(impl Logged for $type {
            type Form = Self;

            fn logged(&self) -> Self {
                *self
            }
        })*
    };
}

logged_as_is!(bool, u16, u32, u64, usize);

impl Logged for RolloutAction {
    type Form = &'static str;

    fn logged(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Promote => "promote",
            Self::Undo => "undo",
        }
    }
}

impl Logged for String {
    type Form = Option<Self>;

    fn logged(&self) -> Option<Self> {
        shown(self)
    }
}

impl<T: Logged> Logged for Option<T> {
    type Form = Option<T::Form>;

    fn logged(&self) -> Option<T::Form> {
        self.as_ref().map(T::logged)
    }
}

/// Logs a list as `a,b`; omits an empty one.
impl Logged for Vec<String> {
    type Form = Option<String>;

    fn logged(&self) -> Option<String> {
        shown(&self.join(","))
    }
}

/// Logs labels as `key=value,…`; omits an empty set.
impl Logged for Labels {
    type Form = Option<String>;

    fn logged(&self) -> Option<String> {
        shown(&label_pairs(self))
    }
}

/// Truncates a text; `None` if it is empty.
fn shown(text: &str) -> Option<String> {
    let shown = &text[..text.floor_char_boundary(MAX_SHOWN)];
    Some(shown.to_owned()).filter(|shown| !shown.is_empty())
}

/// Returns the verb of a method below `/edgesync/v1/`, as Kubernetes names it.
fn verb_of(method: &str) -> &'static str {
    let verb = match method {
        "POST" => Verb::Create,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "DELETE" => Verb::Delete,
        _ => Verb::Get,
    };
    verb.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    #[test]
    fn verbs_of_administrative_requests_are_those_of_kubernetes() {
        let verbs = ["POST", "PUT", "PATCH", "DELETE", "GET"].map(verb_of);
        assert_eq!(verbs, ["create", "update", "patch", "delete", "get"]);
    }

    /// Logs an administrative request, and returns the line.
    fn logged(path: &str, body: &Value) -> String {
        lines_of(|actor| actor.administered("POST", path, body, 200))
    }

    /// Returns the lines that an actor logs.
    fn lines_of(act: impl FnOnce(Actor<'_>)) -> String {
        let (sender, lines) = std::sync::mpsc::channel();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(move || Lines(sender.clone()))
            .finish();
        let caller = Caller { name: "ada".into(), role: Role::Admin, ..Caller::default() };
        let peer = Peer::Tcp(([127, 0, 0, 1], 7).into());
        tracing::subscriber::with_default(subscriber, || act(Actor { caller: &caller, peer: &peer }));
        lines.try_iter().collect()
    }

    #[test]
    fn reads_of_secrets_are_audited_and_no_other_reads() {
        let kind = |kind| Kind::without_schema(Arc::new(kinds::guess("v1", kind, true)));
        let (secrets, config_maps) = (kind("Secret"), kind("ConfigMap"));
        let sealed = Kind { secret: true, ..config_maps.clone() };
        for verb in [Verb::Get, Verb::List, Verb::Watch] {
            assert!(concerns(verb, &secrets) && concerns(verb, &sealed), "{verb:?}");
            assert!(!concerns(verb, &config_maps), "{verb:?}");
        }
        let path = |namespace: Option<&str>, name: Option<&str>| ResourcePath {
            plural: "secrets".to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            ..ResourcePath::default()
        };
        let permit = LinePermit { suppressed: None };
        for (verb, path, expected) in [
            (
                Verb::Get,
                path(Some("plant"), Some("key")),
                "verb=\"get\" resource=\"secrets\" object=\"plant/key\"",
            ),
            (Verb::List, path(Some("plant"), None), "verb=\"list\" resource=\"secrets\" object=\"plant/*\""),
            (Verb::Watch, path(None, None), "verb=\"watch\" resource=\"secrets\" object=\"*\""),
        ] {
            let line = lines_of(|actor| actor.requested(verb, &secrets, &path, None, 200, permit));
            assert!(line.ends_with(&format!("{expected} code=200\n")), "{line}");
        }
        let permit = LinePermit { suppressed: Some(7) };
        let line =
            lines_of(|actor| actor.requested(Verb::List, &secrets, &path(None, None), None, 403, permit));
        assert!(line.ends_with("code=403 suppressed=7\n"), "{line}");
    }

    #[tokio::test(start_paused = true)]
    async fn reads_of_one_caller_hide_those_of_no_other() {
        let throttle = ReadThrottle::default();
        let written = |verb, caller: &str| throttle.permit_line(verb, &caller.into()).is_some();
        assert_eq!((0..1000).filter(|_| written(Verb::Get, "ada")).count(), READ_LINES as usize);
        assert!(written(Verb::Update, "ada"), "a write has its entry");
        assert!(written(Verb::List, "eve"), "another caller");
        for number in 0..2 * MAX_READERS {
            written(Verb::Get, &format!("uid {number}"));
        }
        assert_eq!(throttle.callers.lock().unwrap().len(), MAX_READERS);
        assert!(!written(Verb::Get, "one more"), "callers beyond share a limit");
    }

    struct Lines(std::sync::mpsc::Sender<String>);

    impl std::io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.send(String::from_utf8_lossy(line).into_owned()).map_err(std::io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn requests_are_logged_with_all_fields_of_their_types() {
        let token = TokenRequest {
            node: Some("edge-1".to_owned()),
            ttl_seconds: 60,
            uses: 1,
            labels: Labels::from([("rack".to_owned(), "7".to_owned()), ("site".to_owned(), "n".to_owned())]),
        };
        let operator =
            OperatorCertificate { user: "eve".to_owned(), role: "view".to_owned(), lifetime_seconds: 9 };
        let broker = BrokerConfigRequest {
            broker: "emqx".to_owned(),
            directory: "/etc/emqx".to_owned(),
            names: vec!["a".to_owned(), "b".to_owned()],
            port: 8883,
        };
        let node =
            "request.node=\"edge-1\" request.ttl_seconds=60 request.uses=1 request.labels=\"rack=7,site=n\"";
        let files =
            "request.broker=\"emqx\" request.directory=\"/etc/emqx\" request.names=\"a,b\" request.port=8883";
        for (path, body, expected) in [
            ("tokens", json!(token), node),
            (
                "operators",
                json!(operator),
                "request.user=\"eve\" request.role=\"view\" request.lifetime_seconds=9",
            ),
            ("broker-config", json!(broker), files),
            ("nodes/a/admit", json!({"brokerUpdated": true}), "request.broker_updated=true"),
            (
                "rollouts/rules/web",
                json!({"action": "undo", "revision": 2}),
                "request.action=\"undo\" request.revision=2 request.override_windows=false",
            ),
        ] {
            let line = logged(path, &body);
            let begin = format!(
                "audit user=\"ada\" role=admin source=\"127.0.0.1:7\" verb=\"create\" path=\"{path}\" code=200 "
            );
            assert!(line.ends_with(&format!("{begin}{expected}\n")), "{line}");
        }
        for body in [json!(null), json!({"node": 7}), json!({"secret": "x"})] {
            let line = logged("tokens", &body);
            assert!(line.ends_with("path=\"tokens\" code=200\n"), "{line}");
        }
    }

    #[test]
    fn logged_texts_are_bounded_and_left_out_if_empty() {
        assert_eq!(String::new().logged(), None);
        assert_eq!(Labels::new().logged(), None);
        assert_eq!("ä".repeat(1000).logged().unwrap().len(), MAX_SHOWN);
    }
}
