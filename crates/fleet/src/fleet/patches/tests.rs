use super::*;
use crate::source::SourceError;
use edgesync_object::ResourceVersion;
use edgesync_protocol::cloud::Loaded;

const NODES: u32 = 10_000;

fn text(version: u64) -> String {
    let lines: String = (0..200).map(|n| format!("parameter-{n} = {}, ", n * 7919 % 1000)).collect();
    serde_json::json!({ "version": version.to_string(), "text": lines }).to_string()
}

fn body(version: u64) -> Body {
    Body::new(text(version)).unwrap()
}

fn answer(number: u32, base: Option<u64>, version: u64, body: &Body) -> Answer {
    let uid: Uid = "u".into();
    let loaded = Loaded { uid: Arc::clone(&uid), version: version.into(), body: body.clone(), patch: None };
    let bases = base.map(|base| (uid, ResourceVersion::from(base))).into_iter().collect();
    Answer { node: NodeId::of_tests(number), token: 1, bodies: vec![loaded], bases }
}

/// Carries out the jobs. Returns the number of pairs made.
fn work(patches: &mut Patches) -> usize {
    let mut count = 0;
    while let Some(pairs) = patches.next_job() {
        count += pairs.len();
        let made = pairs.iter().map(|pair| {
            let base = text(pair.key.base.as_str().parse().unwrap());
            let base = Edition { version: &pair.key.base, text: &base };
            Patch::make(&pair.key.uid, base, Edition { version: &pair.key.version, text: pair.body.as_str() })
        });
        let made = made.collect();
        patches.made(pairs, Some(made));
    }
    count
}

fn answers(patches: &mut Patches) -> Vec<Answer> {
    while patches.step() {}
    std::iter::from_fn(|| patches.next_answer()).collect()
}

#[test]
fn ten_thousand_nodes_on_three_bases_need_three_patches() {
    let mut patches = Patches::new(32 << 20);
    let new = body(9);
    let base = |number: u32| 1 + u64::from(number % 3);
    for number in 0..NODES / 2 {
        patches.complete(answer(number, Some(base(number)), 9, &new));
    }
    assert!(answers(&mut patches).is_empty(), "all wait for the patches");
    assert_eq!(work(&mut patches), 3);
    for number in NODES / 2..NODES {
        patches.complete(answer(number, Some(base(number)), 9, &new));
    }
    assert_eq!(work(&mut patches), 0);
    let answers = answers(&mut patches);
    assert_eq!(answers.len(), NODES as usize);
    for answer in &answers {
        let patch = answer.bodies[0].patch.as_ref().unwrap();
        assert_eq!(*patch.base(), base(u32::try_from(answer.node.index()).unwrap()).into());
    }
    let numbers = patches.numbers();
    assert_eq!((numbers.made, numbers.skipped, numbers.count), (3, 0, 3));
    assert_eq!(numbers.shared, u64::from(NODES) - 3);
    assert!(numbers.bytes < 4096, "{numbers:?}");
}

#[test]
fn missing_bases_are_asked_for_once() {
    let mut patches = Patches::new(32 << 20);
    let new = body(9);
    for number in 0..2 {
        patches.complete(answer(number, Some(1), 9, &new));
    }
    let pairs = patches.next_job().unwrap();
    patches.made(pairs, Some(Vec::new()));
    patches.complete(answer(2, Some(1), 9, &new));
    let answers = answers(&mut patches);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer.bodies[0].patch.is_none()));
    assert!(patches.next_job().is_none());
    assert_eq!((patches.numbers().made, patches.numbers().skipped), (0, 1));
}

/// The pair counted as one without a patch until it was evicted.
#[tokio::test]
async fn failed_read_is_tried_again_with_the_next_need() {
    let mut patches = Patches::new(32 << 20);
    let new = body(9);
    for number in 0..2 {
        patches.complete(answer(number, Some(1), 9, &new));
    }
    let pairs = patches.next_job().unwrap();
    let made = make(&pairs, async { Err(SourceError::Unread("the source is gone".into())) }).await;
    patches.made(pairs, made);
    let whole = answers(&mut patches);
    assert_eq!(whole.len(), 2, "none waits for the next attempt");
    assert!(whole.iter().all(|answer| answer.bodies[0].patch.is_none()));
    assert_eq!((patches.numbers().count, patches.numbers().bytes), (0, 0));
    patches.complete(answer(2, Some(1), 9, &new));
    assert_eq!(work(&mut patches), 1);
    assert!(answers(&mut patches)[0].bodies[0].patch.is_some());
}

#[test]
fn answers_without_a_base_do_not_wait() {
    let mut patches = Patches::new(32 << 20);
    let new = body(9);
    patches.complete(answer(0, None, 9, &new));
    patches.complete(answer(1, Some(9), 9, &new));
    assert_eq!((answers(&mut patches).len(), patches.next_job().is_none()), (2, true));
    patches.set_limit(0);
    patches.complete(answer(2, Some(1), 9, &new));
    assert_eq!((answers(&mut patches).len(), patches.next_job().is_none()), (1, true));
}

#[test]
fn old_patches_give_way_to_new_ones() {
    let mut patches = Patches::new(2000);
    for version in 10..30 {
        patches.complete(answer(0, Some(1), version, &body(version)));
        work(&mut patches);
        assert_eq!(answers(&mut patches).len(), 1);
        assert!(patches.numbers().bytes <= 2000, "{:?}", patches.numbers());
    }
    assert!((1..5).contains(&patches.numbers().count), "{:?}", patches.numbers());
    assert_eq!(patches.order.len(), patches.made.len());
    // The newest one is still there.
    patches.complete(answer(0, Some(1), 29, &body(29)));
    assert!(answers(&mut patches)[0].bodies[0].patch.is_some());
}

#[test]
fn jobs_are_bounded_and_their_answers_can_be_dropped() {
    let mut patches = Patches::new(32 << 20);
    for version in 100..400 {
        patches.complete(answer(u32::try_from(version % 2).unwrap(), Some(1), version, &body(version)));
    }
    let jobs: Vec<_> = std::iter::from_fn(|| patches.next_job()).collect();
    assert_eq!(jobs.iter().map(Vec::len).collect::<Vec<_>>(), [JOB_PAIRS; MAX_JOBS]);
    patches.forget(NodeId::of_tests(0));
    for pairs in jobs {
        patches.made(pairs, Some(Vec::new()));
    }
    while let Some(pairs) = patches.next_job() {
        patches.made(pairs, Some(Vec::new()));
    }
    let left = answers(&mut patches);
    assert_eq!((left.len(), left.iter().all(|answer| answer.node == NodeId::of_tests(1))), (150, true));
    assert!(patches.waiting.is_empty() && patches.incomplete.is_empty());
}

/// The source is replaced by an older copy, which issues version 9 again.
#[test]
fn patch_of_a_lost_body_is_not_handed_out_for_the_same_version() {
    let mut patches = Patches::new(32 << 20);
    let (lost, new) = (body(9), Body::new(text(1).replace("parameter-7 = ", "parameter-7 = 1")).unwrap());
    let again = Body::new(new.as_str().to_owned()).unwrap();
    let results = |patches: &mut Patches| -> Vec<Option<[bool; 2]>> {
        let result = |patch: &Arc<Patch>| [&lost, &new].map(|body| patch.results_in(body.as_str()));
        answers(patches).iter().map(|answer| answer.bodies[0].patch.as_ref().map(result)).collect()
    };
    patches.complete(answer(0, Some(1), 9, &lost));
    // It waits for the patch of the lost body.
    patches.complete(answer(1, Some(1), 9, &new));
    assert_eq!(work(&mut patches), 1);
    assert_eq!(results(&mut patches), [Some([true, false]), None]);
    patches.complete(answer(2, Some(1), 9, &new));
    assert_eq!(work(&mut patches), 1, "the patch leads to another body");
    assert_eq!(results(&mut patches), [Some([false, true])]);
    patches.complete(answer(3, Some(1), 9, &again));
    assert_eq!(work(&mut patches), 0, "an equal body was read again");
    assert_eq!(results(&mut patches), [Some([false, true])]);
    assert_eq!((patches.numbers().count, patches.order.len()), (1, 1));
}
