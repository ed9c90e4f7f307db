//! Parses the certificate fields in use (RFC 5280, section 4.1). Does not verify signatures.

#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "the methods are for one lifetime, the readers for any"
)]

use std::net::IpAddr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use yasna::models::TaggedDerValue;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_OID, TAG_UTCTIME};
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, BERReaderSeq, Tag, TagClass};

use super::{Certificate, Subject};
use edgesync_object::encoding::hex;

/// DER of `id-at-commonName`, `id-at-organizationName` and `id-ce-subjectAltName`.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 29, 17];
/// Kinds of GeneralName that are parsed.
const DNS_NAME: u64 = 2;
const IP_ADDRESS: u64 = 7;

/// Parses a certificate. The error is a message.
pub(super) fn read(der: &[u8]) -> Result<Certificate, String> {
    let read = yasna::parse_der(der, |reader| {
        reader.read_sequence(|fields| {
            let content = fields.next().read_sequence(tbs_certificate)?;
            // Algorithm and signature.
            fields.next().read_der()?;
            fields.next().read_der()?;
            Ok(content)
        })
    });
    let content = read.map_err(|error| format!("invalid X.509 (RFC 5280): {error}"))?;
    Ok(Certificate { der: der.into(), ..content })
}

/// Parses `TBSCertificate` (RFC 5280, section 4.1); skips the fields that are not in use.
fn tbs_certificate(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Certificate> {
    fields.read_optional(|reader| reader.read_tagged(Tag::context(0), |reader| reader.read_u8()))?;
    let (serial, _) = fields.next().read_bigint_bytes()?;
    // Algorithm.
    fields.next().read_der()?;
    let issuer = fields.next().read_der()?;
    let (not_before, not_after) =
        fields.next().read_sequence(|times| Ok((time(times.next())?, time(times.next())?)))?;
    let subject = name(fields.next())?;
    fields.next().read_der()?;
    for unique_id in [1, 2] {
        fields.read_optional(|reader| {
            reader.read_tagged_implicit(Tag::context(unique_id), |reader| reader.read_bitvec_bytes())
        })?;
    }
    let names = fields.read_optional(|reader| reader.read_tagged(Tag::context(3), extensions))?;
    let serial = hex(&serial);
    let digits = serial.trim_start_matches('0');
    Ok(Certificate {
        der: [].into(),
        subject,
        // For messages only: one of an unusual form has no name.
        issuer: yasna::parse_der(&issuer, name).unwrap_or_default(),
        not_before,
        not_after,
        serial: if digits.is_empty() { "0".to_owned() } else { digits.to_owned() },
        names: names.unwrap_or_default(),
    })
}

/// Parses `Name`: the first common name and the first organization.
fn name(reader: BERReader<'_, '_>) -> ASN1Result<Subject> {
    let (mut common_name, mut organization) = (None, None);
    reader.read_sequence_of(|reader| {
        reader.read_set_of(|reader| {
            reader.read_sequence(|pair| {
                let kind = oid(pair.next())?;
                let value = pair.next().read_tagged_der()?;
                match kind.value() {
                    COMMON_NAME => _ = common_name.get_or_insert_with(|| text(&value)),
                    ORGANIZATION => _ = organization.get_or_insert_with(|| text(&value)),
                    _ => {}
                }
                Ok(())
            })
        })
    })?;
    Ok(Subject {
        common_name: common_name.unwrap_or_default(),
        organization: organization.unwrap_or_default(),
    })
}

/// Decodes a string of any type. Invalid UTF-8 is replaced, so that it can be shown but is never a
/// node name.
fn text(value: &TaggedDerValue) -> String {
    String::from_utf8_lossy(value.value()).into_owned()
}

fn oid(reader: BERReader<'_, '_>) -> ASN1Result<TaggedDerValue> {
    let value = reader.read_tagged_der()?;
    if value.tag() == TAG_OID { Ok(value) } else { Err(invalid()) }
}

/// Parses `Extensions`: the names of `subjectAltName`.
fn extensions(reader: BERReader<'_, '_>) -> ASN1Result<Vec<String>> {
    let mut names = Vec::new();
    reader.read_sequence_of(|reader| {
        reader.read_sequence(|extension| {
            let kind = oid(extension.next())?;
            extension.read_optional(|reader| reader.read_bool())?;
            let value = extension.next().read_bytes()?;
            if kind.value() == SUBJECT_ALT_NAME {
                yasna::parse_der(&value, |reader| {
                    reader.read_sequence_of(|reader| {
                        names.extend(alternative_name(&reader.read_tagged_der()?));
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })
    })?;
    Ok(names)
}

/// Parses a host name or an address; other kinds are skipped.
fn alternative_name(name: &TaggedDerValue) -> Option<String> {
    let tag = name.tag();
    match tag.tag_number {
        _ if tag.tag_class != TagClass::ContextSpecific => None,
        DNS_NAME => Some(text(name)),
        IP_ADDRESS => address(name.value()).map(|address| address.to_string()),
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

/// Parses `Time`: `YYMMDDhhmmssZ` for 1950 to 2049, `YYYYMMDDhhmmssZ` otherwise.
fn time(reader: BERReader<'_, '_>) -> ASN1Result<Timestamp> {
    let value = reader.read_tagged_der()?;
    let digits = value.value().strip_suffix(b"Z").ok_or_else(invalid)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid());
    }
    let number = |digits: &[u8]| digits.iter().fold(0_i16, |sum, digit| sum * 10 + i16::from(digit - b'0'));
    let (year, rest) = match (value.tag(), digits.len()) {
        (TAG_UTCTIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (TAG_GENERALIZEDTIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return Err(invalid()),
    };
    let part = |index: usize| number(&rest[index * 2..index * 2 + 2]) as i8;
    let civil = DateTime::new(year, part(0), part(1), part(2), part(3), part(4), 0).map_err(|_| invalid())?;
    // "No end", 99991231235959Z, is hours beyond the last representable time.
    Ok(Offset::UTC.to_timestamp(civil).unwrap_or(Timestamp::MAX))
}

fn invalid() -> ASN1Error {
    ASN1Error::new(ASN1ErrorKind::Invalid)
}
