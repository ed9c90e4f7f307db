//! Task that owns all watches: starts and stops them, and merges their events into one order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::access::{Cluster, Unserved};
use super::holdings::{Holdings, WatchId};
use super::item::Item;
use super::plan::{Interest, KindId, Kinds, Origin, Plan, Problem, Spot, Watch};
use super::spots::{Left, Running, State};
use super::watching::{self, Failure, Message, Seen, Task, Told};
use edgesync_object::{Resource, ResourceVersion};
use edgesync_placement::spec::InForce;
use edgesync_placement::{Summary, Unread};

/// Capacity of the channel from the watches.
const MESSAGES: usize = 16;
/// Interval of discovery without a sign that the served kinds have changed.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Delay of discovery after an outage or a sign that the served kinds have changed; both take the
/// cluster a while.
const LOOK_SOON: Duration = Duration::from_secs(2);
/// Minimum interval between catch-up rounds, because each one lists everything.
const ROUND_EVERY: Duration = Duration::from_secs(1);

/// The consumer was dropped.
pub(super) struct Closed;

/// Result of one discovery.
struct Look {
    kinds: Kinds,
    reached: ResourceVersion,
}

/// A catch-up round: lists everything, to prove that no change was missed.
struct Round {
    /// The last request that it answers.
    question: u64,
    /// The version that the cluster had reached; `None` until discovery.
    reached: Option<ResourceVersion>,
}

/// The task that owns all watches.
pub(super) struct Follower {
    cluster: Cluster,
    to: mpsc::Sender<Item>,
    messages: mpsc::Receiver<Message>,
    to_messages: mpsc::Sender<Message>,
    /// Static interests, including those of the fleet itself.
    interests: Vec<Interest>,
    /// Interests of rules stored as objects, by UID.
    rules: BTreeMap<Arc<str>, Interest>,
    /// The served kinds; `None` before the first discovery.
    kinds: Option<Kinds>,
    /// The current plan without its watches, which are in `running`.
    plan: Plan,
    /// Set when the running watches may differ from the desired ones.
    is_outdated: bool,
    running: BTreeMap<Spot, Running>,
    /// Stopped watches, kept until their objects are covered by others or no longer of interest.
    left: BTreeMap<Spot, Left>,
    holdings: Holdings,
    /// The newest version delivered.
    newest: ResourceVersion,
    /// Last assigned numbers of watches and of runs.
    next_watch: u32,
    next_run: u64,
    /// Set when all rules stored as objects are listed, which precedes the objects they select.
    knows_rules: bool,
    /// Set when [`Item::Complete`] was sent.
    is_complete: bool,
    /// Number of catch-up requests so far.
    asked: u64,
    answered: u64,
    round: Option<Round>,
    /// Earliest start of the next round.
    next_round: Instant,
    /// The outage already reported, cleared by the next event.
    failed: Option<String>,
    /// Set when problems or unread objects may differ from those sent last.
    is_trouble_changed: bool,
    problems: Vec<Problem>,
    unread: Vec<Unread>,
    /// Notified when the served kinds may have changed.
    changed_kinds: Arc<Notify>,
    /// Notified when the cluster may be restored from a backup.
    doubts: Arc<Notify>,
    _definitions: Task,
    /// The running discovery, with the newest version delivered at its start.
    looking: Option<(JoinHandle<Result<Look, Unserved>>, ResourceVersion)>,
    look_at: Instant,
}

impl Follower {
    pub(super) fn new(
        cluster: Cluster,
        interests: Vec<Interest>,
        to: mpsc::Sender<Item>,
        doubts: Arc<Notify>,
    ) -> Self {
        let (to_messages, messages) = mpsc::channel(MESSAGES);
        let changed_kinds = Arc::new(Notify::new());
        let definitions = watching::definitions((*cluster.following).clone(), Arc::clone(&changed_kinds));
        Self {
            cluster,
            to,
            messages,
            to_messages,
            interests,
            rules: BTreeMap::new(),
            kinds: None,
            plan: Plan::default(),
            is_outdated: false,
            running: BTreeMap::new(),
            left: BTreeMap::new(),
            holdings: Holdings::default(),
            newest: 0.into(),
            next_watch: 0,
            next_run: 0,
            knows_rules: false,
            is_complete: false,
            asked: 0,
            answered: 0,
            round: None,
            next_round: Instant::now(),
            failed: None,
            is_trouble_changed: false,
            problems: Vec::new(),
            unread: Vec::new(),
            changed_kinds,
            doubts,
            _definitions: definitions,
            looking: None,
            look_at: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, mut questions: watch::Receiver<u64>) -> Result<(), Closed> {
        loop {
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => self.take_in(message).await?,
                    None => return Err(Closed),
                },
                looked = async { Some((&mut self.looking.as_mut()?.0).await) }, if self.looking.is_some() => {
                    if let (Some(Ok(looked)), Some((_, newest))) = (looked, self.looking.take()) {
                        self.looked(looked, &newest).await?;
                    }
                }
                () = sleep_until(self.look_at), if self.looking.is_none() => self.look(),
                asked = questions.changed() => match asked {
                    Ok(()) => self.asked = *questions.borrow_and_update(),
                    Err(_) => return Err(Closed),
                },
                () = self.changed_kinds.notified() => self.look_soon(),
                () = self.doubts.notified() => self.holdings.doubt(),
                () = self.to.closed() => return Err(Closed),
            }
            self.settle().await?;
        }
    }

    async fn say(&self, item: Item) -> Result<(), Closed> {
        self.to.send(item).await.map_err(|_| Closed)
    }

    /// Starts discovery.
    fn look(&mut self) {
        self.look_at = Instant::now() + LOOK_EVERY;
        let cluster = self.cluster.clone();
        let look = async move {
            // The version is read before the kinds, so that the kinds include all that have objects
            // up to it.
            let reached = cluster.reached().await?;
            Ok(Look { kinds: cluster.kinds().await?, reached })
        };
        self.looking = Some((tokio::spawn(look), self.newest.clone()));
    }

    /// Schedules discovery soon.
    fn look_soon(&mut self) {
        self.look_at = self.look_at.min(Instant::now() + LOOK_SOON);
    }

    /// Handles the result of a discovery that started when `newest` was the newest version.
    async fn looked(
        &mut self,
        looked: Result<Look, Unserved>,
        newest: &ResourceVersion,
    ) -> Result<(), Closed> {
        let Look { mut kinds, reached } = match looked {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(%error, "API discovery failed");
                self.look_soon();
                // Broken watches report themselves.
                return if self.kinds.is_some() { Ok(()) } else { self.say_failed(error.to_string()).await };
            }
        };
        if let Some(before) = &self.kinds {
            kinds.take_over(before);
        }
        self.is_outdated |= self.kinds.as_ref() != Some(&kinds);
        self.kinds = Some(kinds);
        if reached.is_older_than(newest) {
            tracing::warn!(%reached, %newest, "cluster was restored from a backup: relisting");
            self.newest = reached.clone();
            self.holdings.doubt();
            self.list_again();
            self.say(Item::Restored).await?;
        }
        self.list_what_was_given_up();
        if let Some(round) = self.round.as_mut().filter(|round| round.reached.is_none()) {
            round.reached = Some(reached);
            self.list_again();
        }
        Ok(())
    }

    /// Reports an outage, once per cause.
    async fn say_failed(&mut self, why: String) -> Result<(), Closed> {
        if self.failed.as_ref() == Some(&why) {
            return Ok(());
        }
        self.failed = Some(why.clone());
        self.say(Item::Failed(why)).await
    }

    async fn take_in(&mut self, Message { spot, run, told }: Message) -> Result<(), Closed> {
        // Drops messages of a stopped run.
        let Some(id) =
            self.running.get(&*spot).filter(|running| running.run == run).map(|running| running.id)
        else {
            return Ok(());
        };
        if !matches!(told, Told::Begun | Told::Failed(_)) {
            self.failed = None;
        }
        // A partial list proves nothing about unread objects; only its end does.
        if !matches!(told, Told::Begun | Told::Failed(_) | Told::Listed(_)) {
            self.change_state(&spot, State::Well);
        }
        match told {
            Told::Begun => self.holdings.begin(id),
            Told::Listed(mut objects) => {
                objects.retain(|object| self.holdings.list(id, &object.summary));
                objects.iter().for_each(|object| self.note(object));
                if !objects.is_empty() {
                    self.say(Item::Listed(objects)).await?;
                }
            }
            Told::Complete => {
                if let Some(running) = self.running.get_mut(&*spot) {
                    running.is_listed = true;
                }
                let gone: Vec<Arc<Summary>> = self.holdings.complete(id).into_iter().map(Arc::new).collect();
                gone.iter().for_each(|summary| self.drop_rule(summary));
                if !gone.is_empty() {
                    self.say(Item::Unlisted(gone)).await?;
                }
            }
            Told::Set(object) => {
                if self.holdings.set(id, &object.summary) {
                    self.note(&object);
                    self.say(Item::Set(object)).await?;
                }
            }
            Told::Gone(object) => {
                if self.holdings.remove(id, &object.summary.uid) {
                    self.drop_rule(&object.summary);
                    self.say(Item::Gone(object.summary)).await?;
                }
            }
            Told::Failed(failure) => self.failed(&spot, failure).await?,
        }
        Ok(())
    }

    async fn failed(&mut self, spot: &Spot, failure: Failure) -> Result<(), Closed> {
        let Some(before) = self.running.get(spot).map(|running| running.state.clone()) else { return Ok(()) };
        let state = match failure {
            Failure::Refused(why) => State::Refused(why),
            Failure::Unserved => {
                self.look_soon();
                before.broken("kind no longer served".to_owned())
            }
            Failure::Broken(error) => {
                // The cluster may be a different one after the outage.
                self.look_soon();
                let why = self.cluster.unserved(&error).to_string();
                let state = before.broken(why.clone());
                if matches!(state, State::Broken(1, _)) {
                    self.say_failed(why).await?;
                }
                state
            }
        };
        self.change_state(spot, state);
        Ok(())
    }

    fn change_state(&mut self, spot: &Spot, state: State) {
        let Some(running) = self.running.get_mut(spot).filter(|running| running.state != state) else {
            return;
        };
        tracing::debug!(%spot, ?state, "watch state changed");
        // A refused watch does not cover others.
        self.is_outdated |= running.state.is_refused() != state.is_refused();
        self.is_trouble_changed = true;
        running.state = state;
    }

    /// Records the newest version, and the interest of a rule.
    fn note(&mut self, object: &Seen) {
        if self.newest.is_older_than(&object.summary.version) {
            self.newest = object.summary.version.clone();
        }
        self.take_rule(object);
    }

    /// Records the interest of a rule stored as an object.
    fn take_rule(&mut self, object: &Seen) {
        let summary = &object.summary;
        let Some(text) = &summary.rule else { return };
        let uid = Arc::clone(&summary.uid);
        let interest = InForce::of(text, &summary.namespace).rule.map(|rule| {
            let origin = Origin::Rule(Arc::clone(&uid));
            Interest::rule(origin, rule.objects)
        });
        let before = match interest.clone() {
            Some(interest) => self.rules.insert(uid, interest),
            None => self.rules.remove(&uid),
        };
        self.is_outdated |= before != interest;
    }

    fn drop_rule(&mut self, summary: &Summary) {
        self.is_outdated |= self.rules.remove(&summary.uid).is_some();
    }

    async fn say_gone(&mut self, gone: Vec<Summary>) -> Result<(), Closed> {
        for summary in gone {
            self.drop_rule(&summary);
            self.say(Item::Gone(Arc::new(summary))).await?;
        }
        Ok(())
    }

    /// Starts and stops watches to match the plan.
    fn replan(&mut self) {
        let Some(kinds) = &self.kinds else { return };
        let refused = |(spot, running): (&Spot, &Running)| running.state.is_refused().then(|| spot.clone());
        let refused: BTreeSet<Spot> = self.running.iter().filter_map(refused).collect();
        let interests: Vec<Interest> = match self.knows_rules {
            true => self.interests.iter().chain(self.rules.values()).cloned().collect(),
            false => {
                self.interests.iter().filter(|interest| interest.origin == Origin::Fleet).cloned().collect()
            }
        };
        self.plan = Plan::of(&interests, kinds, &refused);
        self.is_trouble_changed = true;
        let watches = std::mem::take(&mut self.plan.watches);
        let ended: Vec<Spot> =
            self.running.keys().filter(|spot| !watches.contains_key(*spot)).cloned().collect();
        for spot in ended {
            if let Some(Running { id, watch, .. }) = self.running.remove(&spot) {
                self.left.insert(spot, Left { id, resource: watch.resource });
            }
        }
        for (spot, watch) in watches {
            match self.running.get_mut(&spot) {
                Some(running) if running.watch.asks_the_same(&watch) => running.watch.origins = watch.origins,
                _ => self.start(spot, watch),
            }
        }
    }

    /// Starts or restarts a watch. Its previous objects are dropped when a complete list lacks
    /// them.
    fn start(&mut self, spot: Spot, watch: Watch) {
        let before = self.running.remove(&spot);
        let left = self.left.remove(&spot).map(|left| left.id);
        let id = before.as_ref().map(|before| before.id).or(left).unwrap_or_else(|| {
            self.next_watch += 1;
            WatchId(self.next_watch)
        });
        // An unchanged watch keeps its state, so that nothing waits for a broken one.
        let state = before.filter(|before| before.watch.asks_the_same(&watch)).map(|before| before.state);
        self.next_run += 1;
        let run = self.next_run;
        let client = (*self.cluster.following).clone();
        let task = watching::start(client, Arc::new(spot.clone()), &watch, run, self.to_messages.clone());
        let state = state.unwrap_or(State::Well);
        self.running.insert(spot, Running { id, run, watch, state, is_listed: false, _task: task });
    }

    /// Relists everything. Delivers only the differences.
    fn list_again(&mut self) {
        self.list_those(|_| true);
    }

    /// Relists the watches given up, once discovery succeeds. A working watch is silent while
    /// nothing changes, so only a list shows that it works again.
    fn list_what_was_given_up(&mut self) {
        self.list_those(|running| running.is_listed && running.state.is_given_up());
    }

    fn list_those(&mut self, which: impl Fn(&Running) -> bool) {
        let chosen = self.running.iter().filter(|(_, running)| which(running));
        let spots: Vec<(Spot, Watch)> =
            chosen.map(|(spot, running)| (spot.clone(), running.watch.clone())).collect();
        for (spot, watch) in spots {
            self.start(spot, watch);
        }
    }

    /// Applies the consequences of the last event.
    async fn settle(&mut self) -> Result<(), Closed> {
        if std::mem::take(&mut self.is_outdated) {
            self.replan();
        }
        if !self.knows_rules && self.is_answered() {
            self.knows_rules = true;
            self.replan();
        }
        self.release().await?;
        if std::mem::take(&mut self.is_trouble_changed) {
            self.say_trouble().await?;
        }
        if !self.is_complete && self.is_answered() {
            self.is_complete = true;
            self.say(Item::Complete).await?;
        }
        self.catch_up().await
    }

    /// Returns whether each watch is listed, refused or given up. Requires the kinds of the fleet.
    fn is_answered(&self) -> bool {
        let has_fleet = !self.plan.problems.iter().any(|problem| problem.origin == Origin::Fleet);
        self.kinds.is_some() && has_fleet && self.running.values().all(Running::is_answered)
    }

    /// Completes a catch-up round, and starts the next one if requested.
    async fn catch_up(&mut self) -> Result<(), Closed> {
        if let Some(Round { question, reached: Some(reached) }) = &self.round
            && self.is_answered()
        {
            let reached = if reached.is_older_than(&self.newest) { &self.newest } else { reached };
            let (question, reached) = (*question, reached.clone());
            self.round = None;
            self.answered = question;
            self.next_round = Instant::now() + ROUND_EVERY;
            self.say(Item::CaughtUp { question, reached }).await?;
        }
        if self.round.is_none() && self.is_complete && self.answered < self.asked {
            self.round = Some(Round { question: self.asked, reached: None });
            // A running discovery may be older than the request.
            self.looking = None;
            self.look_at = self.next_round.max(Instant::now());
        }
        Ok(())
    }

    /// Sends problems and unread objects if they have changed.
    async fn say_trouble(&mut self) -> Result<(), Closed> {
        let Plan { problems, unread, .. } = &self.plan;
        let (mut problems, mut unread) = (problems.clone(), unread.clone());
        for (spot, running) in &self.running {
            if let Some((whose, what)) = running.trouble(spot) {
                problems.extend(whose);
                unread.push(what);
            }
        }
        if unread != self.unread {
            self.unread.clone_from(&unread);
            self.say(Item::Unread(unread)).await?;
        }
        if problems != self.problems {
            self.problems.clone_from(&problems);
            self.say(Item::Problems(problems)).await?;
        }
        Ok(())
    }

    /// Releases stopped watches whose objects are no longer of interest or covered by other
    /// watches.
    async fn release(&mut self) -> Result<(), Closed> {
        let ready: Vec<Spot> = self
            .left
            .iter()
            .filter(|(spot, left)| self.is_over(spot, left))
            .map(|(spot, _)| spot.clone())
            .collect();
        for spot in ready {
            if let Some(left) = self.left.remove(&spot) {
                let gone = self.holdings.release(left.id);
                self.say_gone(gone).await?;
            }
        }
        Ok(())
    }

    fn is_over(&self, spot: &Spot, left: &Left) -> bool {
        let wanted =
            self.interests.iter().chain(self.rules.values()).any(|interest| interest.takes(&left.resource));
        let is_kind = |resource: &Arc<Resource>| KindId::of(resource) == spot.kind;
        let served = self.kinds.as_ref().is_some_and(|kinds| kinds.served.iter().any(is_kind));
        let mut others = self.running.iter().filter(|(other, _)| other.kind == spot.kind);
        !wanted || (served && self.plan.is_whole() && others.all(|(_, running)| running.is_listed))
    }
}
