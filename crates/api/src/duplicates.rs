//! Duplicate fields of a JSON text: parsers keep only the last one, so the client is warned. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::field_path::FieldPath;

/// Maximum number of duplicates reported.
const MAX_FOUND: usize = 16;

/// Returns the paths of duplicate object fields, at most 16. The text must be well-formed and of
/// bounded depth.
pub(super) fn duplicates(json: &str) -> Vec<String> {
    let mut found = Vec::new();
    let seed = DuplicateFinder { path: &FieldPath::Root, found: &mut found };
    // Invalid JSON was refused by the parser of the body.
    let _ = seed.deserialize(&mut serde_json::Deserializer::from_str(json));
    found
}

/// A value and its path, as a deserialization seed.
struct DuplicateFinder<'a> {
    path: &'a FieldPath<'a>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for DuplicateFinder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateFinder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = FieldPath::Field(self.path, &key);
            if seen.contains(&key) && self.found.len() < MAX_FOUND {
                self.found.push(path.to_string());
            }
            map.next_value_seed(DuplicateFinder { path: &path, found: &mut *self.found })?;
            seen.insert(key);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for number in 0.. {
            let path = FieldPath::Item(self.path, number);
            let finder = DuplicateFinder { path: &path, found: &mut *self.found };
            if items.next_element_seed(finder)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost_meter;

    #[test]
    fn duplicates_are_found_at_any_depth() {
        let json = r#"{"a":1,"b":[{"c":{"d":1,"d":[{"e":null}]}}],"a":{"x":"y"},"f":{"d":true}}"#;
        assert_eq!(duplicates(json), ["b[0].c.d", "a"]);
        assert_eq!(duplicates(r#"{"a":{"b":1.5},"b":{"a":-1}}"#), Vec::<String>::new());
    }

    #[test]
    fn cost_is_linear_whatever_the_length_of_keys() {
        let items = |length: usize| format!(r#"{{"{}":[{}1]}}"#, "k".repeat(length), "1,".repeat(length));
        cost_meter::assert_linear("items", items, |text| drop(duplicates(&text)));
        let fields = |length: usize| {
            let fields: Vec<String> = (0..length).map(|number| format!(r#""{number}":{{}}"#)).collect();
            format!(r#"{{"{}":{{{}}}}}"#, "k".repeat(length), fields.join(","))
        };
        cost_meter::assert_linear("fields", fields, |text| drop(duplicates(&text)));
        let twice = format!(r#"{{"{0}":1,"{0}":2}}"#, "ä".repeat(5000));
        let found = duplicates(&twice);
        assert!(found.len() == 1 && found[0].len() < 1000, "{} bytes are shown", found[0].len());
    }

    #[test]
    fn invalid_json_and_many_duplicates_are_handled() {
        assert!(duplicates("{\"a\":1,").is_empty());
        assert_eq!(duplicates(&format!("{{{}\"a\":1}}", "\"a\":1,".repeat(1_000))).len(), MAX_FOUND);
    }
}
