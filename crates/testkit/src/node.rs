//! A simulated node: the real state machine and real MQTT over TCP, with rows in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use edgesync_object::{Budget, ObjectKey, ResourceVersion};
use edgesync_protocol::apply::{self, Applied, Held, Rows, Totals};
use edgesync_protocol::change::{Change, Put, Rejected, Uid};
use edgesync_protocol::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine};
use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Received};
use edgesync_protocol::parts;
use edgesync_protocol::renewal::{CheckIn, CheckInReason};
use edgesync_transport::link::LinkOptions;
use edgesync_transport::link::retry::{Retry, RetryOptions};
use tokio::sync::watch;
use tokio::time::timeout;

use super::line::{Endpoint, Line};

/// State of a simulated node; outlives its connections.
#[derive(Default)]
pub struct Memory {
    /// Objects held by all nodes, unless overridden in `rows`.
    pub shared: Arc<HashMap<Uid, (ResourceVersion, ObjectKey)>>,
    pub rows: HashMap<Uid, (ResourceVersion, ObjectKey)>,
    /// Number of objects that the node must hold.
    pub wanted: u64,
    pub totals: Totals,
    pub confirmed: u64,
    pub incarnation: Option<String>,
    /// The kept bytes of a message in parts.
    pub parts: String,
    /// Time that the node announces to be away when its session is stopped, in seconds.
    pub absence: Option<u32>,
    /// Interval of its Lease [default: 10 s]. Its duration is four of them.
    pub lease: Option<Duration>,
}

impl Rows for Memory {
    type Row = Uid;
    type Error = std::convert::Infallible;

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<Uid>>, Self::Error> {
        let row = self.rows.get_key_value(uid).or_else(|| self.shared.get_key_value(uid));
        Ok(row.map(|(uid, (version, key))| Held {
            row: uid.clone(),
            uid: uid.clone(),
            version: version.clone(),
            key: key.clone(),
        }))
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<Uid>>, Self::Error> {
        let row = self.rows.iter().find(|(_, (_, held))| held == key);
        let row = row.or_else(|| self.shared.iter().find(|(_, (_, held))| held == key));
        let uid = row.map(|(uid, _)| uid.clone());
        uid.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn put(&mut self, _: u64, put: &Put, _: Option<Uid>) -> Result<(), Self::Error> {
        self.rows.insert(put.uid.clone(), (put.version.clone(), put.key()));
        Ok(())
    }

    fn remove(&mut self, _: u64, held: Held<Uid>) -> Result<(), Self::Error> {
        self.rows.remove(&held.uid);
        Ok(())
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // If the sender was dropped, the session ends too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits until a deadline of the machine; for ever without one.
async fn until(origin: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until((origin + deadline).into()).await,
        None => std::future::pending().await,
    }
}

/// Connects, with retries until the cloud side accepts, as agents do.
async fn connect_with_retries(node: &str, endpoint: &Endpoint) -> Line {
    let within = LinkOptions::new("", 0, node).connect_timeout;
    let mut retry = Retry::new(RetryOptions::default());
    loop {
        if let Ok(Ok(line)) = timeout(within, Line::open(endpoint, node)).await {
            return line;
        }
        let random = uuid::Uuid::new_v4().as_u64_pair().0 as f64 / u64::MAX as f64;
        tokio::time::sleep(retry.failed(Instant::now(), random)).await;
    }
}

/// Applies changes to the rows of a node, which has already rejected others.
fn commit(memory: &mut Memory, changes: &[Change], rejected: Vec<Rejected>) -> anyhow::Result<Commit> {
    let (mut totals, mut applied) = (memory.totals, Applied { rejected, ..Applied::default() });
    for change in changes {
        apply::apply(memory, &mut totals, change, &mut applied)?;
    }
    let before = std::mem::replace(&mut memory.totals, totals).revision;
    Ok(Commit { before, totals, applied })
}

/// Runs one session of a node until it is stopped.
pub async fn session(
    node: &str,
    endpoint: &Endpoint,
    memory: &mut Memory,
    in_sync: &AtomicUsize,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut line = tokio::select! {
        line = connect_with_retries(node, endpoint) => line,
        () = stopped(&mut stop) => return Ok(()),
    };
    let origin = Instant::now();
    let random = || uuid::Uuid::new_v4().as_u64_pair().0;
    let lease_interval = memory.lease.unwrap_or(Duration::from_secs(10));
    let config = EdgeConfig {
        node: node.into(),
        agent: "bench".into(),
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        hello_timeout: Duration::from_secs(60),
        report_timeout: Duration::from_secs(60),
        retry_max: Duration::from_secs(60),
        report_attempts: 5,
        max_applying: 8,
        lease_interval,
        lease_duration: lease_interval * 4,
        patches: false,
    };
    let mut machine = EdgeMachine::new(config, memory.totals, memory.confirmed, memory.incarnation.clone());
    machine.connected(Duration::ZERO, usize::MAX, random());
    let acquired = jiff::Timestamp::now().as_microsecond();
    let up = format!("edgesync/v1/nodes/{node}/up");
    let mut counted = false;
    let mut is_leaving = false;
    loop {
        loop {
            if let Some(effect) = machine.poll_effect() {
                match effect {
                    EdgeEffect::Apply { token, changes } => {
                        let commit = commit(memory, &changes, Vec::new())?;
                        machine.applied(origin.elapsed(), token, Ok(commit), random());
                    }
                    EdgeEffect::KeepPart { message, text } => {
                        if message.received == 0 {
                            memory.parts.clear();
                        }
                        memory.parts.push_str(&text);
                        machine.part_kept(&message, Ok(true));
                    }
                    EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                        let text = std::mem::take(&mut memory.parts) + &rest;
                        let epoch = memory.totals.epoch;
                        let (changes, rejected) =
                            match parts::assemble(&text, message.digest, epoch, max_object) {
                                None => {
                                    machine.parts_lost(origin.elapsed(), token, random());
                                    continue;
                                }
                                Some(Ok(change)) => (vec![change], Vec::new()),
                                Some(Err(rejected)) => (Vec::new(), vec![rejected]),
                            };
                        let commit = commit(memory, &changes, rejected)?;
                        machine.applied(origin.elapsed(), token, Ok(commit), random());
                    }
                    EdgeEffect::DropParts => memory.parts.clear(),
                    EdgeEffect::Confirm(revision) => memory.confirmed = revision,
                    EdgeEffect::SetIncarnation(incarnation) => memory.incarnation = Some(incarnation),
                    EdgeEffect::RenewLease => {
                        let renewed = jiff::Timestamp::now().as_microsecond();
                        machine.renew(origin.elapsed(), acquired, renewed, random());
                    }
                    _ => {}
                }
            } else if let Some(frame) = machine.poll_frame(origin.elapsed()) {
                machine.link_progress(origin.elapsed(), 0, 0);
                line.publish(&up, &frame.encode(1024)?).await?;
            } else {
                break;
            }
        }
        if !counted && machine.in_sync() && memory.totals.count == memory.wanted {
            counted = true;
            in_sync.fetch_add(1, Ordering::Relaxed);
        }
        if is_leaving {
            return Ok(line.disconnect().await?);
        }
        let ping_due = line.ping_due();
        let message = tokio::select! {
            message = line.message() => message?,
            () = stopped(&mut stop) => {
                let Some(within) = memory.absence else { return Ok(()) };
                let check_in = CheckIn { within, reason: CheckInReason::Interval };
                is_leaving = machine.announce_absence(origin.elapsed(), check_in, random());
                anyhow::ensure!(is_leaving, "stopped before its Welcome");
                continue;
            }
            () = tokio::time::sleep_until(ping_due) => {
                line.ping().await?;
                continue;
            }
            () = until(origin, machine.deadline()) => {
                machine.tick(origin.elapsed(), random());
                continue;
            }
        };
        if let Some(payload) = message {
            let frame = Received::decode(&payload, &mut Budget::of(1 << 20), 1 << 23)?;
            machine.received(origin.elapsed(), frame, random());
        }
    }
}
