//! The command `events`: lists the node's Events, newest last.

use jiff::Timestamp;
use serde_json::Value;

use edgesync_api::Client;
use edgesync_cli::output::{NONE, Output, Table, age, render};
use edgesync_cli::{CliError, Terminal};

const PATH: &str = "/api/v1/events";

/// Prints the Events that the node stores.
///
/// # Errors
/// Fails if the request fails.
pub(super) async fn run(
    client: &Client,
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let mut list: Value = client.get(PATH).await?;
    let mut events = match list["items"].take() {
        Value::Array(events) => events,
        _ => Vec::new(),
    };
    events.sort_by(|one, other| time(one).cmp(time(other)));
    if matches!(output, Output::Yaml | Output::Json) {
        list["items"] = Value::Array(events);
        terminal.out.write_all(render(&list, output)?.as_bytes())?;
        return Ok(());
    }
    if events.is_empty() {
        writeln!(terminal.err, "No events")?;
        return Ok(());
    }
    let now = Timestamp::now();
    let mut table = Table::new(["last seen", "type", "reason", "object", "message"]);
    for event in &events {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or(NONE).to_owned();
        let of = |field: &str| event["involvedObject"][field].as_str().unwrap_or_default();
        let (kind, namespace, name) = (of("kind").to_lowercase(), of("namespace"), of("name"));
        let object = match namespace {
            "" => format!("{kind}/{name}"),
            namespace => format!("{kind}/{name} in {namespace}"),
        };
        table.row([age(now, time(event)), text("/type"), text("/reason"), object, text("/message")]);
    }
    terminal.out.write_all(table.render().as_bytes())?;
    Ok(())
}

/// Returns when an Event last occurred, as text that sorts by time.
fn time(event: &Value) -> &str {
    let fields = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    fields.iter().find_map(|field| event.pointer(field)?.as_str()).unwrap_or_default()
}
