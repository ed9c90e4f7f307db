//! The metered link: its class, its hard budgets, and what waits for it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::agent::driver::Driver;
use crate::agent::events::{EventReason, Regarding};
use crate::agent::link_class::{LinkClass, ask_network_manager, classify, interface_to};
use crate::agent::node_report;
use crate::agent::traffic::{HardBudgets, Limits, Reservation};
use crate::store::{EdgeStore, OutboxWrite};
use edgesync_admin::agent::{MeteredStatus, WaitingForLink};
use edgesync_config::edge::{Config, Traffic};
use edgesync_config::{LinkType, Metered};
use edgesync_object::time::rfc3339;
use edgesync_protocol::edge::EdgePhase;
use edgesync_protocol::metered::{MeteredLink, Waiting};
use edgesync_protocol::node::Condition;
use edgesync_protocol::timing::Now;
use edgesync_runtime::random;
use edgesync_store::StoreError;
use edgesync_transport::link;

/// Metadata key of the budgets' use.
const METADATA_KEY: &str = "metered";
/// Intervals at which the route and NetworkManager are asked.
const ROUTE_INTERVAL: Duration = Duration::from_secs(5);
const MANAGER_INTERVAL: Duration = Duration::from_secs(60);
/// Time without a stored reservation after which the next attempt follows.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a frame with objects after which none is expected, although a credit is left.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// A reservation that is being stored.
type Reserving = JoinHandle<(Reservation, Result<(), StoreError>)>;

/// State of the metered link.
pub(in crate::agent) struct MeteredState {
    config: Traffic,
    /// Whether the link keeps to limits: a CloudCore does not.
    is_supported: bool,
    /// Host of the cloud side.
    host: String,
    /// The interface of the last route.
    interface: Option<String>,
    class: LinkClass,
    manager: Option<bool>,
    budgets: HardBudgets,
    /// Bytes of frames in the queue of the link, and its counter of sent bytes.
    queued: u64,
    sent: u64,
    /// Whether a frame of the node found no room in a budget, which counts as spent since.
    is_exhausted: bool,
    /// When a connection began, or the last frame with objects arrived.
    fed_at: Instant,
    pub(in crate::agent::driver) reserving: Option<Reserving>,
    /// The answer of NetworkManager that is being waited for.
    asking: Option<oneshot::Receiver<Option<bool>>>,
    next_reservation: Instant,
    next_route: Instant,
    next_manager: Instant,
    /// Whether class or limits have changed since the last question.
    has_changed: bool,
    was_spent: bool,
    /// Whether an Event has reported that objects wait.
    was_waiting: bool,
}

impl MeteredState {
    /// Restores the use of the budgets, and determines the class.
    ///
    /// # Errors
    /// Fails if there are limits and the store cannot be read: the budgets would begin as full
    /// ones.
    pub(super) async fn restore(store: &EdgeStore, config: &Config) -> Result<Self, StoreError> {
        let stored = store.note(METADATA_KEY).await;
        let text = stored.as_ref().ok().and_then(Option::as_deref);
        let mut state = Self::new(config, text);
        if state.is_used() {
            stored?;
        }
        if state.asks_manager() {
            state.manager = tokio::task::spawn_blocking(ask_network_manager).await.unwrap_or_default();
        }
        state.classify();
        state.was_spent = state.is_spent(false);
        state.has_changed = false;
        Ok(state)
    }

    fn new(config: &Config, stored: Option<&str>) -> Self {
        let now = Instant::now();
        Self {
            config: config.traffic.clone(),
            is_supported: config.link_type == LinkType::Mqtt,
            host: config.peer().host.to_owned(),
            interface: None,
            class: LinkClass::default(),
            manager: None,
            budgets: HardBudgets::new(limits(&config.traffic), stored, Timestamp::now()),
            queued: 0,
            sent: 0,
            is_exhausted: false,
            fed_at: now,
            reserving: None,
            asking: None,
            next_reservation: now,
            next_route: now + ROUTE_INTERVAL,
            next_manager: now + MANAGER_INTERVAL,
            has_changed: false,
            was_spent: false,
            was_waiting: false,
        }
    }

    /// Returns whether anything is limited on metered links.
    pub(in crate::agent::driver) fn is_used(&self) -> bool {
        self.is_supported && self.config.has_metered_limits()
    }

    fn is_metered(&self) -> bool {
        self.is_used() && self.class.is_metered
    }

    fn asks_manager(&self) -> bool {
        self.is_used() && self.config.metered == Metered::Auto
    }

    /// Returns whether class or limits have changed since the last call.
    pub(in crate::agent::driver) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Returns whether a hard budget is spent.
    pub(in crate::agent) fn is_spent(&self, is_connected: bool) -> bool {
        self.is_metered() && (self.is_exhausted || self.budgets.is_spent(is_connected))
    }

    /// Returns whether the outbox has to wait for a budget.
    pub(in crate::agent::driver) fn holds_outbox(&self) -> bool {
        self.is_metered() && self.budgets.holds_outbox()
    }

    /// Returns whether a frame of the node may enter the queue of the link. If not, the budget
    /// counts as spent until it renews.
    pub(in crate::agent::driver) fn admits(&mut self, bytes: usize) -> bool {
        let queued = self.queued.saturating_add(bytes as u64);
        let is_admitted = !self.is_metered() || !self.is_exhausted && self.budgets.has_room(queued);
        if is_admitted {
            self.queued = queued;
        }
        self.is_exhausted |= !is_admitted;
        is_admitted
    }

    /// Returns whether not one byte is left in a budget.
    pub(in crate::agent::driver) fn has_nothing_left(&self) -> bool {
        self.is_metered() && self.budgets.has_nothing_left()
    }

    /// Begins a connection.
    pub(in crate::agent::driver) fn connected(&mut self) {
        (self.queued, self.fed_at) = (0, Instant::now());
    }

    /// Records a frame with objects.
    pub(in crate::agent::driver) fn fed(&mut self) {
        self.fed_at = Instant::now();
    }

    /// Returns whether objects that wait for a credit are expected on this connection.
    pub(in crate::agent::driver) fn is_fed(&self, waiting: &Waiting, now: Instant) -> bool {
        waiting.credit > 0
            && self.is_metered()
            && self.budgets.can_grant_frame()
            && now.saturating_duration_since(self.fed_at) < TRANSFER_TIMEOUT
    }

    /// Returns the shortest interval of the Lease; `None` if the link is not metered.
    pub(in crate::agent::driver) fn lease_interval(&self) -> Option<Duration> {
        self.is_metered().then_some(self.config.metered_lease_interval)
    }

    fn reload(&mut self, config: &Config) {
        self.config.clone_from(&config.traffic);
        self.budgets.set_limits(limits(&config.traffic));
        (self.has_changed, self.is_exhausted) = (true, false);
        self.next_manager = Instant::now();
        self.classify();
    }

    /// Determines the class. Reads at most two files.
    pub(in crate::agent::driver) fn classify(&mut self) {
        let interface = self.asks_manager().then(|| interface_to(&self.host)).flatten();
        self.set_interface(interface);
    }

    /// Determines the class with the interface of the current route. Without a route the last one
    /// counts.
    fn set_interface(&mut self, interface: Option<String>) {
        if interface.is_some() && interface != self.interface {
            if self.interface.is_some() && self.manager.is_some() {
                // The answer of NetworkManager is about another route.
                self.manager = Some(true);
                self.asking = None;
                self.next_manager = Instant::now();
            }
            self.interface = interface;
        }
        let patterns = &self.config.metered_interfaces;
        let class = classify(self.config.metered, self.interface.as_deref(), patterns, self.manager);
        if class != self.class {
            if self.is_used() {
                tracing::info!(metered = class.is_metered, because = class.because, "class of the link");
            }
            self.has_changed |= class.is_metered != self.class.is_metered;
            self.class = class;
        }
    }

    /// Runs the checks of the class that are due.
    fn check_class(&mut self, now: Instant) {
        if !self.asks_manager() {
            return;
        }
        if let Some(answer) = self.asking.as_mut().map(oneshot::Receiver::try_recv)
            && answer != Err(TryRecvError::Empty)
        {
            self.asking = None;
            self.manager = answer.unwrap_or_default();
            self.next_route = now;
        }
        if now >= self.next_manager && self.asking.is_none() {
            self.next_manager = now + MANAGER_INTERVAL;
            let (sender, receiver) = oneshot::channel();
            self.asking = Some(receiver);
            tokio::task::spawn_blocking(move || {
                // The agent may have stopped meanwhile.
                let _ = sender.send(ask_network_manager());
            });
        }
        if now >= self.next_route {
            self.next_route = now + ROUTE_INTERVAL;
            self.classify();
        }
    }

    fn count(&mut self, traffic: &link::Traffic, now: Now) {
        let is_metered = self.is_metered();
        let sent = traffic.bytes_out.checked_sub(self.sent).unwrap_or(traffic.bytes_out);
        self.sent = traffic.bytes_out;
        self.queued = self.queued.saturating_sub(sent);
        if self.budgets.count(traffic, is_metered, Timestamp::now(), now) {
            self.is_exhausted = false;
        }
    }

    /// Begins to store the next reservation, if one is needed.
    fn reserve(&mut self, is_wanted: bool, store: &EdgeStore) {
        let now = Instant::now();
        if self.reserving.is_some() || now < self.next_reservation || !self.is_metered() {
            return;
        }
        let Some(reservation) = self.budgets.next_reservation(is_wanted) else { return };
        let write = OutboxWrite::Metadata(METADATA_KEY, reservation.text.clone());
        let store = store.clone();
        self.reserving = Some(tokio::spawn(async move {
            let stored = store.post(vec![write]).await;
            (reservation, stored)
        }));
    }

    /// Ends the write of a reservation.
    fn end_reserving(&mut self, result: Result<(Reservation, Result<(), StoreError>), JoinError>) {
        self.reserving = None;
        match result {
            Ok((reservation, Ok(()))) => return self.budgets.reserved(&reservation),
            Ok((_, Err(error))) => tracing::warn!(%error, "bytes of the metered link not reserved"),
            Err(error) => tracing::error!(%error, "reservation for the metered link ended early"),
        }
        self.next_reservation = Instant::now() + RETRY_INTERVAL;
    }

    /// Returns the terms for the machine; `None` if the link is not metered.
    fn terms(&self) -> Option<MeteredLink> {
        self.is_metered().then(|| MeteredLink {
            urgency: self.config.metered_min_urgency,
            size: self.config.metered_max_object,
            credit: self.budgets.credit(),
        })
    }

    /// Persists the exact use, at an orderly end.
    pub(super) fn persist(&self, store: &EdgeStore) {
        if self.is_used() {
            store.keep_note(METADATA_KEY, self.budgets.keep());
        }
    }

    /// Returns the time until all spent budgets have renewed.
    fn renewal(&self, now: Now) -> Duration {
        self.budgets.renewal(Timestamp::now(), now, self.is_exhausted)
    }

    /// Returns the Node's condition while a hard budget is spent.
    pub(super) fn condition(&self) -> Option<Condition> {
        let [day, month] = self.budgets.show();
        self.was_spent.then(|| node_report::metered_condition(day, month))
    }
}

/// Returns the configured limits.
fn limits(config: &Traffic) -> Limits {
    Limits { day: config.metered_daily_budget, month: config.metered_monthly_budget }
}

impl Driver {
    /// Updates the use of the metered link, and passes its terms to the machine. Called in each
    /// turn: what the machine grants must not count what has arrived.
    pub(in crate::agent::driver) fn follow_link(&mut self) {
        self.count_link();
        let (now, waiting) = (self.now(), self.machine.waiting());
        let metered = &mut self.reporting.metered;
        if !metered.is_used() {
            return;
        }
        metered.reserve(waiting.credit > 0, &self.store);
        let is_held = metered.holds_outbox();
        let terms = metered.terms();
        self.machine.set_metered(now, terms, random());
        self.machine.hold_outbox(now, is_held);
    }

    /// Counts the bytes of the link. Those of a link without limits are counted by nothing, so that
    /// later limits do not count them.
    pub(super) fn count_link(&mut self) {
        let (now, traffic) = (self.now(), self.uplink.link.traffic());
        self.reporting.metered.count(&traffic, now);
    }

    /// Determines the class of the link again. Called before the first frame of a connection.
    pub(in crate::agent::driver) fn classify_link(&mut self) {
        let metered = &mut self.reporting.metered;
        metered.connected();
        let was_metered = metered.is_metered();
        metered.classify();
        if metered.is_metered() != was_metered {
            self.link_class_changed();
        }
    }

    /// Ends the write of a reservation.
    pub(in crate::agent::driver) fn bytes_reserved(
        &mut self,
        result: Result<(Reservation, Result<(), StoreError>), JoinError>,
    ) {
        self.reporting.metered.end_reserving(result);
    }

    /// Checks class and budgets of the link; called about once a second.
    pub(super) fn check_link(&mut self) {
        let is_connected = self.uplink.is_connected();
        let metered = &mut self.reporting.metered;
        let was_metered = metered.is_metered();
        metered.check_class(Instant::now());
        if metered.is_metered() != was_metered {
            self.link_class_changed();
        }
        let metered = &mut self.reporting.metered;
        let is_spent = metered.is_spent(is_connected);
        if std::mem::replace(&mut metered.was_spent, is_spent) != is_spent {
            let (reason, note) = match is_spent {
                true => (
                    EventReason::TrafficBudgetSpent,
                    "budget of the metered link spent: disconnecting until it renews".to_owned(),
                ),
                false => (EventReason::TrafficBudgetRenewed, "budget of the metered link renewed".to_owned()),
            };
            tracing::warn!(is_spent, "{note}");
            self.reporting.events.emit(reason, Regarding::Node, note);
            self.report_node(false);
        }
        self.observe_waiting();
    }

    /// Emits an Event when objects begin to wait for the link, and when none waits any more.
    fn observe_waiting(&mut self) {
        let waiting = self.machine.waiting();
        let is_known = self.machine.phase() == EdgePhase::Live;
        let metered = &mut self.reporting.metered;
        if !is_known || metered.was_waiting != waiting.is_none() {
            return;
        }
        metered.was_waiting = !waiting.is_none();
        let (reason, note) = match waiting.is_none() {
            false => (EventReason::ObjectsWaiting, format!("wait for the metered link: {}", words(&waiting))),
            true => (EventReason::ObjectsArrived, "no object waits for the metered link any more".to_owned()),
        };
        tracing::info!("{note}");
        self.reporting.events.emit(reason, Regarding::Node, note);
    }

    /// Applies another class of the link, or other limits.
    pub(super) fn link_class_changed(&mut self) {
        let config = self.machine_config();
        self.machine.set_config(config);
        self.follow_link();
    }

    pub(in crate::agent::driver) fn reload_metered(&mut self, config: &Config) {
        self.count_link();
        self.reporting.metered.reload(config);
        if !self.reporting.metered.is_used() {
            self.machine.set_metered(self.now(), None, random());
            self.machine.hold_outbox(self.now(), false);
        }
        self.link_class_changed();
    }

    /// Returns the time until the budget of the link has renewed, if it is spent.
    pub(in crate::agent::driver) fn spent_for(&self) -> Option<Duration> {
        let metered = &self.reporting.metered;
        metered.is_spent(self.uplink.is_connected()).then(|| metered.renewal(self.now()))
    }

    /// Returns the section of the status; `None` without limits.
    pub(in crate::agent::driver) fn show_metered(&self) -> Option<MeteredStatus> {
        let metered = &self.reporting.metered;
        let [day, month] = metered.budgets.show();
        let Waiting { urgency, size, credit } = self.machine.waiting();
        let renewed = self.spent_for().and_then(|rest| Timestamp::now().checked_add(rest).ok());
        metered.is_used().then(|| MeteredStatus {
            metered: metered.class.is_metered,
            because: metered.class.because.clone(),
            min_urgency: metered.config.metered_min_urgency,
            max_object: metered.config.metered_max_object,
            day,
            month,
            spent_until: renewed.map(rfc3339),
            waiting: WaitingForLink { urgency, size, budget: credit },
        })
    }
}

/// Formats the numbers of waiting objects by what they wait for.
fn words(waiting: &Waiting) -> String {
    let Waiting { urgency, size, credit } = *waiting;
    let parts = [(credit, "for its budget"), (urgency, "for their urgency"), (size, "for their size")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, why)| format!("{count} {why}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EdgeOptions;

    fn config(metered: Metered, kib_a_day: Option<u64>) -> Config {
        let mut config = Config::default();
        config.traffic.metered = metered;
        config.traffic.metered_daily_budget = kib_a_day.map(|kib| kib << 10);
        config
    }

    fn state(metered: Metered, kib_a_day: Option<u64>) -> MeteredState {
        let mut state = MeteredState::new(&config(metered, kib_a_day), None);
        state.set_interface(None);
        state
    }

    fn traffic(bytes: u64) -> link::Traffic {
        link::Traffic { bytes_in: bytes, ..link::Traffic::default() }
    }

    #[test]
    fn first_limit_counts_nothing_that_came_before() {
        let mut state = state(Metered::On, None);
        state.count(&traffic(1 << 20), Now::ZERO);
        state.reload(&config(Metered::On, Some(200)));
        state.count(&traffic((1 << 20) + 100), Now::ZERO);
        assert!(!state.is_spent(true));
        assert_eq!(state.budgets.show()[0].map(|day| day.used), Some(204));
    }

    /// An unreadable use is not an absent one: the budgets would begin as full ones.
    #[tokio::test]
    async fn unreadable_use_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let store = EdgeStore::open(&path, EdgeOptions::default()).unwrap();
        assert!(MeteredState::restore(&store, &config(Metered::On, Some(200))).await.is_ok());
        rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE meta").unwrap();
        assert!(MeteredState::restore(&store, &config(Metered::On, Some(200))).await.is_err());
    }

    #[test]
    fn class_lasts_without_a_route_and_is_metered_until_one_is_known() {
        let mut state = state(Metered::Auto, Some(200));
        state.set_interface(None);
        assert!(state.is_metered());
        state.set_interface(Some("wlan0".to_owned()));
        assert!(!state.is_metered());
        state.set_interface(None);
        assert!(!state.is_metered());
    }

    #[test]
    fn another_route_is_metered_until_network_manager_answers_for_it() {
        let mut state = state(Metered::Auto, Some(200));
        state.manager = Some(false);
        state.set_interface(Some("wlan0".to_owned()));
        assert!(!state.is_metered());
        let (_sender, receiver) = oneshot::channel();
        state.asking = Some(receiver);
        state.set_interface(Some("usb0".to_owned()));
        assert!(state.is_metered() && state.asking.is_none() && state.next_manager <= Instant::now());
        state.manager = Some(false);
        state.set_interface(Some("usb0".to_owned()));
        assert!(!state.is_metered());
    }

    #[test]
    fn frame_without_room_spends_the_budget_until_it_renews() {
        let mut state = state(Metered::On, Some(40));
        state.connected();
        assert!(state.admits(16 << 10) && state.admits(10 << 10));
        assert!(!state.is_spent(true) && !state.admits(16 << 10), "the queued bytes count");
        assert!(state.is_spent(true) && !state.admits(1));
        state.connected();
        assert!(state.is_spent(false) && !state.admits(1), "another connection has no more room");
        assert!(state.renewal(Now::ZERO) > Duration::ZERO);
        state.reload(&config(Metered::On, Some(40)));
        assert!(state.admits(16 << 10));
        let sent = link::Traffic { bytes_out: 16 << 10, ..link::Traffic::default() };
        state.count(&sent, Now::ZERO);
        assert!(state.admits(10 << 10), "the sent bytes count once");
    }

    #[test]
    fn objects_are_expected_while_a_credit_can_be_granted_and_they_come() {
        let mut state = state(Metered::On, Some(100));
        let waiting = Waiting { credit: 1, ..Waiting::default() };
        let now = state.fed_at;
        assert!(state.is_fed(&waiting, now));
        assert!(!state.is_fed(&Waiting { urgency: 1, ..Waiting::default() }, now));
        assert!(!state.is_fed(&waiting, now + TRANSFER_TIMEOUT));
        state.count(&traffic(72 << 10), Now::ZERO);
        assert!(!state.is_fed(&waiting, now));
    }
}
