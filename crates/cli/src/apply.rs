//! `apply -f` and `delete -f`: make the objects of manifests exist as they are written, or not exist.

use std::fmt::Display;
use std::io::Write;

use serde_json::{Map, Value, json};

use super::manifest::{self, Manifest, ManifestError};
use super::program::Exit;
use super::{CliError, EXIT_FAILED, Kinds, Terminal};
use edgesync_api::{Client, ClientError, object_path};
use edgesync_object::status::Reason;
use edgesync_object::{Resource, Scope};
use edgesync_runtime::chain;

/// Who owns the fields that manifests set.
const FIELD_MANAGER: &str = "edgesync-cloud";
/// The namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Fields of the metadata that the server sets: a manifest neither changes nor compares them.
const SERVER_FIELDS: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// What became of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Objects that were new.
    pub created: usize,
    /// Objects that were replaced.
    pub configured: usize,
    /// Objects that were the same already.
    pub unchanged: usize,
    /// Objects that were deleted.
    pub deleted: usize,
    /// Files, documents and objects that failed; each has been reported.
    pub failed: usize,
}

impl Summary {
    /// The exit code: 0 if nothing failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.failed == 0 { 0 } else { EXIT_FAILED }
    }
}

impl Exit for Summary {
    fn code(&self) -> u8 {
        self.exit_code()
    }
}

/// Creates the objects of all sources, or changes those that differ. `namespace` is that of objects
/// which name none; one that names another is an error.
///
/// # Errors
/// Nobody answers, or the output is closed. Everything else is reported on the terminal and counted,
/// and the rest goes on.
pub async fn run(
    client: &Client,
    sources: &[String],
    namespace: Option<&str>,
    terminal: &mut Terminal<'_>,
) -> Result<Summary, CliError> {
    each(client, sources, namespace, Action::Apply, terminal).await
}

/// Deletes the objects of all sources, those of a file from its end. Objects that do not exist are errors unless
/// `ignore_not_found`.
///
/// # Errors
/// As for [`run`].
pub async fn delete(
    client: &Client,
    sources: &[String],
    namespace: Option<&str>,
    ignore_not_found: bool,
    terminal: &mut Terminal<'_>,
) -> Result<Summary, CliError> {
    each(client, sources, namespace, Action::Delete { ignore_not_found }, terminal).await
}

#[derive(Clone, Copy)]
enum Action {
    Apply,
    Delete { ignore_not_found: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Created,
    Configured,
    Unchanged,
    Deleted,
    Absent,
}

async fn each(
    client: &Client,
    sources: &[String],
    namespace: Option<&str>,
    action: Action,
    terminal: &mut Terminal<'_>,
) -> Result<Summary, CliError> {
    if sources.is_empty() {
        return Err(CliError::Usage("nothing to do: give a file, a directory or - with -f".into()));
    }
    let kinds = Kinds::new(client);
    let mut summary = Summary::default();
    let mut is_empty = true;
    for source in sources {
        let files = match manifest::files(source) {
            Ok(files) => files,
            Err(error) => {
                fail(&mut summary, terminal.err, &CliError::Manifest(error))?;
                continue;
            }
        };
        for file in files {
            let text = match manifest::read(&file, terminal.input) {
                Ok(text) => text,
                Err(error) => {
                    fail(&mut summary, terminal.err, &CliError::Manifest(error))?;
                    continue;
                }
            };
            let mut found = manifest::manifests(&file.display().to_string(), &text);
            drop(text);
            if matches!(action, Action::Delete { .. }) {
                found.reverse();
            }
            for manifest in found {
                is_empty = false;
                match manifest {
                    Ok(manifest) => {
                        one(client, &kinds, manifest, namespace, action, &mut summary, terminal).await?;
                    }
                    Err(error) => fail(&mut summary, terminal.err, &CliError::Manifest(error))?,
                }
            }
        }
    }
    if is_empty && summary.failed == 0 {
        fail(&mut summary, terminal.err, &CliError::Manifest(ManifestError::Nothing(sources.join(", "))))?;
    }
    Ok(summary)
}

fn fail(summary: &mut Summary, err: &mut dyn Write, error: &CliError) -> Result<(), CliError> {
    summary.failed += 1;
    Ok(writeln!(err, "error: {}", chain(error))?)
}

/// Does what is to be done with one object and says so.
async fn one(
    client: &Client,
    kinds: &Kinds<'_>,
    manifest: Manifest,
    namespace: Option<&str>,
    action: Action,
    summary: &mut Summary,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let (origin, kind, name) = (manifest.origin.clone(), manifest.kind.clone(), manifest.name.clone());
    let done = match place(kinds, manifest, namespace).await {
        Ok(placed) => {
            let outcome = match action {
                Action::Apply => apply(client, &placed).await,
                Action::Delete { ignore_not_found } => remove(client, &placed, ignore_not_found).await,
            };
            outcome.map(|outcome| (outcome, placed.resource)).map_err(CliError::Client)
        }
        Err(error) => Err(error),
    };
    let (outcome, resource) = match done {
        Ok(done) => done,
        // Without a server nothing else can succeed either.
        Err(error @ CliError::Client(ClientError::Connect { .. })) => return Err(error),
        Err(error) => {
            summary.failed += 1;
            let (said, object) = (explain(&error), format!("{kind} \"{name}\""));
            // The server may have named it.
            match said.starts_with(&object) {
                true => writeln!(terminal.err, "error: {origin}: {said}")?,
                false => writeln!(terminal.err, "error: {origin}: {object}: {said}")?,
            }
            return Ok(());
        }
    };
    let short = short_name(&resource, &name);
    match outcome {
        Outcome::Created => summary.created += 1,
        Outcome::Configured => summary.configured += 1,
        Outcome::Unchanged => summary.unchanged += 1,
        Outcome::Deleted => summary.deleted += 1,
        Outcome::Absent => return Ok(()),
    }
    match outcome {
        Outcome::Created => writeln!(terminal.out, "{short} created")?,
        Outcome::Configured => writeln!(terminal.out, "{short} configured")?,
        Outcome::Unchanged => writeln!(terminal.out, "{short} unchanged")?,
        _ => {
            writeln!(terminal.out, "{} \"{name}\" deleted", short_name(&resource, "").trim_end_matches('/'))?;
        }
    }
    Ok(())
}

/// The message of an error; that of the API names the fields already.
fn explain(error: &CliError) -> String {
    match error {
        // No object is missing, the path is.
        CliError::Client(ClientError::Api(status))
            if status.is(&Reason::NotFound)
                && status.details.as_ref().is_none_or(|details| details.name.is_empty()) =>
        {
            "the server does not serve this kind; apply its CustomResourceDefinition first (NotFound)"
                .to_owned()
        }
        CliError::Client(ClientError::Api(status)) => {
            let reason = status.reason.as_ref().map_or("Unknown", Reason::as_str);
            format!("{} ({reason})", status.message)
        }
        other => chain(other),
    }
}

/// `configmap/a` or `deployment.apps/a`.
pub(super) fn short_name(resource: &Resource, name: &str) -> String {
    let kind = resource.kind.to_ascii_lowercase();
    if resource.group.is_empty() {
        format!("{kind}/{name}")
    } else {
        format!("{kind}.{}/{name}", resource.group)
    }
}

/// An object with the place where it goes.
struct Placed {
    resource: Resource,
    namespace: String,
    name: String,
    object: Map<String, Value>,
}

async fn place(kinds: &Kinds<'_>, manifest: Manifest, namespace: Option<&str>) -> Result<Placed, CliError> {
    let named = manifest.namespace.as_str();
    let has_namespace = !named.is_empty() || namespace.is_some();
    let resource = kinds.by_kind(&manifest.api_version, &manifest.kind, has_namespace).await?;
    let mut object = manifest.object;
    let target = match (resource.scope, namespace) {
        (Scope::Cluster, _) => String::new(),
        (Scope::Namespaced, Some(wanted)) if !named.is_empty() && named != wanted => {
            let message = format!("metadata.namespace: the manifest says '{named}' but -n says '{wanted}'");
            return Err(CliError::Usage(message));
        }
        (Scope::Namespaced, _) if !named.is_empty() => named.to_owned(),
        (Scope::Namespaced, wanted) => wanted.unwrap_or(DEFAULT_NAMESPACE).to_owned(),
    };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if target.is_empty() {
            metadata.remove("namespace");
        } else {
            metadata.insert("namespace".into(), json!(target));
        }
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
    }
    Ok(Placed { resource, namespace: target, name: manifest.name, object })
}

/// Applies the object by the server: what an earlier manifest had and this one has not is removed, what
/// others have set stays, and whoever has set what the manifest says loses it.
async fn apply(client: &Client, placed: &Placed) -> Result<Outcome, ClientError> {
    let path = object_path(&placed.resource, &placed.namespace, &placed.name);
    let before = match client.get::<Value>(&path).await {
        Ok(current) => Some(current),
        Err(error) if is(&error, &Reason::NotFound) => None,
        Err(error) => return Err(error),
    };
    let after: Value = client.apply(&path, FIELD_MANAGER, &Value::Object(placed.object.clone())).await?;
    let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
    Ok(match before {
        None => Outcome::Created,
        Some(before) if version(&before) == version(&after) => Outcome::Unchanged,
        Some(_) => Outcome::Configured,
    })
}

fn is(error: &ClientError, reason: &Reason) -> bool {
    error.status().is_some_and(|status| status.is(reason))
}

async fn remove(client: &Client, placed: &Placed, ignore_not_found: bool) -> Result<Outcome, ClientError> {
    let path = object_path(&placed.resource, &placed.namespace, &placed.name);
    match client.delete::<Value>(&path, None).await {
        Ok(_) => Ok(Outcome::Deleted),
        Err(error) if ignore_not_found && is(&error, &Reason::NotFound) => Ok(Outcome::Absent),
        Err(error) => Err(error),
    }
}

/// `2 created, 1 unchanged`: what happened, for a person.
impl Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.created, "created"),
            (self.configured, "configured"),
            (self.unchanged, "unchanged"),
            (self.deleted, "deleted"),
            (self.failed, "failed"),
        ];
        let shown: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        f.write_str(if shown.is_empty() { "nothing to do" } else { "" })?;
        f.write_str(&shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_kubectl_does() {
        let resource = |word| edgesync_object::kinds::by_word(word).unwrap().resource();
        assert_eq!(short_name(&resource("cm"), "a"), "configmap/a");
        assert_eq!(short_name(&resource("deploy"), "a"), "deployment.apps/a");
    }

    #[test]
    fn the_summary_says_what_happened() {
        let summary = Summary { created: 2, failed: 1, ..Summary::default() };
        assert_eq!((summary.to_string().as_str(), summary.exit_code()), ("2 created, 1 failed", 1));
        assert_eq!(
            (Summary::default().to_string().as_str(), Summary::default().exit_code()),
            ("nothing to do", 0)
        );
    }
}
