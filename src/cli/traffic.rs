//! The command `traffic`: prints the traffic between node and cloud, by type of frame and kind of
//! object.

use serde_json::Value;

use edgesync_admin::agent::{
    BudgetStatus, Direction, FrameTraffic, KindTraffic, MeteredStatus, Traffic, TrafficSpan,
};
use edgesync_cli::output::{Table, cell, size};

/// Formats the counts as tables.
#[must_use]
pub(super) fn tables(traffic: &Traffic) -> String {
    let (today, total) = (&traffic.today, &traffic.total.span);
    let rows = |span: &TrafficSpan| span.frames.iter().map(Row::from).collect::<Vec<_>>();
    let mut out = table(["type", "messages"], &rows(today), &rows(total)).render();
    let rows = |span: &TrafficSpan| span.kinds.iter().map(Row::from).collect::<Vec<_>>();
    let kinds = table(["kind", "objects"], &rows(today), &rows(total));
    if !kinds.is_empty() {
        out.push('\n');
        out.push_str(&kinds.render());
    }
    out.push('\n');
    out.push_str(&all_bytes(today, total));
    let (day, since) = (&traffic.day, &traffic.total.since);
    out.push_str(&format!("\nToday: {day} (UTC). Total since {since}.\n"));
    if let Some(metered) = &traffic.metered {
        out.push_str(&format!("\nMetered link: {}\n", metered_link(metered)));
    }
    out
}

/// Describes the metered link: its class, its budgets, what waits and why, and until when.
pub(super) fn metered_link(status: &MeteredStatus) -> String {
    let MeteredStatus { metered, because, min_urgency, max_object, day, month, spent_until, waiting } =
        status;
    let mut parts =
        vec![format!("{} ({})", if *metered { "yes" } else { "no" }, cell(&because.as_str().into()))];
    for (budget, period) in [(day, "day"), (month, "month")] {
        if let Some(BudgetStatus { limit, used }) = budget {
            parts.push(format!("{} of {} used this {period}", size(*used), size(*limit)));
        }
    }
    if let Some(until) = spent_until {
        parts.push(format!("spent until {}", cell(&until.as_str().into())));
    }
    let least = format!("for urgency {}", min_urgency.as_str());
    let most = max_object.map_or_else(String::new, |most| format!("for size {}", size(most)));
    for (count, why) in
        [(waiting.budget, "for the budget"), (waiting.urgency, least.as_str()), (waiting.size, most.as_str())]
    {
        if count > 0 {
            parts.push(format!("{count} waiting {why}"));
        }
    }
    parts.join(", ")
}

struct Row {
    direction: Direction,
    label: String,
    count: u64,
    bytes: u64,
}

impl From<&FrameTraffic> for Row {
    fn from(row: &FrameTraffic) -> Self {
        Self { direction: row.direction, label: row.frame.clone(), count: row.messages, bytes: row.bytes }
    }
}

impl From<&KindTraffic> for Row {
    fn from(row: &KindTraffic) -> Self {
        Self { direction: row.direction, label: row.kind.clone(), count: row.objects, bytes: row.bytes }
    }
}

/// Returns the table of the totals beside today's counts; omits rows without any.
fn table([label, count]: [&'static str; 2], today: &[Row], total: &[Row]) -> Table {
    let [today_count, total_count] = ["today", "total"].map(|span| format!("{count} {span}"));
    let mut table =
        Table::new(["direction", label, &today_count, &total_count, "bytes today", "bytes total"]);
    for row in total {
        let is_same = |other: &&Row| (other.direction, &other.label) == (row.direction, &row.label);
        let (count, bytes) = today.iter().find(is_same).map_or((0, 0), |row| (row.count, row.bytes));
        table.row([
            row.direction.name().to_owned(),
            cell(&Value::from(row.label.as_str())),
            count.to_string(),
            row.count.to_string(),
            size(bytes),
            size(row.bytes),
        ]);
    }
    table
}

/// Returns the table of all TCP bytes by direction, and of those outside frames.
fn all_bytes(today: &TrafficSpan, total: &TrafficSpan) -> String {
    let mut table = Table::new(["all bytes", "today", "total"]);
    let mut line = |name: &str, read: fn(&TrafficSpan) -> u64| {
        table.row([name.to_owned(), size(read(today)), size(read(total))]);
    };
    line("up", |span| span.bytes_up);
    line("down", |span| span.bytes_down);
    line("both", |span| span.bytes_up.saturating_add(span.bytes_down));
    line("mqtt overhead", |span| span.transport_bytes);
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::{read, samples};
    use serde_json::json;

    #[test]
    fn tables_show_todays_traffic_beside_the_total() {
        let expected = "\
DIRECTION   TYPE    MESSAGES TODAY   MESSAGES TOTAL   BYTES TODAY   BYTES TOTAL
up          Hello   0                20               0 B           2.6 KiB
up          Lease   8640             90000            878.9 KiB     8.6 MiB

DIRECTION   KIND              OBJECTS TODAY   OBJECTS TOTAL   BYTES TODAY   BYTES TOTAL
down        Deployment.apps   0               3               0 B           3.9 KiB

ALL BYTES       TODAY       TOTAL
up              1.3 MiB     13.4 MiB
down            1000 B      8.8 KiB
both            1.3 MiB     13.4 MiB
mqtt overhead   488.2 KiB   4.8 MiB

Today: 2026-11-21 (UTC). Total since 2026-11-01T00:00:00Z.
";
        assert_eq!(tables(&samples::traffic()), expected);
    }

    #[test]
    fn metered_link_shows_its_budgets_and_what_waits() {
        let traffic = Traffic { metered: Some(samples::metered()), ..samples::traffic() };
        let expected = "\nMetered link: yes (interface wwan0), 193.4 KiB of 200.0 KiB used this day, \
                        spent until 2027-11-21T10:00:00Z, 12 waiting for the budget, \
                        3 waiting for urgency normal, 1 waiting for size 64.0 KiB\n";
        assert!(tables(&traffic).ends_with(expected), "{}", tables(&traffic));
    }

    #[test]
    fn an_incomplete_answer_is_an_error_that_names_the_gap() {
        for (odd, problem) in [
            (json!({}), "missing field `day`"),
            (json!({ "day": "d", "today": 7 }), "invalid type: integer `7`"),
            (
                json!({ "day": "d", "today": { "bytesUp": 1, "bytesDown": 1 } }),
                "missing field `transportBytes`",
            ),
        ] {
            let error = read::<Traffic>(&odd).unwrap_err().to_string();
            assert!(error.starts_with("parse agent traffic: ") && error.contains(problem), "{error}");
        }
        let mut odd = samples::traffic();
        odd.today.frames.clear();
        odd.total.span.frames.truncate(1);
        odd.total.span.frames[0].frame = "up\u{1b}[2J".to_owned();
        let shown = tables(&odd);
        assert!(shown.contains("up          up\\u{1b}[2J   0                20"), "{shown}");
    }
}
