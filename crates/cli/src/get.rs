//! `get KIND [NAME…]`: objects as a table, as names, as YAML or JSON.

use std::io::Write;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::apply::{DEFAULT_NAMESPACE, short_name};
use super::columns::{SYNC_ORDER, columns};
use super::output::{Output, Table, render};
use super::{CliError, Kinds, Terminal};
use edgesync_api::{Client, Format, ListWriter, PAGE_ROWS, collection_path, object_path};
use edgesync_object::encoding::percent;
use edgesync_object::{Resource, Scope, objectsync};

/// A query for objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The kind as typed by a user, or `kind/name`.
    pub kind: String,
    /// Names; all objects if empty.
    pub names: Vec<String>,
    /// Namespace; `default` if `None`.
    pub namespace: Option<String>,
    /// Whether objects of all namespaces are shown.
    pub all_namespaces: bool,
    /// Label selector; empty for all.
    pub selector: String,
    /// Whether changes are shown too, until the server ends the watch.
    pub watch: bool,
    pub output: Output,
}

/// Prints objects.
///
/// # Errors
/// The kind is unknown, an object does not exist, or the request fails.
pub async fn run(
    client: &Client,
    query: &Query,
    now: Timestamp,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let mut query = query.clone();
    if let Some((kind, name)) = query.kind.clone().split_once('/') {
        query.kind = kind.to_owned();
        query.names.insert(0, name.to_owned());
    }
    if !query.names.is_empty() && (query.all_namespaces || !query.selector.is_empty()) {
        let message = "a name cannot be combined with all namespaces or a selector";
        return Err(CliError::Usage(message.into()));
    }
    if query.watch && (!query.names.is_empty() || matches!(query.output, Output::Yaml | Output::Json)) {
        return Err(CliError::Usage(
            "--watch needs the output format table, wide or name, and no object name".into(),
        ));
    }
    let resource = Kinds::new(client).by_word(&query.kind).await?;
    let namespace = query.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let mut view = View::new(&resource, query.all_namespaces, query.output, now);
    if query.names.is_empty() {
        let everywhere = query.all_namespaces || resource.scope == Scope::Cluster;
        let shown = (!everywhere).then_some(namespace);
        let mut pages = Pages::new(client, &resource, shown, &query.selector);
        while let Some(items) = pages.next().await? {
            terminal.out.write_all(view.items(items)?.as_bytes())?;
        }
        if query.watch {
            let path = format!("{}&watch=true&resourceVersion={}", pages.path, pages.version);
            return watch(client, &path, view, terminal).await;
        }
        if view.is_empty() {
            match shown {
                Some(namespace) => writeln!(terminal.err, "No resources found in {namespace} namespace.")?,
                None => writeln!(terminal.err, "No resources found")?,
            }
        }
    } else {
        let mut items = Vec::with_capacity(query.names.len());
        for name in &query.names {
            items.push(client.get::<Box<RawValue>>(&object_path(&resource, namespace, name)).await?);
        }
        if let ([item], Output::Yaml | Output::Json) = (items.as_slice(), query.output) {
            let object: Value = serde_json::from_str(item.get()).map_err(|error| not_json(&error))?;
            terminal.out.write_all(render(&object, query.output)?.as_bytes())?;
            return Ok(());
        }
        terminal.out.write_all(view.items(items)?.as_bytes())?;
    }
    terminal.out.write_all(view.end()?.as_bytes())?;
    Ok(())
}

/// Prints the listed objects, then their changes.
async fn watch(
    client: &Client,
    path: &str,
    mut view: View<'_>,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let widths = view.begin_watch(terminal.out)?;
    terminal.out.flush()?;
    let mut failed = None;
    let mut take = |line: &str| {
        let shown = view.change(line, &widths).and_then(|text| {
            terminal.out.write_all(text.as_bytes())?;
            Ok(terminal.out.flush()?)
        });
        failed = shown.err();
        failed.is_none()
    };
    client.lines(path, &mut take).await?;
    failed.map_or(Ok(()), Err)
}

fn not_json(error: &serde_json::Error) -> CliError {
    CliError::Show(error.to_string())
}

/// Reads the objects of a kind page by page: the output need not fit into memory.
pub struct Pages<'a> {
    client: &'a Client,
    path: String,
    next: Option<String>,
    /// The version of the list.
    version: String,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Box<RawValue>>,
    #[serde(default)]
    metadata: PageMetadata,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default)]
    r#continue: String,
    #[serde(default, rename = "resourceVersion")]
    version: String,
}

impl<'a> Pages<'a> {
    pub fn new(client: &'a Client, resource: &Resource, namespace: Option<&str>, selector: &str) -> Self {
        let mut path = format!("{}?limit={PAGE_ROWS}", collection_path(resource, namespace));
        if !selector.is_empty() {
            path.push_str("&labelSelector=");
            path.push_str(&percent(selector));
        }
        Self { client, path, next: Some(String::new()), version: String::new() }
    }

    /// Starts at the token of an earlier page.
    pub(super) fn from(mut self, token: Option<String>) -> Self {
        self.next = Some(token.unwrap_or_default());
        self
    }

    /// Returns the token of the next page, if there is one.
    pub(super) fn next_token(self) -> Option<String> {
        self.next
    }

    /// Returns the next page; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Vec<Box<RawValue>>>, CliError> {
        let Some(token) = self.next.take() else { return Ok(None) };
        let page: Page = if token.is_empty() {
            self.client.get(&self.path).await?
        } else {
            self.client.get(&format!("{}&continue={}", self.path, percent(&token))).await?
        };
        self.version = page.metadata.version;
        self.next = Some(page.metadata.r#continue).filter(|token| !token.is_empty());
        Ok(Some(page.items))
    }
}

/// Formats objects for the terminal. Tables are printed at the end, when the widths of all columns
/// are known; they hold cells, not objects.
pub(super) struct View<'a> {
    resource: &'a Resource,
    now: Timestamp,
    format: OutputFormat,
    has_items: bool,
}

enum OutputFormat {
    Table(Table, Vec<super::columns::Column>),
    Names,
    List(ListWriter),
}

impl<'a> View<'a> {
    pub(super) fn new(resource: &'a Resource, all_namespaces: bool, output: Output, now: Timestamp) -> Self {
        let format = match output {
            Output::Table | Output::Wide => {
                let all_namespaces = all_namespaces && resource.scope == Scope::Namespaced;
                let columns = columns(resource, all_namespaces, output == Output::Wide);
                OutputFormat::Table(Table::new(columns.iter().map(|column| column.header)), columns)
            }
            Output::Name => OutputFormat::Names,
            Output::Yaml => OutputFormat::List(ListWriter::new(Format::Yaml, "v1", "List")),
            Output::Json => OutputFormat::List(ListWriter::new(Format::PrettyJson, "v1", "List")),
        };
        Self { resource, now, format, has_items: false }
    }

    /// Adds objects and returns the text that is ready to print.
    pub(super) fn items(&mut self, items: Vec<Box<RawValue>>) -> Result<String, CliError> {
        self.has_items |= !items.is_empty();
        match &mut self.format {
            OutputFormat::Table(table, columns) => {
                for item in items {
                    let object: Value = serde_json::from_str(item.get()).map_err(|error| not_json(&error))?;
                    table.row(columns.iter().map(|column| column.cell_of(&object, self.now)));
                }
                Ok(String::new())
            }
            OutputFormat::Names => {
                let mut names = String::new();
                for item in items {
                    let head: edgesync_object::Head<'_> =
                        serde_json::from_str(item.get()).map_err(|error| not_json(&error))?;
                    names.push_str(&short_name(self.resource, &head.metadata.name));
                    names.push('\n');
                }
                Ok(names)
            }
            OutputFormat::List(writer) => {
                let items: Vec<String> = items.into_iter().map(|item| item.get().to_owned()).collect();
                writer.items(&items).map_err(|status| CliError::Show(status.message))
            }
        }
    }

    /// Prints the listed objects, always with a header. Returns the column widths.
    fn begin_watch(&mut self, out: &mut dyn Write) -> Result<Vec<usize>, CliError> {
        let OutputFormat::Table(table, _) = &self.format else { return Ok(Vec::new()) };
        out.write_all(table.render().as_bytes())?;
        Ok(table.widths())
    }

    /// Formats an object of a watch event as a line.
    fn change(&mut self, line: &str, widths: &[usize]) -> Result<String, CliError> {
        let mut event: Value = serde_json::from_str(line).map_err(|error| not_json(&error))?;
        let object = event["object"].take();
        if event["type"] == "ERROR" {
            return Err(CliError::Show(object["message"].as_str().unwrap_or_default().to_owned()));
        }
        Ok(match &self.format {
            OutputFormat::Table(_, columns) => {
                // Ages are relative to the event, not to the start of the watch.
                let now = Timestamp::now();
                super::output::line(widths, columns.iter().map(|column| column.cell_of(&object, now)))
            }
            _ => {
                let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                format!("{}\n", short_name(self.resource, name))
            }
        })
    }

    /// Returns whether there was nothing to show in a format without a frame.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_items && !matches!(self.format, OutputFormat::List(_))
    }

    /// Returns the rest of the output.
    pub(super) fn end(mut self) -> Result<String, CliError> {
        match &mut self.format {
            OutputFormat::Table(table, _) if !table.is_empty() => {
                if objectsync::is_sync_record(self.resource) {
                    // Their own order is that of UIDs. Those that a node synthesizes have no age.
                    table.sort_by(&SYNC_ORDER);
                    table.remove_if_unknown("AGE");
                }
                Ok(table.render())
            }
            OutputFormat::Table(..) | OutputFormat::Names => Ok(String::new()),
            OutputFormat::List(writer) => {
                let metadata: Map<_, _> =
                    [("resourceVersion".to_owned(), Value::from(""))].into_iter().collect();
                writer.end(metadata).map_err(|status| CliError::Show(status.message))
            }
        }
    }
}
