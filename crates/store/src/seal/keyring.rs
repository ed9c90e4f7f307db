//! Data keys in memory and their file.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256};

use super::file::{self, Line};
use super::{Binding, KeySource, SealError, UnsealError};
use crate::durable::{self, FileError, with_suffix};
use crate::random;
use edgesync_protocol::compression;

const PREFIX: &str = "sealed:1:";
/// The encoding of a packed body.
const AS_IT_IS: u8 = 0;
const COMPRESSED: u8 = 1;
/// The first byte of sealed bytes, see [`Keyring::seal_bytes`]; none of the encodings above.
pub const SEALED: u8 = 2;
/// The largest body in bytes, as `sync.max_object` allows it.
const MAX_BODY: usize = 64 << 20;
const KEY_BYTES: usize = 32;
/// The least bytes of a credential that count as a secret.
const MIN_CREDENTIAL: usize = 32;
/// The most bytes read of a key file or a credential.
const MAX_FILE: u64 = 1 << 20;
/// The number of bodies after which a key should be replaced.
const WORN: u64 = 1 << 30;

/// The data keys: the newest one seals, all of them open. Cheap to clone; clones share rotations.
/// The `Debug` output contains no keys.
#[derive(Clone)]
pub struct Keyring {
    inner: Arc<Inner>,
}

struct Inner {
    file: PathBuf,
    /// The key that wraps the keys in the file.
    wrapping: Option<LessSafeKey>,
    keys: RwLock<Arc<Keys>>,
    /// Held while the file is changed.
    changing: Mutex<()>,
    /// The number of bodies sealed with the newest key in this run.
    sealed: AtomicU64,
    opened: Opened,
    refused: Option<String>,
}

/// A non-empty set of keys, the newest one apart.
struct Keys {
    newest: Arc<DataKey>,
    /// Keys being replaced, still in the file.
    older: Vec<Arc<DataKey>>,
    /// Keys of the last rotation, no longer in the file: reads in earlier snapshots still need
    /// them.
    fading: Vec<Arc<DataKey>>,
}

struct DataKey {
    number: u32,
    made: String,
    bytes: [u8; KEY_BYTES],
    cipher: LessSafeKey,
}

/// The outcome of opening the key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// All keys were read.
    Kept,
    /// The file was missing, on a first start or after a loss, and a new one was created.
    Made,
    /// The file could not be read or unwrapped; it was renamed with the suffix `.lost`, and a new
    /// one was created.
    Lost,
}

/// The state of the keys, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// The number of keys: two during a rotation.
    pub keys: usize,
    /// Whether they are wrapped with a credential.
    pub wrapped: bool,
    /// The creation time of the newest key in RFC 3339.
    pub newest: String,
    /// The outcome of opening the key file.
    pub opened: Opened,
    /// The time of an earlier start refused for lack of the credential (RFC 3339).
    pub refused: Option<String>,
}

/// Prints the facts, never the keys.
impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// Reads the keys, or creates the first one.
    ///
    /// A damaged file, or one wrapped with a missing credential, is a loss and no error: the cloud
    /// sends the sealed objects again. Raw keys, and keys wrapped with the previous credential, are
    /// rewrapped with the current one.
    ///
    /// # Errors
    /// The file cannot be read or created for other reasons (permissions, a full disk), or a
    /// credential has fewer than 32 bytes. [`SealError::NoCredential`] if none exists and one is
    /// required: no file is touched, and the next successful opening reports the time.
    pub fn open(source: &KeySource) -> Result<(Self, Opened), SealError> {
        let wrapping = source.credential.as_deref().map(wrapping_key).transpose()?.flatten();
        let previous = source.previous_credential.as_deref().map(wrapping_key).transpose()?.flatten();
        // The previous credential serves if the current one is missing.
        let (wrapping, previous) = if wrapping.is_some() { (wrapping, previous) } else { (previous, None) };
        let path = &source.file;
        let refusal = with_suffix(path, ".refused");
        if wrapping.is_none() && source.require_credential {
            if !refusal.exists() {
                durable::write(&refusal, format!("{}\n", now()).as_bytes(), 0o600)?;
            }
            return Err(SealError::NoCredential { file: path.clone() });
        }
        let refused =
            read_limited(&refusal).ok().map(|time| String::from_utf8_lossy(&time).trim().to_owned());
        let (keys, opened) = match read_limited(path) {
            Ok(bytes) => match read_keys(&bytes, wrapping.as_ref(), previous.as_ref()) {
                Some((keys, in_order)) => {
                    if !in_order {
                        write_keys(path, wrapping.as_ref(), keys.in_file())?;
                        tracing::info!(file = %path.display(), "seal keys rewrapped");
                    }
                    (keys, Opened::Kept)
                }
                None => {
                    set_aside(path)?;
                    (Keys::new(DataKey::new()?), Opened::Lost)
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => (Keys::new(DataKey::new()?), Opened::Made),
            Err(error) => return Err(FileError::tried("read", path)(error).into()),
        };
        if opened != Opened::Kept {
            write_keys(path, wrapping.as_ref(), keys.in_file())?;
        }
        if refused.is_some() {
            // A leftover is reported again by the next opening.
            let _ = fs::remove_file(&refusal);
        }
        let inner = Inner {
            file: path.clone(),
            wrapping,
            keys: RwLock::new(Arc::new(keys)),
            changing: Mutex::new(()),
            sealed: AtomicU64::new(0),
            opened,
            refused,
        };
        Ok((Self { inner: Arc::new(inner) }, opened))
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.inner.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_keys(&self, keys: Keys) {
        *self.inner.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Seals a body with the newest key.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`].
    pub fn seal(&self, binding: Binding<'_>, body: &str) -> Result<String, SealError> {
        let (number, sealed) = self.encrypt(binding, body)?;
        let mut text = format!("{PREFIX}{number}:");
        BASE64.encode_string(sealed, &mut text);
        Ok(text)
    }

    /// Opens a sealed body.
    ///
    /// # Errors
    /// See [`UnsealError`].
    pub fn open_body(&self, binding: Binding<'_>, sealed: &str) -> Result<String, UnsealError> {
        let (number, text) = split(sealed).ok_or(UnsealError::Damaged)?;
        let sealed = BASE64.decode(text).map_err(|_| UnsealError::Damaged)?;
        self.decrypt(number, binding, sealed)
    }

    /// Seals a text with the newest key, as bytes: text would take a third more.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`].
    pub fn seal_bytes(&self, binding: Binding<'_>, text: &str) -> Result<Vec<u8>, SealError> {
        let (number, sealed) = self.encrypt(binding, text)?;
        Ok([&[SEALED], number.to_le_bytes().as_slice(), sealed.as_slice()].concat())
    }

    /// Opens sealed bytes.
    ///
    /// # Errors
    /// See [`UnsealError`].
    pub fn open_bytes(&self, binding: Binding<'_>, sealed: &[u8]) -> Result<String, UnsealError> {
        let rest = sealed.strip_prefix(&[SEALED]).ok_or(UnsealError::Damaged)?;
        let (number, sealed) = rest.split_first_chunk::<4>().ok_or(UnsealError::Damaged)?;
        self.decrypt(u32::from_le_bytes(*number), binding, sealed.to_vec())
    }

    /// Encrypts a text with the newest key. Returns the number of the key.
    fn encrypt(&self, binding: Binding<'_>, text: &str) -> Result<(u32, Vec<u8>), SealError> {
        let keys = self.keys();
        let key = &keys.newest;
        let sealed = encrypt(&key.cipher, &associated(key.number, binding), &pack(text))?;
        self.inner.sealed.fetch_add(1, Ordering::Relaxed);
        Ok((key.number, sealed))
    }

    /// Decrypts a text with the key of this number.
    fn decrypt(&self, number: u32, binding: Binding<'_>, sealed: Vec<u8>) -> Result<String, UnsealError> {
        let keys = self.keys();
        let key = keys.find(number).ok_or(UnsealError::KeyLost)?;
        let packed = decrypt(&key.cipher, &associated(number, binding), sealed);
        packed.and_then(|packed| unpack(&packed)).ok_or(UnsealError::Damaged)
    }

    /// Returns the number of the newest key.
    #[must_use]
    pub fn newest(&self) -> u32 {
        self.keys().newest.number
    }

    /// Returns whether a body was sealed with the newest key.
    #[must_use]
    pub fn is_current(&self, sealed: &str) -> bool {
        split(sealed).is_some_and(|(number, _)| number == self.newest())
    }

    /// Adds a new key, which seals from now on. It is durable when this returns.
    ///
    /// # Errors
    /// The file cannot be written; nothing has changed then.
    pub fn add_key(&self) -> Result<(), SealError> {
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.keys();
        let mut older = keys.older.clone();
        older.push(Arc::clone(&keys.newest));
        let next = Keys { newest: Arc::new(DataKey::new()?), older, fading: keys.fading.clone() };
        write_keys(&self.inner.file, self.inner.wrapping.as_ref(), next.in_file())?;
        self.set_keys(next);
        self.inner.sealed.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Removes all keys but the newest from the file. They stay in memory until the next rotation,
    /// for reads in earlier snapshots.
    ///
    /// # Errors
    /// The file cannot be written; nothing has changed then.
    pub fn forget_old(&self) -> Result<(), SealError> {
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.keys();
        if keys.older.is_empty() {
            return Ok(());
        }
        let next = Keys { newest: Arc::clone(&keys.newest), older: Vec::new(), fading: keys.older.clone() };
        write_keys(&self.inner.file, self.inner.wrapping.as_ref(), next.in_file())?;
        self.set_keys(next);
        Ok(())
    }

    /// Returns whether the newest key should be replaced (after 2^30 bodies in this run).
    #[must_use]
    pub fn needs_rotation(&self) -> bool {
        self.inner.sealed.load(Ordering::Relaxed) >= WORN
    }

    /// Returns the number of keys, whether they are wrapped, and the creation time of the newest
    /// (RFC 3339), for the status.
    #[must_use]
    pub fn facts(&self) -> KeyFacts {
        let keys = self.keys();
        KeyFacts {
            keys: 1 + keys.older.len(),
            wrapped: self.inner.wrapping.is_some(),
            newest: keys.newest.made.clone(),
            opened: self.inner.opened,
            refused: self.inner.refused.clone(),
        }
    }
}

impl Keys {
    fn new(newest: DataKey) -> Self {
        Self { newest: Arc::new(newest), older: Vec::new(), fading: Vec::new() }
    }

    fn find(&self, number: u32) -> Option<&DataKey> {
        let all = std::iter::once(&self.newest).chain(&self.older).chain(&self.fading);
        all.map(AsRef::as_ref).find(|key| key.number == number)
    }

    /// Returns the keys of the file, in its order.
    fn in_file(&self) -> impl Iterator<Item = &DataKey> {
        self.older.iter().chain(std::iter::once(&self.newest)).map(AsRef::as_ref)
    }
}

impl DataKey {
    fn new() -> Result<Self, SealError> {
        let number = u32::from_le_bytes(random::bytes()?);
        Self::of(number, now(), random::bytes()?).ok_or(SealError::NoRandomness)
    }

    /// `None` never occurs: the key has the length of the cipher's keys.
    fn of(number: u32, made: String, bytes: [u8; KEY_BYTES]) -> Option<Self> {
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
        Some(Self { number, made, bytes, cipher })
    }
}

/// Returns the current time in RFC 3339.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Packs a text: an encoding byte, and the text, compressed if that is shorter. Sealed text grows
/// by a third in base64, and no file system can compress it.
#[must_use]
pub fn pack(body: &str) -> Vec<u8> {
    let compressed = compression::compress(body.as_bytes()).ok();
    match compressed.filter(|compressed| compressed.len() < body.len()) {
        Some(compressed) => [&[COMPRESSED], compressed.as_slice()].concat(),
        None => [&[AS_IT_IS], body.as_bytes()].concat(),
    }
}

/// Unpacks a text; `None` if it is damaged or longer than any body.
#[must_use]
pub fn unpack(packed: &[u8]) -> Option<String> {
    let (how, bytes) = packed.split_first()?;
    let body = match *how {
        AS_IT_IS => bytes.to_vec(),
        COMPRESSED => {
            let size = usize::try_from(compression::decompressed_size(bytes)?).ok()?;
            compression::decompress(bytes, Some(size).filter(|size| *size <= MAX_BODY)?).ok()?
        }
        _ => return None,
    };
    String::from_utf8(body).ok()
}

/// Splits a sealed body into key number and content.
fn split(sealed: &str) -> Option<(u32, &str)> {
    let (number, text) = sealed.strip_prefix(PREFIX)?.split_once(':')?;
    Some((number.parse().ok()?, text))
}

/// Returns the associated data of a body. Lengths are included, so that parts do not run together.
fn associated(number: u32, binding: Binding<'_>) -> Vec<u8> {
    let Binding { uid, version, namespace, name } = binding;
    let mut bytes = PREFIX.as_bytes().to_vec();
    bytes.extend(number.to_le_bytes());
    for part in [uid, version, namespace, name] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

/// Returns the associated data of a wrapped key.
fn associated_with_key(number: u32, made: &str) -> Vec<u8> {
    format!("edgesync-seal 1 key {number} {made}").into_bytes()
}

/// Encrypts into nonce, ciphertext and tag.
fn encrypt(key: &LessSafeKey, associated: &[u8], text: &[u8]) -> Result<Vec<u8>, SealError> {
    let nonce: [u8; NONCE_LEN] = random::bytes()?;
    let mut sealed = Vec::with_capacity(NONCE_LEN + text.len() + AES_256_GCM.tag_len());
    sealed.extend(nonce);
    sealed.extend(text);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let (_, content) = sealed.split_at_mut(NONCE_LEN);
    // Fails only for texts of more than 64 GiB.
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(associated), content);
    sealed.extend(tag.map_err(|_| SealError::NoRandomness)?.as_ref());
    Ok(sealed)
}

fn decrypt(key: &LessSafeKey, associated: &[u8], mut sealed: Vec<u8>) -> Option<Vec<u8>> {
    let nonce = Nonce::try_assume_unique_for_key(sealed.get(..NONCE_LEN)?).ok()?;
    let length = key.open_within(nonce, Aad::from(associated), &mut sealed, NONCE_LEN..).ok()?.len();
    sealed.truncate(length);
    Some(sealed)
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Derives the wrapping key from a credential; `None` if the file is missing.
fn wrapping_key(path: &Path) -> Result<Option<LessSafeKey>, SealError> {
    let secret = match read_limited(path) {
        Ok(secret) => secret,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::tried("read", path)(error).into()),
    };
    if secret.len() < MIN_CREDENTIAL {
        let problem =
            format!("a credential must have at least {MIN_CREDENTIAL} bytes, this has {}", secret.len());
        return Err(FileError::tried("use", path)(io::Error::new(ErrorKind::InvalidData, problem)).into());
    }
    let salt = hkdf::Salt::new(HKDF_SHA256, b"edgesync seal");
    // Fails only for lengths beyond 255 hashes.
    let derived = salt.extract(&secret);
    let key = derived
        .expand(&[b"wrap data keys 1"], &AES_256_GCM)
        .map(|key| LessSafeKey::new(UnboundKey::from(key)));
    key.map(Some).map_err(|_| SealError::NoRandomness)
}

/// Reads the keys of a file, and whether it has the current form. `None` if the content is damaged
/// or a key cannot be unwrapped.
fn read_keys(
    bytes: &[u8],
    wrapping: Option<&LessSafeKey>,
    previous: Option<&LessSafeKey>,
) -> Option<(Keys, bool)> {
    let lines = file::parse(std::str::from_utf8(bytes).ok()?)?;
    let (mut keys, mut in_order) = (Vec::with_capacity(lines.len()), true);
    for Line { number, made, wrapped, bytes } in lines {
        let bytes = if wrapped {
            let associated = associated_with_key(number, &made);
            let unwrap = |key: Option<&LessSafeKey>| decrypt(key?, &associated, bytes.clone());
            unwrap(wrapping).or_else(|| {
                in_order = false;
                unwrap(previous)
            })?
        } else {
            in_order &= wrapping.is_none();
            bytes
        };
        keys.push(Arc::new(DataKey::of(number, made, bytes.try_into().ok()?)?));
    }
    let newest = keys.pop()?;
    Some((Keys { newest, older: keys, fading: Vec::new() }, in_order))
}

fn write_keys<'a>(
    path: &Path,
    wrapping: Option<&LessSafeKey>,
    keys: impl Iterator<Item = &'a DataKey>,
) -> Result<(), SealError> {
    let line = |key: &DataKey| {
        let DataKey { number, made, bytes, .. } = key;
        let bytes = match wrapping {
            Some(wrapping) => encrypt(wrapping, &associated_with_key(*number, made), bytes)?,
            None => bytes.to_vec(),
        };
        Ok(Line { number: *number, made: made.clone(), wrapped: wrapping.is_some(), bytes })
    };
    let lines: Result<Vec<Line>, SealError> = keys.map(line).collect();
    Ok(durable::write(path, file::render(&lines?).as_bytes(), 0o600)?)
}

fn set_aside(path: &Path) -> Result<(), SealError> {
    let aside = with_suffix(path, ".lost");
    tracing::error!(file = %path.display(), aside = %aside.display(), "seal keys lost");
    Ok(durable::rename(path, &aside)?)
}

#[cfg(test)]
mod tests;
