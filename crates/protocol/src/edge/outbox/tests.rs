use serde_json::value::RawValue;

use super::super::{EdgeConfig, EdgeCounters};
use super::*;
use crate::apply::Totals;
use crate::digest::Epoch;
use crate::frame::{Confirm, Received, Welcome};
use crate::renewal::Lease;
use crate::upload::Lanes;

const TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(60);
const LIMIT: usize = 16 * 1024;

fn config() -> EdgeConfig {
    EdgeConfig {
        hello_timeout: TIMEOUT,
        report_timeout: TIMEOUT,
        lease_interval: INTERVAL,
        lease_duration: Duration::from_secs(240),
        patches: false,
        ..EdgeConfig::of_tests("edge", LIMIT, 60_000)
    }
}

fn lanes(status: u64, events: u64, bulk: u64) -> Lanes {
    Lanes { status, events, bulk }
}

fn marks(last: Lanes, rows: Lanes) -> OutboxMarks {
    OutboxMarks { id: "box".into(), last, confirmed: Lanes::default(), rows }
}

fn item(seq: u64, content: &str) -> UploadItem {
    UploadItem { seq, content: RawValue::from_string(content.to_owned()).unwrap() }
}

fn items(range: std::ops::RangeInclusive<u64>) -> Vec<UploadItem> {
    range.map(|seq| item(seq, &format!("{{\"event\":{seq}}}"))).collect()
}

/// A machine with an opened outbox, and the number of its sessions.
struct Edge {
    machine: EdgeMachine,
    now: Now,
    sessions: u64,
    /// Whether the test reports the link's progress itself.
    slow: bool,
}

impl Edge {
    /// Opens the outbox with these numbers, then adds items.
    #[allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
    fn new(opened: Lanes, put: OutboxMarks) -> Self {
        let totals = Totals { epoch: Epoch(1), ..Totals::default() };
        let mut machine = EdgeMachine::new(config(), totals, 0, None);
        machine.outbox_changed(Now::ZERO, &marks(opened, opened));
        machine.outbox_changed(Now::ZERO, &put);
        Self { machine, now: Now::ZERO, sessions: 0, slow: false }
    }

    fn session(&self) -> String {
        format!("{:08x}", self.sessions)
    }

    fn welcome(mut self) -> Self {
        self.connect();
        self
    }

    fn connect(&mut self) {
        self.sessions += 1;
        self.machine.disconnected();
        self.machine.connected(self.now, LIMIT, self.sessions << 32);
        assert!(matches!(self.poll(), Some(Up::Hello(_))));
        let welcome = Welcome {
            session: self.session(),
            incarnation: None,
            confirmed: 0,
            pending: 0,
            held: 0,
            register: false,
            features: Vec::new(),
            waiting: Default::default(),
        };
        self.machine.received(self.now, Received::Welcome(welcome), 0);
    }

    fn confirm(&mut self, last: Lanes) {
        self.confirm_with(last, Vec::new());
    }

    fn confirm_with(&mut self, last: Lanes, refused: Vec<Refused>) {
        let confirm = UploadConfirm { session: self.session(), outbox: "box".into(), last, refused };
        self.machine.received(self.now, Received::UploadConfirm(confirm), 0);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.machine.tick(self.now, 0);
    }

    /// Returns the effects without notices of the Welcome.
    fn effects(&mut self) -> Vec<EdgeEffect> {
        let all = std::iter::from_fn(|| self.machine.poll_effect());
        let is_other = |effect: &EdgeEffect| {
            matches!(effect, EdgeEffect::RenewLease | EdgeEffect::Notice(EdgeNotice::Welcomed { .. }))
        };
        all.filter(|effect| !is_other(effect)).collect()
    }

    fn read(&mut self) -> Option<(Lane, u64)> {
        self.effects().into_iter().find_map(|effect| match effect {
            EdgeEffect::ReadOutbox { lane, after, .. } => Some((lane, after)),
            _ => None,
        })
    }

    /// Returns the next frame, acknowledged at once by the other end of the link unless it is slow.
    fn poll(&mut self) -> Option<Up> {
        let frame = self.machine.poll_frame(self.now)?;
        if !self.slow {
            self.machine.link_progress(self.now, 0, 0);
        }
        Some(frame)
    }

    /// Returns the lane of the next frame and its numbers.
    fn upload(&mut self) -> Option<(Lane, Vec<u64>)> {
        match self.poll()? {
            Up::Upload(upload) => Some((upload.lane, upload.items.iter().map(|item| item.seq).collect())),
            other => panic!("must be an upload: {other:?}"),
        }
    }

    /// Sends items of a lane as far as the link.
    fn send(&mut self, lane: Lane, after: u64, page: Vec<UploadItem>) {
        assert_eq!(self.read(), Some((lane, after)));
        self.machine.outbox_read(self.now, page);
        assert!(self.upload().is_some());
    }

    fn counters(&self) -> EdgeCounters {
        self.machine.counters()
    }
}

/// Returns a probed session with three items of lane status, added after the outbox was opened.
fn three() -> Edge {
    let mut edge = Edge::new(Lanes::default(), marks(lanes(3, 0, 0), lanes(3, 0, 0))).welcome();
    assert_eq!(edge.upload(), Some((Lane::Status, vec![])));
    edge.confirm(Lanes::default());
    edge
}

#[test]
fn an_empty_outbox_sends_nothing() {
    let mut edge = Edge::new(lanes(5, 5, 5), marks(lanes(5, 5, 5), Lanes::default())).welcome();
    assert!(edge.upload().is_none());
    assert!(edge.effects().is_empty());
    assert!(edge.machine.outbox_is_empty());
}

#[test]
fn a_session_begins_with_a_probe_and_the_top_lane() {
    let mut edge = Edge::new(Lanes::default(), marks(lanes(0, 2, 1), lanes(0, 2, 1))).welcome();
    assert_eq!(edge.read(), None, "nothing is read before the cloud has answered");
    assert_eq!(edge.upload(), Some((Lane::Events, vec![])));
    edge.confirm(Lanes::default());
    edge.send(Lane::Events, 0, items(1..=2));
    edge.machine.outbox_changed(edge.now, &marks(lanes(1, 2, 1), lanes(1, 2, 1)));
    assert_eq!((edge.read(), edge.upload()), (None, None), "one frame at a time");
    edge.confirm(lanes(0, 2, 0));
    edge.send(Lane::Status, 0, items(1..=1));
    edge.confirm(lanes(1, 2, 0));
    edge.send(Lane::Bulk, 0, items(1..=1));
    assert!(!edge.machine.outbox_is_empty());
    edge.confirm(lanes(1, 2, 1));
    assert!(edge.machine.outbox_is_empty());
    assert_eq!((edge.counters().uploads_sent, edge.counters().uploads_resent), (4, 0));
}

#[test]
fn confirmed_items_are_settled_once() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    edge.confirm(lanes(3, 0, 0));
    edge.confirm(lanes(3, 0, 0));
    edge.confirm(lanes(1, 0, 0));
    let settled = edge.effects().into_iter().map(|effect| match effect {
        EdgeEffect::SettleOutbox { lane, upto } => (lane, upto),
        other => panic!("{other:?}"),
    });
    assert_eq!(settled.collect::<Vec<_>>(), [(Lane::Status, 3)]);
}

#[test]
fn an_unconfirmed_frame_is_resent_with_backoff() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    edge.pass(TIMEOUT / 2);
    assert!(edge.upload().is_none());
    let mut waits = Vec::new();
    for _ in 0..5 {
        let start = edge.now;
        while edge.upload().is_none() {
            edge.pass(Duration::from_secs(1));
        }
        waits.push((edge.now - start).as_secs());
    }
    assert_eq!(waits, [5, 20, 30, 30, 30]);
    assert_eq!((edge.counters().uploads_sent, edge.counters().uploads_resent), (18, 15));
}

#[test]
fn a_frame_that_the_link_has_not_taken_is_not_repeated() {
    let mut edge = three();
    assert!(edge.read().is_some());
    edge.machine.outbox_read(edge.now, items(1..=3));
    for _ in 0..10 {
        edge.pass(TIMEOUT);
    }
    assert_eq!(edge.upload(), Some((Lane::Status, vec![1, 2, 3])));
    assert_eq!((edge.upload(), edge.counters().uploads_resent), (None, 0));
}

#[test]
fn a_frame_in_flight_is_not_resent_before_its_timeout() {
    let mut edge = three();
    edge.slow = true;
    edge.send(Lane::Status, 0, items(1..=3));
    // It waits for the network behind two others.
    for _ in 0..20 {
        edge.machine.link_progress(edge.now, 1, 3);
        edge.pass(TIMEOUT);
        assert_eq!(edge.upload(), None);
    }
    // It has left, and the frames are acknowledged one by one.
    for unacknowledged in [3, 2, 1, 0] {
        edge.machine.link_progress(edge.now, 0, unacknowledged);
        edge.pass(TIMEOUT * 9 / 10);
        assert_eq!(edge.upload(), None, "{unacknowledged}");
    }
    edge.pass(TIMEOUT / 10);
    assert_eq!(edge.upload(), Some((Lane::Status, vec![1, 2, 3])));
}

#[test]
fn link_progress_on_other_frames_delays_nothing() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    for passed in 1..=5 {
        assert_eq!(edge.upload(), None, "{passed}");
        edge.machine.renew(edge.now, 1, 2, 0);
        edge.slow = true;
        assert!(lease(&mut edge).is_some());
        for unacknowledged in [1, 0] {
            edge.machine.link_progress(edge.now, unacknowledged, unacknowledged);
        }
        edge.slow = false;
        edge.pass(TIMEOUT / 5);
    }
    assert_eq!(edge.upload(), Some((Lane::Status, vec![1, 2, 3])));
}

#[test]
fn a_frame_unacknowledged_by_the_link_is_resent() {
    let mut edge = three();
    edge.slow = true;
    edge.send(Lane::Status, 0, items(1..=3));
    edge.machine.link_progress(edge.now, 0, 1);
    edge.pass(TIMEOUT);
    assert_eq!(edge.upload(), Some((Lane::Status, vec![1, 2, 3])));
}

#[test]
fn a_hello_that_the_link_has_not_sent_is_not_said_again() {
    let mut edge = Edge::new(Lanes::default(), marks(Lanes::default(), Lanes::default()));
    edge.machine.connected(edge.now, LIMIT, 0);
    edge.slow = true;
    assert!(matches!(edge.poll(), Some(Up::Hello(_))));
    edge.machine.link_progress(edge.now, 1, 1);
    for _ in 0..10 {
        edge.pass(TIMEOUT * 2);
    }
    assert!(edge.poll().is_none());
    assert_eq!(edge.counters().hellos, 1);
    edge.machine.link_progress(edge.now, 0, 1);
    edge.pass(TIMEOUT);
    assert!(matches!(edge.poll(), Some(Up::Hello(_))));
}

#[test]
fn a_confirm_of_another_session_or_outbox_changes_nothing() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    let confirm = |session: &str, outbox: &str| {
        let (session, outbox) = (session.to_owned(), outbox.to_owned());
        let confirm = UploadConfirm { session, outbox, last: lanes(3, 9, 9), refused: Vec::new() };
        Received::UploadConfirm(confirm)
    };
    edge.machine.received(edge.now, confirm("other", "box"), 0);
    edge.machine.received(edge.now, confirm(&edge.session(), "other"), 0);
    let wild = UploadConfirm {
        session: edge.session(),
        outbox: "box".into(),
        last: lanes(u64::MAX, 0, 0),
        refused: Vec::new(),
    };
    edge.machine.received(edge.now, Received::UploadConfirm(wild), 0);
    assert!(edge.effects().is_empty());
    assert!(!edge.machine.outbox_is_empty());
}

#[test]
fn items_of_an_older_copy_that_were_never_sent_are_renumbered() {
    // Opened with numbers up to 5; 6 and 7 were added later. The cloud knows 10 of a lost life.
    let mut edge = Edge::new(lanes(5, 0, 0), marks(lanes(7, 0, 0), lanes(4, 0, 0))).welcome();
    assert!(edge.upload().is_some());
    edge.confirm(lanes(10, 0, 0));
    let effects = edge.effects();
    let [
        EdgeEffect::SettleOutbox { lane: Lane::Status, upto: 5 },
        EdgeEffect::RenumberOutbox { lane: Lane::Status, sent: 5, above },
    ] = effects[..]
    else {
        panic!("{effects:?}")
    };
    assert!(above > 10);
    // More items are added before it is done, even with numbers that the cloud knows.
    edge.machine.outbox_changed(edge.now, &marks(lanes(12, 0, 0), lanes(7, 0, 0)));
    edge.confirm(lanes(10, 0, 0));
    assert!(edge.effects().is_empty());
    edge.machine.outbox_changed(edge.now, &marks(lanes(above + 7, 0, 0), lanes(7, 0, 0)));
    edge.send(Lane::Status, above, items(above + 1..=above + 7));
    edge.connect();
    assert!(edge.upload().is_some());
    edge.confirm(lanes(above, 0, 0));
    assert_eq!(edge.read(), Some((Lane::Status, above)), "what is known is not found out again");
}

#[test]
fn a_renumbering_that_failed_is_tried_again() {
    let mut edge = Edge::new(lanes(5, 0, 0), marks(lanes(7, 0, 0), lanes(2, 0, 0))).welcome();
    assert!(edge.upload().is_some());
    edge.confirm(lanes(10, 0, 0));
    assert_eq!(edge.effects().len(), 2);
    edge.machine.outbox_failed(edge.now);
    assert!(edge.effects().is_empty());
    edge.pass(TIMEOUT);
    assert!(matches!(edge.effects()[..], [EdgeEffect::RenumberOutbox { sent: 5, .. }]));
}

/// A failure of one lane once repeated the renumbering of the others, which had not failed. The
/// second one gave new numbers to items that were sent already.
#[test]
fn lanes_are_renumbered_one_after_the_other() {
    let two = marks(lanes(7, 7, 0), lanes(2, 2, 0));
    let mut edge = Edge::new(lanes(5, 5, 0), two).welcome();
    assert!(edge.upload().is_some());
    edge.confirm(lanes(10, 10, 0));
    let effects = edge.effects();
    let renumbered = |effect: &EdgeEffect| match *effect {
        EdgeEffect::RenumberOutbox { lane, above, .. } => Some((lane, above)),
        _ => None,
    };
    let requested: Vec<_> = effects.iter().filter_map(renumbered).collect();
    let [(Lane::Status, above)] = requested[..] else { panic!("{effects:?}") };
    edge.machine.outbox_failed(edge.now);
    edge.pass(TIMEOUT);
    assert_eq!(edge.effects().iter().filter_map(renumbered).count(), 1);
    edge.machine.outbox_changed(edge.now, &marks(lanes(above + 2, 7, 0), lanes(2, 2, 0)));
    assert!(matches!(edge.effects()[..], [EdgeEffect::RenumberOutbox { lane: Lane::Events, .. }]));
}

#[test]
fn a_page_that_was_read_for_an_earlier_session_is_not_used() {
    let mut edge = three();
    assert_eq!(edge.read(), Some((Lane::Status, 0)));
    edge.connect();
    assert_eq!(edge.upload(), Some((Lane::Status, vec![])));
    edge.confirm(lanes(0, 0, 0));
    assert_eq!(edge.read(), None, "the store is still at the other one");
    edge.machine.outbox_read(edge.now, items(1..=3));
    assert_eq!(edge.upload(), None);
    edge.send(Lane::Status, 0, items(1..=3));
}

#[test]
fn another_outbox_resets_the_state() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    let other = OutboxMarks { id: "new".into(), ..marks(lanes(1, 0, 0), lanes(1, 0, 0)) };
    edge.machine.outbox_changed(edge.now, &other);
    assert_eq!(edge.upload(), Some((Lane::Status, vec![])), "the new one asks first");
    edge.confirm(lanes(3, 0, 0));
    assert!(edge.effects().is_empty(), "that was about the old one");
}

#[test]
fn a_failed_read_is_tried_again() {
    let mut edge = three();
    assert!(edge.read().is_some());
    edge.machine.outbox_failed(edge.now);
    assert_eq!(edge.read(), None);
    assert!(edge.machine.deadline().is_some_and(|at| at <= edge.now + TIMEOUT));
    edge.pass(TIMEOUT);
    assert_eq!(edge.read(), Some((Lane::Status, 0)));
}

#[test]
fn replaced_or_dropped_rows_are_read_once() {
    let mut edge = three();
    assert!(edge.read().is_some());
    edge.machine.outbox_read(edge.now, Vec::new());
    assert_eq!(edge.read(), None);
    edge.machine.outbox_changed(edge.now, &marks(lanes(4, 0, 0), lanes(1, 0, 0)));
    assert_eq!(edge.read(), Some((Lane::Status, 0)));
}

#[test]
fn items_share_a_frame_within_the_window() {
    let mut edge = Edge::new(Lanes::default(), marks(lanes(0, 1000, 0), lanes(0, 1000, 0))).welcome();
    assert!(edge.upload().is_some());
    edge.confirm(Lanes::default());
    let mut last = 0;
    // The seconds until the confirm, and the number of items sent next.
    for (seconds, count) in
        [(1, 7), (1, 11), (3, 11), (5, 11), (5, 11), (5, 7), (5, 3), (3, 3), (1, 3), (1, 7)]
    {
        let page = (last + 1..=last + 100).map(|seq| item(seq, &format!("\"{:1000}\"", 0))).collect();
        assert_eq!(edge.read(), Some((Lane::Events, last)));
        edge.machine.outbox_read(edge.now, page);
        let frame = edge.poll().unwrap();
        let bytes = frame.encode(usize::MAX).unwrap().len();
        assert!(bytes < LIMIT, "{bytes}");
        let Up::Upload(upload) = frame else { panic!("must be an upload") };
        assert_eq!(upload.items.len(), count, "after {last}");
        last += count as u64;
        edge.now += Duration::from_secs(seconds);
        edge.confirm(lanes(0, last, 0));
    }
}

#[test]
fn an_item_too_large_for_a_frame_blocks_no_others() {
    let mut edge = three();
    let most = LIMIT - FRAME_OVERHEAD - "box".len() - ITEM_OVERHEAD;
    let of_size = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
    let long = of_size(most + 1);
    assert!(edge.read().is_some());
    edge.machine.outbox_read(edge.now, vec![item(1, &long), item(2, "2")]);
    let effects = edge.effects();
    let [
        EdgeEffect::Notice(EdgeNotice::UploadRefused { content, .. }),
        EdgeEffect::SettleOutbox { upto: 1, .. },
        EdgeEffect::ReadOutbox { after: 1, .. },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(*content, long);
    edge.machine.outbox_read(edge.now, vec![item(2, &of_size(most)), item(3, "3")]);
    let frame = edge.poll().unwrap();
    assert!(frame.encode(usize::MAX).unwrap().len() <= LIMIT);
    assert_eq!(edge.counters().uploads_refused, 1);
}

#[test]
fn cloud_refusals_are_reported_with_their_content() {
    let mut edge = three();
    edge.send(Lane::Status, 0, items(1..=3));
    let refused = |seq| Refused { seq, reason: RefusedReason::Gone, message: "gone".into() };
    edge.confirm_with(lanes(3, 0, 0), vec![refused(2), refused(9)]);
    let told: Vec<String> = edge
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            EdgeEffect::Notice(EdgeNotice::UploadRefused { content, .. }) => Some(content),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["{\"event\":2}"]);
}

#[test]
fn a_higher_lane_overtakes_an_unconfirmed_frame() {
    let mut edge = Edge::new(Lanes::default(), marks(lanes(0, 0, 1), lanes(0, 0, 1))).welcome();
    assert!(edge.upload().is_some());
    edge.confirm(Lanes::default());
    edge.send(Lane::Bulk, 0, items(1..=1));
    edge.machine.outbox_changed(edge.now, &marks(lanes(1, 0, 1), lanes(1, 0, 1)));
    assert_eq!(edge.read(), None);
    edge.pass(TIMEOUT);
    edge.send(Lane::Status, 0, items(1..=1));
    edge.confirm(lanes(1, 0, 0));
    edge.send(Lane::Bulk, 0, items(1..=1));
    assert_eq!(edge.counters().uploads_resent, 1);
}

#[test]
fn bulk_waits_in_frugal_mode() {
    let mut edge = Edge::new(Lanes::default(), marks(lanes(0, 0, 1), lanes(0, 0, 1)));
    edge.machine.set_frugal(edge.now, true);
    edge.connect();
    assert_eq!(edge.upload(), None);
    edge.machine.outbox_changed(edge.now, &marks(lanes(0, 1, 1), lanes(0, 1, 1)));
    assert_eq!(edge.upload(), Some((Lane::Events, vec![])));
    edge.confirm(Lanes::default());
    edge.send(Lane::Events, 0, items(1..=1));
    edge.confirm(lanes(0, 1, 0));
    assert_eq!(edge.read(), None);
    edge.machine.set_frugal(edge.now, false);
    assert_eq!(edge.read(), Some((Lane::Bulk, 0)));
}

/// Returns the time until the next renewal of the Lease.
fn until_renewal(edge: &mut Edge, random: u64) -> Duration {
    edge.machine.renew(edge.now, 1, 2, random);
    edge.machine.deadline().unwrap() - edge.now
}

fn lease(edge: &mut Edge) -> Option<Lease> {
    match edge.poll()? {
        Up::Lease(lease) => Some(lease),
        other => panic!("must be a lease: {other:?}"),
    }
}

#[test]
fn the_lease_is_renewed_at_once_and_then_with_jitter() {
    let mut edge = Edge::new(Lanes::default(), marks(Lanes::default(), Lanes::default())).welcome();
    assert!(std::iter::from_fn(|| edge.machine.poll_effect()).any(|it| matches!(it, EdgeEffect::RenewLease)));
    for random in [0, 1, u64::MAX, 0x5eed_5eed_5eed] {
        let wait = until_renewal(&mut edge, random);
        assert!(wait <= INTERVAL && wait >= INTERVAL * 9 / 10, "{wait:?}");
    }
    edge.machine.renew(edge.now, 1, 3, 0);
    let newest = Lease { session: edge.session(), seconds: 240, acquired: 1, renewed: 3, check_in: None };
    assert_eq!((lease(&mut edge), lease(&mut edge)), (Some(newest), None));
    assert!(edge.machine.poll_effect().is_none());
    edge.pass(INTERVAL);
    assert!(matches!(edge.machine.poll_effect(), Some(EdgeEffect::RenewLease)));
    assert!(edge.machine.poll_effect().is_none());
    assert_eq!(edge.counters().leases, 1);
}

#[test]
fn a_frugal_lease_is_renewed_less_often_and_valid_longer() {
    let mut edge = Edge::new(Lanes::default(), marks(Lanes::default(), Lanes::default())).welcome();
    edge.machine.set_frugal(edge.now, true);
    assert_eq!(until_renewal(&mut edge, 0), INTERVAL * 6);
    assert_eq!(lease(&mut edge).map(|lease| lease.seconds), Some(1440));
    edge.machine.set_frugal(edge.now, false);
    assert_eq!(edge.machine.deadline(), Some(edge.now + INTERVAL));
}

#[test]
fn a_lease_does_not_outlive_its_connection() {
    let mut edge = Edge::new(Lanes::default(), marks(Lanes::default(), Lanes::default())).welcome();
    edge.machine.renew(edge.now, 1, 2, 0);
    edge.machine.disconnected();
    edge.machine.renew(edge.now, 1, 3, 0);
    assert!(!edge.machine.has_frame());
    assert_eq!(edge.machine.deadline(), None);
    assert!(
        !std::iter::from_fn(|| edge.machine.poll_effect()).any(|it| matches!(it, EdgeEffect::RenewLease))
    );
}

#[test]
fn a_report_goes_before_a_lease_and_a_lease_before_the_outbox() {
    let mut edge = three();
    assert!(edge.read().is_some());
    edge.machine.outbox_read(edge.now, items(1..=3));
    edge.machine.renew(edge.now, 1, 2, 0);
    // A foreign frame makes the node ask for the state.
    let confirm = Confirm { session: "other".into(), revision: 0, pending: 0, held: 0, ..Confirm::default() };
    edge.machine.received(edge.now, Received::Confirm(confirm), 0);
    edge.pass(TIMEOUT);
    let names: Vec<_> = std::iter::from_fn(|| edge.poll()).map(|frame| frame.name()).collect();
    assert_eq!(names, ["Report", "Lease", "Upload"]);
}
