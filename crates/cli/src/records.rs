//! `nodes`, `syncs` and `status`: the sync state that a side reports.

use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;

use super::get::{Pages, View};
use super::output::{Output, Table, age, cell, key_values, render};
use super::{CliError, Terminal};
use edgesync_admin::{Answer, Route, read};
use edgesync_api::Client;
use edgesync_object::objectsync::split_sync_name;
use edgesync_object::{Head, Resource, kinds};

/// Prints the ObjectSyncs and ClusterObjectSyncs, of one node or of all.
///
/// # Errors
/// The request fails.
pub async fn syncs(
    client: &Client,
    node: Option<&str>,
    output: Output,
    now: Timestamp,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    syncs_of(client, node, output, now, terminal).await
}

/// Source of ObjectSyncs and ClusterObjectSyncs.
pub trait RecordSource {
    /// Returns one page of the records of a kind, starting at `from`, and the token of the next
    /// page, if there is one. The page contains at least the records of `node`, if that is given.
    fn page(
        &self,
        kind: &Resource,
        node: Option<&str>,
        from: Option<String>,
    ) -> impl Future<Output = Result<(Vec<Box<RawValue>>, Option<String>), CliError>>;
}

impl RecordSource for Client {
    async fn page(
        &self,
        kind: &Resource,
        _: Option<&str>,
        from: Option<String>,
    ) -> Result<(Vec<Box<RawValue>>, Option<String>), CliError> {
        let mut pages = Pages::new(self, kind, None, "").from(from);
        let items = pages.next().await?.unwrap_or_default();
        Ok((items, pages.next_token()))
    }
}

/// Prints the records like [`syncs`], from any source.
pub async fn syncs_of(
    lists: &impl RecordSource,
    node: Option<&str>,
    output: Output,
    now: Timestamp,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let resources = sync_resources();
    let Some(first) = resources.first() else { return Ok(()) };
    let mut view = View::new(first, true, output, now);
    for resource in &resources {
        let mut from = None;
        loop {
            let (items, next) = lists.page(resource, node, from).await?;
            let items = items.into_iter().filter(|item| node.is_none_or(|node| is_of(item, node))).collect();
            terminal.out.write_all(view.items(items)?.as_bytes())?;
            if next.is_none() {
                break;
            }
            from = next;
        }
    }
    if view.is_empty() {
        match node {
            Some(node) => writeln!(terminal.err, "No records found for node {node}.")?,
            None => writeln!(terminal.err, "No records found")?,
        }
    }
    terminal.out.write_all(view.end()?.as_bytes())?;
    Ok(())
}

fn sync_resources() -> Vec<Resource> {
    let words = ["objectsyncs", "clusterobjectsyncs"];
    words.iter().filter_map(|word| kinds::by_word(word)).map(kinds::KnownKind::resource).collect()
}

fn is_of(item: &RawValue, node: &str) -> bool {
    let head: Result<Head<'_>, _> = serde_json::from_str(item.get());
    head.is_ok_and(|head| split_sync_name(&head.metadata.name).is_some_and(|(name, _)| name == node))
}

/// A column of a table of records.
#[derive(Debug)]
pub struct RecordColumn<T> {
    header: &'static str,
    /// Returns the value of a record; `null` is shown as missing.
    value: fn(&T) -> Value,
    /// Whether the value is a time, shown as an age.
    is_time: bool,
    /// Returns a text that is shown in place of the value.
    instead: Option<fn(&T, Timestamp) -> Option<String>>,
    /// Whether the column is omitted if no record has a value.
    is_rare: bool,
}

impl<T> RecordColumn<T> {
    /// Creates a column that shows a value.
    #[must_use]
    pub const fn value(header: &'static str, value: fn(&T) -> Value) -> Self {
        Self { header, value, is_time: false, instead: None, is_rare: false }
    }

    /// Creates a column for a value that few fleets have, omitted if no record has it.
    #[must_use]
    pub const fn rare(header: &'static str, value: fn(&T) -> Value) -> Self {
        Self { header, value, is_time: false, instead: None, is_rare: true }
    }

    /// Creates a column that shows the age of a time.
    #[must_use]
    pub const fn age(header: &'static str, value: fn(&T) -> Value) -> Self {
        Self { header, value, is_time: true, instead: None, is_rare: false }
    }

    /// Shows a text in place of the value, for records that have one.
    #[must_use]
    pub const fn instead(self, text: fn(&T, Timestamp) -> Option<String>) -> Self {
        Self { instead: Some(text), ..self }
    }

    fn cell(&self, record: &T, now: Timestamp) -> String {
        if let Some(text) = self.instead.and_then(|text| text(record, now)) {
            return text;
        }
        match (self.value)(record) {
            Value::String(time) if self.is_time => age(now, &time),
            value => cell(&value),
        }
    }
}

/// Prints records as a table.
///
/// # Errors
/// The output cannot be written.
pub fn table<T>(
    records: &[T],
    columns: &[&RecordColumn<T>],
    now: Timestamp,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let has_some = |column: &RecordColumn<T>| records.iter().any(|record| !(column.value)(record).is_null());
    let columns: Vec<&RecordColumn<T>> =
        columns.iter().copied().filter(|column| !column.is_rare || has_some(column)).collect();
    let mut table = Table::new(columns.iter().map(|column| column.header));
    for record in records {
        table.row(columns.iter().map(|column| column.cell(record, now)));
    }
    if table.is_empty() {
        writeln!(terminal.err, "No resources found")?;
    } else {
        terminal.out.write_all(table.render().as_bytes())?;
    }
    Ok(())
}

/// Prints a list: as a table of its items, or as YAML or JSON with all its keys.
///
/// # Errors
/// The response belongs to another version.
pub fn table_of<L: Answer, T>(
    answer: &Value,
    items: impl FnOnce(L) -> Vec<T>,
    columns: &[&RecordColumn<T>],
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    if matches!(output, Output::Yaml | Output::Json) {
        return Ok(terminal.out.write_all(render(answer, output)?.as_bytes())?);
    }
    table(&items(read(answer)?), columns, Timestamp::now(), terminal)
}

/// Prints a response: as the text of `show`, or as YAML or JSON with all its keys.
///
/// # Errors
/// The request fails, or the response belongs to another version.
pub async fn answer<T: Answer>(
    client: &Client,
    route: Route<'_>,
    output: Output,
    show: impl FnOnce(&T) -> String,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    print(&client.get(&route.path()).await?, output, |answer| Ok(show(&read(answer)?)), terminal)
}

/// Prints all keys of a response of any version.
///
/// # Errors
/// The request fails.
pub async fn sheet(
    client: &Client,
    route: Route<'_>,
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    print(&client.get(&route.path()).await?, output, |answer| Ok(key_values(answer)), terminal)
}

/// Prints a response: as YAML or JSON with all its keys, or as the text of `show`.
///
/// # Errors
/// The response belongs to another version.
pub fn print(
    answer: &Value,
    output: Output,
    show: impl FnOnce(&Value) -> Result<String, CliError>,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let text = match output {
        Output::Yaml | Output::Json => render(answer, output)?,
        Output::Table | Output::Wide | Output::Name => show(answer)?,
    };
    terminal.out.write_all(text.as_bytes())?;
    Ok(())
}
