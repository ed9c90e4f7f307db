//! Measures what the project promises and prints each figure beside its budget.
//!
//! `cargo bench` runs all; `cargo bench -- NAME…` only sections whose name contains a NAME. Not a test: it
//! does not fail when a budget is missed, it says so. Needs mosquitto on the PATH.

#[path = "budgets/api.rs"]
mod api;
#[path = "budgets/fleet.rs"]
mod fleet;
#[path = "budgets/idle.rs"]
mod idle;
#[path = "budgets/ingest.rs"]
mod ingest;
#[path = "budgets/kubeedge.rs"]
mod kubeedge;
#[path = "budgets/leases.rs"]
mod leases;
#[path = "budgets/objects.rs"]
mod objects;
#[path = "budgets/outbox.rs"]
mod outbox;
#[path = "budgets/processes.rs"]
mod processes;
#[path = "budgets/relay.rs"]
mod relay;
#[path = "budgets/table.rs"]
mod table;
#[path = "budgets/tls.rs"]
mod tls;

use table::Table;

type Section = (&'static str, fn(&mut Table) -> anyhow::Result<()>);

const SECTIONS: &[Section] = &[
    ("size", processes::binary_size),
    ("ingest", ingest::durable),
    ("bulk", processes::bulk_through_mosquitto),
    ("updates", processes::single_updates),
    ("reconnect", processes::reconnect),
    ("latency", processes::latency),
    ("start", processes::start),
    ("idle", idle::traffic),
    ("tls", tls::figures),
    ("outbox", outbox::day_offline),
    ("fleet", fleet::reconnect_storm),
    ("api", api::figures),
    ("leases", leases::figures),
    ("kubeedge", kubeedge::figures),
];

fn main() -> anyhow::Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut table = Table::default();
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            eprintln!("… {name}");
            section(&mut table)?;
        }
    }
    table.print();
    Ok(())
}
