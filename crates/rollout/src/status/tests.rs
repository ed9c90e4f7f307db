use super::*;
use crate::waves::Wave;
use serde_json::json;

fn revision(number: u64, open: usize) -> Revision {
    let at = "2026-01-01T00:00:00Z".parse().unwrap();
    Revision {
        number,
        digest: format!("{number:032x}").parse().unwrap(),
        open,
        promoted: 0,
        started_at: at,
        opened_at: at,
        good_since: None,
        overrides_windows_of: None,
    }
}

fn waves() -> Waves {
    let wave = |selector: &str| Wave { selector: selector.parse().unwrap(), ..Wave::default() };
    Waves::new(vec![wave("a"), wave("b"), wave("")]).unwrap()
}

fn status(revisions: &[(u64, usize)]) -> Status {
    Status {
        revisions: revisions.iter().map(|(number, open)| revision(*number, *open)).collect(),
        next_number: revisions.last().map_or(0, |(number, _)| number + 1),
        waves: waves().digests(),
        ..Status::default()
    }
}

fn numbers(status: &Status, waves: &Waves) -> [Option<u64>; 4] {
    let assignment = status.assignment(waves);
    [Some(0), Some(1), Some(2), None].map(|wave| assignment.revision_for(wave).map(|it| it.number))
}

#[test]
fn each_wave_has_the_newest_revision_that_is_open_for_it() {
    assert_eq!(numbers(&Status::default(), &waves()), [None; 4]);
    let all = |number| [Some(number); 4];
    assert_eq!(numbers(&status(&[(3, 3)]), &waves()), all(3));
    let (one, two, three) = (Some(1), Some(2), Some(3));
    assert_eq!(numbers(&status(&[(1, 3), (2, 2), (3, 1)]), &waves()), [three, two, one, one]);
    assert_eq!(numbers(&status(&[(1, 3), (2, 3)]), &waves()), [two, two, two, one]);
    assert_eq!(numbers(&status(&[(1, 3), (2, 0)]), &waves()), all(1));
}

#[test]
fn a_node_has_the_revision_of_its_wave() {
    let (status, waves) = (status(&[(1, 3), (2, 1)]), waves());
    let labels = |key: &str| Labels::from([(key.to_owned(), String::new())]);
    let number = |key| status.assignment(&waves).of("n", &labels(key)).map(|it| it.number);
    assert_eq!((number("a"), number("b")), (Some(2), Some(1)));
}

#[test]
fn waves_that_were_changed_are_not_open_before_the_status_is_written() {
    let mut changed = waves().as_slice().to_vec();
    changed.remove(0);
    let changed = Waves::new(changed).unwrap();
    assert_eq!(numbers(&status(&[(1, 3), (2, 2)]), &changed), [Some(1); 4]);
    let shorter = Waves::new(waves().as_slice()[..1].to_vec()).unwrap();
    assert_eq!(numbers(&status(&[(1, 3), (2, 2)]), &shorter)[..2], [Some(2), Some(1)]);
}

#[test]
fn status_is_written_as_documented_and_read_back() {
    let mut written = status(&[(1, 3), (2, 1)]);
    written.sequence = 7;
    let at = "2026-01-01T00:00:00Z".parse().unwrap();
    written.paused = Some(Pause { by: "ann".into(), at, reason: PauseReason::Command });
    written.record(&revision(0, 3), at, Outcome::Superseded, "");
    let value = written.to_value();
    assert_eq!(value["revisions"][1]["number"], 2);
    assert_eq!(value["paused"], json!({"by": "ann", "at": "2026-01-01T00:00:00Z", "reason": "Command"}));
    assert_eq!(value["history"][0]["outcome"], "Superseded");
    assert_eq!(Status::read(Some(&value)), Ok(written.clone()));
    // Fields of a newer program are ignored, and not written again.
    let mut newer = value.clone();
    newer["later"] = json!(1);
    newer["revisions"][0]["later"] = json!(1);
    assert_eq!(Status::read(Some(&newer)).unwrap().to_value(), value);
}

#[test]
fn an_absent_status_is_the_default() {
    assert_eq!(Status::read(None), Ok(Status::default()));
    assert_eq!(Status::read(Some(&serde_json::Value::Null)), Ok(Status::default()));
    assert_eq!(Status::sequence_of(None), 0);
    assert_eq!(Status::sequence_of(Some(&serde_json::json!({"sequence": 7}))), 7);
    assert_eq!(Status::sequence_of(Some(&serde_json::json!({"sequence": 7, "revisions": 1}))), 0);
}

#[test]
fn a_status_that_no_roll_out_writes_is_lost() {
    let with = |revisions: &[(u64, usize)]| status(revisions).to_value();
    let mut used = with(&[(5, 3)]);
    used["nextNumber"] = json!(5);
    for (value, expected) in [
        (json!([]), "must be an object"),
        (json!({"revisions": [{}]}), "missing field"),
        (json!({"waves": ["x"]}), "32 lower-case hexadecimal"),
        (json!({"paused": {"at": "soon", "reason": "Command"}}), "invalid digit"),
        (with(&[(1, 3), (2, 9), (3, 8), (4, 7), (5, 1)]), "a stack of 5 revisions"),
        (with(&[(2, 3), (1, 1)]), "revision 1 is above revision 2"),
        (with(&[(1, 3), (2, 1), (3, 1)]), "revision 3 is open for too many waves"),
        (with(&[(1, 3), (2, 4)]), "open for 4 of 3 waves"),
        (used, "the next number 5 was used already"),
    ] {
        let error = Status::read(Some(&value)).unwrap_err();
        assert!(error.contains(expected), "{value}: {error}");
    }
}

#[test]
fn bodies_of_ended_revisions_only_are_garbage() {
    let status = status(&[(2, 3), (4, 1)]);
    let of = |number: u64| revision(number, 0).digest;
    let garbage: Vec<u64> = (0..8).filter(|number| status.is_garbage(*number, of(*number))).collect();
    assert_eq!(garbage, [0, 1, 3]);
    // Another leader has begun another revision of this number.
    assert!(status.is_garbage(4, of(9)));
}

#[test]
fn history_keeps_the_last_ten() {
    let mut status = Status::default();
    for number in 0..25 {
        status.record(&revision(number, 1), Timestamp::UNIX_EPOCH, Outcome::Replaced, "");
    }
    let numbers: Vec<_> = status.history.iter().map(|ended| ended.number).collect();
    assert_eq!(numbers, (15..25).collect::<Vec<_>>());
}
