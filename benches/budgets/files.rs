//! Objects applied to files: the time from a change in the cloud to the file, many files at once
//! beside a loop that only writes them durably, and the cost of rules for an idle agent.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use edgesync_admin::Route;
use edgesync_admin::agent::FilesList;

use crate::objects::object;
use crate::processes::{Process, Site, edge_program, irreclaimable, median, until, until_polled, written};
use crate::table::Table;

/// Changes that are timed.
const CHANGES: usize = 300;
/// Number of ConfigMaps of one rule; each becomes one file.
const OBJECTS: usize = 1000;
/// Interval at which a file is checked.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Time after which an agent has released the memory of a burst.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// The key that becomes a file, of about 650 bytes.
const KEY: &str = "station.properties";

/// ConfigMaps among each ten objects of the benchmark.
const EACH_TEN: usize = 6;

/// Returns the object number of the `n`th ConfigMap.
fn number(n: usize) -> usize {
    n / EACH_TEN * 10 + n % EACH_TEN
}

fn helper(site: &Site) -> anyhow::Result<Process> {
    let mut command = Command::new(edge_program());
    command.arg("files-helper").arg("--config").arg(site.path("edge.toml"));
    command.arg("--socket").arg(site.path("files.sock")).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(site.path("helper.log"))?);
    let helper = Process::start(command)?;
    until("the helper listens", || std::os::unix::net::UnixStream::connect(site.path("files.sock")).ok())?;
    Ok(helper)
}

/// Returns how many objects of the rule are in effect.
fn in_effect(site: &Site) -> Option<u64> {
    let list: FilesList = site.ask_edge(Route::Files).ok()?;
    Some(list.rules.first()?.in_effect)
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let site = Site::new()?;
    let to = site.path("into");
    let mut config = fs::read_to_string(site.path("edge.toml"))?;
    config += &format!(
        "[helper]\nsocket = \"{}\"\nstate = \"{}\"\n",
        site.path("files.sock").display(),
        site.path("files.state").display()
    );
    fs::write(site.path("edge.toml"), &config)?;
    let all = OBJECTS.div_ceil(EACH_TEN) * 10;
    site.create(0..all)?;
    let agent = site.agent()?;
    site.wait_in_sync(all)?;
    // Memory that changes and queries use without rules must not count for the rules.
    for n in 0..CHANGES {
        change(&site, n, n)?;
    }
    std::thread::park_timeout(SETTLE_TIME);
    let idle = irreclaimable(&agent);

    config += &format!(
        "[[files]]\nname = \"settings\"\nobjects = {{ kinds = [\"configmaps\"] }}\nto = \"{}/{{metadata.name}}\"\n\
         keys = {{ \"{KEY}\" = \"{KEY}\" }}\nsettle = \"0s\"\n",
        to.display()
    );
    fs::write(site.path("edge.toml"), &config)?;
    let helper = helper(&site)?;
    let count = (all / 10 * EACH_TEN) as u64;
    let start = Instant::now();
    agent.signal("HUP")?;
    until("all objects are in effect", || (in_effect(&site)? == count).then_some(()))?;
    let took = start.elapsed().as_secs_f64();
    let each = written(&helper) as f64 / count as f64 / 1e3;
    let loop_took = plain_loop(&site.path("plain"), count as usize)?;
    let what = format!("{count} new files of 650 bytes, of as many objects");
    let met = took <= 1.3 * loop_took;
    let measured = format!("{took:.2} s, {each:.1} KB written per file");
    table.budget(&what, measured, "≤ 1.3 × the loop below", met);
    table.figure("  a loop of write, sync and rename, one after the other", format!("{loop_took:.2} s"));

    let mut times = (Vec::new(), Vec::new());
    for n in 0..CHANGES {
        let Changed { name, content, start, stored } = change(&site, n, CHANGES + n)?;
        let file = to.join(name).join(KEY);
        let replaced = || (fs::read_to_string(&file).ok()? == content).then_some(());
        until_polled(CHECK_INTERVAL, "the file is replaced", replaced)?;
        times.0.push(stored * 1e3);
        times.1.push((start.elapsed().as_secs_f64() - stored) * 1e3);
        until("the condition is reported", || (in_effect(&site)? == count).then_some(()))?;
    }
    let row = median(times.0);
    times.1.sort_by(f64::total_cmp);
    let (p50, p95) = (times.1[CHANGES / 2], times.1[CHANGES * 95 / 100]);
    table.figure("change (HTTP request sent) to row on the edge, p50", format!("{row:.1} ms"));
    let what = "from the row to the file, p50 / p95";
    table.budget(what, format!("{p50:.1} / {p95:.1} ms"), "p50 ≤ 2.5 ms", p50 <= 2.5);

    std::thread::park_timeout(SETTLE_TIME);
    let more = (irreclaimable(&agent) as f64 - idle as f64) / 1e3;
    let what = format!("memory not reclaimable, idle, {count} objects in effect, added by file rules");
    table.budget(&what, format!("{more:.2} MB"), "≤ 0.5 MB", more <= 0.5);
    Ok(())
}

struct Changed {
    name: String,
    content: String,
    start: Instant,
    /// Seconds until the device held the row.
    stored: f64,
}

/// Changes an object and waits until the device holds the row.
fn change(site: &Site, n: usize, change: usize) -> anyhow::Result<Changed> {
    let number = number(n % 100);
    let metadata = object(number, 0)["metadata"].take();
    let [name, namespace] = ["name", "namespace"].map(|field| metadata[field].as_str().unwrap_or_default());
    let row = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let start = Instant::now();
    let content = site.replace(number, 2 + change as u64)?["data"][KEY].clone();
    while site.edge_get(&row)?["data"][KEY] != content {}
    let stored = start.elapsed().as_secs_f64();
    let content = content.as_str().unwrap_or_default().to_owned();
    Ok(Changed { name: name.to_owned(), content, start, stored })
}

/// Returns the seconds in which a plain loop writes as many files durably.
fn plain_loop(directory: &Path, count: usize) -> anyhow::Result<f64> {
    fs::create_dir(directory)?;
    let text = "x".repeat(650);
    let start = Instant::now();
    for n in 0..count {
        let (new, name) = (directory.join("new"), directory.join(n.to_string()));
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, name)?;
    }
    File::open(directory)?.sync_all()?;
    Ok(start.elapsed().as_secs_f64())
}
