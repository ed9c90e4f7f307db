//! Tokens, certificate and kubeconfigs of the local API, ready for `kubectl`. Created at the first
//! start and kept; the kubeconfigs follow the address of the API.
//!
//! The group of the files may read those of the role `Local`; those that give access to Secrets
//! belong to the agent's user alone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use edgesync_api::{Access, Role, own_uid};
use edgesync_store::{durable, random};
use edgesync_transport::tls::{Identity, Local};

/// File with certificate and key of the API, beside the kubeconfig.
const IDENTITY_FILE: &str = "api.pem";
/// Maximum bytes read from that file.
const MAX_IDENTITY: u64 = 64 << 10;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Valid lengths of a token in a file, in bytes.
const TOKEN_LENGTHS: std::ops::RangeInclusive<usize> = 20..=512;

/// The roles, each with the suffix and the mode of its files.
const ROLES: [(Role, &str, u32); 2] = [(Role::Local, "", 0o640), (Role::Admin, "-secrets", 0o600)];

/// The tokens of the local API, and the path of their files.
pub(super) struct Tokens {
    kubeconfig: PathBuf,
    /// In the order of [`ROLES`].
    tokens: [String; 2],
}

/// Omits the tokens, which must not reach a log.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the tokens beside the kubeconfig, and replaces those that are missing or malformed.
    ///
    /// Fails on a file that cannot be read or written, and names it.
    pub(super) fn prepare(kubeconfig: &Path) -> anyhow::Result<Self> {
        let directory = durable::directory_of(kubeconfig);
        if !directory.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o750).create(directory);
            made.with_context(|| format!("create {}", directory.display()))?;
        }
        let mut tokens = [String::new(), String::new()];
        for (token, (_, suffix, mode)) in tokens.iter_mut().zip(ROLES) {
            let path = kubeconfig.with_file_name(format!("token{suffix}"));
            *token = match read_token(&path).with_context(|| format!("read {}", path.display()))? {
                Some(token) => token,
                None => {
                    let token = URL_SAFE_NO_PAD.encode(random::bytes::<TOKEN_BYTES>()?);
                    durable::write(&path, format!("{token}\n").as_bytes(), mode)?;
                    token
                }
            };
        }
        Ok(Self { kubeconfig: kubeconfig.to_owned(), tokens })
    }

    /// Returns TLS for an address on this device, and the certificate authority as PEM.
    ///
    /// # Errors
    /// Fails on a file that cannot be read or written, and names it.
    pub(super) fn secure(&self, address: IpAddr) -> anyhow::Result<(Local, String)> {
        let identity = prepare_identity(&self.kubeconfig.with_file_name(IDENTITY_FILE), address)?;
        let authority =
            identity.chain().last().map(edgesync_transport::tls::Certificate::to_pem).unwrap_or_default();
        Ok((Local::new(&identity)?, authority))
    }

    /// Returns the mapping of tokens to roles.
    pub(super) fn access(&self) -> Access {
        let tokens = self.tokens.iter().zip(ROLES).map(|(token, (role, ..))| (token.clone(), role)).collect();
        Access::tokens(tokens, own_uid())
    }

    /// Writes the kubeconfigs for an address and a certificate authority; leaves those that are up
    /// to date.
    ///
    /// # Errors
    /// Fails on a file that cannot be written, and names it.
    pub(super) fn write_kubeconfigs(&self, address: SocketAddr, authority: &str) -> anyhow::Result<()> {
        for (token, (_, suffix, mode)) in self.tokens.iter().zip(ROLES) {
            let (path, text) =
                (durable::with_suffix(&self.kubeconfig, suffix), kubeconfig(address, token, authority));
            if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
                continue;
            }
            durable::write(&path, text.as_bytes(), mode)?;
            tracing::info!(file = %path.display(), %address, "kubeconfig written");
        }
        Ok(())
    }
}

/// Reads a token; `None` if there is no file, or no token in it.
fn read_token(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(*TOKEN_LENGTHS.end() as u64 + 2).read_to_end(&mut bytes)?;
    let token = String::from_utf8(bytes).unwrap_or_default().trim().to_owned();
    // Only characters that need no quoting in a header, an address or YAML.
    let plain = token.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'));
    let sound = plain && TOKEN_LENGTHS.contains(&token.len());
    if !sound {
        tracing::warn!(file = %path.display(), "invalid token replaced");
    }
    Ok(sound.then_some(token))
}

/// Reads certificate and key of the API; creates new ones if there are none for the address.
fn prepare_identity(path: &Path, address: IpAddr) -> anyhow::Result<Identity> {
    let mut text = String::new();
    let found = File::open(path).and_then(|file| file.take(MAX_IDENTITY).read_to_string(&mut text));
    match found {
        Ok(_) => match Identity::from_pem(&path.display().to_string(), &text) {
            Ok(identity) if identity.certificate().names().contains(&address.to_string()) => {
                return Ok(identity);
            }
            Ok(_) => {
                tracing::info!(%address, "address of the local API changed: certificate replaced");
            }
            Err(error) => tracing::warn!(%error, "certificate of the local API replaced"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    }
    let identity = Identity::local(address)?;
    durable::write(path, identity.to_pem().as_bytes(), 0o600)?;
    Ok(identity)
}

/// Formats a kubeconfig for `kubectl` and client libraries.
fn kubeconfig(address: SocketAddr, token: &str, authority: &str) -> String {
    let authority = STANDARD.encode(authority);
    format!(
        "# Written by edgesync.
apiVersion: v1
kind: Config
clusters:
- name: edgesync
  cluster:
    server: https://{address}
    certificate-authority-data: {authority}
users:
- name: edgesync
  user:
    token: {token}
contexts:
- name: edgesync
  context:
    cluster: edgesync
    user: edgesync
current-context: edgesync
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use edgesync_api::Peer;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn role(access: &Access, token: &str) -> Option<Role> {
        let peer = Peer::Tcp(address(1));
        access.authenticate(Some(&format!("Bearer {token}")), &peer).map(|caller| caller.role).ok()
    }

    #[tokio::test]
    async fn two_tokens_are_created_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/kubeconfig");
        let first = Tokens::prepare(&path).unwrap();
        let again = Tokens::prepare(&path).unwrap();
        assert_eq!(first.tokens, again.tokens);
        assert_ne!(first.tokens[0], first.tokens[1]);
        assert_eq!(first.tokens[0].len(), 43);
        assert_eq!(
            (mode(&path.with_file_name("token")), mode(&path.with_file_name("token-secrets"))),
            (0o640, 0o600)
        );
        let access = first.access();
        assert_eq!(role(&access, &first.tokens[0]), Some(Role::Local));
        assert_eq!(role(&access, &first.tokens[1]), Some(Role::Admin));
        assert_eq!(role(&access, "other"), None);
        let own = Peer::Unix { uid: Some(own_uid()) };
        assert_eq!(access.authenticate(None, &own).unwrap().role, Role::Admin);
    }

    #[tokio::test]
    async fn the_kubeconfigs_change_only_with_the_port() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let secrets = dir.path().join("kubeconfig-secrets");
        let tokens = Tokens::prepare(&path).unwrap();
        tokens.write_kubeconfigs(address(1), "A").unwrap();
        assert_eq!((mode(&path), mode(&secrets)), (0o640, 0o600));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(&tokens.tokens[0]) && text.contains("https://127.0.0.1:1\n"), "{text}");
        assert!(!text.contains(&tokens.tokens[1]));
        assert!(fs::read_to_string(&secrets).unwrap().contains(&tokens.tokens[1]));
        let written = || fs::metadata(&path).unwrap().modified().unwrap();
        let before = written();
        tokens.write_kubeconfigs(address(1), "A").unwrap();
        assert_eq!(written(), before);
        tokens.write_kubeconfigs(address(2), "A").unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("https://127.0.0.1:2\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "nothing is left over");
        {
            let parsed = edgesync_object::yaml::parse(&text).unwrap();
            assert_eq!(parsed["users"][0]["user"]["token"], tokens.tokens[0].as_str());
        }
    }

    #[tokio::test]
    async fn the_certificate_is_kept_while_it_matches_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::prepare(&dir.path().join("kubeconfig")).unwrap();
        let authority = |last: u8| tokens.secure(IpAddr::from([127, 0, 0, last])).unwrap().1;
        let first = authority(1);
        assert_eq!(mode(&dir.path().join("api.pem")), 0o600);
        assert_eq!(authority(1), first);
        let second = authority(7);
        assert_ne!(second, first);
        assert_eq!((authority(7), authority(1)), (second.clone(), second), "each has the usual addresses");
        fs::write(dir.path().join("api.pem"), "damaged").unwrap();
        assert_ne!(authority(1), first);
    }

    #[tokio::test]
    async fn malformed_tokens_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        for wrong in ["", "short", "with space and more than twenty bytes", &"x".repeat(5000)] {
            fs::write(dir.path().join("token"), wrong).unwrap();
            assert_eq!(Tokens::prepare(&path).unwrap().tokens[0].len(), 43, "{wrong}");
        }
        fs::write(dir.path().join("token"), "chosen-by-the-operator_1\n").unwrap();
        assert_eq!(Tokens::prepare(&path).unwrap().tokens[0], "chosen-by-the-operator_1");
    }

    #[tokio::test]
    async fn the_error_names_a_file_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("token")).unwrap();
        let error = Tokens::prepare(&dir.path().join("kubeconfig")).unwrap_err();
        assert!(format!("{error:#}").contains("token"), "{error:#}");
    }
}
