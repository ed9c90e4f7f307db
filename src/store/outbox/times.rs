//! Corrects the times in Events from before the device's clock was set. Pure.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use edgesync_object::time::{rfc3339, rfc3339_micros, signed_seconds};

/// Annotation with the correction of an Event's times, in seconds: `+86400s`.
pub const TIME_CORRECTED: &str = "edgesync.io/time-corrected";

/// Returns the content of an item with the times of its Event corrected; `None` if it is no Event
/// or has no time from before the correction.
pub(super) fn shift_content(content: &str, forward_ms: i64, now: Timestamp) -> Option<String> {
    let mut content: Value = serde_json::from_str(content).ok()?;
    shift(content.get_mut("event")?.as_object_mut()?, forward_ms, now).then(|| content.to_string())
}

/// Returns the Event with its times corrected; `None` if it has no time from before the correction.
pub(in crate::store) fn shift_event(event: &str, forward_ms: i64, now: Timestamp) -> Option<String> {
    let mut event: Map<String, Value> = serde_json::from_str(event).ok()?;
    shift(&mut event, forward_ms, now).then(|| Value::Object(event).to_string())
}

fn shift(event: &mut Map<String, Value>, forward_ms: i64, now: Timestamp) -> bool {
    let mut shifted = false;
    let mut set = |value: Option<&mut Value>| {
        let Some(value) = value else { return };
        if let Some(text) = value.as_str().and_then(|text| later(text, forward_ms, now)) {
            *value = Value::String(text);
            shifted = true;
        }
    };
    for field in ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
        set(event.get_mut(field));
    }
    set(event.get_mut("series").and_then(|series| series.get_mut("lastObservedTime")));
    set(event.get_mut("metadata").and_then(|metadata| metadata.get_mut("creationTimestamp")));
    if shifted {
        annotate(event, forward_ms);
    }
    shifted
}

/// Returns a time set forward, in its original format; `None` if the result is in the future: such
/// a time is from after the correction.
fn later(text: &str, forward_ms: i64, now: Timestamp) -> Option<String> {
    let time: Timestamp = text.parse().ok()?;
    let time = time.checked_add(SignedDuration::from_millis(forward_ms)).ok()?;
    if time > now {
        return None;
    }
    Some(match text.contains('.') {
        true => rfc3339_micros(time),
        false => rfc3339(time),
    })
}

/// Adds the correction to the annotation of the Event.
fn annotate(event: &mut Map<String, Value>, forward_ms: i64) {
    let Some(metadata) = event.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    let Some(annotations) = annotations.as_object_mut() else { return };
    let before = annotations.get(TIME_CORRECTED).and_then(Value::as_str).and_then(milliseconds);
    let total = before.unwrap_or(0).saturating_add(forward_ms);
    annotations.insert(TIME_CORRECTED.to_owned(), Value::String(signed_seconds(total)));
}

fn milliseconds(text: &str) -> Option<i64> {
    let (seconds, fraction) = match text.strip_suffix('s')?.split_once('.') {
        Some((seconds, fraction)) => (seconds, fraction),
        None => (text.strip_suffix('s')?, "000"),
    };
    let digits =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok());
    let fraction = Some(fraction).filter(|text| text.len() == 3).and_then(digits)??;
    let whole = seconds.parse::<i64>().ok()?.checked_mul(1000)?;
    whole.checked_add(if seconds.starts_with('-') { -fraction } else { fraction })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn all_times_of_an_event_are_corrected_in_their_format() {
        let event = json!({
            "metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:01:00Z"},
            "eventTime": "1970-01-01T00:00:59.250000Z",
            "deprecatedFirstTimestamp": "1970-01-01T00:00:59Z",
            "deprecatedLastTimestamp": null,
            "series": {"count": 2, "lastObservedTime": "1970-01-01T00:01:10.000001Z"},
            "note": "1970-01-01T00:01:00Z",
        });
        let shifted = shift_event(&event.to_string(), 86_400_000 * 365, now()).unwrap();
        let shifted: Value = serde_json::from_str(&shifted).unwrap();
        let expected = json!({
            "metadata": {
                "name": "a", "creationTimestamp": "1971-01-01T00:01:00Z",
                "annotations": {"edgesync.io/time-corrected": "+31536000s"},
            },
            "eventTime": "1971-01-01T00:00:59.250000Z",
            "deprecatedFirstTimestamp": "1971-01-01T00:00:59Z",
            "deprecatedLastTimestamp": null,
            "series": {"count": 2, "lastObservedTime": "1971-01-01T00:01:10.000001Z"},
            "note": "1970-01-01T00:01:00Z",
        });
        assert_eq!(shifted, expected);
    }

    #[test]
    fn times_are_corrected_across_2038() {
        let event = json!({"metadata": {}, "eventTime": "2038-01-18T00:00:00.000000Z"}).to_string();
        let now = "2041-01-01T00:00:00Z".parse().unwrap();
        let shifted = shift_event(&event, 3 * 86_400_000, now).unwrap();
        assert!(shifted.contains("\"2038-01-21T00:00:00.000000Z\""), "{shifted}");
        let shifted = shift_event(&event, -70 * 365 * 86_400_000, now).unwrap();
        assert!(shifted.contains("\"1968-02-05T00:00:00.000000Z\""), "{shifted}");
    }

    #[test]
    fn a_correct_time_stays() {
        let event = json!({
            "event": {"metadata": {}, "eventTime": "2026-11-21T09:59:00.000000Z",
                "series": {"lastObservedTime": "2026-11-20T00:00:00.000000Z"}},
        });
        assert_eq!(
            shift_content(&event.to_string(), 3_600_500, now()).unwrap(),
            r#"{"event":{"eventTime":"2026-11-21T09:59:00.000000Z","metadata":{"annotations":{"edgesync.io/time-corrected":"+3600.500s"}},"series":{"lastObservedTime":"2026-11-20T01:00:00.500000Z"}}}"#
        );
        assert_eq!(shift_content(&event.to_string(), 90_000_000_000, now()), None, "nothing to be corrected");
        assert_eq!(shift_content(r#"{"node":{}}"#, 1, now()), None);
    }

    #[test]
    fn corrections_add_up() {
        let event = r#"{"metadata":{},"eventTime":"2020-01-01T00:00:00.000000Z"}"#;
        let once = shift_event(event, 10_250, now()).unwrap();
        let twice = shift_event(&once, -20_000, now()).unwrap();
        assert!(twice.contains(r#""edgesync.io/time-corrected":"-9.750s""#), "{twice}");
        let thrice = shift_event(&twice, 9_750, now()).unwrap();
        assert!(thrice.contains(r#""edgesync.io/time-corrected":"+0s""#), "{thrice}");
        assert!(thrice.contains("2020-01-01T00:00:00.000000Z"));
    }

    proptest! {
        #[test]
        fn corrections_never_panic(text in ".{0,60}", time in "[0-9T:.Z+-]{0,30}", forward: i64) {
            shift_event(&text, forward, now());
            let event = json!({"metadata": {"annotations": {TIME_CORRECTED: text}}, "eventTime": time});
            shift_event(&event.to_string(), forward, now());
            let event = json!({"metadata": {}, "eventTime": "2026-01-01T00:00:00Z"});
            shift_event(&event.to_string(), forward, now());
        }
    }
}
