use super::*;
use crate::body::Body;
use crate::cloud::testing::{DesiredObject, DesiredObjects, hello, machine, welcome};
use crate::cloud::{CloudEffect, LoadRequest};
use crate::frame::{Down, Hello, Item, Report, Up};
use crate::patch::{Edition, PatchProblem};
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectRef, Resource, Scope};

fn name(number: usize) -> Uid {
    format!("uid-{number:04}").into()
}

fn wish(number: usize, version: u64) -> DesiredObject {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "default".into(),
        name: name(number),
    };
    let resource = Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
        scope: Scope::Namespaced,
    };
    DesiredObject {
        version: version.into(),
        object: object.into(),
        resource: resource.into(),
        size: 1000,
        urgency: Urgency::Normal,
    }
}

fn text(uid: &str, version: u64) -> String {
    let filler: String = (0..60).map(|n| format!("parameter-{n}={},", n * 7919 % 1000)).collect();
    let metadata =
        format!(r#"{{"name":"{uid}","namespace":"default","resourceVersion":"{version}","uid":"{uid}"}}"#);
    format!(r#"{{"apiVersion":"v1","data":{{"x":"{filler}"}},"kind":"ConfigMap","metadata":{metadata}}}"#)
}

/// A session with a node that holds the first version of some objects.
struct Session {
    cloud: CloudMachine,
    wishes: DesiredObjects,
    revision: u64,
}

impl Session {
    fn new(count: usize, patches: bool) -> Self {
        let mut wishes = DesiredObjects::default();
        let mut cloud = machine();
        for number in 0..count {
            wishes.tell(Now::ZERO, Some(&mut cloud), &name(number), Some(wish(number, 1)));
        }
        let Up::Hello(first) = hello("a") else { panic!("must be a Hello") };
        welcome(&mut cloud, Up::Hello(Hello { patches, ..first }), &wishes);
        let mut session = Self { cloud, wishes, revision: 0 };
        session.complete(1);
        session
    }

    /// Sends and reports until nothing is left. Returns the objects sent, and whether as patches.
    fn complete(&mut self, version: u64) -> Vec<(Uid, bool)> {
        let mut all = Vec::new();
        loop {
            let sent = self.send();
            if sent.is_empty() {
                return all;
            }
            self.report(&sent.iter().map(|(uid, _)| uid.clone()).collect::<Vec<_>>(), version);
            all.extend(sent);
        }
    }

    fn change(&mut self, number: usize, version: u64) {
        self.wishes.tell(Now::ZERO, Some(&mut self.cloud), &name(number), Some(wish(number, version)));
    }

    /// Answers loads and sends all frames. Returns the objects sent, and whether as patches.
    fn send(&mut self) -> Vec<(Uid, bool)> {
        let mut sent = Vec::new();
        loop {
            let effect = self.cloud.poll_effect(&self.wishes);
            let is_done = effect.is_none();
            match effect {
                Some(CloudEffect::Load { token, objects }) => {
                    let bodies = objects.into_iter().map(loaded).collect();
                    self.cloud.loaded(Now::ZERO, token, bodies, &self.wishes);
                }
                Some(CloudEffect::Record(batch)) => {
                    self.cloud.recorded(Now::ZERO, batch.token, true, 0, &self.wishes);
                }
                _ => {}
            }
            let mut has_sent = false;
            while let Some(frame) = self.cloud.poll_frame(Now::ZERO, &self.wishes) {
                has_sent = true;
                match frame {
                    Down::Patches(frame) => {
                        sent.extend(frame.patches.iter().map(|patch| (patch.uid().clone(), true)));
                    }
                    Down::Objects(frame) => sent.extend(frame.messages.iter().map(|message| {
                        let mut text = String::new();
                        message.write_to(&mut text);
                        (text[text.find("uid-").unwrap()..][..8].into(), false)
                    })),
                    _ => {}
                }
            }
            if is_done && !has_sent {
                return sent;
            }
        }
    }

    fn answer(&mut self, report: Report) {
        self.cloud.received(Now::ZERO, Up::Report(Report { session: "a".into(), ..report }), &self.wishes);
    }

    fn report(&mut self, uids: &[Uid], version: u64) {
        let item = |uid: &Uid| Item { uid: uid.clone(), resource_version: version.into(), object: None };
        let (from, to) = (self.revision, self.revision + 1);
        self.revision = to;
        self.answer(Report { from, to, objects: uids.iter().map(item).collect(), ..Report::default() });
    }

    fn refuse(&mut self, uids: &[Uid], base: u64) {
        let refusal =
            |uid: &Uid| Unpatched { uid: uid.clone(), base: base.into(), reason: PatchProblem::OtherBase };
        let (from, to) = (self.revision, self.revision);
        self.answer(Report { from, to, unpatched: uids.iter().map(refusal).collect(), ..Report::default() });
    }
}

fn loaded(LoadRequest { uid, version, base }: LoadRequest) -> Loaded {
    let number = |version: &ResourceVersion| version.as_str().parse().unwrap();
    let body = text(&uid, number(&version));
    let patch = base.and_then(|base| {
        let old = text(&uid, number(&base));
        Patch::make(&uid, Edition { version: &base, text: &old }, Edition { version: &version, text: &body })
    });
    Loaded { body: Body::new(body).unwrap(), patch: patch.map(Arc::new), uid, version }
}

#[test]
fn held_objects_are_updated_by_patches_and_new_ones_are_whole() {
    let mut session = Session::new(3, true);
    session.change(1, 2);
    session.change(7, 2);
    assert_eq!(session.send(), [(name(1), true), (name(7), false)]);
    let counters = session.cloud.counters();
    assert_eq!((counters.sent, counters.patches_sent), (5, 1));
    assert!(counters.patch_bytes_saved > 50, "{counters:?}");
}

#[test]
fn node_that_does_not_ask_for_patches_gets_none() {
    let mut session = Session::new(3, false);
    session.change(1, 2);
    assert_eq!(session.send(), [(name(1), false)]);
}

#[test]
fn a_refused_base_is_not_used_again_until_another_one_is_held() {
    let mut session = Session::new(3, true);
    session.change(1, 2);
    session.change(2, 2);
    assert_eq!(session.send(), [(name(1), true), (name(2), true)]);
    session.refuse(&[name(1)], 1);
    assert_eq!(session.send(), [(name(1), false)]);
    session.report(&[name(1), name(2)], 2);
    assert_eq!(session.cloud.counters().patches_refused, 1);
    session.change(1, 3);
    assert_eq!(session.send(), [(name(1), true)], "version 2 was sent as a whole");
}

#[test]
fn refusals_without_a_patch_are_ignored_and_their_number_is_bounded() {
    const COUNT: usize = MAX_REFUSED + 10;
    let mut session = Session::new(COUNT, true);
    let all: Vec<Uid> = (0..COUNT).map(name).collect();
    session.refuse(&all, 1);
    session.refuse(&["unknown".into()], 1);
    assert_eq!(session.cloud.counters().patches_refused, 0);
    (0..COUNT).for_each(|number| session.change(number, 2));
    let sent = session.send();
    assert!(sent.len() == COUNT && sent.iter().all(|(_, is_patch)| *is_patch));
    session.refuse(&all, 7);
    assert_eq!(session.cloud.counters().patches_refused, 0, "another base than the one sent");
    session.refuse(&all[..MAX_REFUSED], 1);
    assert_eq!(session.cloud.sender.patching.remembered(), Some(MAX_REFUSED));
    session.refuse(&all, 1);
    assert_eq!(session.cloud.sender.patching.remembered(), None);
    let sent = session.complete(2);
    assert!(sent.len() >= COUNT && sent.iter().all(|(_, is_patch)| !is_patch));
    session.change(1, 3);
    assert_eq!(session.send(), [(name(1), false)], "no more patches in this session");
    session.cloud.disconnected();
    assert_eq!(session.cloud.sender.patching.remembered(), Some(0));
}

#[test]
fn patches_that_wait_for_a_frame_hold_no_bodies() {
    let mut session = Session::new(3, true);
    (0..3).for_each(|number| session.change(number, 2));
    let mut bodies = Vec::new();
    while let Some(effect) = session.cloud.poll_effect(&session.wishes) {
        if let CloudEffect::Load { token, objects } = effect {
            let answer: Vec<Loaded> = objects.into_iter().map(loaded).collect();
            bodies.extend(answer.iter().map(|loaded| loaded.body.downgrade()));
            session.cloud.loaded(Now::ZERO, token, answer, &session.wishes);
        }
    }
    assert!(bodies.len() == 3 && bodies.iter().all(|body| body.upgrade().is_none()));
    assert_eq!(session.send(), [0, 1, 2].map(|number| (name(number), true)));
}
