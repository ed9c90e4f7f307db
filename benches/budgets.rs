//! Measures the project's promises and prints each figure beside its budget.
//!
//! `cargo bench` runs all sections; `cargo bench -- NAME…` only those whose name contains a NAME.
//! With `--document` the results are written to docs/figures.md. The exit code is 1 if a budget was
//! missed. Requires mosquitto on the PATH. `EDGESYNC_TEST_DEVICE` and `EDGESYNC_TEST_CLOUD` name
//! another agent and cloud side to measure, for example those of another profile.
//!
//! Sections run one after another; those that wait for a slow link, or for minutes without traffic,
//! run at the end, concurrently.

#[path = "budgets/api.rs"]
mod api;
#[path = "budgets/away.rs"]
mod away;
#[path = "budgets/big_cloud.rs"]
mod big_cloud;
#[path = "budgets/document.rs"]
mod document;
#[path = "budgets/files.rs"]
mod files;
#[path = "budgets/fleet.rs"]
mod fleet;
#[path = "budgets/hostile.rs"]
mod hostile;
#[path = "budgets/idle.rs"]
mod idle;
#[path = "budgets/ingest.rs"]
mod ingest;
#[path = "budgets/ip.rs"]
mod ip;
#[path = "budgets/kubeedge.rs"]
mod kubeedge;
#[path = "budgets/kubernetes.rs"]
mod kubernetes;
#[path = "budgets/leases.rs"]
mod leases;
#[path = "budgets/memory.rs"]
mod memory;
#[path = "budgets/objects.rs"]
mod objects;
#[path = "budgets/outbox.rs"]
mod outbox;
#[path = "budgets/page.rs"]
mod page;
#[path = "budgets/patches.rs"]
mod patches;
#[path = "budgets/peers.rs"]
mod peers;
#[path = "budgets/processes.rs"]
mod processes;
#[path = "budgets/rates.rs"]
mod rates;
#[path = "budgets/replicas.rs"]
mod replicas;
#[path = "budgets/rollout.rs"]
mod rollout;
#[path = "budgets/rules.rs"]
mod rules;
#[path = "budgets/slow.rs"]
mod slow;
#[path = "budgets/table.rs"]
mod table;
#[path = "budgets/tls.rs"]
mod tls;
#[path = "budgets/yardstick.rs"]
mod yardstick;

use std::process::ExitCode;
use std::thread;

use table::Table;

/// Name, title, and the function that fills it.
type Section = (&'static str, &'static str, fn(&mut Table) -> anyhow::Result<()>);

/// Sections that count bytes on a slow or idle link for minutes, with next to no load on the
/// processor.
const WAITING: [&str; 3] = ["idle", "ip", "slow"];

/// Title of the section that measures the machine without edgesync.
const YARDSTICK: &str = "The machine, without edgesync";

const SECTIONS: &[Section] = &[
    ("size", "Programs", processes::binary_size),
    ("ingest", "From frames to committed rows, inside the agent", ingest::durable),
    ("bulk", "10,000 objects of 1 KB to an empty node, through mosquitto", rates::bulk_through_mosquitto),
    ("patches", "Updates as patches", patches::figures),
    ("updates", "Single updates, one after another", rates::single_updates),
    ("reconnect", "Reconnect", processes::reconnect),
    ("latency", "From a change to the row on the device", rates::latency),
    ("peers", "Beside the fastest peer", peers::figures),
    ("files", "From objects to files", files::figures),
    ("start", "Start", processes::start),
    ("idle", "Idle traffic of a node", idle::traffic),
    ("ip", "IP bytes of a node", ip::figures),
    ("tls", "A joined node, over TLS", tls::figures),
    ("memory", "Memory of a joined node", memory::figures),
    ("slow", "A slow link", slow::figures),
    ("outbox", "A day offline", outbox::day_offline),
    ("fleet", "10,000 nodes", fleet::reconnect_storm),
    ("fleet-shared", "10,000 nodes with the same objects", fleet::shared_objects),
    ("fleet-tls", "10,000 nodes with the same objects, over TLS", fleet::shared_objects_over_tls),
    ("fleet-many", "10, 30 and 100 thousand nodes", fleet::many_nodes),
    ("fleet-own", "10,000 nodes with objects of their own", fleet::own_objects),
    ("away", "10,000 nodes that are away as planned", away::figures),
    ("rollout", "A roll-out in progress on 10,000 nodes", rollout::figures),
    ("hostile", "One hostile node beside 200 good ones", hostile::figures),
    ("api", "The API of the cloud side", api::figures),
    ("big-cloud", "A cloud side with 1,000,000 objects", big_cloud::figures),
    ("leases", "Leases in the store of the cloud side", leases::figures),
    ("page", "50 pages in browsers beside 10,000 nodes", page::figures),
    ("kubeedge", "As an edge node of a stock KubeEdge", kubeedge::figures),
    ("kubernetes", "Replicas over a Kubernetes cluster", kubernetes::figures),
    ("replicas", "2, 4 and 8 replicas with 10,000 nodes over a Kubernetes cluster", replicas::figures),
];

fn main() -> anyhow::Result<ExitCode> {
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).filter(|arg| arg != "--bench").partition(|arg| arg.starts_with('-'));
    let document = options.iter().any(|option| option == "--document");
    anyhow::ensure!(options.len() == usize::from(document), "the only option is --document, not {options:?}");
    let mut table = Table::default();
    eprintln!("… yardstick");
    table.section(YARDSTICK);
    table.bare_mosquitto = yardstick::measure(&mut table)?;
    let is_wanted =
        |(name, ..): &&Section| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    let (waiting, measuring): (Vec<&Section>, Vec<&Section>) =
        SECTIONS.iter().filter(is_wanted).partition(|(name, ..)| WAITING.contains(name));
    let bare_mosquitto = table.bare_mosquitto;
    for section in measuring {
        table.append(run(section, bare_mosquitto));
    }
    thread::scope(|scope| {
        let running: Vec<_> =
            waiting.into_iter().map(|section| scope.spawn(move || run(section, bare_mosquitto))).collect();
        for section in running {
            table.append(section.join().map_err(|_| anyhow::anyhow!("a section panicked"))?);
        }
        anyhow::Ok(())
    })?;
    table.print();
    if document {
        document::write(&table, SECTIONS.iter().map(|(_, title, _)| *title))?;
    }
    let missed = table.missed();
    if missed > 0 {
        println!("\n{missed} budgets were missed");
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

/// Runs one section, into a separate table.
fn run((name, title, fill): &Section, bare_mosquitto: f64) -> Table {
    eprintln!("… {name}");
    let mut table = Table::default();
    table.bare_mosquitto = bare_mosquitto;
    table.section(title);
    if let Err(error) = fill(&mut table) {
        table.budget("the section failed", format!("{error:#}"), "", false);
    }
    table
}
