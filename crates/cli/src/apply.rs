//! `apply -f` and `delete -f`: create, update and delete the objects of manifests.

use serde_json::{Map, Value, json};

use super::manifest::{self, Manifest, ManifestError};
use super::program::Exit;
use super::progress::Progress;
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

/// The most objects without a summary after their lines.
const MAX_WITHOUT_SUMMARY: u64 = 20;

/// Counts of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Objects that did not exist before.
    pub created: usize,
    /// Objects that existed and were changed.
    pub configured: usize,
    /// Objects that were already equal.
    pub unchanged: usize,
    /// Objects whose deletion the server has accepted.
    pub deleted: usize,
    /// Objects to delete that did not exist, if that is no error.
    pub absent: usize,
    /// Failed files, documents and objects; each was reported.
    pub failed: usize,
}

impl Summary {
    /// Returns the exit code: 0 if nothing failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.failed == 0 { 0 } else { EXIT_FAILED }
    }

    /// Formats all counts of an action: `2 created, 0 configured, 1 unchanged, 0 failed`.
    fn line(&self, action: Action) -> String {
        let Self { created, configured, unchanged, deleted, absent, failed } = self;
        match action {
            Action::Apply => {
                format!("{created} created, {configured} configured, {unchanged} unchanged, {failed} failed")
            }
            Action::Delete { ignore_not_found: true } => {
                format!("{deleted} deleted, {absent} not found, {failed} failed")
            }
            Action::Delete { .. } => format!("{deleted} deleted, {failed} failed"),
        }
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
        return Err(CliError::Usage("no files; hint: name a file, a directory or - with -f".into()));
    }
    let kinds = Kinds::new(client);
    let operation = match action {
        Action::Apply => "applying",
        Action::Delete { .. } => "deleting",
    };
    let mut run = Run { summary: Summary::default(), progress: Progress::off(), terminal };
    let mut objects = 0;
    for source in sources {
        let files = match manifest::files(source) {
            Ok(files) => files,
            Err(error) => {
                run.fail(&CliError::Manifest(error))?;
                continue;
            }
        };
        // With several files the total is unknown: each is read when its turn comes.
        let is_only_file = sources.len() == 1 && files.len() == 1;
        for file in files {
            let text = match manifest::read(&file, run.terminal.input) {
                Ok(text) => text,
                Err(error) => {
                    run.fail(&CliError::Manifest(error))?;
                    continue;
                }
            };
            let mut found = manifest::manifests(&file.display().to_string(), &text);
            drop(text);
            if matches!(action, Action::Delete { .. }) {
                found.reverse();
            }
            let total = is_only_file.then_some(found.len() as u64);
            // Not before: standard input may be typed on the same terminal.
            if objects == 0 {
                run.progress = Progress::start(operation);
            }
            for manifest in found {
                run.progress.count(objects, total, "objects");
                objects += 1;
                match manifest {
                    Ok(manifest) => run.process(client, &kinds, manifest, namespace, action).await?,
                    Err(error) => run.fail(&CliError::Manifest(error))?,
                }
            }
        }
    }
    if objects == 0 && run.summary.failed == 0 {
        let shown: Vec<&str> = sources.iter().map(|source| manifest::shown(source)).collect();
        run.fail(&CliError::Manifest(ManifestError::Nothing(shown.join(", "))))?;
    }
    let Run { summary, progress, terminal } = run;
    drop(progress);
    if objects > MAX_WITHOUT_SUMMARY {
        terminal.out.flush()?;
        writeln!(terminal.err, "{objects} objects: {}", summary.line(action))?;
    }
    Ok(summary)
}

/// The state of one run.
struct Run<'r, 't> {
    summary: Summary,
    progress: Progress,
    terminal: &'r mut Terminal<'t>,
}

impl Run<'_, '_> {
    /// Counts and prints an error.
    fn fail(&mut self, error: &CliError) -> Result<(), CliError> {
        self.print_error(&chain(error).to_string())
    }

    fn print_error(&mut self, message: &str) -> Result<(), CliError> {
        self.summary.failed += 1;
        Ok(self.progress.above(|| writeln!(self.terminal.err, "error: {message}"))?)
    }

    /// Prints a result. With a progress line, which may be on the same terminal, it appears at
    /// once.
    fn print(&mut self, line: &str) -> Result<(), CliError> {
        let (out, is_at_once) = (&mut *self.terminal.out, self.progress.is_on());
        Ok(self.progress.above(|| {
            writeln!(out, "{line}")?;
            if is_at_once { out.flush() } else { Ok(()) }
        })?)
    }

    /// Processes one object and prints the result.
    async fn process(
        &mut self,
        client: &Client,
        kinds: &Kinds<'_>,
        manifest: Manifest,
        namespace: Option<&str>,
        action: Action,
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
                let (message, object) = (describe(&error), format!("{kind} \"{name}\""));
                return match names_object(&message, &name) {
                    true => self.print_error(&format!("{origin}: {message}")),
                    false => self.print_error(&format!("{origin}: {object}: {message}")),
                };
            }
        };
        let short = short_name(&resource, &name);
        let summary = &mut self.summary;
        let (count, line) = match outcome {
            Outcome::Created => (&mut summary.created, format!("{short} created")),
            Outcome::Configured => (&mut summary.configured, format!("{short} configured")),
            Outcome::Unchanged => (&mut summary.unchanged, format!("{short} unchanged")),
            Outcome::Deleted => {
                let kind = short_name(&resource, "");
                (&mut summary.deleted, format!("{} \"{name}\" deleted", kind.trim_end_matches('/')))
            }
            Outcome::Absent => {
                summary.absent += 1;
                return Ok(());
            }
        };
        *count += 1;
        self.print(&line)
    }
}

/// Returns whether a server's message begins with the object: `configmaps "a" not found`.
fn names_object(message: &str, name: &str) -> bool {
    let rest = message.split_once(" \"").and_then(|(kind, rest)| (!kind.contains(' ')).then_some(rest));
    rest.and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('"'))
}

/// Formats an error; the API's message already names the fields.
fn describe(error: &CliError) -> String {
    match error {
        // The path is missing, not an object.
        CliError::Client(ClientError::Api(status))
            if status.is(&Reason::NotFound)
                && status.details.as_ref().is_none_or(|details| details.name.is_empty()) =>
        {
            "kind not served (NotFound); hint: apply its CustomResourceDefinition first".to_owned()
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
                format!("metadata.namespace: '{named}' in the manifest does not match '{requested}' of -n");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_begin_with_the_object_need_no_prefix() {
        assert!(names_object("configmaps \"a\" not found (NotFound)", "a"));
        assert!(names_object("Deployment \"a\" is invalid: spec: Required value (Invalid)", "a"));
        assert!(!names_object("configmaps \"ab\" not found (NotFound)", "a"));
        assert!(!names_object("Operation cannot be fulfilled on configmaps \"a\": x (Conflict)", "a"));
        assert!(!names_object("kind not served (NotFound)", "a"));
    }

    #[test]
    fn objects_are_named_as_in_kubectl() {
        let resource = |word| edgesync_object::kinds::by_word(word).unwrap().resource();
        assert_eq!(short_name(&resource("cm"), "a"), "configmap/a");
        assert_eq!(short_name(&resource("deploy"), "a"), "deployment.apps/a");
    }

    #[test]
    fn summary_lists_all_counts_of_the_action() {
        let summary = Summary { created: 2, failed: 1, ..Summary::default() };
        let line = summary.line(Action::Apply);
        assert_eq!(
            (line.as_str(), summary.exit_code()),
            ("2 created, 0 configured, 0 unchanged, 1 failed", 1)
        );
        let summary = Summary { deleted: 3, absent: 1, ..Summary::default() };
        let line = |ignore_not_found| summary.line(Action::Delete { ignore_not_found });
        assert_eq!(line(false), "3 deleted, 0 failed");
        assert_eq!(line(true), "3 deleted, 1 not found, 0 failed");
        assert_eq!(summary.exit_code(), 0);
    }
}
