use super::*;
use edgesync_object::{ObjectRef, Resource};
use edgesync_protocol::cloud::{
    CloudEffect, CloudMachine, Desired, DesiredState, Issued, LedgerFacts, LoadRequest, Records,
};
use edgesync_protocol::frame::{Down, Hello, Report, Up};
use edgesync_protocol::timing::Now;

const KIB: usize = 1 << 10;

impl Bodies {
    fn read(&mut self) -> Option<NextRead> {
        while self.step() {}
        self.next_read()
    }

    fn answer(&mut self) -> Option<Answer> {
        while self.step() {}
        self.next_answer()
    }
}

fn request(name: &str, version: u64, size: usize) -> BodyRequest {
    BodyRequest { uid: name.into(), version: version.into(), base: None, size, revision: None }
}

fn loaded(uid: &Uid, version: u64, size: usize) -> Loaded {
    let body = Body::new(format!("{:?}", "x".repeat(size - 2))).unwrap();
    Loaded { uid: Arc::clone(uid), version: version.into(), body, patch: None }
}

/// Performs the requested reads, and returns the number of objects of each.
fn read_all(bodies: &mut Bodies, version: u64, size: usize) -> Vec<usize> {
    let mut reads = Vec::new();
    while let Some(read) = bodies.read() {
        reads.push(read.uids.len());
        let came = read.uids.iter().map(|uid| loaded(uid, version, size)).collect();
        bodies.arrived(read, came);
    }
    reads
}

fn answers(bodies: &mut Bodies) -> Vec<Answer> {
    std::iter::from_fn(|| bodies.answer()).collect()
}

/// Returns the number of live bodies, and their bytes.
fn alive(bodies: &Bodies) -> (u64, u64) {
    let numbers = bodies.numbers();
    (numbers.count, numbers.bytes)
}

#[test]
fn object_desired_on_all_nodes_is_read_and_held_once() {
    let mut bodies = Bodies::new(256 << 20);
    for node in 0..10_000 {
        bodies.load(NodeId::of_tests(node), 0, SizeClass::Small, vec![request("a", 1, 100 * KIB)]);
    }
    assert_eq!(read_all(&mut bodies, 1, 100 * KIB), [1]);
    let answers = answers(&mut bodies);
    assert_eq!((answers.len(), alive(&bodies)), (10_000, (1, 100 << 10)));
    // A later load finds it.
    bodies.load(NodeId::of_tests(901), 7, SizeClass::Small, vec![request("a", 1, 100 * KIB)]);
    assert_eq!(bodies.read(), None);
    assert_eq!(bodies.answer().unwrap().token, 7);
    drop(answers);
    assert_eq!(alive(&bodies), (0, 0));
    bodies.sweep();
    assert!(bodies.entries.is_empty() && bodies.loads.is_empty() && bodies.by_node.is_empty());
}

#[test]
fn objects_of_many_nodes_are_read_in_batches() {
    let mut bodies = Bodies::new(256 << 20);
    for node in 0..1000 {
        let objects = (0..5).map(|n| request(&format!("{node}-{n}"), 1, KIB)).collect();
        bodies.load(NodeId::of_tests(node), 0, SizeClass::Small, objects);
    }
    let reads = read_all(&mut bodies, 1, KIB);
    assert_eq!((reads.len(), reads.iter().sum::<usize>()), (2, 5000), "4 MiB each");
    assert!(answers(&mut bodies).iter().all(|answer| answer.bodies.len() == 5));
}

#[test]
fn reads_in_flight_are_bounded() {
    let mut bodies = Bodies::new(256 << 20);
    for node in 0..10 {
        bodies.load(
            NodeId::of_tests(905),
            node,
            SizeClass::Small,
            vec![request(&format!("o{node}"), 1, 5 << 20)],
        );
    }
    // All but the last two loads of a node belong to earlier sessions.
    assert_eq!(std::iter::from_fn(|| bodies.read()).count(), 2);
    for node in 0..10 {
        bodies.load(
            NodeId::of_tests(node),
            0,
            SizeClass::Small,
            vec![request(&format!("p{node}"), 1, 5 << 20)],
        );
    }
    assert_eq!(std::iter::from_fn(|| bodies.read()).count(), MAX_READS - 2);
}

#[test]
fn bodies_over_the_limit_wait_and_a_larger_one_passes_alone() {
    let mut bodies = Bodies::new(20 << 20);
    for node in 0..8 {
        bodies.load(
            NodeId::of_tests(node),
            0,
            SizeClass::Large,
            vec![request(&format!("o{node}"), 1, 3 << 20)],
        );
    }
    bodies.load(NodeId::of_tests(903), 0, SizeClass::Large, vec![request("huge", 1, 50 << 20)]);
    let mut served = 0;
    loop {
        let reads = read_all(&mut bodies, 1, 3 << 20);
        let answers = answers(&mut bodies);
        if reads.is_empty() {
            break;
        }
        assert_eq!(bodies.is_short(), served + answers.len() < 9);
        assert!(alive(&bodies).1 <= 10 << 20, "half of the limit is for large objects");
        // Small objects do not wait for large ones.
        bodies.load(NodeId::of_tests(904), 0, SizeClass::Small, vec![request("small", 1, KIB)]);
        let read = bodies.read().unwrap();
        assert_eq!(read.uids, [Uid::from("small")]);
        bodies.arrived(read, Vec::new());
        assert_eq!(bodies.answer().unwrap().node, NodeId::of_tests(904));
        served += answers.len();
    }
    assert_eq!((served, bodies.numbers().delayed), (9, 3));
}

#[test]
fn newer_version_than_the_one_being_read_is_read_again() {
    let mut bodies = Bodies::new(256 << 20);
    bodies.load(NodeId::of_tests(902), 0, SizeClass::Small, vec![request("a", 1, KIB)]);
    let read = bodies.read().unwrap();
    bodies.load(NodeId::of_tests(901), 0, SizeClass::Small, vec![request("a", 2, KIB)]);
    bodies.arrived(read, vec![loaded(&"a".into(), 1, KIB)]);
    let early = answers(&mut bodies);
    assert_eq!((early[0].node, early.len()), (NodeId::of_tests(902), 1));
    assert_eq!(read_all(&mut bodies, 2, KIB), [1]);
    let late = answers(&mut bodies);
    assert_eq!((late[0].node, late[0].bodies[0].version.as_str()), (NodeId::of_tests(901), "2"));
}

/// An older copy replaces the source while a body is read, or while it is held.
#[test]
fn bodies_of_a_lost_source_answer_no_later_load() {
    let ways: [fn(&mut Bodies); 2] = [Bodies::begin_timeline, |bodies| bodies.discard(&"a".into())];
    for discard in ways {
        let mut bodies = Bodies::new(256 << 20);
        bodies.load(NodeId::of_tests(901), 0, SizeClass::Small, vec![request("a", 9, KIB)]);
        let lost = bodies.read().unwrap();
        discard(&mut bodies);
        bodies.load(NodeId::of_tests(902), 0, SizeClass::Small, vec![request("a", 5, KIB)]);
        let next = bodies.read().unwrap();
        bodies.arrived(lost, vec![loaded(&"a".into(), 9, KIB)]);
        assert!(answers(&mut bodies).is_empty(), "it was read before");
        bodies.arrived(next, vec![loaded(&"a".into(), 5, KIB)]);
        let all = answers(&mut bodies);
        assert!(all.len() == 2 && all.iter().all(|answer| answer.bodies[0].version.as_str() == "5"));
        // The same version is another content.
        discard(&mut bodies);
        bodies.load(NodeId::of_tests(903), 0, SizeClass::Small, vec![request("a", 5, KIB)]);
        assert_eq!(read_all(&mut bodies, 5, KIB), [1]);
        drop((all, answers(&mut bodies)));
        bodies.sweep();
        assert!(bodies.entries.is_empty() && bodies.loads.is_empty());
        assert_eq!((bodies.reads, bodies.reserved, alive(&bodies)), (0, [0, 0], (0, 0)));
    }
}

#[test]
fn missing_bodies_and_removed_nodes_are_skipped() {
    let mut bodies = Bodies::new(256 << 20);
    bodies.load(
        NodeId::of_tests(1),
        3,
        SizeClass::Small,
        vec![request("gone", 1, KIB), request("there", 1, KIB)],
    );
    bodies.load(NodeId::of_tests(2), 0, SizeClass::Small, vec![request("there", 1, KIB)]);
    bodies.forget(NodeId::of_tests(2));
    let read = bodies.read().unwrap();
    bodies.arrived(read, vec![loaded(&"there".into(), 1, KIB)]);
    let answers = answers(&mut bodies);
    let [Answer { node, token: 3, bodies: came, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*node, came.len()), (NodeId::of_tests(1), 1));
    bodies.sweep();
    assert_eq!(bodies.entries.len(), 1, "of what is no more nothing is kept");
    assert_eq!(bodies.reserved, [0, 0]);
}

/// Machines without I/O: each link accepts one frame in turn, like many slow links.
#[test]
fn large_object_has_one_body_for_two_hundred_nodes() {
    const BYTES: usize = 3 << 20;
    let mut bodies = Bodies::new(256 << 20);
    let wish = Wish::of(BYTES);
    let mut machines: Vec<CloudMachine> = (0..200).map(|_| welcome(&wish)).collect();
    let (mut most, mut parts) = (0, 0);
    let wants = |cloud: &mut CloudMachine| {
        std::iter::from_fn(|| cloud.poll_effect(&wish)).find_map(|effect| match effect {
            CloudEffect::Load { token, objects } => Some((token, objects)),
            _ => None,
        })
    };
    for (number, cloud) in (0..).zip(&mut machines) {
        let (token, objects) = wants(cloud).unwrap();
        let request = |LoadRequest { uid, version, base }| BodyRequest {
            uid,
            version,
            base,
            size: BYTES,
            revision: None,
        };
        bodies.load(
            NodeId::of_tests(number),
            token,
            SizeClass::Large,
            objects.into_iter().map(request).collect(),
        );
    }
    assert_eq!(read_all(&mut bodies, 1, BYTES), [1]);
    for answer in answers(&mut bodies) {
        machines[answer.node.index()].loaded(Now::ZERO, answer.token, answer.bodies, &wish);
    }
    loop {
        let before = parts;
        for cloud in &mut machines {
            let Some(Down::Part(part)) = cloud.poll_frame(Now::ZERO, &wish) else { continue };
            parts += 1;
            let received = Some(part.offset + part.data.len() as u64).filter(|end| *end < part.total);
            let Some(received) = received else { continue };
            let (receiving, received) = (Some(part.uid), Some(received));
            let report = Report { receipt: part.receipt, receiving, received, ..Report::default() };
            cloud.received(Now::ZERO, Up::Report(Report { session: "a".into(), ..report }), &wish);
        }
        most = most.max(alive(&bodies).0);
        if parts == before {
            break;
        }
    }
    assert!(parts >= 200 * BYTES / (128 << 10), "{parts}");
    assert_eq!(most, 1);
    // Until a node reports the last part, its transfer can be continued.
    drop(machines);
    assert_eq!(alive(&bodies), (0, 0));
}

/// One object desired on all nodes.
struct Wish {
    uid: Uid,
    version: ResourceVersion,
    object: Arc<ObjectRef>,
    resource: Arc<Resource>,
    size: usize,
}

impl Wish {
    fn of(size: usize) -> Self {
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "plant".into(),
            name: "large".into(),
        };
        let resource = Arc::new(edgesync_object::kinds::by_word("configmap").unwrap().resource());
        Self { uid: "large".into(), version: 1.into(), object: Arc::new(object), resource, size }
    }
}

impl DesiredState for Wish {
    fn get(&self, uid: &str) -> Option<Desired> {
        let Self { version, object, resource, size, .. } = self;
        let (version, object, resource) = (version.clone(), object.clone(), resource.clone());
        (*self.uid == *uid).then_some(Desired {
            version,
            object,
            resource,
            size: *size,
            urgency: Default::default(),
            is_exact: false,
        })
    }

    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
        std::iter::once((&*self.uid, self.version.clone()))
    }
}

/// Returns the machine of a welcomed node that holds nothing.
fn welcome(wish: &Wish) -> CloudMachine {
    let config = crate::fleet::settings::Settings::new(&crate::config::Config::default()).machine;
    let (issued, state) = (Arc::new(Issued::default()), Records::Stored(LedgerFacts::default()));
    let mut cloud = CloudMachine::new(config, "inc".into(), issued, state);
    cloud.received(Now::ZERO, Up::Hello(Hello::of_empty_node("edge", "a")), wish);
    loop {
        if let Some(Down::Welcome(_)) = cloud.poll_frame(Now::ZERO, wish) {
            return cloud;
        }
        match cloud.poll_effect(wish).unwrap() {
            CloudEffect::ReadRecords => cloud.opened(Now::ZERO, Some(Vec::new()), wish),
            CloudEffect::Record(batch) => cloud.recorded(Now::ZERO, batch.token, true, 0, wish),
            _ => {}
        }
    }
}

#[test]
fn body_with_an_annotation_is_another_one() {
    let mut bodies = Bodies::new(256 << 20);
    let rule = crate::source::RuleKey::Configured("web".into());
    let key = RevisionKey { rule, number: 1, digest: edgesync_rollout::Digest::of(b"") };
    for (node, overrides_windows) in [(0, false), (1, true), (2, false), (3, true)] {
        let revision = Some(FromRevision { key: key.clone(), overrides_windows });
        let request = BodyRequest { revision, ..request("a", 1, KIB) };
        bodies.load(NodeId::of_tests(node), 0, SizeClass::Small, vec![request]);
    }
    let reads: Vec<NextRead> = std::iter::from_fn(|| bodies.read()).collect();
    let overrides: Vec<_> =
        reads.iter().map(|read| read.revision.as_ref().unwrap().overrides_windows).collect();
    assert_eq!((overrides, reads.iter().map(|read| read.uids.len()).sum::<usize>()), (vec![false, true], 2));
    for read in reads {
        let size = if read.revision.as_ref().unwrap().overrides_windows { 2 * KIB } else { KIB };
        let body = vec![loaded(&"a".into(), 1, size)];
        bodies.arrived(read, body);
    }
    let sizes = answers(&mut bodies).into_iter().map(|answer| answer.bodies[0].body.as_str().len());
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [KIB, KIB, 2 * KIB, 2 * KIB]);
}
