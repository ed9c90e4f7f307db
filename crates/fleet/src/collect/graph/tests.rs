use std::collections::BTreeMap;

use super::*;
use edgesync_object::kinds;
use proptest::prelude::*;
use serde_json::json;

/// An object of the model: its owners, whether it is being deleted, its finalizers.
#[derive(Clone, Debug, Default)]
struct Modelled {
    owners: Vec<u8>,
    deleting: bool,
    finalizers: Vec<&'static str>,
}

/// A store that performs plans at once.
#[derive(Default)]
struct Model {
    objects: BTreeMap<u8, Modelled>,
    graph: Graph,
}

fn uid(id: u8) -> String {
    format!("u{id}")
}

fn id(uid: &str) -> u8 {
    uid[1..].parse().unwrap()
}

impl Model {
    fn put(&mut self, id: u8, object: Modelled) {
        if object.deleting && object.finalizers.is_empty() {
            self.objects.remove(&id);
            return self.graph.forget(&uid(id));
        }
        let owner = |owner: &u8| json!({"apiVersion": "v1", "kind": "Pod", "name": uid(*owner), "uid": uid(*owner), "blockOwnerDeletion": true});
        let text = json!({"metadata": {"uid": uid(id), "finalizers": object.finalizers,
            "deletionTimestamp": object.deleting.then_some("x"),
            "ownerReferences": object.owners.iter().map(owner).collect::<Vec<_>>()}})
        .to_string();
        let place = Identity {
            resource: Arc::new(kinds::by_word("pod").unwrap().resource()),
            namespace: "n".into(),
            name: uid(id).into(),
            version: 1,
        };
        self.graph.observe(place, serde_json::from_str::<ParsedObject<'_>>(&text).unwrap().metadata);
        self.objects.insert(id, object);
    }

    fn delete(&mut self, id: u8, finalizer: Option<&'static str>) {
        let Some(mut object) = self.objects.get(&id).cloned() else { return };
        if !object.deleting {
            object.finalizers.extend(finalizer);
            object.deleting = true;
        }
        self.put(id, object);
    }

    /// Performs all plans. Panics if they do not terminate.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some(next) = self.graph.next() else { return };
            let mut owners = Vec::new();
            for (owner, known) in self.graph.owners(&next) {
                let exists = self.objects.contains_key(&id(&owner.uid));
                let found = if exists { Presence::Present } else { Presence::Absent };
                let presence = known.unwrap_or(found);
                assert_eq!(presence, found, "what is known of {} is wrong", owner.uid);
                self.graph.learn(owner.clone(), "n", presence);
                owners.push((owner, presence));
            }
            let action = self.graph.plan(&next, &owners);
            let Some(mut object) = self.objects.get(&id(&next)).cloned() else { continue };
            match action {
                None => continue,
                Some(Action::Delete { foreground }) => {
                    let finalizer = foreground.then_some(FOREGROUND);
                    self.delete(id(&next), finalizer);
                    continue;
                }
                Some(Action::Strip(owners)) => {
                    object.owners.retain(|owner| !owners.iter().any(|leaving| **leaving == *uid(*owner)));
                }
                Some(Action::Release(finalizer)) => object.finalizers.retain(|held| *held != finalizer),
            }
            self.put(id(&next), object);
        }
        panic!("there is no end to it: {:?}", self.objects);
    }
}

#[test]
fn objects_without_owners_use_no_memory() {
    let mut model = Model::default();
    model.put(1, Modelled::default());
    model.put(2, Modelled { owners: vec![1], ..Modelled::default() });
    assert_eq!(model.graph.entries.len(), 1);
    model.settle();
    model.put(2, Modelled::default());
    model.settle();
    let Graph { entries, dependents, known, .. } = &model.graph;
    assert_eq!((entries.len(), dependents.len(), known.len()), (0, 0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Delete(u8, Option<&'static str>),
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let how = prop::sample::select(vec![None, Some(FOREGROUND), Some(ORPHAN)]);
    let step = prop_oneof![
        // Owners have smaller numbers, so that ownership has no cycles.
        3 => (0..12u8, prop::collection::btree_set(0..12u8, 0..3))
            .prop_map(|(id, owners)| Step::Put(id, owners.into_iter().filter(|owner| *owner < id).collect())),
        2 => (0..12u8, how).prop_map(|(id, how)| Step::Delete(id, how)),
        1 => Just(Step::Settle),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #[test]
    fn in_the_end_exactly_those_with_an_owner_or_none_are_left(steps in steps()) {
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Put(id, owners) => {
                    if !model.objects.contains_key(&id) {
                        // A new object has a new UID: existing references point to an earlier one.
                        if model.objects.values().any(|object| object.owners.contains(&id)) {
                            continue;
                        }
                        model.put(id, Modelled { owners, ..Modelled::default() });
                    }
                }
                Step::Delete(id, how) => model.delete(id, how),
                Step::Settle => model.settle(),
            }
        }
        model.settle();
        for (id, object) in &model.objects {
            prop_assert!(!object.deleting, "{id} still waits: {object:?}");
            prop_assert!(object.owners.iter().all(|owner| model.objects.contains_key(owner)), "{id}: {object:?}");
        }
        let with_owners = model.objects.values().filter(|object| !object.owners.is_empty()).count();
        prop_assert_eq!(model.graph.entries.len(), with_owners);
    }
}
