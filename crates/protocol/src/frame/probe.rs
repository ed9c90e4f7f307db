//! Identifies a frame by its first fields, without reading the rest.
//!
//! Senders write `type` and `protocol` first. A frame with another order is read as far as needed.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{FrameError, PROTOCOL};

/// The fields that identify a frame, as far as they are known.
#[derive(Debug, Default)]
struct Probe<'a> {
    r#type: Option<Cow<'a, str>>,
    protocol: Option<u32>,
    session: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Field {
    Type,
    Protocol,
    Session,
    #[serde(other)]
    Other,
}

/// Text that may be borrowed from the frame.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Probe<'a> {
    /// Returns whether the remaining fields cannot matter. Only a Hello of another protocol version
    /// needs its session, for the answer.
    fn is_complete(&self) -> bool {
        match (&self.r#type, self.protocol) {
            (Some(_), Some(PROTOCOL)) => true,
            (Some(kind), Some(_)) => kind != "Hello" || self.session.is_some(),
            _ => false,
        }
    }

    /// Reads fields until the probe is complete.
    fn read(json: &'a str) -> Result<Self, serde_json::Error> {
        let mut probe = Self::default();
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let read = deserializer.deserialize_map(Fields(&mut probe));
        // Stopping early leaves the object open, which is an error of the deserializer only.
        if probe.is_complete() { Ok(probe) } else { read.map(|()| probe) }
    }
}

struct Fields<'p, 'a>(&'p mut Probe<'a>);

impl<'a> Visitor<'a> for Fields<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a frame")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(probe) = self;
        while !probe.is_complete()
            && let Some(field) = map.next_key()?
        {
            match field {
                Field::Type => probe.r#type = Some(map.next_value::<Text<'a>>()?.0),
                Field::Protocol => probe.protocol = Some(map.next_value()?),
                Field::Session => probe.session = Some(map.next_value()?),
                Field::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Returns the type of a frame of this protocol version.
///
/// # Errors
/// Fails if the text is not a frame, or one of another protocol version.
pub(super) fn type_of(json: &str) -> Result<Cow<'_, str>, FrameError> {
    let Probe { r#type, protocol, session } = Probe::read(json)?;
    let missing = |field| FrameError::Json(serde_json::Error::missing_field(field));
    let kind = r#type.ok_or_else(|| missing("type"))?;
    let found = protocol.ok_or_else(|| missing("protocol"))?;
    if found != PROTOCOL {
        let session = session.filter(|_| kind == "Hello");
        let hello = session.and_then(|session| serde_json::from_str(session.get()).ok());
        return Err(FrameError::Protocol { found, hello });
    }
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_identified_by_its_first_fields() {
        // The rest is not even JSON: it is not read.
        let type_of = |json| type_of(json).unwrap();
        assert_eq!(type_of(r#"{"type":"Objects","protocol":1,"objects":[}"#), "Objects");
        assert_eq!(type_of(r#"{"protocol":1,"type":"Objects" ..."#), "Objects");
        assert_eq!(type_of(r#"{"objects":[{"type":"x"}],"type":"Objects","protocol":1}"#), "Objects");
        assert_eq!(type_of(r#"{"type":"\u0041","protocol":1}"#), "A");
    }

    #[test]
    fn incomplete_frames_are_refused() {
        for (json, expected) in [
            (r#"{"type":"Objects"}"#, "missing field `protocol`"),
            (r#"{"protocol":1}"#, "missing field `type`"),
            (r#"{"protocol":1,"type":"Obj"#, "EOF"),
            (r#"{"type":7,"protocol":1}"#, "expected"),
            (r#"["type"]"#, "expected a frame"),
            ("", "EOF"),
        ] {
            let error = type_of(json).unwrap_err();
            assert!(
                matches!(error, FrameError::Json(_)) && error.to_string().contains(expected),
                "{json}: {error}"
            );
        }
    }

    #[test]
    fn hello_of_another_version_is_read_as_far_as_its_session() {
        let session = |json| match type_of(json) {
            Err(FrameError::Protocol { found: 9, hello }) => hello,
            other => panic!("{other:?}"),
        };
        let hello = r#"{"type":"Hello","protocol":9,"node":"a","session":"s1","rest":}"#;
        assert_eq!(session(hello).as_deref(), Some("s1"));
        assert_eq!(session(r#"{"session":"s1","protocol":9,"type":"Lease"}"#), None);
        assert_eq!(session(r#"{"type":"Hello","protocol":9}"#), None);
    }
}
