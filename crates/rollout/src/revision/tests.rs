use super::*;

fn entry(version: &str) -> Entry {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "a".into(),
        name: "b".into(),
    };
    Entry { version: version.into(), object, labels: Labels::new(), size: 10, digest: "d".into() }
}

fn set(pairs: &[(&str, &str)]) -> Set {
    Set::new(pairs.iter().map(|(uid, version)| ((*uid).into(), entry(version))).collect())
}

fn selection(pairs: &[(&str, &str)]) -> Selection {
    pairs.iter().map(|(uid, version)| ((*uid).into(), (*version).into())).collect()
}

fn undone(above: &[(&str, &str)], below: &[(&str, &str)]) -> Rejections {
    let mut rejections = Rejections::default();
    rejections.add(set(above).difference(&set(below)));
    rejections
}

fn planned(plan: &Plan) -> Vec<(String, String)> {
    let version = |origin: &Origin| match origin {
        Origin::Source(version) => version.to_string(),
        Origin::Below(entry) => format!("below {}", entry.version),
    };
    plan.objects().iter().map(|(uid, origin)| (uid.to_string(), version(origin))).collect()
}

#[test]
fn digest_is_that_of_uids_and_versions() {
    assert_eq!(set(&[("a", "1"), ("b", "2")]).digest().to_string(), "db379e272fb997bf5526d18d0f807fe0");
    assert_ne!(set(&[("a", "12"), ("b", "3")]).digest(), set(&[("a", "1"), ("2b", "3")]).digest());
    let plan = Rejections::default().plan(&selection(&[("a", "1"), ("b", "2")]), None).unwrap();
    assert_eq!(plan.digest(), set(&[("a", "1"), ("b", "2")]).digest());
}

#[test]
fn digests_are_read_in_one_form_only() {
    let digest = set(&[("a", "1")]).digest();
    assert_eq!(digest.to_string().parse(), Ok(digest));
    for bad in ["", "1", "+0000000000000000000000000000001", &"A".repeat(32), &"g".repeat(32)] {
        assert!(bad.parse::<Digest>().is_err(), "{bad}");
    }
}

#[test]
fn entry_has_the_labels_of_its_body() {
    let body = r#"{"metadata":{"labels":{"app":"w\u0065b"}}}"#;
    let labelled = Entry::new("7".into(), entry("7").object, body);
    assert_eq!(labelled.labels, Labels::from([("app".into(), "web".into())]));
    let text = serde_json::to_string(&labelled).unwrap();
    assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), labelled);
    let earlier = text.replace(r#""labels":{"app":"web"},"#, "");
    assert_eq!(serde_json::from_str::<Entry>(&earlier).unwrap().labels, Labels::new());
}

#[test]
fn an_entry_recognises_its_body() {
    let body = r#"{"kind":"ConfigMap"}"#;
    let entry = Entry::new("7".into(), entry("7").object, body);
    assert_eq!(entry.size, 20);
    assert!(entry.is_body(body));
    for other in ["", r#"{"kind":"ConfigMaq"}"#, r#"{"kind":"ConfigMap"} "#] {
        assert!(!entry.is_body(other), "{other}");
    }
    assert!(!Entry { digest: "".into(), ..entry }.is_body(body));
}

#[test]
fn difference_has_new_changed_and_removed_objects() {
    let found =
        set(&[("a", "1"), ("b", "3"), ("d", "4")]).difference(&set(&[("a", "1"), ("b", "2"), ("c", "9")]));
    let found: Vec<_> =
        found.iter().map(|it| (&*it.uid, it.version.as_ref().map(ResourceVersion::as_str))).collect();
    assert_eq!(found, [("b", Some("3")), ("c", None), ("d", Some("4"))]);
    assert!(set(&[("a", "2")]).follows(&set(&[("a", "1"), ("b", "7")])));
    assert!(!set(&[("a", "1")]).follows(&set(&[("a", "2")])));
}

#[test]
fn undone_versions_stay_out_until_the_object_changes() {
    let below = [("a", "1"), ("c", "1")];
    let rejections = undone(&[("a", "5"), ("b", "5")], &below);
    let plan = |now: &[(&str, &str)]| planned(&rejections.plan(&selection(now), Some(&set(&below))).unwrap());
    // A change of d does not take along a, the new b, and the removal of c.
    let expected =
        [("a", "below 1"), ("c", "below 1"), ("d", "6")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(plan(&[("a", "5"), ("b", "5"), ("d", "6")]), expected);
    let expected = [("a", "7"), ("b", "8"), ("c", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(plan(&[("a", "7"), ("b", "8"), ("c", "1")]), expected);
    assert_eq!(rejections.plan(&selection(&[("a", "5")]), None), Err(BelowUnknown));
    assert!(rejections.plan(&selection(&[("a", "7"), ("b", "8"), ("c", "1")]), None).is_ok());
}

#[test]
fn a_late_reader_brings_no_version_back_from_before_an_undone_one() {
    let mut rejections = undone(&[("a", "5")], &[("a", "1")]);
    rejections.add(set(&[("a", "9")]).difference(&set(&[("a", "1")])));
    assert_eq!(rejections.as_slice().len(), 1);
    for (version, expected) in [("5", true), ("8", true), ("9", true), ("10", false), ("x", false)] {
        assert_eq!(rejections.has("a", Some(&version.into())), expected, "{version}");
    }
}

#[test]
fn rejections_are_bounded() {
    let mut rejections = Rejections::default();
    for version in 0..100 {
        rejections
            .add(vec![Difference { uid: "a".into(), version: Some(format!("v{version}").as_str().into()) }]);
    }
    assert_eq!(rejections.as_slice().len(), MAX_REJECTED_OF_OBJECT);
    assert!(rejections.has("a", Some(&"v99".into())) && !rejections.has("a", Some(&"v9".into())));
    for number in 0..2 * MAX_REJECTED {
        rejections.add(vec![Difference { uid: format!("{number}").into(), version: Some("1".into()) }]);
    }
    rejections.prune(&selection(&[("a", "1")]), |uid| &**uid == "7");
    let kept: Vec<_> = rejections.as_slice().iter().map(|rejected| &*rejected.uid).collect();
    assert_eq!(kept, ["a", "a", "a", "a", "7"]);
}
