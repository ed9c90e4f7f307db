//! The options of a request: what a query says. Pure.

use std::str::FromStr;

use edgesync_object::{FieldSelector, Selector, Status};

/// The longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;

/// The options of a query that this API knows. Others are ignored, as Kubernetes does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// Only objects with such labels.
    pub(crate) labels: Selector,
    /// Only objects with such fields.
    pub(crate) fields: FieldSelector,
    /// The most items wanted; `None` for all.
    pub(crate) limit: Option<u64>,
    /// Where the page before ended.
    pub(crate) continue_token: String,
    /// The version that a list must show, or after which a watch starts.
    pub(crate) resource_version: Option<u64>,
    /// How `resource_version` is meant by a list.
    pub(crate) version_match: Option<VersionMatch>,
    /// How long a list or watch may take, in seconds.
    pub(crate) timeout_seconds: Option<u64>,
    /// Whether a watch is told now and then how far it has come.
    pub(crate) bookmarks: bool,
    /// Whether a watch begins with all objects, and a bookmark after them.
    pub(crate) initial_events: Option<bool>,
    /// Whether a write is only tried.
    pub(crate) dry_run: bool,
    /// Who writes, for `metadata.managedFields`.
    pub(crate) field_manager: String,
    /// What happens with fields that are not known.
    pub(crate) field_validation: FieldValidation,
    /// Whether an apply takes fields from others.
    pub(crate) force: bool,
    /// How much of the objects a table carries; empty for the default.
    pub(crate) include_object: String,
    /// How an object is deleted, where the query says so.
    pub(crate) delete: DeleteQuery,
    /// Whether JSON is indented.
    pub(crate) pretty: bool,
}

/// How a list's `resourceVersion` is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// Exactly this state.
    Exact,
    /// This state or a newer one.
    NotOlderThan,
}

/// What happens with fields of a body that the kind does not have, or has twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are dropped, and a `Warning` header says so.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// Options of a delete as they may stand in the query; those of a body win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteQuery {
    /// What becomes of its dependents.
    pub(crate) propagation: Option<String>,
    /// An older way to say the same.
    pub(crate) orphan_dependents: Option<bool>,
}

/// Reads the options; the second value is whether a watch is asked for.
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
            // The client's own: whoever does not wait for the answer closes the connection.
            "timeout" if !is_duration(value) => {
                return Err(bad_option(key, value, "must be a duration such as '30s' or '1m30s'"));
            }
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

/// Whether a text is a duration as Go writes it.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest.is_empty() || rest == "0" {
        return text.is_empty() || rest == "0";
    }
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        let number = rest.len() - unit.len();
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let Some(after) = units.iter().find_map(|name| unit.strip_prefix(name)) else { return false };
        if rest.get(..number).is_none_or(|number| number.parse::<f64>().is_err()) {
            return false;
        }
        rest = after;
    }
    true
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
        Err(_) => {
            Err(bad_option("resourceVersion", value, "must be a version that this server gave, or '0'"))
        }
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

/// Reads one value of `dryRun`, in a query or in the options of a delete.
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
        // A bare `?watch` means yes, as Kubernetes reads it.
        "" | "1" | "t" | "true" | "T" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "false" | "F" | "FALSE" | "False" => Ok(false),
        _ => Err(bad_option(name, value, "must be true or false")),
    }
}

fn bad_option(name: &str, value: &str, message: &str) -> Status {
    let shown: String = value.chars().take(64).collect();
    Status::bad_request(format!("invalid value {shown:?} of the query parameter '{name}': {message}"))
}
