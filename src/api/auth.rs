//! Who asks, and what they may: bearer tokens with roles, the peers of the Unix socket, and the certificates of
//! operators. Pure; depends on `object` only.
//!
//! A token comes as `Authorization: Bearer`, or as the password of `Authorization: Basic`: `kubectl` sends no
//! bearer token over plain HTTP, but it does send the user and password of the server's address.

use std::hint::black_box;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::kind::Kind;
use crate::object::Status;
use crate::object::status::{Reason, Result};

/// The longest `Authorization` header that is looked at, in bytes.
const MAX_HEADER: usize = 1024;

/// What somebody may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Everything but Secrets.
    #[default]
    Local,
    /// Everything.
    Secrets,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP, where only a token tells who asks.
    Tcp,
    /// TLS without a certificate of the client: only a token tells who asks.
    Tls,
    /// TLS with a certificate of the client, which was verified.
    Certificate {
        /// Whether it is an operator's: of the organization `system:masters`.
        operator: bool,
    },
    /// A Unix socket, whose permissions let in who may ask.
    Unix {
        /// The user of the process at the other end, if the system says.
        uid: Option<u32>,
    },
}

/// The rules of who has which role.
#[derive(Clone, Default)]
pub struct Access {
    tokens: Vec<(String, Role)>,
    own_uid: Option<u32>,
    open: bool,
}

/// Tokens are not shown.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let roles: Vec<Role> = self.tokens.iter().map(|(_, role)| *role).collect();
        f.debug_struct("Access").field("roles", &roles).field("open", &self.open).finish_non_exhaustive()
    }
}

impl Access {
    /// Everybody who reaches the server may do everything; over TLS, which others than this machine reach, those with
    /// the certificate of an operator.
    #[must_use]
    pub fn open() -> Self {
        Self { open: true, ..Self::default() }
    }

    /// These tokens have these roles. The user of the process and root need none on the Unix socket.
    #[must_use]
    pub fn tokens(tokens: Vec<(String, Role)>, own_uid: Option<u32>) -> Self {
        let tokens = tokens.into_iter().filter(|(token, _)| !token.is_empty()).collect();
        Self { tokens, own_uid, open: false }
    }

    /// The role of who sends a request with this `Authorization` header. On the Unix socket a token may
    /// raise the role, never lower it.
    ///
    /// # Errors
    /// 401 for a token that is not known, and for none over TCP. 403 for a certificate that is not an operator's.
    pub fn authenticate(&self, authorization: Option<&str>, peer: Peer) -> Result<Role> {
        let over_tls = matches!(peer, Peer::Tls | Peer::Certificate { .. });
        if self.open && !over_tls {
            return Ok(Role::Secrets);
        }
        let by_peer = match peer {
            Peer::Certificate { operator: true } => return Ok(Role::Secrets),
            Peer::Certificate { operator: false } if authorization.is_none() => return Err(no_operator()),
            Peer::Tcp | Peer::Tls | Peer::Certificate { .. } => None,
            Peer::Unix { uid: Some(uid) } if uid == 0 || Some(uid) == self.own_uid => Some(Role::Secrets),
            Peer::Unix { .. } => Some(Role::Local),
        };
        let by_token = match authorization {
            Some(header) => Some(self.role_of(header).ok_or_else(unauthorized)?),
            None => None,
        };
        by_peer.max(by_token).ok_or_else(unauthorized)
    }

    fn role_of(&self, header: &str) -> Option<Role> {
        let given = token(header)?;
        // All are compared, so that the time does not tell which one it was.
        self.tokens.iter().fold(None, |found, (token, role)| match same(token, &given) {
            true => found.max(Some(*role)),
            false => found,
        })
    }
}

/// Whether a role allows a verb on objects of a kind.
///
/// # Errors
/// 403 for what needs another role, with a message that says which.
pub(super) fn authorize(role: Role, verb: &str, kind: &Kind) -> Result<()> {
    let resource = &kind.resource;
    let secrets = resource.group.is_empty() && resource.kind == "Secret";
    if !secrets || role == Role::Secrets {
        return Ok(());
    }
    let why = format!(
        "cannot {verb} Secrets with the role of this token; use the file `kubeconfig-secrets`, which lies beside \
         `kubeconfig` and which the administrator can read"
    );
    Err(Status::forbidden(resource, "", &why))
}

fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

fn no_operator() -> Status {
    let message =
        "the certificate shown is not an operator's: the API needs one of the organization system:masters";
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

/// Compares in a time that depends on the lengths alone.
fn same(known: &str, given: &str) -> bool {
    let (known, given) = (known.as_bytes(), given.as_bytes());
    let differences = known.iter().zip(given).fold(0, |differences, (a, b)| black_box(differences | (a ^ b)));
    known.len() == given.len() && black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::object::kinds;

    fn access() -> Access {
        let tokens = vec![
            ("local-token".to_owned(), Role::Local),
            ("secret-token".to_owned(), Role::Secrets),
            (String::new(), Role::Secrets),
        ];
        Access::tokens(tokens, Some(1000))
    }

    fn code(result: Result<Role>) -> u16 {
        result.unwrap_err().code
    }

    #[test]
    fn over_tcp_only_a_token_gives_a_role() {
        let access = access();
        let role = |header| access.authenticate(header, Peer::Tcp);
        assert_eq!(role(Some("Bearer local-token")), Ok(Role::Local));
        assert_eq!(role(Some("bearer  secret-token ")), Ok(Role::Secrets));
        for wrong in [
            "Bearer ",
            "Bearer",
            "Bearer local-tokeN",
            "Bearer local-token2",
            "Digest local-token",
            "",
            "Basic eDo=",
        ] {
            assert_eq!(code(role(Some(wrong))), 401, "{wrong}");
        }
        assert_eq!(code(role(None)), 401);
        assert_eq!(code(role(Some(&format!("Bearer {}", "x".repeat(5000))))), 401);
    }

    #[test]
    fn the_password_of_basic_authentication_is_a_token_too() {
        let header = format!("Basic {}", STANDARD.encode("edgesync:secret-token"));
        assert_eq!(access().authenticate(Some(&header), Peer::Tcp), Ok(Role::Secrets));
        let header = format!("Basic {}", STANDARD.encode("secret-token"));
        assert_eq!(code(access().authenticate(Some(&header), Peer::Tcp)), 401);
        for odd in ["Basic ", "Basic ====", "Basic /////w=="] {
            assert_eq!(code(access().authenticate(Some(odd), Peer::Tcp)), 401, "{odd}");
        }
    }

    #[test]
    fn on_the_socket_the_user_counts_and_a_token_raises() {
        let access = access();
        let peer = |uid| Peer::Unix { uid };
        assert_eq!(access.authenticate(None, peer(Some(0))), Ok(Role::Secrets));
        assert_eq!(access.authenticate(None, peer(Some(1000))), Ok(Role::Secrets));
        assert_eq!(access.authenticate(None, peer(Some(1001))), Ok(Role::Local));
        assert_eq!(access.authenticate(None, peer(None)), Ok(Role::Local));
        assert_eq!(access.authenticate(Some("Bearer secret-token"), peer(Some(1001))), Ok(Role::Secrets));
        assert_eq!(access.authenticate(Some("Bearer local-token"), peer(Some(0))), Ok(Role::Secrets));
        assert_eq!(code(access.authenticate(Some("Bearer wrong"), peer(Some(0)))), 401);
    }

    #[test]
    fn over_tls_the_certificate_of_an_operator_opens_everything_and_no_other_does() {
        for access in [access(), Access::open(), Access::default()] {
            let role = |operator| access.authenticate(None, Peer::Certificate { operator });
            assert_eq!(role(true), Ok(Role::Secrets));
            assert_eq!(code(role(false)), 403);
            assert_eq!(code(access.authenticate(None, Peer::Tls)), 401);
            assert_eq!(code(access.authenticate(Some("Bearer x"), Peer::Tls)), 401);
        }
        let with_token = |peer| access().authenticate(Some("Bearer local-token"), peer);
        assert_eq!(with_token(Peer::Tls), Ok(Role::Local));
        assert_eq!(with_token(Peer::Certificate { operator: false }), Ok(Role::Local));
        assert_eq!(with_token(Peer::Certificate { operator: true }), Ok(Role::Secrets));
    }

    #[test]
    fn an_open_server_asks_nobody() {
        assert_eq!(Access::open().authenticate(Some("Bearer x"), Peer::Tcp), Ok(Role::Secrets));
        assert_eq!(code(Access::default().authenticate(None, Peer::Tcp)), 401);
    }

    #[test]
    fn secrets_need_their_role_and_nothing_else_does() {
        let kind = |word: &str| Kind::bare(Arc::new(kinds::by_word(word).unwrap().resource()));
        let refused = authorize(Role::Local, "list", &kind("secrets")).unwrap_err();
        assert_eq!(refused.code, 403);
        assert!(refused.message.contains("kubeconfig-secrets"), "{refused}");
        assert_eq!(authorize(Role::Secrets, "get", &kind("secrets")), Ok(()));
        for word in ["cm", "events", "leases", "objectsyncs", "pods"] {
            assert_eq!(authorize(Role::Local, "watch", &kind(word)), Ok(()));
        }
    }

    #[test]
    fn tokens_do_not_show_in_debug_output() {
        assert!(!format!("{:?}", access()).contains("token\""), "{:?}", access());
    }
}
