//! `traffic`: what went between the node and the cloud, by type of frame and by kind of object.

use serde_json::Value;

use edgesync_cli::output::{NONE, Table, cell, size};

/// The counts as tables. What an agent of another version leaves out is shown as missing.
#[must_use]
pub(super) fn tables(traffic: &Value) -> String {
    let (today, total) = (traffic.get("today"), traffic.get("total"));
    let mut out = table(["type", "messages"], "frames", today, total).render();
    let kinds = table(["kind", "objects"], "kinds", today, total);
    if !kinds.is_empty() {
        out.push('\n');
        out.push_str(&kinds.render());
    }
    out.push('\n');
    out.push_str(&all_bytes(today, total));
    let since = total.and_then(|total| total.get("since")).unwrap_or(&Value::Null);
    let day = traffic.get("day").unwrap_or(&Value::Null);
    out.push_str(&format!("\nToday is {} (UTC). The total is since {}.\n", cell(day), cell(since)));
    out
}

/// The rows of a list in `total`, each beside the same row of `today`, where those that count nothing are left out.
fn table(
    [label, count]: [&'static str; 2],
    list: &str,
    today: Option<&Value>,
    total: Option<&Value>,
) -> Table {
    let rows =
        |span: Option<&'_ Value>| span.and_then(|span| span.get(list)).and_then(Value::as_array).cloned();
    let today = rows(today);
    let headers = ["direction", label, &format!("{count} today"), "total", "bytes today", "total"];
    let mut table = Table::new(headers);
    for row in rows(total).unwrap_or_default() {
        let is_same =
            |other: &&Value| ["direction", label].iter().all(|name| other.get(name) == row.get(name));
        let earlier = today.as_ref().map(|rows| rows.iter().find(is_same));
        let of_today = |name: &str| match earlier {
            None => None,
            Some(None) => Some(0),
            Some(Some(row)) => number(row, name),
        };
        let text = |name: &str| row.get(name).map_or_else(|| NONE.to_owned(), cell);
        let plain = |number: u64| number.to_string();
        table.row([
            text("direction"),
            text(label),
            shown(of_today(count), plain),
            shown(number(&row, count), plain),
            shown(of_today("bytes"), size),
            shown(number(&row, "bytes"), size),
        ]);
    }
    table
}

/// All bytes of TCP by direction, and what of them is in no frame.
fn all_bytes(today: Option<&Value>, total: Option<&Value>) -> String {
    let mut table = Table::new(["all bytes", "today", "total"]);
    let mut line = |name: &str, read: &dyn Fn(&Value) -> Option<u64>| {
        let cells = [today, total].map(|span| shown(span.and_then(read), size));
        table.row([name.to_owned()].into_iter().chain(cells));
    };
    line("up", &|span| number(span, "bytesUp"));
    line("down", &|span| number(span, "bytesDown"));
    line("both", &|span| number(span, "bytesUp")?.checked_add(number(span, "bytesDown")?));
    line("mqtt itself", &|span| number(span, "transportBytes"));
    table.render()
}

fn number(span: &Value, name: &str) -> Option<u64> {
    span.get(name).and_then(Value::as_u64)
}

fn shown(number: Option<u64>, show: impl Fn(u64) -> String) -> String {
    number.map_or_else(|| NONE.to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn frame(kind: &str, messages: u64, bytes: u64) -> Value {
        json!({ "direction": "up", "type": kind, "messages": messages, "bytes": bytes })
    }

    #[test]
    fn frames_kinds_and_all_bytes_of_today_stand_beside_those_in_total() {
        let deployment =
            json!({ "direction": "down", "kind": "Deployment.apps", "objects": 3, "bytes": 4_000 });
        let traffic = json!({
            "day": "2026-11-21",
            "today": {
                "bytesUp": 1_400_000, "bytesDown": 1_000, "transportBytes": 499_880,
                "frames": [frame("Lease", 8_640, 900_000)],
                "kinds": [],
            },
            "total": {
                "since": "2026-11-01T00:00:00Z",
                "bytesUp": 14_000_000, "bytesDown": 9_000, "transportBytes": 5_006_338,
                "frames": [frame("Hello", 20, 2_662), frame("Lease", 90_000, 9_000_000)],
                "kinds": [deployment],
            },
        });
        let expected = "\
DIRECTION   TYPE    MESSAGES TODAY   TOTAL   BYTES TODAY   TOTAL
up          Hello   0                20      0 B           2.6 KiB
up          Lease   8640             90000   878.9 KiB     8.6 MiB

DIRECTION   KIND              OBJECTS TODAY   TOTAL   BYTES TODAY   TOTAL
down        Deployment.apps   0               3       0 B           3.9 KiB

ALL BYTES     TODAY       TOTAL
up            1.3 MiB     13.4 MiB
down          1000 B      8.8 KiB
both          1.3 MiB     13.4 MiB
mqtt itself   488.2 KiB   4.8 MiB

Today is 2026-11-21 (UTC). The total is since 2026-11-01T00:00:00Z.
";
        assert_eq!(tables(&traffic), expected);
    }

    #[test]
    fn what_an_agent_does_not_tell_is_shown_as_missing() {
        for odd in
            [json!(null), json!([]), json!({ "today": 7, "total": { "frames": [7, {}], "bytesUp": "x" } })]
        {
            let shown = tables(&odd);
            assert!(shown.contains("\nboth          <none>   <none>\n"), "{shown}");
            assert!(shown.ends_with("Today is <none> (UTC). The total is since <none>.\n"), "{shown}");
            assert!(!shown.contains("KIND"), "{shown}");
        }
        let odd = json!({ "total": { "frames": [{ "direction": "up\u{1b}[2J", "type": "Hello" }] } });
        let shown = tables(&odd);
        assert!(
            shown.contains("up\\u{1b}[2J   Hello   <none>           <none>   <none>        <none>\n"),
            "{shown}"
        );
    }
}
