use super::*;
use crate::object::ObjectRef;
use crate::sync::cloud::testing::{Wish, Wishes, hello, machine};

const KIB: usize = 1 << 10;

/// A node that holds nothing begins a session.
fn welcome(cloud: &mut CloudMachine, session: &str, wishes: &Wishes) {
    crate::sync::cloud::testing::welcome(cloud, hello(session), wishes);
    assert!(matches!(cloud.frames.pop_front(), Some(Down::Welcome(_))));
}

fn name(number: usize) -> Uid {
    format!("uid-{number:04}").into()
}

fn desire(cloud: &mut CloudMachine, wishes: &mut Wishes, number: usize, size: usize) {
    let wish = Wish {
        version: 1.into(),
        object: Arc::new(ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "default".into(),
            name: name(number),
        }),
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: Scope::Namespaced,
        }),
        size,
    };
    wishes.tell(Now::ZERO, Some(cloud), &name(number), Some(wish));
}

fn load(cloud: &mut CloudMachine, wishes: &Wishes) -> Option<(u64, Vec<Uid>)> {
    match cloud.poll_effect(wishes)? {
        CloudEffect::Load { token, objects } => {
            Some((token, objects.into_iter().map(|(uid, _)| uid).collect()))
        }
        other => panic!("must be a load: {other:?}"),
    }
}

fn bodies(uids: &[Uid], size: usize) -> Vec<Loaded> {
    let body = |uid: &Uid| {
        let fill = "x".repeat(size.saturating_sub(150));
        let meta = format!(r#"{{"name":"{uid}","namespace":"default","uid":"{uid}","resourceVersion":"1"}}"#);
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{meta},"data":{{"x":"{fill}"}}}}"#)
    };
    let loaded = |uid: &Uid| Loaded { uid: uid.clone(), version: 1.into(), body: body(uid).into() };
    uids.iter().map(loaded).collect()
}

/// The numbers of objects in the frames that are ready.
fn frames(cloud: &mut CloudMachine, wishes: &Wishes) -> Vec<usize> {
    let frame = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, wishes));
    let objects = |frame| match frame {
        Down::Objects { messages, .. } => messages.len(),
        other => panic!("must be objects: {other:?}"),
    };
    frame.map(objects).collect()
}

#[test]
fn the_answer_to_a_load_of_an_earlier_session_is_not_taken_for_that_of_the_next() {
    let (mut cloud, mut wishes) = (machine(), Wishes::default());
    (0..300).for_each(|number| desire(&mut cloud, &mut wishes, number, KIB));
    welcome(&mut cloud, "a", &wishes);
    let (old, uids) = load(&mut cloud, &wishes).unwrap();
    welcome(&mut cloud, "b", &wishes);
    // What is asked for first is not what was asked for before.
    desire(&mut cloud, &mut wishes, 1000, KIB);
    let (new, again) = load(&mut cloud, &wishes).unwrap();
    assert_ne!(old, new);
    cloud.loaded(Now::ZERO, old, bodies(&uids[..1], KIB), &wishes);
    assert_eq!(
        (frames(&mut cloud, &wishes), load(&mut cloud, &wishes)),
        (vec![], None),
        "nothing but the answer to the last counts"
    );
    cloud.loaded(Now::ZERO, new, bodies(&again, KIB), &wishes);
    assert_eq!(frames(&mut cloud, &wishes), [128]);
    cloud.loaded(Now::ZERO, new, bodies(&again, KIB), &wishes);
    assert_eq!(frames(&mut cloud, &wishes), [] as [usize; 0], "an answer counts once");
}

#[test]
fn what_could_not_be_loaded_is_asked_for_again_later() {
    let (mut cloud, mut wishes) = (machine(), Wishes::default());
    (0..3).for_each(|number| desire(&mut cloud, &mut wishes, number, KIB));
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids[1..], KIB), &wishes);
    assert_eq!((frames(&mut cloud, &wishes), load(&mut cloud, &wishes)), (vec![2], None));
    let due = cloud.deadline().unwrap();
    cloud.tick(due, &wishes);
    assert!(load(&mut cloud, &wishes).unwrap().1.contains(&uids[0]));
}
