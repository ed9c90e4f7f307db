//! `apply -f` and `delete -f`: create, update and delete the objects of manifests.

use std::collections::HashSet;

use futures_util::stream::{self, FuturesOrdered, StreamExt as _};
use serde_json::{Map, Value, json};

use super::manifest::{self, Manifest, ManifestError, Origin};
use super::program::Exit;
use super::progress::Progress;
use super::{CliError, EXIT_FAILED, Kinds, Terminal};
use edgesync_api::{Client, ClientError, object_path};
use edgesync_object::status::Reason;
use edgesync_object::{Resource, Scope, split_api_version};
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

/// Kinds, by group, whose objects others may need: they are applied before the rest of their file.
const PREREQUISITES: [(&str, &str); 2] =
    [("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")];

/// Maximum number of objects that are applied at the same time.
const MAX_IN_FLIGHT: usize = 16;
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

/// Creates or updates the objects of all sources, up to 16 at the same time, and prints the results
/// in their order. Namespaces and definitions of a file precede its other objects. `namespace`
/// applies to objects that name none; an object that names another one is an error.
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
    let sender = Sender { client, kinds: &kinds, namespace, action };
    let (operation, max_in_flight) = match action {
        Action::Apply => ("applying", MAX_IN_FLIGHT),
        // An object may have to go before the next one.
        Action::Delete { .. } => ("deleting", 1),
    };
    let mut window = FuturesOrdered::new();
    let mut run = Run::new(terminal);
    let mut objects = 0;
    for source in sources {
        let files = match manifest::files(source) {
            Ok(files) => files,
            Err(error) => {
                finish(&mut window, 0, &mut run).await?;
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
                    finish(&mut window, 0, &mut run).await?;
                    run.fail(&CliError::Manifest(error))?;
                    continue;
                }
            };
            let mut found = manifest::manifests(&file.display().to_string(), &text);
            drop(text);
            if matches!(action, Action::Delete { .. }) {
                found.reverse();
            }
            // Not before: standard input may be typed on the same terminal.
            if objects == 0 {
                run.progress = Progress::start(operation);
            }
            objects += found.len() as u64;
            run.total = is_only_file.then_some(objects);
            let mut documents: Vec<Document> = found.into_iter().map(Document::from).collect();
            if sender.has_prerequisites(&documents) {
                finish(&mut window, 0, &mut run).await?;
                sender.send_prerequisites(&mut documents).await;
            }
            for document in documents {
                let key = document.key(namespace);
                // Two manifests of one object take effect in their order.
                let is_in_flight = key.as_ref().is_some_and(|key| run.in_flight.contains(key));
                let left = if is_in_flight { 0 } else { max_in_flight - 1 };
                finish(&mut window, left, &mut run).await?;
                run.in_flight.extend(key);
                window.push_back(sender.complete(document));
            }
        }
    }
    finish(&mut window, 0, &mut run).await?;
    if objects == 0 && run.summary.failed == 0 {
        let shown: Vec<&str> = sources.iter().map(|source| manifest::shown(source)).collect();
        run.fail(&CliError::Manifest(ManifestError::Nothing(shown.join(", "))))?;
    }
    let Run { summary, progress, terminal, .. } = run;
    drop(progress);
    if objects > MAX_WITHOUT_SUMMARY {
        terminal.out.flush()?;
        writeln!(terminal.err, "{objects} objects: {}", summary.line(action))?;
    }
    Ok(summary)
}

/// Prints the results of the oldest documents in the window until this many are left.
async fn finish<F>(window: &mut FuturesOrdered<F>, left: usize, run: &mut Run<'_, '_>) -> Result<(), CliError>
where
    F: Future<Output = Result<Sent, ManifestError>>,
{
    while window.len() > left
        && let Some(result) = window.next().await
    {
        run.show(result)?;
    }
    Ok(())
}

/// A document of a file, on its way to the server.
enum Document {
    /// It is no object.
    Invalid(ManifestError),
    /// The object is not sent yet.
    Pending(Box<Manifest>),
    /// The object was sent before the others of its file.
    Sent(Box<Sent>),
}

/// An object that was sent, with the outcome.
struct Sent {
    origin: Origin,
    kind: String,
    name: String,
    /// The key from [`object_key`], unique per object.
    key: String,
    result: Result<(Outcome, Resource), CliError>,
}

impl From<Result<Manifest, ManifestError>> for Document {
    fn from(manifest: Result<Manifest, ManifestError>) -> Self {
        manifest.map_or_else(Self::Invalid, |manifest| Self::Pending(Box::new(manifest)))
    }
}

impl Document {
    fn pending(&self) -> Option<&Manifest> {
        match self {
            Self::Pending(manifest) => Some(manifest),
            Self::Invalid(_) | Self::Sent(_) => None,
        }
    }

    /// Returns the key of its object.
    fn key(&self, namespace: Option<&str>) -> Option<String> {
        match self {
            Self::Invalid(_) => None,
            Self::Pending(manifest) => Some(object_key(manifest, namespace)),
            Self::Sent(sent) => Some(sent.key.clone()),
        }
    }
}

/// Identifies an object, whatever version of its kind a manifest has.
fn object_key(manifest: &Manifest, namespace: Option<&str>) -> String {
    let namespace = match manifest.namespace.as_str() {
        "" => namespace.unwrap_or(DEFAULT_NAMESPACE),
        own => own,
    };
    format!("{}/{namespace}/{}", manifest.kind, manifest.name)
}

/// Sends objects of manifests to a server.
#[derive(Clone, Copy)]
struct Sender<'a> {
    client: &'a Client,
    kinds: &'a Kinds<'a>,
    namespace: Option<&'a str>,
    action: Action,
}

impl Sender<'_> {
    fn has_prerequisites(&self, documents: &[Document]) -> bool {
        matches!(self.action, Action::Apply)
            && documents.iter().any(|it| it.pending().is_some_and(is_prerequisite))
    }

    /// Sends the objects of a file that others need, and waits for the results. Of two manifests of
    /// one object, the later one keeps its place.
    async fn send_prerequisites(self, documents: &mut [Document]) {
        let mut keys = HashSet::new();
        let mut is_first = |manifest: &Manifest| {
            is_prerequisite(manifest) && keys.insert(object_key(manifest, self.namespace))
        };
        let places: Vec<&mut Document> =
            documents.iter_mut().filter(|document| document.pending().is_some_and(&mut is_first)).collect();
        let manifests: Vec<Manifest> =
            places.iter().filter_map(|document| document.pending().cloned()).collect();
        let mut results = stream::iter(manifests).map(|manifest| self.send(manifest)).buffered(MAX_IN_FLIGHT);
        for place in places {
            if let Some(sent) = results.next().await {
                *place = Document::Sent(Box::new(sent));
            }
        }
    }

    /// Sends the object of a document unless it was sent before.
    async fn complete(self, document: Document) -> Result<Sent, ManifestError> {
        match document {
            Document::Invalid(error) => Err(error),
            Document::Sent(sent) => Ok(*sent),
            Document::Pending(manifest) => Ok(self.send(*manifest).await),
        }
    }

    async fn send(self, manifest: Manifest) -> Sent {
        let key = object_key(&manifest, self.namespace);
        let (origin, kind, name) = (manifest.origin.clone(), manifest.kind.clone(), manifest.name.clone());
        let result = match resolve(self.kinds, manifest, self.namespace).await {
            Ok(target) => {
                let outcome = match self.action {
                    Action::Apply => apply(self.client, &target).await,
                    Action::Delete { ignore_not_found } => {
                        remove(self.client, &target, ignore_not_found).await
                    }
                };
                outcome.map(|outcome| (outcome, target.resource)).map_err(CliError::Client)
            }
            Err(error) => Err(error),
        };
        Sent { origin, kind, name, key, result }
    }
}

/// Returns whether other objects of the same file may need this one.
fn is_prerequisite(manifest: &Manifest) -> bool {
    let (group, _) = split_api_version(&manifest.api_version);
    PREREQUISITES.contains(&(group, manifest.kind.as_str()))
}

/// The state of one run.
struct Run<'r, 't> {
    summary: Summary,
    progress: Progress,
    /// Documents whose result was shown, and all of them if their number is known.
    done: u64,
    total: Option<u64>,
    /// Keys of the objects whose result was not shown yet.
    in_flight: HashSet<String>,
    terminal: &'r mut Terminal<'t>,
}

impl<'r, 't> Run<'r, 't> {
    fn new(terminal: &'r mut Terminal<'t>) -> Self {
        Self {
            summary: Summary::default(),
            progress: Progress::off(),
            done: 0,
            total: None,
            in_flight: HashSet::new(),
            terminal,
        }
    }

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

    /// Counts and prints the result of a document.
    fn show(&mut self, result: Result<Sent, ManifestError>) -> Result<(), CliError> {
        self.done += 1;
        self.progress.count(self.done, self.total, "objects");
        let Sent { origin, kind, name, key, result } = match result {
            Ok(sent) => sent,
            Err(error) => return self.fail(&CliError::Manifest(error)),
        };
        self.in_flight.remove(&key);
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
mod tests;
