//! Authentication and authorization: bearer tokens with roles, peers of the Unix socket, and
//! certificates of operators. No I/O: [`Operators`] looks up the operators.
//!
//! A page key is bound to the caller that it was issued to, and verified with each request.
//!
//! A token is sent as `Authorization: Bearer`, or as the password of `Authorization: Basic`:
//! `kubectl` sends no bearer token over plain HTTP, but the user and password of the server's
//! address.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use super::kind::Kind;
use super::request::Verb;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Scope, Status};
use edgesync_transport::tls::Certificate;

/// Maximum length of an accepted `Authorization` header, in bytes.
const MAX_HEADER: usize = 1024;

/// Permissions of a caller. Operators have `View`, `Edit` or `Admin`, programs on a device `Local`
/// or `Admin`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything but Secrets.
    #[default]
    View,
    /// Read and write everything on a device but Secrets.
    Local,
    /// Read everything, write everything in namespaces, Secrets included, and move roll-outs.
    Edit,
    /// Everything, including cluster-scoped objects and administration of the fleet.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::View => "view",
            Self::Local => "local",
            Self::Edit => "edit",
            Self::Admin => "admin",
        })
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        [Self::View, Self::Local, Self::Edit, Self::Admin]
            .into_iter()
            .find(|role| role.to_string() == text)
            .ok_or(())
    }
}

/// Origin of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP: only a token identifies the caller.
    Tcp(SocketAddr),
    /// TLS without a client certificate: only a token identifies the caller.
    Tls(SocketAddr),
    /// TLS with a verified client certificate.
    Certificate {
        /// The verified certificate of the client.
        certificate: Arc<Certificate>,
        /// Address that the client connects from.
        from: SocketAddr,
    },
    /// A Unix socket; its permissions restrict who can connect.
    Unix {
        /// The user of the peer process, if the system reports it.
        uid: Option<u32>,
    },
}

impl Peer {
    /// Returns the origin for people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Tcp(from) | Self::Tls(from) | Self::Certificate { from, .. } => from.to_string(),
            Self::Unix { .. } => "unix socket".to_owned(),
        }
    }
}

/// The authenticated sender of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Name for people and the audit log: `ada`, `uid 1000`, `token`, `page key of ada`.
    pub name: Arc<str>,
    /// Role that authorizes its requests.
    pub role: Role,
    /// Credential that authenticated it.
    pub credential: Credential,
}

/// Credential that authenticated a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    /// The caller is not authenticated.
    #[default]
    None,
    /// A bearer token, or anonymous access.
    Token,
    /// The kernel, as a user of the Unix socket.
    Socket,
    /// The certificate of an operator.
    Certificate(Arc<Certificate>),
    /// A key of the page.
    PageKey,
}

/// Lookup of operators by certificate.
pub trait Operators: Send + Sync {
    /// Returns the operator of a certificate; `None` if it is revoked or not an operator's. The
    /// serial number is recorded, and the subject is that of the recorded name and role: a record
    /// alone makes no operator of another certificate.
    fn find(&self, certificate: &Certificate) -> Option<Caller>;

    /// Returns the role of the operator whose certificate has this serial number; `None` if it is
    /// revoked or has another name. For the keys that were issued to it.
    fn role(&self, serial: &str, name: &str) -> Option<Role>;

    /// Returns a watch that changes whenever an operator is revoked.
    fn revoked(&self) -> watch::Receiver<()>;
}

/// Lookup of the page's keys.
pub trait PageKeys: Send + Sync {
    /// Returns the holder of a key; `None` if it is unknown, expired or revoked.
    fn holder(&self, key: &str) -> Option<PageKeyHolder>;

    /// Returns a watch that changes whenever keys are revoked.
    fn revoked(&self) -> watch::Receiver<()>;
}

/// The caller that a page key was issued to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageKeyHolder {
    /// Name of the caller.
    pub name: String,
    /// Serial number of the operator's certificate that requested the key; `None` for a user of the
    /// Unix socket. The key is valid while that certificate is.
    pub serial: Option<String>,
    /// Role of the caller when the key was issued. The operator's current role limits it.
    pub role: Role,
    /// Time at which the key expires.
    pub ends: Timestamp,
}

/// The access rules of a server.
#[derive(Clone)]
pub struct Access {
    tokens: Vec<(String, Role)>,
    own_uid: u32,
    /// Role of other users of the Unix socket, beside root and the user of the process.
    group: Role,
    operators: Option<Arc<dyn Operators>>,
    /// Role of clients without credentials.
    anonymous: Option<Role>,
    /// Keys of pages served without TLS on this machine.
    pages: Option<Arc<dyn PageKeys>>,
}

/// Formats without the secret tokens.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<Role> = self.tokens.iter().map(|(_, role)| *role).collect();
        f.debug_struct("Access").field("roles", &roles).field("group", &self.group).finish_non_exhaustive()
    }
}

impl Access {
    /// Grants roles to tokens. The user of the process and root are `Admin` on the Unix socket;
    /// other users there are `Local`.
    #[must_use]
    pub fn tokens(tokens: Vec<(String, Role)>, own_uid: u32) -> Self {
        let tokens = tokens.into_iter().filter(|(token, _)| !token.is_empty()).collect();
        Self { tokens, own_uid, group: Role::Local, operators: None, anonymous: None, pages: None }
    }

    /// Grants operators the role of their certificate. The user of the process and root are `Admin`
    /// on the Unix socket; other users there may read.
    #[must_use]
    pub fn certificates(operators: Arc<dyn Operators>, own_uid: u32) -> Self {
        Self { group: Role::View, operators: Some(operators), ..Self::tokens(Vec::new(), own_uid) }
    }

    /// Returns whether operators may use a browser.
    pub(super) fn is_of_operators(&self) -> bool {
        self.operators.is_some()
    }

    /// Accepts page keys from browsers on this machine too.
    #[must_use]
    pub fn with_pages(self, pages: Arc<dyn PageKeys>) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// Grants read access to every client.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { group: Role::View, anonymous: Some(Role::View), ..Self::tokens(Vec::new(), 0) }
    }

    /// Authenticates a request by its `Authorization` header and its peer. On the Unix socket a
    /// token may raise the role, never lower it.
    ///
    /// # Errors
    /// 401 for an unknown token, and for none over TCP. 403 for a certificate that is not an
    /// operator's.
    pub fn authenticate(&self, authorization: Option<&str>, peer: &Peer) -> Result<Caller> {
        let by_peer = match peer {
            Peer::Certificate { certificate, .. } => {
                match self.operators.as_ref().and_then(|all| all.find(certificate)) {
                    Some(caller) => {
                        let credential = Credential::Certificate(Arc::clone(certificate));
                        return Ok(Caller { credential, ..caller });
                    }
                    None if authorization.is_none() => return Err(no_operator()),
                    None => None,
                }
            }
            Peer::Tcp(_) | Peer::Tls(_) => self.anonymous,
            Peer::Unix { uid: Some(uid) } if *uid == 0 || *uid == self.own_uid => Some(Role::Admin),
            Peer::Unix { .. } => Some(self.group),
        };
        if let (Peer::Tcp(_), Some(key)) = (peer, authorization.and_then(token))
            && let Some((caller, _)) = self.holder_of(&key)
        {
            return Ok(caller);
        }
        let by_token = match authorization {
            Some(header) => Some(self.role_of(header).ok_or_else(unauthorized)?),
            None => None,
        };
        let role = by_peer.max(by_token).ok_or_else(unauthorized)?;
        let (name, credential) = match peer {
            Peer::Unix { uid: Some(uid) } => (format!("uid {uid}").into(), Credential::Socket),
            Peer::Unix { uid: None } => ("token".into(), Credential::Socket),
            _ => ("token".into(), Credential::Token),
        };
        Ok(Caller { name, role, credential })
    }

    /// Returns the caller behind a page key, and when the key expires; `None` if the key or the
    /// operator that it was issued to is not valid.
    fn holder_of(&self, key: &str) -> Option<(Caller, Timestamp)> {
        let holder = self.pages.as_ref()?.holder(key)?;
        let role = match &holder.serial {
            Some(serial) => self.operators.as_ref()?.role(serial, &holder.name)?.min(holder.role),
            None => holder.role,
        };
        let name = format!("page key of {}", holder.name).into();
        Some((Caller { name, role, credential: Credential::PageKey }, holder.ends))
    }

    /// Completes when the page key of a request ends: it expires, or it or its operator is revoked.
    pub(super) fn until_key_ends(
        &self,
        authorization: Option<&str>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (access, key) = (self.clone(), authorization.and_then(token).unwrap_or_default());
        async move {
            let mut keys = access.pages.as_ref().map(|pages| pages.revoked());
            let mut operators = access.operators.as_ref().map(|operators| operators.revoked());
            while let Some((_, ends)) = access.holder_of(&key) {
                let left = Duration::try_from(ends.duration_since(Timestamp::now())).unwrap_or_default();
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = changed(&mut keys) => {}
                    () = changed(&mut operators) => {}
                }
            }
        }
    }

    /// Completes when the operator behind a certificate is revoked. Never for other peers: each of
    /// their requests is authenticated separately.
    pub(super) async fn until_revoked(&self, peer: &Peer) {
        let (Peer::Certificate { certificate, .. }, Some(operators)) = (peer, &self.operators) else {
            return std::future::pending().await;
        };
        let mut revoked = operators.revoked();
        if operators.find(certificate).is_none() {
            return std::future::pending().await;
        }
        while operators.find(certificate).is_some() {
            if revoked.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns who presents a bearer token over plain TCP; `None` if it is unknown or expired.
    pub(super) fn bearer(&self, token: &str) -> Option<Caller> {
        let by_token = |role| Caller { name: "token".into(), role, credential: Credential::Token };
        let page = self.holder_of(token).map(|(caller, _)| caller);
        page.or_else(|| self.role_of_token(token).map(by_token))
    }

    fn role_of(&self, header: &str) -> Option<Role> {
        self.role_of_token(&token(header)?)
    }

    fn role_of_token(&self, sent: &str) -> Option<Role> {
        // All tokens are compared, so that the duration does not reveal a match.
        self.tokens.iter().fold(None, |found, (token, role)| {
            match token.as_bytes().ct_eq(sent.as_bytes()).into() {
                true => found.max(Some(*role)),
                false => found,
            }
        })
    }
}

/// Waits for a change; forever if there can be none.
async fn changed(watch: &mut Option<watch::Receiver<()>>) {
    if let Some(watch) = watch
        && watch.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Checks that a role allows a verb on objects of a kind.
///
/// # Errors
/// 403 with a message that names the required role.
pub(super) fn authorize(role: Role, verb: Verb, kind: &Kind) -> Result<()> {
    let resource = &kind.resource;
    let requirement = match role {
        Role::Admin => return Ok(()),
        Role::Local if !kind.secret => return Ok(()),
        Role::Local => "hint: use the file `kubeconfig-secrets` beside `kubeconfig`, which root can read",
        Role::Edit if !changes_the_cluster(verb, kind) => return Ok(()),
        Role::Edit => "writes of cluster-scoped objects need the role 'admin'",
        Role::View if !verb.writes() && !kind.secret => return Ok(()),
        Role::View => "writes, and reads of Secrets, need the role 'edit' or 'admin'",
    };
    let why = format!("cannot {} {} with the role '{role}'; {requirement}", verb.as_str(), resource.plural);
    Err(Status::forbidden(resource, "", &why))
}

/// Returns whether a request needs the role `Admin`: a write of a cluster-scoped kind.
pub(super) fn changes_the_cluster(verb: Verb, kind: &Kind) -> bool {
    verb.writes() && kind.resource.scope == Scope::Cluster
}

fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

fn no_operator() -> Status {
    let message = "the client certificate is not one of an operator: it is a node's, was revoked, or was issued before operators \
                   were recorded; hint: edgesync-cloud kubeconfig";
    Status::new(Reason::Forbidden, message)
}

/// Extracts the token of an `Authorization` header.
fn token(header: &str) -> Option<String> {
    let (scheme, value) = header.trim().split_once(' ').filter(|_| header.len() <= MAX_HEADER)?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let bytes = STANDARD.decode(value).or_else(|_| STANDARD_NO_PAD.decode(value)).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod key_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use edgesync_transport::tls::Identity;

    /// Every certificate is one of an operator with this role, or none is.
    struct AnyOperator(Option<Role>);

    impl Operators for AnyOperator {
        fn find(&self, _: &Certificate) -> Option<Caller> {
            Some(Caller { name: "ada".into(), role: self.0?, ..Caller::default() })
        }

        fn role(&self, serial: &str, name: &str) -> Option<Role> {
            self.0.filter(|_| (serial, name) == ("7", "ada"))
        }

        fn revoked(&self) -> watch::Receiver<()> {
            watch::channel(()).1
        }
    }

    /// Keys whose text is the serial number of an operator's certificate, or `socket`.
    struct KeysByHolder;

    impl PageKeys for KeysByHolder {
        fn holder(&self, key: &str) -> Option<PageKeyHolder> {
            let (name, serial) = match key {
                "socket" => ("uid 7", None),
                serial => ("ada", Some(serial.to_owned())),
            };
            Some(PageKeyHolder { name: name.into(), serial, role: Role::Edit, ends: Timestamp::MAX })
        }

        fn revoked(&self) -> watch::Receiver<()> {
            watch::channel(()).1
        }
    }

    fn access() -> Access {
        let tokens = vec![
            ("local-token".to_owned(), Role::Local),
            ("secret-token".to_owned(), Role::Admin),
            (String::new(), Role::Admin),
        ];
        Access::tokens(tokens, 1000)
    }

    fn from() -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }

    fn certificate() -> Peer {
        let identity = Identity::local(from().ip()).unwrap();
        Peer::Certificate { certificate: Arc::new(identity.certificate().clone()), from: from() }
    }

    fn role(access: &Access, header: Option<&str>, peer: &Peer) -> Result<Role, u16> {
        access.authenticate(header, peer).map(|caller| caller.role).map_err(|status| status.code)
    }

    #[test]
    fn tcp_client_needs_a_token() {
        for (access, peer) in [(access(), Peer::Tcp(from())), (access(), Peer::Tls(from()))] {
            let role = |header| role(&access, header, &peer);
            assert_eq!(role(Some("Bearer local-token")), Ok(Role::Local));
            assert_eq!(role(Some("bearer  secret-token ")), Ok(Role::Admin));
            for wrong in [
                "Bearer ",
                "Bearer",
                "Bearer local-tokeN",
                "Bearer local-token2",
                "Digest local-token",
                "",
                "Basic eDo=",
            ] {
                assert_eq!(role(Some(wrong)), Err(401), "{wrong}");
            }
            assert_eq!(role(None), Err(401));
            assert_eq!(role(Some(&format!("Bearer {}", "x".repeat(5000)))), Err(401));
        }
    }

    #[test]
    fn basic_password_is_accepted_as_a_token() {
        let role = |header: &str| role(&access(), Some(header), &Peer::Tcp(from()));
        assert_eq!(role(&format!("Basic {}", STANDARD.encode("edgesync:secret-token"))), Ok(Role::Admin));
        assert_eq!(role(&format!("Basic {}", STANDARD.encode("secret-token"))), Err(401));
        for odd in ["Basic ", "Basic ====", "Basic /////w=="] {
            assert_eq!(role(odd), Err(401), "{odd}");
        }
    }

    #[test]
    fn socket_user_has_a_role_and_a_token_raises_it() {
        let on_socket = |header, uid| role(&access(), header, &Peer::Unix { uid });
        assert_eq!(on_socket(None, Some(0)), Ok(Role::Admin));
        assert_eq!(on_socket(None, Some(1000)), Ok(Role::Admin));
        assert_eq!(on_socket(None, Some(1001)), Ok(Role::Local));
        assert_eq!(on_socket(None, None), Ok(Role::Local));
        assert_eq!(on_socket(Some("Bearer secret-token"), Some(1001)), Ok(Role::Admin));
        assert_eq!(on_socket(Some("Bearer local-token"), Some(0)), Ok(Role::Admin));
        assert_eq!(on_socket(Some("Bearer wrong"), Some(0)), Err(401));
        let cloud = Access::certificates(Arc::new(AnyOperator(None)), 1000);
        assert_eq!(role(&cloud, None, &Peer::Unix { uid: Some(1000) }), Ok(Role::Admin));
        assert_eq!(role(&cloud, None, &Peer::Unix { uid: Some(1001) }), Ok(Role::View));
    }

    #[test]
    fn operator_has_the_role_of_their_certificate() {
        let certificate = certificate();
        for known in [Role::View, Role::Edit, Role::Admin] {
            let cloud = Access::certificates(Arc::new(AnyOperator(Some(known))), 1);
            let caller = cloud.authenticate(None, &certificate).unwrap();
            assert_eq!((&*caller.name, caller.role), ("ada", known));
        }
        let cloud = Access::certificates(Arc::new(AnyOperator(None)), 1);
        assert_eq!(role(&cloud, None, &certificate), Err(403));
        assert_eq!(role(&cloud, Some("Bearer x"), &certificate), Err(401));
        for peer in [Peer::Tls(from()), Peer::Tcp(from())] {
            assert_eq!(role(&cloud, None, &peer), Err(401));
            assert_eq!(role(&cloud, Some("Bearer x"), &peer), Err(401));
        }
        assert_eq!(role(&access(), None, &certificate), Err(403), "nobody is an operator there");
    }

    /// A key used to be valid for twelve hours, whatever happened to the operator.
    #[test]
    fn page_key_is_valid_while_its_operator_is() {
        let access =
            |role| Access::certificates(Arc::new(AnyOperator(role)), 1).with_pages(Arc::new(KeysByHolder));
        let ask = |access: &Access, key: &str| {
            let caller = access.authenticate(Some(&format!("Bearer {key}")), &Peer::Tcp(from()));
            caller.map(|caller| (caller.name.to_string(), caller.role, caller.credential))
        };
        let key_of = |name: &str, role| Ok((format!("page key of {name}"), role, Credential::PageKey));
        // The lower one of the roles then and now.
        for (now, expected) in [(Role::Admin, Role::Edit), (Role::View, Role::View)] {
            assert_eq!(ask(&access(Some(now)), "7"), key_of("ada", expected));
        }
        assert_eq!(ask(&access(Some(Role::Admin)), "8").unwrap_err().code, 401, "another certificate");
        assert_eq!(ask(&access(None), "7").unwrap_err().code, 401, "revoked");
        assert_eq!(ask(&access(None), "socket"), key_of("uid 7", Role::Edit));
        let tls = access(None).authenticate(Some("Bearer socket"), &Peer::Tls(from()));
        assert_eq!(tls.unwrap_err().code, 401, "a page is served without TLS on loopback");
    }

    #[test]
    fn roles_allow_what_their_names_say() {
        let kind = |word: &str| Kind::without_schema(Arc::new(kinds::by_word(word).unwrap().resource()));
        let all = [Role::View, Role::Local, Role::Edit, Role::Admin];
        let who = |verb, word| all.map(|role| authorize(role, verb, &kind(word)).is_ok());
        for word in ["cm", "events", "leases", "objectsyncs", "pods", "nodes", "namespaces"] {
            assert_eq!(who(Verb::Watch, word), [true; 4], "{word}");
        }
        for verb in [Verb::Get, Verb::List, Verb::Watch, Verb::Patch, Verb::DeleteCollection] {
            assert_eq!(who(verb, "secrets"), [false, false, true, true], "{verb:?}");
        }
        for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete] {
            assert_eq!(who(verb, "cm"), [false, true, true, true], "{verb:?}");
            assert_eq!(who(verb, "nodes"), [false, true, false, true], "{verb:?}");
        }
        let refused = authorize(Role::Local, Verb::List, &kind("secrets")).unwrap_err();
        assert_eq!(refused.code, 403);
        assert!(refused.message.contains("kubeconfig-secrets"), "{refused}");
        let refused = authorize(Role::View, Verb::Delete, &kind("cm")).unwrap_err();
        assert!(refused.message.contains("cannot delete configmaps with the role 'view'"), "{refused}");
        let sealed = Kind { secret: true, ..kind("cm") };
        assert_eq!(all.map(|role| authorize(role, Verb::Watch, &sealed).is_ok()), [false, false, true, true]);
    }

    #[test]
    fn debug_output_omits_tokens() {
        assert!(!format!("{:?}", access()).contains("token\""), "{:?}", access());
    }
}
