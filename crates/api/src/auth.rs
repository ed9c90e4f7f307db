//! Who asks, and what they may: bearer tokens with roles, the peers of the Unix socket, and the certificates of
//! operators. No I/O: who the operators are, it asks of [`Operators`].
//!
//! A token comes as `Authorization: Bearer`, or as the password of `Authorization: Basic`: `kubectl` sends no
//! bearer token over plain HTTP, but it does send the user and password of the server's address.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::kind::Kind;
use super::request::Verb;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Scope, Status};

/// The longest `Authorization` header that is looked at, in bytes.
const MAX_HEADER: usize = 1024;

/// What somebody may do. Operators have `View`, `Edit` or `Admin`, programs on a device `Local` or `Admin`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything but Secrets.
    #[default]
    View,
    /// Everything that can be done on a device, but for Secrets.
    Local,
    /// Read everything, write everything in namespaces, Secrets too.
    Edit,
    /// Everything: what is in no namespace, and what concerns the fleet.
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

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP, where only a token tells who asks.
    Tcp(SocketAddr),
    /// TLS without a certificate of the client: only a token tells who asks.
    Tls(SocketAddr),
    /// TLS with a certificate of the client, which was verified.
    Certificate {
        /// Its serial number, in hexadecimal.
        serial: Arc<str>,
        /// Where it comes from.
        from: SocketAddr,
    },
    /// A Unix socket, whose permissions let in who may ask.
    Unix {
        /// The user of the process at the other end, if the system says.
        uid: Option<u32>,
    },
}

impl Peer {
    /// Where it comes from, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Tcp(from) | Self::Tls(from) | Self::Certificate { from, .. } => from.to_string(),
            Self::Unix { .. } => "the socket".to_owned(),
        }
    }
}

/// Who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// For people and the audit log: `ada`, `uid 1000`, `token`.
    pub name: Arc<str>,
    /// What they may do.
    pub role: Role,
}

/// The certificates that are operators'.
pub trait Operators: Send + Sync {
    /// Whose certificate it is, by its serial number in hexadecimal; none if it is no operator's, or not any more.
    fn find(&self, serial: &str) -> Option<Caller>;

    /// Is told of whenever somebody has lost what they had.
    fn revoked(&self) -> tokio::sync::watch::Receiver<()>;
}

/// The keys of pages that browsers show.
pub trait PageKeys: Send + Sync {
    /// What whoever shows this key may do; none if it is no key, or not any more.
    fn role(&self, key: &str) -> Option<Role>;
}

/// The rules of who has which role.
#[derive(Clone)]
pub struct Access {
    tokens: Vec<(String, Role)>,
    own_uid: u32,
    /// Of whom the permissions of the socket let in, beside root and the user of the process.
    group: Role,
    operators: Option<Arc<dyn Operators>>,
    /// Of those who show nothing.
    anybody: Option<Role>,
    /// Of pages, which come without TLS, from this machine.
    pages: Option<Arc<dyn PageKeys>>,
}

/// Tokens are not shown.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<Role> = self.tokens.iter().map(|(_, role)| *role).collect();
        f.debug_struct("Access").field("roles", &roles).field("group", &self.group).finish_non_exhaustive()
    }
}

impl Access {
    /// These tokens have these roles. The user of the process and root need none on the Unix socket; others there have the
    /// role `Local`.
    #[must_use]
    pub fn tokens(tokens: Vec<(String, Role)>, own_uid: u32) -> Self {
        let tokens = tokens.into_iter().filter(|(token, _)| !token.is_empty()).collect();
        Self { tokens, own_uid, group: Role::Local, operators: None, anybody: None, pages: None }
    }

    /// Operators with their certificates. The user of the process and root need none on the Unix socket; others there may
    /// look.
    #[must_use]
    pub fn certificates(operators: Arc<dyn Operators>, own_uid: u32) -> Self {
        Self { group: Role::View, operators: Some(operators), ..Self::tokens(Vec::new(), own_uid) }
    }

    /// Whether operators come with a browser.
    pub(super) fn is_of_operators(&self) -> bool {
        self.operators.is_some()
    }

    /// Browsers on this machine show keys, too.
    #[must_use]
    pub fn with_pages(self, pages: Arc<dyn PageKeys>) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// Whoever gets there may look.
    #[must_use]
    pub fn anybody() -> Self {
        Self { group: Role::View, anybody: Some(Role::View), ..Self::tokens(Vec::new(), 0) }
    }

    /// Who it is that sends a request with this `Authorization` header. On the Unix socket a token may raise the role, never
    /// lower it.
    ///
    /// # Errors
    /// 401 for a token that is not known, and for none over TCP. 403 for a certificate that is not an operator's.
    pub fn authenticate(&self, authorization: Option<&str>, peer: &Peer) -> Result<Caller> {
        let by_peer = match peer {
            Peer::Certificate { serial, .. } => {
                match self.operators.as_ref().and_then(|all| all.find(serial)) {
                    Some(caller) => return Ok(caller),
                    None if authorization.is_none() => return Err(no_operator()),
                    None => None,
                }
            }
            Peer::Tcp(_) | Peer::Tls(_) => self.anybody,
            Peer::Unix { uid: Some(uid) } if *uid == 0 || *uid == self.own_uid => Some(Role::Admin),
            Peer::Unix { .. } => Some(self.group),
        };
        if let (Peer::Tcp(_), Some(pages), Some(key)) = (peer, &self.pages, authorization.and_then(token))
            && let Some(role) = pages.role(&key)
        {
            return Ok(Caller { name: "page".into(), role });
        }
        let by_token = match authorization {
            Some(header) => Some(self.role_of(header).ok_or_else(unauthorized)?),
            None => None,
        };
        let role = by_peer.max(by_token).ok_or_else(unauthorized)?;
        let name = match peer {
            Peer::Unix { uid: Some(uid) } => format!("uid {uid}").into(),
            _ => "token".into(),
        };
        Ok(Caller { name, role })
    }

    /// Ends when somebody who has come with the certificate of an operator is none any more. Never for others: they are
    /// asked for it with each request.
    pub(super) async fn until_refused(&self, peer: &Peer) {
        let (Peer::Certificate { serial, .. }, Some(operators)) = (peer, &self.operators) else {
            return std::future::pending().await;
        };
        let mut revoked = operators.revoked();
        if operators.find(serial).is_none() {
            return std::future::pending().await;
        }
        while operators.find(serial).is_some() {
            if revoked.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn role_of(&self, header: &str) -> Option<Role> {
        let given = token(header)?;
        // All are compared, so that the time does not tell which one it was.
        self.tokens.iter().fold(None, |found, (token, role)| {
            match token.as_bytes().ct_eq(given.as_bytes()).into() {
                true => found.max(Some(*role)),
                false => found,
            }
        })
    }
}

/// Whether a role allows a verb on objects of a kind.
///
/// # Errors
/// 403 for what needs another role, with a message that says which.
pub(super) fn authorize(role: Role, verb: Verb, kind: &Kind) -> Result<()> {
    let resource = &kind.resource;
    let rights = match role {
        Role::Admin => return Ok(()),
        Role::Local if !kind.secret => return Ok(()),
        Role::Local => {
            "use the file `kubeconfig-secrets`, which lies beside `kubeconfig` and which the administrator can read"
        }
        Role::Edit if !changes_the_cluster(verb, kind) => return Ok(()),
        Role::Edit => "what is in no namespace is changed with the role 'admin'",
        Role::View if !verb.writes() && !kind.secret => return Ok(()),
        Role::View => "Secrets are read, and objects written, with the role 'edit' or 'admin'",
    };
    let why = format!("cannot {} {} with the role '{role}'; {rights}", verb.as_str(), resource.plural);
    Err(Status::forbidden(resource, "", &why))
}

/// Whether it is for administrators: kinds, namespaces, nodes.
pub(super) fn changes_the_cluster(verb: Verb, kind: &Kind) -> bool {
    verb.writes() && kind.resource.scope == Scope::Cluster
}

fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

fn no_operator() -> Status {
    let message = "the certificate shown is no operator's here: it is a node's, was revoked, or was made before operators \
                   were recorded; 'edgesync-cloud kubeconfig' makes one";
    Status::new(Reason::Forbidden, message)
}

/// The token of an `Authorization` header.
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
mod tests {
    use super::*;
    use edgesync_object::kinds;

    /// One operator of each role, with that as the serial number.
    struct Three;

    impl Operators for Three {
        fn find(&self, serial: &str) -> Option<Caller> {
            let role = serial.parse().ok()?;
            Some(Caller { name: "ada".into(), role })
        }

        fn revoked(&self) -> tokio::sync::watch::Receiver<()> {
            tokio::sync::watch::channel(()).1
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

    fn certificate(serial: &str) -> Peer {
        Peer::Certificate { serial: serial.into(), from: from() }
    }

    fn role(access: &Access, header: Option<&str>, peer: &Peer) -> Result<Role, u16> {
        access.authenticate(header, peer).map(|caller| caller.role).map_err(|status| status.code)
    }

    #[test]
    fn over_tcp_only_a_token_gives_a_role() {
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
    fn the_password_of_basic_authentication_is_a_token_too() {
        let role = |header: &str| role(&access(), Some(header), &Peer::Tcp(from()));
        assert_eq!(role(&format!("Basic {}", STANDARD.encode("edgesync:secret-token"))), Ok(Role::Admin));
        assert_eq!(role(&format!("Basic {}", STANDARD.encode("secret-token"))), Err(401));
        for odd in ["Basic ", "Basic ====", "Basic /////w=="] {
            assert_eq!(role(odd), Err(401), "{odd}");
        }
    }

    #[test]
    fn on_the_socket_the_user_counts_and_a_token_raises() {
        let on_socket = |header, uid| role(&access(), header, &Peer::Unix { uid });
        assert_eq!(on_socket(None, Some(0)), Ok(Role::Admin));
        assert_eq!(on_socket(None, Some(1000)), Ok(Role::Admin));
        assert_eq!(on_socket(None, Some(1001)), Ok(Role::Local));
        assert_eq!(on_socket(None, None), Ok(Role::Local));
        assert_eq!(on_socket(Some("Bearer secret-token"), Some(1001)), Ok(Role::Admin));
        assert_eq!(on_socket(Some("Bearer local-token"), Some(0)), Ok(Role::Admin));
        assert_eq!(on_socket(Some("Bearer wrong"), Some(0)), Err(401));
        let cloud = Access::certificates(Arc::new(Three), 1000);
        assert_eq!(role(&cloud, None, &Peer::Unix { uid: Some(1000) }), Ok(Role::Admin));
        assert_eq!(role(&cloud, None, &Peer::Unix { uid: Some(1001) }), Ok(Role::View));
    }

    #[test]
    fn an_operator_has_the_role_of_their_certificate_and_nobody_else_has_one() {
        let cloud = Access::certificates(Arc::new(Three), 1);
        for known in [Role::View, Role::Edit, Role::Admin] {
            let caller = cloud.authenticate(None, &certificate(&known.to_string())).unwrap();
            assert_eq!((&*caller.name, caller.role), ("ada", known));
        }
        assert_eq!(role(&cloud, None, &certificate("other")), Err(403));
        assert_eq!(role(&cloud, Some("Bearer x"), &certificate("other")), Err(401));
        for peer in [Peer::Tls(from()), Peer::Tcp(from())] {
            assert_eq!(role(&cloud, None, &peer), Err(401));
            assert_eq!(role(&cloud, Some("Bearer x"), &peer), Err(401));
        }
        assert_eq!(role(&access(), None, &certificate("admin")), Err(403), "nobody is an operator there");
    }

    #[test]
    fn each_role_may_do_what_its_name_says() {
        let kind = |word: &str| Kind::bare(Arc::new(kinds::by_word(word).unwrap().resource()));
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
    fn tokens_do_not_show_in_debug_output() {
        assert!(!format!("{:?}", access()).contains("token\""), "{:?}", access());
    }
}
