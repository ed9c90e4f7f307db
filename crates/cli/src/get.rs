//! `get KIND [NAME…]`: objects as a table, as names, as YAML or JSON.

use std::io::Write;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::apply::{DEFAULT_NAMESPACE, short_name};
use super::columns::columns;
use super::output::{Output, Table, render};
use super::{CliError, Kinds, Terminal};
use edgesync_api::{Client, Format, ListWriter, PAGE_ROWS, collection_path, encode, object_path};
use edgesync_object::{Resource, Scope};

/// What is to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Kind as a person writes it, or `kind/name`.
    pub kind: String,
    /// Names; all objects if there are none.
    pub names: Vec<String>,
    /// Namespace; `default` if none is given.
    pub namespace: Option<String>,
    /// Objects of all namespaces.
    pub all_namespaces: bool,
    /// Label selector; empty for all.
    pub selector: String,
    /// Whether what changes is shown too, until the server ends that.
    pub watch: bool,
    /// How it is shown.
    pub output: Output,
}

/// Shows objects.
///
/// # Errors
/// The kind is not known, an object does not exist, or the request fails.
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
            "what is watched is shown as a table or as names, without a name".into(),
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
        if view.nothing() {
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

/// Shows what has been listed, and then what changes.
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

/// The objects of a kind, page by page: what is printed does not have to fit into memory.
pub struct Pages<'a> {
    client: &'a Client,
    path: String,
    next: Option<String>,
    /// That of the list.
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
            path.push_str(&encode(selector));
        }
        Self { client, path, next: Some(String::new()), version: String::new() }
    }

    /// Beginning where another page has ended.
    pub(super) fn from(mut self, token: Option<String>) -> Self {
        self.next = Some(token.unwrap_or_default());
        self
    }

    /// Where the next page begins, if there is one.
    pub(super) fn rest(self) -> Option<String> {
        self.next
    }

    /// The next page; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Vec<Box<RawValue>>>, CliError> {
        let Some(token) = self.next.take() else { return Ok(None) };
        let page: Page = if token.is_empty() {
            self.client.get(&self.path).await?
        } else {
            self.client.get(&format!("{}&continue={}", self.path, encode(&token))).await?
        };
        self.version = page.metadata.version;
        self.next = Some(page.metadata.r#continue).filter(|token| !token.is_empty());
        Ok(Some(page.items))
    }
}

/// Objects on their way to the terminal. Tables are printed at the end, because only then their widths
/// are known; they keep cells, not objects.
pub(super) struct View<'a> {
    resource: &'a Resource,
    now: Timestamp,
    shape: Shape,
    any: bool,
}

enum Shape {
    Table(Table, Vec<super::columns::Column>),
    Names,
    List(ListWriter),
}

impl<'a> View<'a> {
    pub(super) fn new(resource: &'a Resource, all_namespaces: bool, output: Output, now: Timestamp) -> Self {
        let shape = match output {
            Output::Table | Output::Wide => {
                let all_namespaces = all_namespaces && resource.scope == Scope::Namespaced;
                let columns = columns(resource, all_namespaces, output == Output::Wide);
                Shape::Table(Table::new(columns.iter().map(|column| column.header)), columns)
            }
            Output::Name => Shape::Names,
            Output::Yaml => Shape::List(ListWriter::new(Format::Yaml, "v1", "List")),
            Output::Json => Shape::List(ListWriter::new(Format::PrettyJson, "v1", "List")),
        };
        Self { resource, now, shape, any: false }
    }

    /// Takes objects, and returns what can be printed of them now.
    pub(super) fn items(&mut self, items: Vec<Box<RawValue>>) -> Result<String, CliError> {
        self.any |= !items.is_empty();
        match &mut self.shape {
            Shape::Table(table, columns) => {
                for item in items {
                    let object: Value = serde_json::from_str(item.get()).map_err(|error| not_json(&error))?;
                    table.row(columns.iter().map(|column| column.of(&object, self.now)));
                }
                Ok(String::new())
            }
            Shape::Names => {
                let mut names = String::new();
                for item in items {
                    let head: edgesync_object::Head<'_> =
                        serde_json::from_str(item.get()).map_err(|error| not_json(&error))?;
                    names.push_str(&short_name(self.resource, &head.metadata.name));
                    names.push('\n');
                }
                Ok(names)
            }
            Shape::List(writer) => {
                let items: Vec<String> = items.into_iter().map(|item| item.get().to_owned()).collect();
                writer.items(&items).map_err(|status| CliError::Show(status.message))
            }
        }
    }

    /// Shows what was listed, with a header in any case. Gives the widths of the columns.
    fn begin_watch(&mut self, out: &mut dyn Write) -> Result<Vec<usize>, CliError> {
        let Shape::Table(table, _) = &self.shape else { return Ok(Vec::new()) };
        out.write_all(table.render().as_bytes())?;
        Ok(table.widths())
    }

    /// An object of a watch as a line.
    fn change(&mut self, line: &str, widths: &[usize]) -> Result<String, CliError> {
        let mut event: Value = serde_json::from_str(line).map_err(|error| not_json(&error))?;
        let object = event["object"].take();
        if event["type"] == "ERROR" {
            return Err(CliError::Show(object["message"].as_str().unwrap_or_default().to_owned()));
        }
        Ok(match &self.shape {
            Shape::Table(_, columns) => {
                // An age counts from now, not from when the watch has begun.
                let now = Timestamp::now();
                super::output::line(widths, columns.iter().map(|column| column.of(&object, now)))
            }
            _ => {
                let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                format!("{}\n", short_name(self.resource, name))
            }
        })
    }

    /// Whether there was nothing to show in a form that says nothing then.
    pub(super) fn nothing(&self) -> bool {
        !self.any && !matches!(self.shape, Shape::List(_))
    }

    /// What is left to print.
    pub(super) fn end(mut self) -> Result<String, CliError> {
        match &mut self.shape {
            Shape::Table(table, _) if !table.is_empty() => Ok(table.render()),
            Shape::Table(..) | Shape::Names => Ok(String::new()),
            Shape::List(writer) => {
                let metadata: Map<_, _> =
                    [("resourceVersion".to_owned(), Value::from(""))].into_iter().collect();
                writer.end(metadata).map_err(|status| CliError::Show(status.message))
            }
        }
    }
}
