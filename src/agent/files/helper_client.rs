//! Client of the helper: one connection per request. Never holds a list of all objects in memory.

use std::io;
use std::path::Path;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::agent::kinds::KindRegistry;
use crate::store::{EdgeStore, Entry, ObjectRef};
use edgesync_admin::agent::{FilesHold, FilesList, FilesObject, FilesRule, FilesState, FilesWait};
use edgesync_api::Role;
use edgesync_files::wire::{HoldInfo, Listed, MAX_FRAME, Outcome, Reply, Request, RuleStatistics};
use edgesync_files::{Closed, Member, Rule, State, Status as ObjectState};
use edgesync_helper::start_command;
use edgesync_object::kinds::guess;
use edgesync_object::{Resource, ResourceVersion, Scope};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::BucketSet;
use edgesync_runtime::chain;
use edgesync_store::StoreError;
use edgesync_transport::connect::reworded;

/// Objects read and listed at once.
const PAGE: usize = 100;

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("helper unreachable at {path}: {source}; hint: {}", start_command(Path::new(path)))]
    Helper { path: String, source: io::Error },
    #[error("request refused by the helper: {0}")]
    Refused(String),
    #[error("read database: {0}")]
    Store(String),
    #[error("rule {0:?} not found")]
    NoRule(String),
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        Self::Store(chain(&error))
    }
}

/// A connection to the helper, for one request.
pub(super) struct HelperClient<'a> {
    stream: UnixStream,
    socket: &'a Path,
    store: &'a EdgeStore,
}

/// The objects that a request covers.
#[derive(Clone, Copy)]
pub(super) struct RequestScope<'a> {
    pub(super) kinds: &'a KindRegistry,
    pub(super) rule: &'a Rule,
    /// Epoch of the database that the request refers to: an object missing in another one is not
    /// deleted.
    pub(super) epoch: &'a str,
}

impl<'a> HelperClient<'a> {
    pub(super) async fn begin(socket: &'a Path, store: &'a EdgeStore) -> Result<Self, RequestError> {
        let stream = UnixStream::connect(socket).await.map_err(|error| failed(socket, reworded(error)))?;
        Ok(Self { stream, socket, store })
    }

    /// Lists the objects that a rule affects, page by page. Reads bodies only if labels decide, one
    /// at a time.
    async fn list(
        &mut self,
        RequestScope { kinds, rule, epoch }: RequestScope<'_>,
    ) -> Result<(), RequestError> {
        let mut after = None;
        loop {
            let page = self.store.inventory(BucketSet::ALL, after, PAGE).await?;
            if page.totals.epoch.to_string() != epoch {
                return Err(RequestError::Store("replaced while its objects were listed".to_owned()));
            }
            let mut list = Vec::new();
            for Entry { uid, version, object, .. } in &page.entries {
                if !names(rule, object) {
                    continue;
                }
                let listed = match version {
                    Some(version) if rule.objects.selector.is_empty() => listed(kinds, uid, version, object),
                    _ => self.look_up(kinds, rule, uid).await?,
                };
                if !listed.version.is_empty() {
                    list.push(listed);
                }
            }
            // Also an empty list, as a sign of life for the waiting helper.
            self.send(&list).await?;
            after = page.next;
            if after.is_none() {
                return self.write(&[]).await;
            }
        }
    }

    /// Lists the current state of changed objects.
    pub(super) async fn list_changed(
        &mut self,
        kinds: &KindRegistry,
        rule: &Rule,
        changed: &[Uid],
    ) -> Result<(), RequestError> {
        let mut list = Vec::new();
        for uid in changed {
            list.push(self.look_up(kinds, rule, uid).await?);
        }
        self.send(&list).await
    }

    /// Looks up an object; the result has no version if the object is not held or the rule does not
    /// select it. An unreadable object is an error, not a deletion.
    async fn look_up(&self, kinds: &KindRegistry, rule: &Rule, uid: &Uid) -> Result<Listed, RequestError> {
        let Some(held) = self.store.sound_by_uid(Uid::clone(uid)).await? else {
            return Ok(Listed { uid: uid.to_string(), ..Listed::default() });
        };
        let mut listed = listed(kinds, uid, &held.version, &held.object);
        let selector = &rule.objects.selector;
        if !names(rule, &held.object) || !(selector.is_empty() || selector.matches_json(&held.body)) {
            listed.version.clear();
        }
        Ok(listed)
    }

    async fn send(&mut self, value: &impl Serialize) -> Result<(), RequestError> {
        let text = serde_json::to_vec(value).map_err(|error| failed(self.socket, error.into()))?;
        self.write(&text).await
    }

    async fn write(&mut self, frame: &[u8]) -> Result<(), RequestError> {
        write(&mut self.stream, frame).await.map_err(|source| failed(self.socket, source))
    }

    /// Sends the request, supplies the requested objects, and waits for the outcome.
    pub(super) async fn call(
        mut self,
        request: &Request,
        about: RequestScope<'_>,
    ) -> Result<Outcome, RequestError> {
        self.write(&[]).await?;
        self.send(request).await?;
        loop {
            let frame = read(&mut self.stream).await.map_err(|source| failed(self.socket, source))?;
            match serde_json::from_slice(&frame).map_err(|error| failed(self.socket, error.into()))? {
                Reply::Done(outcome) => return Ok(*outcome),
                Reply::Refused(why) => return Err(RequestError::Refused(why)),
                Reply::Whole => self.list(about).await?,
                Reply::Want(wanted) => {
                    for Member { uid, version } in wanted {
                        let held = self.store.by_uid(uid.as_str().into()).await?;
                        // Another version must not pass for this one. The next request includes it.
                        let held = held.filter(|held| held.version.as_str() == version);
                        self.write(held.as_ref().map_or("", |held| &held.body).as_bytes()).await?;
                    }
                }
            }
        }
    }
}

/// Returns whether a rule names an object, whatever its labels.
fn names(rule: &Rule, ObjectRef { resource, namespace, name }: &ObjectRef) -> bool {
    rule.objects.names(resource, namespace, name)
}

fn listed(kinds: &KindRegistry, uid: &Uid, version: &ResourceVersion, object: &ObjectRef) -> Listed {
    let ObjectRef { resource, namespace, name } = object;
    Listed {
        uid: uid.to_string(),
        api_version: resource.api_version(),
        kind: resource.kind.clone(),
        plural: irregular_plural(resource),
        namespace: namespace.to_string(),
        name: name.to_string(),
        version: version.as_str().to_owned(),
        sealed: kinds.seals(resource),
    }
}

/// Returns the plural of a kind unless it follows from the kind.
fn irregular_plural(resource: &Resource) -> String {
    let guessed = guess(&resource.api_version(), &resource.kind, resource.scope == Scope::Namespaced);
    if guessed.plural == resource.plural { String::new() } else { resource.plural.clone() }
}

fn failed(socket: &Path, source: io::Error) -> RequestError {
    RequestError::Helper { path: socket.display().to_string(), source }
}

async fn write(stream: &mut UnixStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(frame).await
}

async fn read(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await?;
    if length > MAX_FRAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = Vec::new();
    let read = stream.take(u64::from(length)).read_to_end(&mut frame).await?;
    if read as u64 == u64::from(length) { Ok(frame) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Returns the rules for display. Output about Secrets is only for callers with access to Secrets.
pub(super) fn show(outcome: &Outcome, role: Role) -> FilesList {
    let mut rules = outcome.rules.clone();
    if role != Role::Admin {
        for rule in &mut rules {
            // A program reads all files of its rule, and may quote any in each message.
            if rule.objects.iter().any(|object| object.sealed) {
                rule.output =
                    "output hidden: it may quote Secrets; hint: 'edgesync files' as root".to_owned();
                // No program has written what an object waits for.
                let programs = rule.objects.iter_mut().filter(|object| object.state != State::Waiting);
                programs.for_each(|object| object.message.clear());
            }
        }
    }
    FilesList {
        rules: rules.iter().map(show_rule).collect(),
        holds: outcome.holds.iter().map(show_hold).collect(),
    }
}

/// Converts a hold for display.
pub(super) fn show_hold(hold: &HoldInfo) -> FilesHold {
    let HoldInfo { id, ref rule, uid, ref owner, ref why, since, until } = *hold;
    let (rule, owner, why) = (rule.clone(), owner.clone(), why.clone());
    FilesHold { id, rule, uid, owner, why, since, until }
}

/// Converts what a rule waits for, for display.
pub(super) fn show_wait(rule: &str, closed: &Closed) -> FilesWait {
    FilesWait {
        rule: rule.to_owned(),
        reason: closed.reason.name().to_owned(),
        until: closed.until,
        message: closed.message.clone(),
    }
}

/// Converts a rule for display.
pub(super) fn show_rule(rule: &RuleStatistics) -> FilesRule {
    FilesRule {
        name: rule.name.clone(),
        in_effect: rule.in_effect,
        not_in_effect: rule.not_in_effect,
        conflicts: rule.conflicts,
        reloads: rule.reloads,
        rollbacks: rule.rollbacks,
        files: rule.files,
        output: rule.output.clone(),
        objects: rule.objects.iter().map(show_object).collect(),
        waiting: rule.waiting,
        wait: rule.closed.as_ref().map(|closed| show_wait(&rule.name, closed)),
    }
}

fn show_object(object: &ObjectState) -> FilesObject {
    FilesObject {
        api_version: object.api_version.clone(),
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        sealed: object.sealed,
        version: object.version.clone(),
        desired: object.wanted.clone(),
        state: match object.state {
            State::Gone => FilesState::Gone,
            State::InEffect => FilesState::InEffect,
            State::NotInEffect => FilesState::NotInEffect,
            State::Conflict => FilesState::Conflict,
            State::Waiting => FilesState::Waiting,
        },
        message: object.message.clone(),
        rolled_back: object.rolled_back,
        since: object.since,
        seq: object.seq,
        reason: object.reason.map(|reason| reason.name().to_owned()),
        until: object.until,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EdgeOptions;
    use edgesync_files::wire::Verb;
    use tokio::net::UnixListener;

    #[test]
    fn plural_is_listed_if_it_does_not_follow_from_the_kind() {
        let plural = |api_version: &str, kind: &str, plural: &str| {
            let resource = Resource { plural: plural.to_owned(), ..guess(api_version, kind, true) };
            let (namespace, name) = ("plant".into(), "web".into());
            let object = ObjectRef { resource: resource.into(), namespace, name };
            let listed = listed(&KindRegistry::default(), &"u".into(), &ResourceVersion::from("1"), &object);
            assert_eq!(listed.check(), Ok(()));
            listed.plural
        };
        assert_eq!(plural("lab.io/v1", "Mouse", "mice"), "mice");
        assert_eq!(plural("lab.io/v1", "Widget", "widgets"), "");
        assert_eq!(plural("v1", "ConfigMap", "configmaps"), "");
    }

    /// The message about a ConfigMap used to be shown, with the lines of the Secret beside it that
    /// a program had quoted.
    #[test]
    fn messages_of_a_rule_with_secrets_are_for_those_who_may_read_them() {
        let object = |name: &str, sealed| ObjectState {
            name: name.into(),
            sealed,
            message: "line 3: 'hunter2'".into(),
            ..ObjectState::default()
        };
        let rule = |name: &str, objects| RuleStatistics {
            name: name.into(),
            output: "line 3: 'hunter2'".into(),
            objects,
            ..RuleStatistics::default()
        };
        let rules = vec![
            rule("mixed", vec![object("map", false), object("key", true)]),
            rule("plain", vec![object("map", false)]),
        ];
        let outcome = Outcome { rules, ..Outcome::default() };
        let quotes = |role| {
            let shown = show(&outcome, role).rules;
            let quotes = |rule: &FilesRule| {
                rule.output.contains("hunter2")
                    || rule.objects.iter().any(|object| object.message.contains("hunter2"))
            };
            shown.iter().map(quotes).collect::<Vec<_>>()
        };
        assert_eq!((quotes(Role::Admin), quotes(Role::Local)), (vec![true, true], vec![false, true]));
    }

    #[tokio::test]
    async fn objects_of_a_replaced_database_are_not_listed() {
        let directory = tempfile::tempdir().unwrap();
        let store = EdgeStore::open(&directory.path().join("edge.db"), EdgeOptions::default()).unwrap();
        let socket = directory.path().join("files.sock");
        let helper = UnixListener::bind(&socket).unwrap();
        let own = store.facts().totals.epoch.to_string();
        for (epoch, is_listed) in [(own.as_str(), true), ("that of another", false)] {
            let asked = async {
                let client = HelperClient::begin(&socket, &store).await?;
                let request = Request { verb: Verb::Apply, ..Request::default() };
                client
                    .call(
                        &request,
                        RequestScope { kinds: &KindRegistry::default(), rule: &Rule::default(), epoch },
                    )
                    .await
            };
            let served = async {
                let (mut stream, _) = helper.accept().await.unwrap();
                let frames = (read(&mut stream).await.unwrap(), read(&mut stream).await.unwrap());
                assert!(frames.0.is_empty() && !frames.1.is_empty());
                write(&mut stream, &serde_json::to_vec(&Reply::Whole).unwrap()).await.unwrap();
                let listed = read(&mut stream).await;
                if listed.is_ok() {
                    let done = Reply::Done(Box::default());
                    write(&mut stream, &serde_json::to_vec(&done).unwrap()).await.unwrap();
                }
                listed.is_ok()
            };
            let (outcome, listed) = tokio::join!(asked, served);
            assert_eq!((outcome.is_ok(), listed), (is_listed, is_listed), "{outcome:?}");
        }
    }
}
