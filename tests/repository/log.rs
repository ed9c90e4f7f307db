//! What the sources write to the log: no field is named `message`, which is the name of the line itself. A text from the
//! network in such a field would take its place.

use super::sources::product;

const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];

/// What stands in a call of a macro before its text: the fields.
fn fields(call: &str) -> impl Iterator<Item = &str> {
    let before = call.split('"').next().unwrap_or_default();
    before.split(',').map(|field| field.split('=').next().unwrap_or_default())
}

/// The calls in a source that have such a field.
fn with_a_message(text: &str) -> Vec<String> {
    let calls = MACROS.iter().flat_map(|name| {
        let name = format!("tracing::{name}");
        text.split(&name).skip(1).map(str::to_owned).collect::<Vec<_>>()
    });
    let is_message = |field: &str| field.trim().trim_start_matches(['%', '?']) == "message";
    calls
        .filter(|call| fields(call).any(is_message))
        .map(|call| call.lines().next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn no_field_takes_the_place_of_the_line() {
    let files = product();
    assert!(files.len() > 100, "the sources were not found");
    let found = files.iter().flat_map(|(path, text)| {
        let calls = with_a_message(text).into_iter();
        calls.map(|call| format!("{path}: {call}")).collect::<Vec<_>>()
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn such_fields_are_found_however_they_are_written() {
    for bad in [
        r#"tracing::warn!(node, message, "no");"#,
        r#"tracing::warn!(%message, "no");"#,
        r#"tracing::info!(node, message = other, "no");"#,
        "tracing::error!(\n    ?message,\n    \"no\"\n);",
    ] {
        assert_eq!(with_a_message(bad).len(), 1, "{bad}");
    }
    for good in [
        r#"tracing::warn!(why = message, "yes");"#,
        r#"tracing::warn!("{}", message);"#,
        r#"tracing::warn!(node, "message, {}", 1);"#,
    ] {
        assert!(with_a_message(good).is_empty(), "{good}");
    }
}
