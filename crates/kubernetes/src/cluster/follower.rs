//! The task that has all watches: it starts and ends them, and makes one order of what they tell.

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

/// Messages of watches that wait.
const MESSAGES: usize = 16;
/// How often the cluster is looked at, if nothing says that kinds have come or gone.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long is waited after a cluster did not serve, or kinds may have come or gone: both take it a
/// while.
const LOOK_SOON: Duration = Duration::from_secs(2);
/// The shortest time between two rounds of catching up: each lists everything.
const ROUND_EVERY: Duration = Duration::from_secs(1);

/// Nobody listens any more.
pub(super) struct Closed;

/// What a cluster is, apart from its objects.
struct Look {
    kinds: Kinds,
    reached: ResourceVersion,
}

/// All is listed to tell that nothing was missed.
struct Round {
    /// The last question that it answers.
    question: u64,
    /// How far the cluster has got; nothing until it was looked at.
    reached: Option<ResourceVersion>,
}

/// The task that has all watches.
pub(super) struct Follower {
    cluster: Cluster,
    to: mpsc::Sender<Item>,
    messages: mpsc::Receiver<Message>,
    to_messages: mpsc::Sender<Message>,
    /// What is wanted whatever rules there are as objects: that of the fleet itself among it.
    interests: Vec<Interest>,
    /// What rules want that are objects, by their UIDs.
    rules: BTreeMap<Arc<str>, Interest>,
    /// What the cluster serves; nothing until it has told.
    kinds: Option<Kinds>,
    /// What of it all is not watched, apart from its watches: those are running.
    plan: Plan,
    /// What is watched may not be what is wanted any more.
    is_outdated: bool,
    running: BTreeMap<Spot, Running>,
    /// Spots that are watched no more, as long as it is not clear who else tells of what they had.
    left: BTreeMap<Spot, Left>,
    holdings: Holdings,
    /// The newest version that was told.
    newest: ResourceVersion,
    /// Numbers of watches and runs.
    next_watch: u32,
    next_run: u64,
    /// All rules are known that are objects: they are told before what they select.
    knows_rules: bool,
    /// All was told a first time.
    is_complete: bool,
    /// Questions so far.
    asked: u64,
    answered: u64,
    round: Option<Round>,
    /// When the next one may begin.
    next_round: Instant,
    /// Why it does not serve, if that was said and nothing has come since.
    failed: Option<String>,
    /// What is unread, and who has which problem, may not be what was said last.
    is_trouble_changed: bool,
    problems: Vec<Problem>,
    unread: Vec<Unread>,
    /// Kinds may have come or gone.
    changed_kinds: Arc<Notify>,
    /// The cluster may be an older copy of itself.
    doubts: Arc<Notify>,
    _definitions: Task,
    /// With the newest version that was told when it began.
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

    /// Looks at the cluster.
    fn look(&mut self) {
        self.look_at = Instant::now() + LOOK_EVERY;
        let cluster = self.cluster.clone();
        let look = async move {
            // What the cluster has given by now may be of kinds that it serves by now.
            let reached = cluster.reached().await?;
            Ok(Look { kinds: cluster.kinds().await?, reached })
        };
        self.looking = Some((tokio::spawn(look), self.newest.clone()));
    }

    /// Looks at the cluster again soon.
    fn look_soon(&mut self) {
        self.look_at = self.look_at.min(Instant::now() + LOOK_SOON);
    }

    /// The cluster was looked at, at a time when nothing newer than this had been told.
    async fn looked(
        &mut self,
        looked: Result<Look, Unserved>,
        newest: &ResourceVersion,
    ) -> Result<(), Closed> {
        let Look { mut kinds, reached } = match looked {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(%error, "the cluster cannot be looked at");
                self.look_soon();
                // Watches say themselves that they are broken.
                return if self.kinds.is_some() { Ok(()) } else { self.say_failed(error.to_string()).await };
            }
        };
        if let Some(before) = &self.kinds {
            kinds.take_over(before);
        }
        self.is_outdated |= self.kinds.as_ref() != Some(&kinds);
        self.kinds = Some(kinds);
        if reached.is_older_than(newest) {
            tracing::warn!(%reached, %newest, "the cluster was restored from a copy: all of it is read anew");
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

    /// Says why the cluster does not serve, once.
    async fn say_failed(&mut self, why: String) -> Result<(), Closed> {
        if self.failed.as_ref() == Some(&why) {
            return Ok(());
        }
        self.failed = Some(why.clone());
        self.say(Item::Failed(why)).await
    }

    async fn take_in(&mut self, Message { spot, run, told }: Message) -> Result<(), Closed> {
        // Of a run that has ended.
        let Some(id) =
            self.running.get(&*spot).filter(|running| running.run == run).map(|running| running.id)
        else {
            return Ok(());
        };
        if !matches!(told, Told::Begun | Told::Failed(_)) {
            self.failed = None;
        }
        // A part of a list does not say what there is: what could not be read is known with the end
        // of it.
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
                before.broken("there is no such kind any more".to_owned())
            }
            Failure::Broken(error) => {
                // It may be another one when it serves again.
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
        tracing::debug!(%spot, ?state, "a watch fares otherwise than before");
        // Nobody relies on what is refused.
        self.is_outdated |= running.state.is_refused() != state.is_refused();
        self.is_trouble_changed = true;
        running.state = state;
    }

    /// Notes how far versions have got, and what a rule wants that is an object.
    fn note(&mut self, object: &Seen) {
        if self.newest.is_older_than(&object.summary.version) {
            self.newest = object.summary.version.clone();
        }
        self.take_rule(object);
    }

    /// What a rule wants that is an object, from now on.
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

    /// Starts and ends watches, so that they are those that are wanted.
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

    /// Starts a watch, or begins it anew: what it had is gone when it has listed all and that is
    /// not there.
    fn start(&mut self, spot: Spot, watch: Watch) {
        let before = self.running.remove(&spot);
        let left = self.left.remove(&spot).map(|left| left.id);
        let id = before.as_ref().map(|before| before.id).or(left).unwrap_or_else(|| {
            self.next_watch += 1;
            WatchId(self.next_watch)
        });
        // Nobody waits for one that is as it was.
        let state = before.filter(|before| before.watch.asks_the_same(&watch)).map(|before| before.state);
        self.next_run += 1;
        let run = self.next_run;
        let client = (*self.cluster.following).clone();
        let task = watching::start(client, Arc::new(spot.clone()), &watch, run, self.to_messages.clone());
        let state = state.unwrap_or(State::Well);
        self.running.insert(spot, Running { id, run, watch, state, is_listed: false, _task: task });
    }

    /// Lists everything anew. Only what is news is told.
    fn list_again(&mut self) {
        self.list_those(|_| true);
    }

    /// The cluster serves. A watch that goes on is silent as long as nothing happens: whether what
    /// was given up can be read again is known when it is listed.
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

    /// Does and says what has become clear by what has happened.
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

    /// Whether the cluster has said of everything what there is, or that it does not give it.
    fn is_answered(&self) -> bool {
        let has_fleet = !self.plan.problems.iter().any(|problem| problem.origin == Origin::Fleet);
        self.kinds.is_some() && has_fleet && self.running.values().all(Running::is_answered)
    }

    /// Ends a round of catching up that is through, and begins another one if somebody has asked
    /// meanwhile.
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
            // What is being looked at now may be older than the question.
            self.looking = None;
            self.look_at = self.next_round.max(Instant::now());
        }
        Ok(())
    }

    /// Says who does not get what, and what is unread, if that is not what was said last.
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

    /// Gives up what was watched, where nobody wants it any more, or others tell of all that is
    /// wanted of it.
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
