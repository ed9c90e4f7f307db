//! `apply -f` and `delete -f`: create, update and delete the objects of manifests.

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

/// Field manager of the fields that manifests set.
const FIELD_MANAGER: &str = "edgesync-cloud";
/// Namespace of objects whose manifest names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Server metadata, which a manifest neither changes nor compares.
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

/// Counts of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Created objects.
    pub created: usize,
    /// Updated objects.
    pub configured: usize,
    /// Objects that were already equal.
    pub unchanged: usize,
    /// Deleted objects.
    pub deleted: usize,
    /// Failed files, documents and objects; each was reported.
    pub failed: usize,
}

impl Summary {
    /// Returns the exit code: 0 if nothing failed.
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

/// Creates or updates the objects of all sources. `namespace` applies to objects that name none; an
/// object that names another one is an error.
///
/// # Errors
/// The server is unreachable, or the output is closed. Other errors are reported on the terminal
/// and counted, and the run continues.
pub async fn run(
    client: &Client,
    sources: &[String],
    namespace: Option<&str>,
    terminal: &mut Terminal<'_>,
) -> Result<Summary, CliError> {
    process_sources(client, sources, namespace, Action::Apply, terminal).await
}

/// Deletes the objects of all sources, in reverse order within each file. Missing objects are
/// errors unless `ignore_not_found`.
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
    process_sources(client, sources, namespace, Action::Delete { ignore_not_found }, terminal).await
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

async fn process_sources(
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
                        process_object(client, &kinds, manifest, namespace, action, &mut summary, terminal)
                            .await?;
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

/// Processes one object and prints the result.
async fn process_object(
    client: &Client,
    kinds: &Kinds<'_>,
    manifest: Manifest,
    namespace: Option<&str>,
    action: Action,
    summary: &mut Summary,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let (origin, kind, name) = (manifest.origin.clone(), manifest.kind.clone(), manifest.name.clone());
    let result = match resolve(kinds, manifest, namespace).await {
        Ok(target) => {
            let outcome = match action {
                Action::Apply => apply(client, &target).await,
                Action::Delete { ignore_not_found } => remove(client, &target, ignore_not_found).await,
            };
            outcome.map(|outcome| (outcome, target.resource)).map_err(CliError::Client)
        }
        Err(error) => Err(error),
    };
    let (outcome, resource) = match result {
        Ok(result) => result,
        // Without a server all other objects would fail too.
        Err(error @ CliError::Client(ClientError::Connect { .. })) => return Err(error),
        Err(error) => {
            summary.failed += 1;
            let (message, object) = (describe(&error), format!("{kind} \"{name}\""));
            // The server's message may name the object already.
            match message.starts_with(&object) {
                true => writeln!(terminal.err, "error: {origin}: {message}")?,
                false => writeln!(terminal.err, "error: {origin}: {object}: {message}")?,
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

/// Formats an error; the API's message already names the fields.
fn describe(error: &CliError) -> String {
    match error {
        // The path is missing, not an object.
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

/// Formats as `configmap/a` or `deployment.apps/a`.
pub(super) fn short_name(resource: &Resource, name: &str) -> String {
    let kind = resource.kind.to_ascii_lowercase();
    if resource.group.is_empty() {
        format!("{kind}/{name}")
    } else {
        format!("{kind}.{}/{name}", resource.group)
    }
}

/// An object with its resource and namespace.
struct Target {
    resource: Resource,
    namespace: String,
    name: String,
    object: Map<String, Value>,
}

async fn resolve(kinds: &Kinds<'_>, manifest: Manifest, namespace: Option<&str>) -> Result<Target, CliError> {
    let named = manifest.namespace.as_str();
    let has_namespace = !named.is_empty() || namespace.is_some();
    let resource = kinds.by_kind(&manifest.api_version, &manifest.kind, has_namespace).await?;
    let mut object = manifest.object;
    let resolved_namespace = match (resource.scope, namespace) {
        (Scope::Cluster, _) => String::new(),
        (Scope::Namespaced, Some(requested)) if !named.is_empty() && named != requested => {
            let message =
                format!("metadata.namespace: the manifest says '{named}' but -n says '{requested}'");
            return Err(CliError::Usage(message));
        }
        (Scope::Namespaced, _) if !named.is_empty() => named.to_owned(),
        (Scope::Namespaced, requested) => requested.unwrap_or(DEFAULT_NAMESPACE).to_owned(),
    };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if resolved_namespace.is_empty() {
            metadata.remove("namespace");
        } else {
            metadata.insert("namespace".into(), json!(resolved_namespace));
        }
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
    }
    Ok(Target { resource, namespace: resolved_namespace, name: manifest.name, object })
}

/// Applies the object on the server: removes fields of an earlier manifest, keeps fields of others,
/// and takes over the fields that the manifest sets.
async fn apply(client: &Client, target: &Target) -> Result<Outcome, ClientError> {
    let path = object_path(&target.resource, &target.namespace, &target.name);
    let before = match client.get::<Value>(&path).await {
        Ok(current) => Some(current),
        Err(error) if is(&error, &Reason::NotFound) => None,
        Err(error) => return Err(error),
    };
    let after: Value = client.apply(&path, FIELD_MANAGER, &Value::Object(target.object.clone())).await?;
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

async fn remove(client: &Client, target: &Target, ignore_not_found: bool) -> Result<Outcome, ClientError> {
    let path = object_path(&target.resource, &target.namespace, &target.name);
    match client.delete::<Value>(&path, None).await {
        Ok(_) => Ok(Outcome::Deleted),
        Err(error) if ignore_not_found && is(&error, &Reason::NotFound) => Ok(Outcome::Absent),
        Err(error) => Err(error),
    }
}

/// Formats as `2 created, 1 unchanged`.
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
    fn objects_are_named_as_in_kubectl() {
        let resource = |word| edgesync_object::kinds::by_word(word).unwrap().resource();
        assert_eq!(short_name(&resource("cm"), "a"), "configmap/a");
        assert_eq!(short_name(&resource("deploy"), "a"), "deployment.apps/a");
    }

    #[test]
    fn summary_lists_the_counts() {
        let summary = Summary { created: 2, failed: 1, ..Summary::default() };
        assert_eq!((summary.to_string().as_str(), summary.exit_code()), ("2 created, 1 failed", 1));
        assert_eq!(
            (Summary::default().to_string().as_str(), Summary::default().exit_code()),
            ("nothing to do", 0)
        );
    }
}
