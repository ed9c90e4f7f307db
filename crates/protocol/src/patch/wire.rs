//! The bytes of a patch: an entry of a Patches frame, and the text that is cut into parts.
//!
//! Numbers are LEB128, texts have their length before them. `docs/protocol.md` has the table.

use std::fmt::Write as _;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use super::{MAX_PATCHED, Patch};
use crate::body::Body;
use edgesync_object::{ResourceVersion, name};

/// The UID is a UUID, in 16 bytes.
const UUID: u8 = 1;
/// The base version is a number.
const BASE_NUMBER: u8 = 2;
/// The version is a number, as the difference from the base version.
const DIFFERENCE: u8 = 4;

/// The bytes of a LEB128 number of 64 bits.
const MAX_NUMBER: u32 = 10;

/// Why bytes are no patch.
pub(crate) type Malformed = &'static str;

impl Patch {
    /// Returns the length of the entry in bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        let mut head = Vec::new();
        self.put_head(&mut head);
        head.len() + self.data.len()
    }

    /// Appends the entry.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.put_head(out);
        out.extend_from_slice(&self.data);
    }

    fn put_head(&self, out: &mut Vec<u8>) {
        let uuid = uuid_bytes(&self.uid);
        let base = number_of(&self.base);
        let difference = base.zip(number_of(&self.version)).and_then(|(base, new)| new.checked_sub(base));
        let form =
            [(uuid.is_some(), UUID), (base.is_some(), BASE_NUMBER), (difference.is_some(), DIFFERENCE)];
        out.push(form.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum());
        match uuid {
            Some(bytes) => out.extend_from_slice(&bytes),
            None => put_text(out, &self.uid),
        }
        match base {
            Some(base) => put_number(out, base),
            None => put_text(out, self.base.as_str()),
        }
        match difference {
            Some(difference) => put_number(out, difference),
            None => put_text(out, self.version.as_str()),
        }
        out.extend_from_slice(&self.base_digest.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        put_number(out, self.length as u64);
        put_number(out, self.data.len() as u64);
    }

    /// Reads the next entry.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let form = reader.byte()?;
        if form & !(UUID | BASE_NUMBER | DIFFERENCE) != 0 || form & (BASE_NUMBER | DIFFERENCE) == DIFFERENCE {
            return Err("unknown form of a patch");
        }
        let uid = match form & UUID {
            0 => reader.text()?.to_owned(),
            _ => uuid_text(&reader.array()?),
        };
        let (base, number) = match form & BASE_NUMBER {
            0 => (ResourceVersion::from(reader.text()?), 0),
            _ => reader.number().map(|number| (number.into(), number))?,
        };
        let version = match form & DIFFERENCE {
            0 => ResourceVersion::from(reader.text()?),
            _ => number.checked_add(reader.number()?).ok_or("version out of range")?.into(),
        };
        let (base_digest, digest) =
            (u32::from_le_bytes(reader.array()?), u128::from_le_bytes(reader.array()?));
        let length = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
        let size = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
        let data = reader.bytes(size)?.into();
        name::check_uid(&uid).map_err(|_| "invalid UID")?;
        for version in [&base, &version] {
            name::check_version(version.as_str()).map_err(|_| "invalid version")?;
        }
        if length > MAX_PATCHED {
            return Err("result too long");
        }
        let (uid, text) = (uid.into(), OnceLock::new());
        Ok(Self { uid, base, version, base_digest, digest, length, data, whole: 0, text })
    }

    /// Returns the text that is cut into parts: the entry in base64, as a JSON string. Later calls
    /// share the text of the first.
    pub(crate) fn to_text(&self) -> Option<Body> {
        if self.text.get().is_none() {
            let mut entry = Vec::with_capacity(self.encoded_len());
            self.put(&mut entry);
            let _ = self.text.set(Body::new(format!("\"{}\"", BASE64.encode(&entry))).ok()?);
        }
        self.text.get().cloned()
    }

    /// Reads the text of [`to_text`](Self::to_text). `None` if it is the text of a message.
    pub(crate) fn from_text(text: &str) -> Option<Result<Self, Malformed>> {
        let encoded = text.strip_prefix('"')?;
        Some(read_text(encoded))
    }
}

fn read_text(encoded: &str) -> Result<Patch, Malformed> {
    let encoded = encoded.strip_suffix('"').ok_or("text without an end")?;
    let entry = BASE64.decode(encoded).map_err(|_| "text must be base64")?;
    let mut reader = Reader(&entry);
    let patch = Patch::read(&mut reader)?;
    if reader.is_empty() { Ok(patch) } else { Err("bytes after the patch") }
}

/// Reads numbers and texts of untrusted bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or("bytes missing")?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("bytes missing")?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads a number in LEB128, in its shortest form or not.
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number: u64 = 0;
        for position in 0..MAX_NUMBER {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits.checked_mul(1_u64.checked_shl(7 * position).unwrap_or(0));
            number |= shifted.ok_or("number out of range")?;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("number out of range")
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        std::str::from_utf8(self.bytes(length)?).map_err(|_| "text must be UTF-8")
    }

    /// Reads a session: its length and one, and its text; or zero, and eight hexadecimal digits in
    /// four bytes.
    pub(crate) fn session(&mut self) -> Result<String, Malformed> {
        match usize::try_from(self.number()?).unwrap_or(usize::MAX) {
            0 => Ok(format!("{:08x}", u32::from_be_bytes(self.array()?))),
            length => {
                let text = std::str::from_utf8(self.bytes(length - 1)?).map_err(|_| "text must be UTF-8")?;
                Ok(text.to_owned())
            }
        }
    }
}

/// Appends a number in LEB128.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a session for [`Reader::session`].
pub(crate) fn put_session(out: &mut Vec<u8>, session: &str) {
    let word = u32::from_str_radix(session, 16).ok().filter(|word| format!("{word:08x}") == session);
    match word {
        Some(word) => {
            out.push(0);
            out.extend_from_slice(&word.to_be_bytes());
        }
        None => {
            put_number(out, session.len() as u64 + 1);
            out.extend_from_slice(session.as_bytes());
        }
    }
}

/// Returns the number that a version is, if its text is that of the number.
fn number_of(version: &ResourceVersion) -> Option<u64> {
    version.as_str().parse().ok().filter(|_| version.is_decimal())
}

/// Returns the bytes of a UID that is a UUID in its usual form.
fn uuid_bytes(uid: &str) -> Option<[u8; 16]> {
    let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    let bytes = number.to_be_bytes();
    (uuid_text(&bytes) == uid).then_some(bytes)
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}
