//! Query options of a request. Pure.

use std::str::FromStr;

use edgesync_object::{FieldSelector, Selector, Status};

/// Maximum length of a field manager, in bytes.
const MAX_MANAGER: usize = 128;
/// Maximum length of a value in messages, in characters.
const MAX_SHOWN: usize = 64;
/// Units of durations in nanoseconds, as Go writes them. A unit precedes its own prefixes.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];
/// Limit of durations in nanoseconds.
const MAX_NANOSECONDS: f64 = 9_223_372_036_854_775_808.0;

/// The query options that this API knows. Others are ignored, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// `labelSelector`: empty selects all objects.
    pub(crate) labels: Selector,
    /// `fieldSelector`: empty selects all objects.
    pub(crate) fields: FieldSelector,
    /// Maximum number of items of a page; `None` for all.
    pub(crate) limit: Option<u64>,
    /// `continue`: the token of the page before.
    pub(crate) continue_token: String,
    /// The version that a list must show, or after which a watch starts.
    pub(crate) resource_version: Option<u64>,
    /// How a list interprets `resource_version`.
    pub(crate) version_match: Option<VersionMatch>,
    /// Time limit of a list or a watch, in seconds.
    pub(crate) timeout_seconds: Option<u64>,
    /// Whether a watch sends bookmarks.
    pub(crate) bookmarks: bool,
    /// Whether a watch begins with all objects, followed by a bookmark.
    pub(crate) initial_events: Option<bool>,
    /// Whether a write is validated but not stored.
    pub(crate) dry_run: bool,
    /// The writer recorded in `metadata.managedFields`.
    pub(crate) field_manager: String,
    /// Handling of unknown and duplicate fields.
    pub(crate) field_validation: FieldValidation,
    /// Whether an apply takes over fields of other managers.
    pub(crate) force: bool,
    /// How much of each object a table carries; empty for the default.
    pub(crate) include_object: String,
    /// Delete options in the query.
    pub(crate) delete: DeleteQuery,
    /// Whether JSON is indented.
    pub(crate) pretty: bool,
}

/// How a list interprets `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// Exactly this state; refused (422) for version 0.
    Exact,
    /// This state or a newer one.
    NotOlderThan,
}

/// Handling of fields in a body that the kind does not have, or that occur twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// The fields are dropped.
    Ignore,
    /// The fields are dropped, and a `Warning` header lists them.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// Delete options in the query; those in the body take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteQuery {
    /// `propagationPolicy`: what happens to dependents.
    pub(crate) propagation: Option<String>,
    /// Deprecated form of `propagation`.
    pub(crate) orphan_dependents: Option<bool>,
}

/// Parses the options; the second value is whether the request is a watch.
pub(super) fn options(query: &[(String, String)]) -> Result<(Options, bool), Status> {
    let mut options = Options::default();
    let mut watch = false;
    for (key, value) in query {
        match key.as_str() {
            "labelSelector" => options.labels = selector(value)?,
            "fieldSelector" => options.fields = selector(value)?,
            "continue" => options.continue_token.clone_from(value),
            "limit" => options.limit = number(key, value)?.filter(|limit| *limit > 0),
            "resourceVersion" => options.resource_version = version(value)?,
            "resourceVersionMatch" => options.version_match = version_match(value)?,
            "timeoutSeconds" => options.timeout_seconds = number(key, value)?,
            "allowWatchBookmarks" => options.bookmarks = flag(key, value)?,
            "sendInitialEvents" => options.initial_events = Some(flag(key, value)?),
            "dryRun" => options.dry_run |= dry_run(value)?,
            "fieldManager" => options.field_manager = manager(value)?,
            "fieldValidation" => options.field_validation = field_validation(value)?,
            "force" => options.force = flag(key, value)?,
            "includeObject" => options.include_object.clone_from(value),
            "gracePeriodSeconds" if !value.is_empty() => {
                value.parse::<i64>().map_err(|_| bad_option(key, value, "must be a whole number"))?;
            }
            "propagationPolicy" => options.delete.propagation = Some(value.clone()),
            "orphanDependents" => options.delete.orphan_dependents = Some(flag(key, value)?),
            "pretty" => options.pretty = flag(key, value)?,
            "watch" => watch = flag(key, value)?,
            _ => {}
        }
    }
    Ok((options, watch))
}

fn selector<S: FromStr<Err: std::fmt::Display>>(value: &str) -> Result<S, Status> {
    value.parse().map_err(|error: S::Err| Status::bad_request(error.to_string()))
}

/// Checks the timeout that a client sends along with its request. The server does not apply it: a
/// client that stops waiting closes the connection.
///
/// # Errors
/// 400 if it is no duration.
pub(super) fn check_timeout(query: &[(String, String)]) -> Result<(), Status> {
    let Some((_, value)) = query.iter().find(|(key, _)| key == "timeout") else { return Ok(()) };
    if value.is_empty() || is_duration(value) {
        return Ok(());
    }
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    Err(Status::bad_request(format!(
        "invalid timeout specified in the request URL: {shown:?} is not a duration such as '30s' or '1m30s'"
    )))
}

/// Returns whether a text is a duration in Go's syntax, of at most 2⁶³ nanoseconds.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut nanoseconds = 0.0;
    let is_empty = rest.is_empty();
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        let number = rest.get(..rest.len() - unit.len()).unwrap_or_default();
        let found = UNITS.iter().find_map(|(name, size)| Some((unit.strip_prefix(name)?, size)));
        let (Some((after, size)), Ok(number)) = (found, number.parse::<f64>()) else { return false };
        nanoseconds += number * size;
        rest = after;
    }
    !is_empty && nanoseconds < MAX_NANOSECONDS
}

fn number(name: &str, value: &str) -> Result<Option<u64>, Status> {
    match value.parse::<u64>() {
        Ok(number) => Ok(Some(number)),
        Err(_) if value.is_empty() => Ok(None),
        Err(_) => Err(bad_option(name, value, "must be a whole number that is not negative")),
    }
}

fn version(value: &str) -> Result<Option<u64>, Status> {
    match value.parse::<u64>() {
        Ok(version) => Ok(Some(version)),
        Err(_) if value.is_empty() => Ok(None),
        Err(_) => Err(bad_option("resourceVersion", value, "must be a version of this server, or '0'")),
    }
}

fn version_match(value: &str) -> Result<Option<VersionMatch>, Status> {
    match value {
        "" => Ok(None),
        "Exact" => Ok(Some(VersionMatch::Exact)),
        "NotOlderThan" => Ok(Some(VersionMatch::NotOlderThan)),
        _ => Err(bad_option("resourceVersionMatch", value, "must be 'Exact' or 'NotOlderThan'")),
    }
}

/// Parses one value of `dryRun`, of a query or of delete options.
pub(crate) fn dry_run(value: &str) -> Result<bool, Status> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        _ => Err(bad_option("dryRun", value, "must be 'All'")),
    }
}

fn manager(value: &str) -> Result<String, Status> {
    if value.len() > MAX_MANAGER {
        return Err(bad_option("fieldManager", value, "must be at most 128 bytes"));
    }
    if value.chars().any(char::is_control) {
        return Err(bad_option("fieldManager", value, "must consist of printable characters"));
    }
    Ok(value.to_owned())
}

fn field_validation(value: &str) -> Result<FieldValidation, Status> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        _ => Err(bad_option("fieldValidation", value, "must be 'Ignore', 'Warn' or 'Strict'")),
    }
}

pub(super) fn flag(name: &str, value: &str) -> Result<bool, Status> {
    match value {
        // A bare `?watch` is true, as in Kubernetes.
        "" | "1" | "t" | "true" | "T" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "false" | "F" | "FALSE" | "False" => Ok(false),
        _ => Err(bad_option(name, value, "must be true or false")),
    }
}

fn bad_option(name: &str, value: &str, message: &str) -> Status {
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    Status::bad_request(format!("invalid value {shown:?} of the query parameter '{name}': {message}"))
}
