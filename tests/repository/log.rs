//! Checks that no log call has a field named `message`: that is the name of the line itself, and a
//! text from the network in such a field would replace it.

use super::sources::product;

const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];

/// Returns the fields of a macro call, which precede its text.
fn fields(call: &str) -> impl Iterator<Item = &str> {
    let before = call.split('"').next().unwrap_or_default();
    before.split(',').map(|field| field.split('=').next().unwrap_or_default())
}

/// Returns the calls in a source that have a field named `message`.
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
fn log_fields_never_replace_the_message() {
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
fn message_fields_are_found_in_every_notation() {
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
