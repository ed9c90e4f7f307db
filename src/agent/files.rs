//! The agent's half of the sync from database to files: which objects the rules affect, when they
//! are applied, and how the result is reported. The other half, [`edgesync_helper`], is another
//! process; it receives names of rules and objects.
//!
//! A separate task does this, so that no check, reload or hanging disk delays the sync.

mod helper_client;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::events::Events;
use super::kinds::KindRegistry;
use super::metrics::FilesNumbers;
use super::objects::{self, ReadClock};
use crate::store::EdgeStore;
use edgesync_admin::agent::{FilesCheck, FilesList, FilesRule, RulePlan};
use edgesync_api::Role;
use edgesync_config::edge::Config;
use edgesync_files::rule::ordered;
use edgesync_files::wire::{HoldInfo, MAX_CHANGED, ObjectCounts, Outcome, Request, Verb};
use edgesync_files::{Closed, Rule};
use edgesync_object::Status;
use edgesync_object::status::Result;
use edgesync_protocol::apply::PatchedObject;
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::{FilesCounts, FilesFailure, FilesSummary};
use edgesync_runtime::systemd;
use edgesync_transport::admission::LogThrottle;
use helper_client::{HelperClient, RequestError, RequestScope};
use report::Reported;

/// Interval at which all files are checked for changes by others.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(600);
/// Delay before the helper is tried again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time limit for applying files during the start; the rest continues in the background.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum delay of a rule by further changes, as a multiple of its settle time.
const MAX_DEFERRALS: u32 = 10;
/// Delay before a rule is tried again after the helper has refused it.
const REFUSED_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Commands that may queue for the task.
const QUEUE: usize = 8;
/// Maximum number of log lines about objects that are not in effect, in ten seconds.
const LINES: u32 = 20;
/// Bits of the set of rules; the rules after the last bit share it.
const BITS: usize = 64;

/// State of the files, for the status, the metrics and the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FilesView {
    /// The counts of objects are those of the last answer, and `None` before the first one.
    pub(super) summary: FilesSummary,
    /// Reloads of programs, since the rules exist.
    pub(super) reloads: u64,
    /// Rollbacks of files, since the rules exist.
    pub(super) rollbacks: u64,
    /// Files that the rules have written and that exist.
    pub(super) files: u64,
    /// The failure that blocks rules; `None` if there is none.
    pub(super) problem: Option<String>,
    /// Holds in force, as of the last answer.
    pub(super) holds: Vec<HoldInfo>,
    /// What rules wait for, by name.
    pub(super) waits: Vec<(String, Closed)>,
}

/// Current failures. One that concerns all rules is kept once, not for each rule.
#[derive(Debug, Default)]
struct Failures {
    all: Option<(FilesFailure, String)>,
    rules: BTreeMap<String, String>,
}

impl Failures {
    /// Records the failure of a request for a rule, or for all if its name is empty. Returns the
    /// text if it is new.
    fn record(&mut self, rule: &str, error: &RequestError) -> Option<String> {
        let problem = error.to_string();
        let known = match error {
            RequestError::Helper { .. } => {
                self.all.replace((FilesFailure::HelperUnreachable, problem.clone())).map(|known| known.1)
            }
            _ if rule.is_empty() => {
                self.all.replace((FilesFailure::RequestFailed, problem.clone())).map(|known| known.1)
            }
            _ => self.rules.insert(rule.to_owned(), problem.clone()),
        };
        (known.as_ref() != Some(&problem)).then_some(problem)
    }

    /// Records a success for a rule, or for all if its name is empty. Returns whether the helper
    /// was unreachable until now.
    fn clear(&mut self, rule: &str) -> bool {
        self.rules.remove(rule);
        self.all.take().is_some_and(|(failure, _)| failure == FilesFailure::HelperUnreachable)
    }

    /// Adds the failures to a state.
    fn show(&self, view: &mut FilesView) {
        view.summary.blocked = self.all.as_ref().map(|(failure, _)| *failure);
        view.summary.failed = self.rules.len() as u64;
        let all = self.all.as_ref().map(|(_, problem)| problem);
        view.problem = all.or(self.rules.values().next()).cloned();
    }
}

impl FilesView {
    /// Returns the state that an answer of the helper reports, without failures. The counts of an
    /// older helper stay unknown.
    fn of(outcome: &Outcome) -> Self {
        let objects = outcome.objects.map(|counts| {
            let ObjectCounts { in_effect, not_in_effect, conflicts, waiting } = counts;
            FilesCounts { in_effect, not_in_effect, conflicts, waiting }
        });
        let mut view =
            Self { summary: FilesSummary { objects, ..FilesSummary::default() }, ..Self::default() };
        for rule in &outcome.rules {
            view.reloads += rule.reloads;
            view.rollbacks += rule.rollbacks;
            view.files += rule.files;
            view.waits.extend(rule.closed.clone().map(|closed| (rule.name.clone(), closed)));
        }
        view.holds.clone_from(&outcome.holds);
        view
    }

    /// Returns the values for the metrics; `None` without rules.
    pub(super) fn numbers(&self) -> Option<FilesNumbers> {
        let Self { summary, reloads, rollbacks, files, ref problem, ref holds, .. } = *self;
        let holds = holds.len() as u64;
        let works = problem.is_none();
        (summary.rules > 0).then_some(FilesNumbers { summary, reloads, rollbacks, files, works, holds })
    }

    /// Returns the section of the status; `None` without rules. Counts are `None` until the helper
    /// has answered.
    pub(super) fn show(&self) -> Option<edgesync_admin::agent::FilesSummary> {
        let FilesSummary { rules, objects, .. } = self.summary;
        (rules > 0).then(|| edgesync_admin::agent::FilesSummary {
            rules,
            objects: objects.map(FilesCounts::total),
            in_effect: objects.map(|counts| counts.in_effect),
            not_in_effect: objects.map(|counts| counts.not_in_effect),
            conflicts: objects.map(|counts| counts.conflicts),
            waiting: objects.map(|counts| counts.waiting),
            waits: self.waits.iter().map(|(rule, closed)| helper_client::show_wait(rule, closed)).collect(),
            holds: self.holds.iter().map(helper_client::show_hold).collect(),
            problem: self.problem.clone(),
            helper_unreachable: self.summary.blocked == Some(FilesFailure::HelperUnreachable),
        })
    }
}

/// A handle of the task, cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Files {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    /// The latest reloaded configuration; `None` until the first reload.
    config: watch::Sender<Option<Box<Config>>>,
    view: watch::Receiver<FilesView>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Changes not yet processed.
    due: Mutex<AffectedRules>,
    /// Epoch of the database that has come to hold all desired objects.
    synced: Mutex<Option<Epoch>>,
    changed: Notify,
}

/// The rules that changes may affect.
#[derive(Debug)]
pub(super) struct AffectedRules {
    /// One bit for each rule.
    rules: u64,
    /// The changed objects; `None` if unknown or too many.
    changed: Option<Vec<Uid>>,
    /// Those that were removed; `None` if unknown or too many.
    removed: Option<Vec<Uid>>,
}

/// The default affects no rule and no object.
impl Default for AffectedRules {
    fn default() -> Self {
        Self { rules: 0, changed: Some(Vec::new()), removed: Some(Vec::new()) }
    }
}

impl AffectedRules {
    /// Possibly affects all rules and objects.
    pub(super) const ALL: Self = Self { rules: u64::MAX, changed: None, removed: None };
}

/// Appends objects to a list; `None` if they become too many.
fn append(list: &mut Option<Vec<Uid>>, more: Option<&[Uid]>) {
    match (&mut *list, more) {
        (Some(list), Some(more)) if list.len() + more.len() <= MAX_CHANGED => list.extend_from_slice(more),
        _ => *list = None,
    }
}

#[derive(Debug)]
enum Command {
    ReportAgain,
    List(Role, oneshot::Sender<Result<FilesList>>),
    Check(oneshot::Sender<Result<FilesCheck>>),
    Apply(String, oneshot::Sender<Result<FilesRule>>),
}

impl Files {
    /// Applies the held objects to files, and starts the task that keeps them applied.
    pub(super) async fn start(
        config: &Config,
        store: EdgeStore,
        events: Events,
        kinds: Arc<KindRegistry>,
        clock: ReadClock,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (commands, asked) = mpsc::channel(QUEUE);
        let (view_sender, view) = watch::channel(FilesView::default());
        let reported = Reported::restore(&store).await;
        let mut task = Task {
            store,
            events,
            kinds,
            clock,
            shared: Arc::clone(&shared),
            view: view_sender,
            socket: config.helper.socket.clone(),
            rules: Vec::new(),
            reported,
            clear_at: None,
            failures: Failures::default(),
            lines: LogThrottle::of(LINES),
            release_at: None,
        };
        task.set_rules(config);
        if !task.rules.is_empty() || task.reported.position.is_some() {
            let first = tokio::time::timeout(START_TIMEOUT, task.work());
            // Rules that miss the time limit stay due.
            let _ = systemd::patiently("applying file rules", first).await;
        }
        let (config, configs) = watch::channel(None);
        tokio::spawn(task.run(asked, configs));
        Self { shared, commands, config, view }
    }

    /// Returns a handle without a task and without rules.
    #[cfg(test)]
    pub(super) fn idle() -> Self {
        let (commands, _) = mpsc::channel(1);
        let (_, view) = watch::channel(FilesView::default());
        Self { shared: Arc::default(), commands, config: watch::channel(None).0, view }
    }

    /// Returns the current state.
    pub(super) fn view(&self) -> FilesView {
        self.view.borrow().clone()
    }

    /// Completes when the state changes.
    pub(super) async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Marks rules as due.
    pub(super) fn due(&self, new: &AffectedRules) {
        if new.rules != 0 {
            let mut due = self.shared.due();
            due.rules |= new.rules;
            append(&mut due.changed, new.changed.as_deref());
            append(&mut due.removed, new.removed.as_deref());
            drop(due);
            self.shared.changed.notify_one();
        }
    }

    /// Records that the database with this epoch holds all desired objects: an object missing in it
    /// is not desired.
    pub(super) fn synced(&self, epoch: Epoch) {
        *self.shared.synced() = Some(epoch);
        self.shared.changed.notify_one();
    }

    /// Passes a reloaded configuration to the task.
    pub(super) fn reload(&self, config: &Config) {
        self.config.send_replace(Some(Box::new(config.clone())));
    }

    /// Reports everything again, because the cloud's store is another one or has lost the reports.
    pub(super) fn report_again(&self) {
        self.command(Command::ReportAgain);
    }

    fn command(&self, command: Command) {
        let commands = self.commands.clone();
        tokio::spawn(async move { commands.send(command).await });
    }

    /// Returns rules and objects.
    pub(super) async fn list(&self, role: Role) -> Result<FilesList> {
        self.query(|answer| Command::List(role, answer)).await
    }

    /// Returns a plan of all rules.
    pub(super) async fn check(&self, role: Role) -> Result<FilesCheck> {
        admin_only(role)?;
        self.query(Command::Check).await
    }

    pub(super) async fn apply(&self, rule: &str, role: Role) -> Result<FilesRule> {
        admin_only(role)?;
        self.query(|answer| Command::Apply(rule.to_owned(), answer)).await
    }

    async fn query<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let stopping = || Status::unavailable("the agent is stopping", 5);
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

/// Allows only administrators: a plan may quote Secrets, and a check first rolls back an
/// interrupted change.
fn admin_only(role: Role) -> Result<()> {
    if role == Role::Admin {
        return Ok(());
    }
    let message = "file operations need root or the agent's user on the Unix socket";
    Err(Status::new(edgesync_object::status::Reason::Forbidden, message))
}

fn refused(error: &RequestError) -> Status {
    match error {
        RequestError::NoRule(_) => Status::new(edgesync_object::status::Reason::NotFound, error.to_string()),
        other => Status::unavailable(other.to_string(), 5),
    }
}

impl Shared {
    fn due(&self) -> MutexGuard<'_, AffectedRules> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn synced(&self) -> MutexGuard<'_, Option<Epoch>> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the rules that changes may affect.
pub(super) fn affected_rules(rules: &[Rule], changes: &[Change]) -> AffectedRules {
    let mut bits = 0;
    for (number, rule) in rules.iter().enumerate() {
        let concerns = |change: &Change| match change {
            Change::Put(put) => rule.objects.names(&put.resource, &put.namespace, &put.name),
            // The commit decides what it changes: see `rules_of_patches`.
            Change::Patch(_) => false,
            // A deleted object's labels and fields are unknown here.
            Change::Delete(_) => true,
        };
        if changes.iter().any(concerns) {
            bits |= bit(number);
        }
    }
    let named = bits != 0 && changes.len() <= MAX_CHANGED;
    let changed = named.then(|| changes.iter().map(|change| Uid::clone(change.uid())).collect());
    let removals = || changes.iter().filter(|change| matches!(change, Change::Delete(_)));
    let removed = (removals().count() <= MAX_CHANGED)
        .then(|| removals().map(|change| Uid::clone(change.uid())).collect());
    AffectedRules { rules: bits, changed, removed }
}

/// Returns the rules that objects changed by patches may affect.
pub(super) fn rules_of_patches(rules: &[Rule], patched: &[PatchedObject]) -> AffectedRules {
    let mut bits = 0;
    for (number, rule) in rules.iter().enumerate() {
        let concerns = |it: &PatchedObject| rule.objects.names(&it.resource, &it.namespace, &it.name);
        if patched.iter().any(concerns) {
            bits |= bit(number);
        }
    }
    let named = bits != 0 && patched.len() <= MAX_CHANGED;
    let changed = named.then(|| patched.iter().map(|it| Uid::clone(&it.uid)).collect());
    AffectedRules { rules: bits, changed, removed: Some(Vec::new()) }
}

fn bit(number: usize) -> u64 {
    1 << number.min(BITS - 1)
}

/// A rule and its schedule.
#[derive(Debug)]
struct ScheduledRule {
    rule: Rule,
    /// Its index in the configuration.
    number: usize,
    at: Option<Instant>,
    /// When the first pending change arrived.
    since: Option<Instant>,
    /// Whether all its files must be checked.
    look: bool,
    /// When the next such check is due.
    next_check: Instant,
    /// Number of the list that the helper has; `None` requests the whole list.
    known: Option<u64>,
    /// Objects changed since that list.
    changed: Vec<Uid>,
    /// Objects removed since the rule was last applied; `None` if they are too many.
    removed: Option<Vec<Uid>>,
}

struct Task {
    store: EdgeStore,
    pub events: Events,
    kinds: Arc<KindRegistry>,
    clock: ReadClock,
    pub shared: Arc<Shared>,
    view: watch::Sender<FilesView>,
    socket: PathBuf,
    /// In the order of their execution.
    rules: Vec<ScheduledRule>,
    reported: Reported,
    /// When files of deleted rules are removed.
    clear_at: Option<Instant>,
    failures: Failures,
    /// Limits the log lines about objects that are not in effect.
    lines: LogThrottle,
    /// When memory is released.
    release_at: Option<Instant>,
}

impl Task {
    fn set_rules(&mut self, config: &Config) {
        let now = Instant::now();
        let rules = &config.files.rules;
        let number = |rule: &Rule| rules.iter().position(|other| other.name == rule.name).unwrap_or(0);
        let due = |rule: &Rule| ScheduledRule {
            number: number(rule),
            rule: rule.clone(),
            at: Some(now),
            since: None,
            look: true,
            next_check: now + FULL_CHECK_INTERVAL,
            known: None,
            changed: Vec::new(),
            removed: Some(Vec::new()),
        };
        // The order was validated with the configuration.
        self.rules = ordered(rules).unwrap_or_default().into_iter().map(due).collect();
        self.failures = Failures::default();
        self.clear_at = (!self.rules.is_empty() || self.reported.position.is_some()).then_some(now);
        let rules = self.rules.len() as u64;
        self.view.send_if_modified(|view| std::mem::replace(&mut view.summary.rules, rules) != rules);
    }

    async fn run(
        mut self,
        mut asked: mpsc::Receiver<Command>,
        mut configs: watch::Receiver<Option<Box<Config>>>,
    ) {
        let shared = Arc::clone(&self.shared);
        loop {
            let next = self
                .rules
                .iter()
                .flat_map(|due| [due.at, Some(due.next_check)])
                .flatten()
                .chain(self.clear_at)
                .chain(self.release_at)
                .min();
            tokio::select! {
                command = asked.recv() => match command {
                    Some(command) => self.answer(command).await,
                    None => return,
                },
                Ok(()) = configs.changed() => {
                    if let Some(config) = configs.borrow_and_update().as_deref() {
                        self.take_config(config);
                    }
                }
                () = shared.changed.notified() => {
                    let synced = shared.synced().take();
                    if let Some(epoch) = synced {
                        self.is_whole(epoch).await;
                    }
                    self.schedule_due();
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
            self.work().await;
            if self.release_at.take_if(|at| *at <= Instant::now()).is_some() {
                objects::release_memory(&self.store).await;
            }
        }
    }

    /// Records that the database with this epoch holds all desired objects, unless another database
    /// has replaced it.
    async fn is_whole(&mut self, epoch: Epoch) {
        self.check_epoch();
        if !self.reported.mark_whole(epoch) || self.rules.is_empty() {
            return;
        }
        let now = Instant::now();
        self.rules.iter_mut().for_each(|due| due.at = Some(now));
        // The cloud side has forgotten the states of objects that were not held yet.
        self.reported.restart();
        let kept = self.reported.kept(self.reported.position.clone().unwrap_or_default());
        // If it cannot be stored, the next run detects it again.
        report::post(&self.store, &[], &kept, (self.clock)()).await;
    }

    /// Checks whether the database was replaced: neither the new one nor the cloud knows of earlier
    /// reports.
    fn check_epoch(&mut self) {
        self.reported.check_epoch(self.store.facts().totals.epoch);
    }

    /// Schedules the affected rules, each after its settle time.
    fn schedule_due(&mut self) {
        let AffectedRules { rules, changed, removed } = std::mem::take(&mut *self.shared.due());
        let now = Instant::now();
        for due in self.rules.iter_mut().filter(|due| rules & bit(due.number) != 0) {
            for uid in changed.iter().flatten() {
                if !due.changed.contains(uid) {
                    due.changed.push(Uid::clone(uid));
                }
            }
            if changed.is_none() || due.changed.len() > MAX_CHANGED {
                (due.known, due.changed) = (None, Vec::new());
            }
            append(&mut due.removed, removed.as_deref());
            let since = *due.since.get_or_insert(now);
            let settled = (now + due.rule.settle).min(since + due.rule.settle * MAX_DEFERRALS);
            due.at = Some(settled);
        }
        // A rule runs after the rules that it names, which precede it here.
        for place in 0..self.rules.len() {
            let (before, rest) = self.rules.split_at_mut(place);
            let Some(due) = rest.first_mut().filter(|due| due.since.is_some()) else { continue };
            let after = before.iter().filter(|other| due.rule.after.contains(&other.rule.name));
            let settled = after.filter(|other| other.since.is_some()).filter_map(|other| other.at).max();
            due.at = due.at.max(settled);
        }
    }

    fn take_config(&mut self, config: &Config) {
        let same = self.rules.len() == config.files.rules.len()
            && self.rules.iter().all(|due| config.files.rules.get(due.number) == Some(&due.rule));
        if !same {
            self.set_rules(config);
        }
    }

    /// Executes everything that is due.
    async fn work(&mut self) {
        if self.clear_at.is_some_and(|at| at <= Instant::now()) {
            let cleared = self.show(Verb::Clear).await;
            // Removals may have to wait, for the end of a hold.
            let again = cleared.map_or(Some(RETRY_DELAY), |outcome| outcome.retry.map(Duration::from_millis));
            self.clear_at = again.map(|after| Instant::now() + after);
        }
        for place in 0..self.rules.len() {
            self.schedule_due();
            let now = Instant::now();
            let Some(due) = self.rules.get_mut(place) else { return };
            let looks = due.next_check <= now;
            if due.at.is_none_or(|at| at > now) && !looks {
                continue;
            }
            due.look |= looks;
            let (rule, look) = (due.rule.clone(), due.look);
            due.since = None;
            let changed = std::mem::take(&mut due.changed);
            let removed = due.removed.replace(Vec::new());
            // A full check lists all objects, too.
            let since = due.known.take().filter(|_| !look).map(|known| (known, changed));
            let outcome = self.execute_rule(&rule, Verb::Apply, look, false, since).await;
            let whole = self.reported.is_whole;
            let Some(due) = self.rules.get_mut(place) else { return };
            let again = match &outcome {
                Ok(outcome) => outcome.retry.map(Duration::from_millis),
                Err(RequestError::Refused(_)) => Some(REFUSED_RETRY_DELAY),
                Err(_) => Some(RETRY_DELAY),
            };
            due.at = again.map(|after| Instant::now() + after);
            due.look = look && outcome.is_err();
            let has_run = outcome.is_ok();
            if !has_run {
                append(&mut due.removed, removed.as_deref());
            }
            due.known = outcome.ok().and_then(|outcome| outcome.known).filter(|_| whole);
            if look {
                due.next_check = now + FULL_CHECK_INTERVAL;
            }
            if has_run && self.is_any_held(removed).await {
                self.report_again();
            }
        }
    }

    /// Returns whether one of the objects that were removed is held again. The helper may have seen
    /// no removal, while the cloud side has forgotten the state of the object with its record.
    async fn is_any_held(&self, removed: Option<Vec<Uid>>) -> bool {
        let Some(removed) = removed else { return true };
        for uid in removed {
            if !matches!(self.store.by_uid(uid).await, Ok(None)) {
                return true;
            }
        }
        false
    }

    /// Has the helper report all states again.
    fn report_again(&mut self) {
        if self.reported.restart() {
            self.clear_at = Some(Instant::now());
        }
    }

    /// Requests the helper to apply or plan a rule: for all its objects, or for those changed since
    /// the list that the helper has.
    async fn execute_rule(
        &mut self,
        rule: &Rule,
        verb: Verb,
        look: bool,
        force: bool,
        since: Option<(u64, Vec<Uid>)>,
    ) -> std::result::Result<Outcome, RequestError> {
        let (store, socket) = (self.store.clone(), self.socket.clone());
        let result = async {
            let mut client = HelperClient::begin(&socket, &store).await?;
            // Objects can be missing only in a database of the same epoch.
            self.check_epoch();
            let since = since.filter(|_| self.reported.is_whole);
            if let Some((_, changed)) = &since {
                client.list_changed(&self.kinds, rule, changed).await?;
            }
            // Checked after the objects were read: those of a new database are not reported under
            // the old epoch.
            self.check_epoch();
            let told = self.reported.position.clone().unwrap_or_default();
            let keep = !self.reported.is_whole;
            let since = since.map(|(known, _)| known);
            let request = Request { verb, rule: rule.name.clone(), look, force, keep, told, since };
            let scope = RequestScope { kinds: &self.kinds, rule, epoch: &self.reported.epoch };
            client.call(&request, scope).await
        }
        .await;
        self.release_at = Some(Instant::now() + objects::QUIET_TIME);
        self.record_result(&rule.name, &result).await;
        result
    }

    /// Requests the current state, or the removal of files whose rules were deleted.
    async fn show(&mut self, verb: Verb) -> std::result::Result<Outcome, RequestError> {
        self.check_epoch();
        let told = self.reported.position.clone().unwrap_or_default();
        let request = Request { verb, look: verb == Verb::Show, told, ..Request::default() };
        let about = RequestScope { kinds: &self.kinds, rule: &Rule::default(), epoch: &self.reported.epoch };
        let result = match HelperClient::begin(&self.socket, &self.store).await {
            Ok(client) => client.call(&request, about).await,
            Err(error) => Err(error),
        };
        self.record_result("", &result).await;
        self.release_at = Some(Instant::now() + objects::QUIET_TIME);
        result
    }

    /// Records whether a rule was applied, and the resulting state.
    async fn record_result(&mut self, rule: &str, result: &std::result::Result<Outcome, RequestError>) {
        match result {
            Ok(outcome) => {
                if self.failures.clear(rule) {
                    tracing::info!("files helper reachable again");
                }
                self.publish_outcome(outcome).await;
            }
            Err(error) => {
                if let Some(problem) = self.failures.record(rule, error) {
                    // The name is empty if all rules are affected.
                    let rule = Some(rule).filter(|rule| !rule.is_empty());
                    tracing::error!(rule, problem, "file rules cannot run");
                    report::emit_problem(&self.events, &problem);
                }
                let view = self.view.borrow().clone();
                self.show_view(view);
            }
        }
    }

    /// Publishes the state, with the failures of rules.
    fn show_view(&self, mut view: FilesView) {
        self.failures.show(&mut view);
        view.summary.rules = self.rules.len() as u64;
        self.view.send_if_modified(|known| std::mem::replace(known, view.clone()) != view);
    }

    /// Reports new results to the cloud, and publishes the counts.
    async fn publish_outcome(&mut self, outcome: &Outcome) {
        let is_new = self.reported.position.as_ref() != Some(&outcome.told);
        let kept = self.reported.kept(outcome.told.clone());
        if is_new && report::post(&self.store, &outcome.updates, &kept, (self.clock)()).await {
            let emitted = self.reported.emitted_in(&outcome.told);
            let quoting = |due: &&ScheduledRule| self.kinds.seals_any(|kind| due.rule.objects.takes(kind));
            let quoting = self.rules.iter().filter(quoting).map(|due| due.rule.name.as_str()).collect();
            report::emit(&self.events, (&self.kinds, &quoting), &self.lines, &outcome.updates, emitted);
            self.reported.advance(&outcome.told);
        }
        self.show_view(FilesView::of(outcome));
    }

    async fn answer(&mut self, command: Command) {
        match command {
            Command::ReportAgain => self.report_again(),
            // The requester may have disconnected.
            Command::List(role, answer) => {
                drop(answer.send(self.list(role).await.map_err(|error| refused(&error))));
            }
            Command::Check(answer) => drop(answer.send(self.check().await.map_err(|error| refused(&error)))),
            Command::Apply(rule, answer) => {
                drop(answer.send(self.apply(&rule).await.map_err(|error| refused(&error))));
            }
        }
    }

    async fn list(&mut self, role: Role) -> std::result::Result<FilesList, RequestError> {
        // Without rules, now or earlier, no helper is needed.
        if self.rules.is_empty() && self.reported.position.is_none() {
            return Ok(FilesList { rules: Vec::new(), holds: Vec::new() });
        }
        self.show(Verb::Show).await.map(|outcome| helper_client::show(&outcome, role))
    }

    async fn check(&mut self) -> std::result::Result<FilesCheck, RequestError> {
        let rules: Vec<Rule> = self.rules.iter().map(|due| due.rule.clone()).collect();
        let mut shown = Vec::new();
        for rule in rules {
            let outcome = self.execute_rule(&rule, Verb::Check, true, true, None).await?;
            shown.push(RulePlan { name: rule.name, steps: outcome.plan });
        }
        Ok(FilesCheck { rules: shown })
    }

    async fn apply(&mut self, name: &str) -> std::result::Result<FilesRule, RequestError> {
        let rule = self.rules.iter().map(|due| &due.rule).find(|rule| rule.name == name).cloned();
        let rule = rule.ok_or_else(|| RequestError::NoRule(name.to_owned()))?;
        let outcome = self.execute_rule(&rule, Verb::Apply, true, true, None).await?;
        let shown = outcome.rules.iter().find(|shown| shown.name == name);
        shown.map(helper_client::show_rule).ok_or_else(|| RequestError::NoRule(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> RequestError {
        let source = std::io::ErrorKind::NotFound.into();
        RequestError::Helper { path: "/run/h.sock".to_owned(), source }
    }

    #[test]
    fn unreachable_helper_is_one_failure_and_none_of_a_rule() {
        let mut failures = Failures::default();
        let mut view = FilesView::default();
        assert!(failures.record("", &unreachable()).is_some_and(|problem| problem.contains("/run/h.sock")));
        assert_eq!(failures.record("nginx", &unreachable()), None);
        failures.show(&mut view);
        assert_eq!((view.summary.blocked, view.summary.failed), (Some(FilesFailure::HelperUnreachable), 0));
        assert!(view.problem.is_some());
        assert!(failures.clear("nginx"), "the helper is reachable again");
        failures.show(&mut view);
        assert_eq!(view, FilesView::default());
        assert!(!failures.clear("nginx"));
    }

    /// The status said "0 objects", also if the helper had never answered.
    #[test]
    fn counts_are_unknown_until_the_helper_answers() {
        let summary = FilesSummary { rules: 1, ..FilesSummary::default() };
        let view = FilesView { summary, ..FilesView::default() };
        let shown = view.show().unwrap();
        assert_eq!((shown.rules, shown.objects, shown.in_effect), (1, None, None));
        assert_eq!((shown.not_in_effect, shown.conflicts), (None, None));
        let summary = FilesSummary { objects: Some(FilesCounts::default()), ..summary };
        let shown = FilesView { summary, ..view }.show().unwrap();
        assert_eq!((shown.objects, shown.conflicts), (Some(0), Some(0)));
    }

    /// An answer without counts, of an older helper, was taken for one about no objects.
    #[test]
    fn counts_of_an_older_helper_are_unknown() {
        let view = |answer: &str| FilesView::of(&serde_json::from_str::<Outcome>(answer).unwrap());
        let older = view(r#"{"rules": [], "told": {"epoch": 1, "seq": 2}}"#);
        assert_eq!(older.summary.objects, None);
        let newer = view(r#"{"objects": {"inEffect": 1, "notInEffect": 2, "conflicts": 3, "waiting": 4}}"#);
        let counts = FilesCounts { in_effect: 1, not_in_effect: 2, conflicts: 3, waiting: 4 };
        assert_eq!(newer.summary.objects, Some(counts));
        assert_eq!(counts.total(), 10);
    }

    #[test]
    fn unreachable_helper_is_reported_with_one_working_command() {
        let command = systemd::advice(
            "'systemctl enable --now edgesync-files.socket'",
            "'edgesync files-helper --socket /run/h.sock'",
        );
        let problem = unreachable().to_string();
        assert!(problem.ends_with(&format!("; hint: {command}")), "{problem}");
        assert_eq!(problem.matches("hint:").count(), 1, "{problem}");
    }

    #[test]
    fn general_failure_is_not_counted_as_a_rule() {
        let mut failures = Failures::default();
        let mut view = FilesView::default();
        let refused = |why: &str| RequestError::Refused(why.to_owned());
        assert!(failures.record("", &refused("unreadable state")).is_some());
        assert!(failures.record("nginx", &refused("unknown rule")).is_some());
        failures.show(&mut view);
        assert_eq!((view.summary.blocked, view.summary.failed), (Some(FilesFailure::RequestFailed), 1));
        assert!(!failures.clear(""), "the helper was reachable");
        failures.show(&mut view);
        assert_eq!((view.summary.blocked, view.summary.failed), (None, 1));
        assert_eq!(view.problem.as_deref(), Some("request refused by the helper: unknown rule"));
    }
}
