use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use edgesync_object::Scope;

const DAY: i64 = SECONDS_A_DAY;

/// A time on 2026-11-21, in seconds from midnight.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second("2026-11-21T00:00:00Z".parse::<Timestamp>().unwrap().as_second() + second).unwrap()
}

/// A time in seconds since 1970.
fn unset(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn kind(kind: &str, group: &str) -> Resource {
    Resource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: String::new(),
        scope: Scope::Namespaced,
    }
}

fn tcp(out: u64, r#in: u64) -> link::Traffic {
    link::Traffic { bytes_out: out, bytes_in: r#in, ..link::Traffic::default() }
}

/// Returns a meter with a count in each layer.
fn busy() -> Meter {
    let mut meter = Meter::new(None, at(10));
    meter.frame(Direction::Up, "Hello", 200);
    meter.frame(Direction::Down, "Objects", 1_500);
    meter.frame(Direction::Down, "Objects", 500);
    meter.frame(Direction::Up, "Novel", 7);
    meter.object(Direction::Down, &kind("Deployment", "apps"), 900);
    meter.object(Direction::Down, &kind("ConfigMap", ""), 400);
    meter.object(Direction::Down, &kind("ConfigMap", ""), 100);
    meter.object(Direction::Up, &kind("Deployment", "apps"), 50);
    meter.link(&tcp(300, 2_300), at(20));
    meter
}

fn shown(meter: &Meter) -> Value {
    json!(meter.show())
}

#[test]
fn everything_is_counted_for_today_and_in_total() {
    let span = json!({
        "bytesUp": 300,
        "bytesDown": 2_300,
        "transportBytes": 393,
        "frames": [
            {"direction": "up", "type": "Hello", "messages": 1, "bytes": 200},
            {"direction": "down", "type": "Objects", "messages": 2, "bytes": 2_000},
            {"direction": "up", "type": "other", "messages": 1, "bytes": 7},
        ],
        "kinds": [
            {"direction": "down", "kind": "ConfigMap", "objects": 2, "bytes": 500},
            {"direction": "up", "kind": "Deployment.apps", "objects": 1, "bytes": 50},
            {"direction": "down", "kind": "Deployment.apps", "objects": 1, "bytes": 900},
        ],
    });
    let mut total = span.clone();
    total["since"] = json!("2026-11-21T00:00:10Z");
    assert_eq!(shown(&busy()), json!({"day": "2026-11-21", "today": span, "total": total}));
    assert_eq!(busy().today(), 2_600);
    assert_eq!(
        busy().frames(),
        [
            (Direction::Up, "Hello", 1, 200),
            (Direction::Down, "Objects", 2, 2_000),
            (Direction::Up, "other", 1, 7),
        ]
    );
    let apps = "Deployment.apps".to_owned();
    assert_eq!(
        busy().kinds(),
        [
            (Direction::Down, "ConfigMap".to_owned(), 2, 500),
            (Direction::Up, apps.clone(), 1, 50),
            (Direction::Down, apps, 1, 900),
        ]
    );
}

#[test]
fn a_new_day_begins_at_midnight() {
    let mut meter = busy();
    meter.link(&tcp(310, 2_300), at(DAY - 1));
    assert_eq!(meter.today(), 2_610);
    // Bytes around midnight belong to the day of the last update.
    meter.link(&tcp(320, 2_300), at(DAY));
    assert_eq!(meter.today(), 0);
    meter.link(&tcp(325, 2_301), at(DAY + 1));
    meter.frame(Direction::Up, "Lease", 120);
    let shown = shown(&meter);
    assert_eq!((&shown["day"], meter.today()), (&json!("2026-11-22"), 6));
    let lease = json!({"direction": "up", "type": "Lease", "messages": 1, "bytes": 120});
    assert_eq!(shown["today"]["frames"], json!([lease]));
    assert_eq!(shown["today"]["kinds"], json!([]));
    assert_eq!(shown["today"]["transportBytes"], 0, "what is not yet on the line is no debt");
    assert_eq!((&shown["total"]["bytesUp"], &shown["total"]["bytesDown"]), (&json!(325), &json!(2_301)));
    assert_eq!(shown["total"]["since"], "2026-11-21T00:00:10Z");
}

#[test]
fn a_restarted_link_counts_from_zero() {
    let mut meter = busy();
    meter.link(&tcp(5, 2_400), at(30));
    assert_eq!(meter.today(), 2_600 + 5 + 100);
    let mut restarted = Meter::new(Some(&meter.keep()), at(40));
    restarted.link(&tcp(1, 1), at(50));
    assert_eq!(restarted.today(), 2_705 + 2);
}

#[test]
fn an_unset_clock_begins_a_day_only_at_its_midnight() {
    let persisted = busy().keep();
    let mut meter = Meter::new(Some(&persisted), unset(100));
    meter.link(&tcp(1, 0), unset(DAY - 1));
    assert_eq!((meter.today(), &shown(&meter)["day"]), (2_601, &json!("2026-11-21")));
    // Set within the same day: the budget stays.
    let mut set = Meter::new(Some(&meter.keep()), unset(100));
    set.link(&tcp(1, 0), at(100));
    assert_eq!((set.today(), &shown(&set)["day"]), (2_602, &json!("2026-11-21")));
    // Never set: days go on.
    meter.link(&tcp(1, 0), unset(DAY));
    assert_eq!((meter.today(), &shown(&meter)["day"]), (0, &json!("1970-01-02")));
    meter.link(&tcp(2, 0), unset(DAY));
    assert_eq!(meter.today(), 1);
    meter.link(&tcp(2, 0), unset(2 * DAY));
    assert_eq!((meter.today(), &shown(&meter)["total"]["bytesUp"]), (0, &json!(302)));
}

#[test]
fn a_clock_set_back_begins_a_day_and_keeps_the_totals() {
    let mut meter = Meter::new(Some(&busy().keep()), at(3_650 * DAY));
    assert_eq!(meter.today(), 0);
    meter.link(&tcp(11, 0), at(3_650 * DAY));
    meter.link(&tcp(11, 0), at(DAY));
    assert_eq!((meter.today(), &shown(&meter)["day"]), (0, &json!("2026-11-22")));
    assert_eq!(shown(&meter)["total"]["bytesUp"], 311);
}

#[test]
fn counting_begun_on_a_wrong_clock_is_dated_when_it_is_set() {
    let mut meter = Meter::new(None, unset(5));
    meter.link(&tcp(10, 0), at(0));
    let shown = shown(&meter);
    assert_eq!(shown["total"]["since"], "2026-11-21T00:00:00Z");
    assert_eq!(shown["total"]["bytesUp"], 10);
}

#[test]
fn kinds_beyond_the_limit_and_invalid_names_share_a_row() {
    let mut meter = Meter::new(None, at(0));
    meter.object(Direction::Up, &kind("No\nName", ""), 1);
    meter.object(Direction::Up, &kind("", ""), 1);
    meter.object(Direction::Up, &kind(&"K".repeat(500), ""), 1);
    assert_eq!(meter.kinds(), [(Direction::Up, "other".to_owned(), 3, 3)]);
    for number in 0..1_000 {
        meter.object(Direction::Down, &kind(&format!("Kind{}", number % 500), "example.com"), 10);
    }
    let kinds = meter.kinds();
    assert_eq!(kinds.len(), MAX_KINDS + 1);
    assert_eq!(kinds.iter().map(|(.., objects, _)| objects).sum::<u64>(), 1_003);
    assert_eq!(persisted::read(&meter.keep()).unwrap().kinds(), kinds);
}

#[test]
fn persisted_counts_are_short_and_parse_back() {
    let meter = busy();
    let text = meter.keep();
    assert_eq!(
        text,
        "traffic 1 20778 1795219210\n\
         link 0 300 0 300 0 2300 0 2300\n\
         frame Hello 1 200 1 200 0 0 0 0\n\
         frame Objects 0 0 0 0 2 2000 2 2000\n\
         frame other 1 7 1 7 0 0 0 0\n\
         kind ConfigMap 0 0 0 0 2 500 2 500\n\
         kind Deployment.apps 1 50 1 50 1 900 1 900\n\
         end"
    );
    assert_eq!(Meter::new(Some(&text), at(60)).show(), meter.show());
}

#[test]
fn persisted_counts_of_2041_parse_back() {
    let now: Timestamp = "2041-06-01T10:00:00Z".parse().unwrap();
    let mut meter = Meter::new(None, now);
    meter.link(&tcp(300, 2_300), now);
    let text = meter.keep();
    assert!(text.starts_with("traffic 1 26084 2253693600\n"), "{text}");
    assert_eq!(Meter::new(Some(&text), now).show(), meter.show());
}

#[test]
fn persisted_text_with_any_flaw_is_rejected() {
    let text = busy().keep();
    let fresh = Meter::new(None, at(60));
    assert_ne!(Meter::new(Some(&text), at(60)), fresh);
    let bad = [
        String::new(),
        text.replace("traffic 1 ", "traffic 2 "),
        text.replace("traffic 1 2", "traffic 1 +2"),
        text.replace("20778", "99999999999999"),
        text.replace("1795219210", "9223372036854775807"),
        text.replace("\nend", ""),
        text.replace("end", "end\n"),
        text.replace("frame Hello", "frame Novel"),
        text.replace("frame Hello 1 200 1 200", "frame Hello 2 200 1 200"),
        text.replace("frame Hello 1 200 1 200", "frame Hello 01 200 1 200"),
        text.replace("frame Hello 1 200 1 200 0 0 0 0", "frame Hello 0 0 0 0 0 0 0 0"),
        text.replace("kind ConfigMap", "kind Zebra"),
        text.replace("kind ConfigMap", "kind  ConfigMap"),
        text.replace("2300\n", "2300 \n"),
        text.replace("2300\n", "2300 1\n"),
        text.replace("\nend", "\nkind Deployment.apps 0 0 0 0 0 0 0 0\nend"),
        text.replace("link", "link 0 0 0 0 0 0 0 0\nlink"),
        text.repeat(1_000),
    ];
    for bad in bad {
        assert_eq!(Meter::new(Some(&bad), at(60)), fresh, "{bad}");
    }
    for length in 0..text.len() {
        assert_eq!(persisted::read(&text[..length]), None, "{length}");
    }
}

/// Something that is counted.
#[derive(Clone, Debug)]
enum Step {
    Frame(bool, usize, u64),
    Object(bool, u8, u64),
    Link(u32, u32),
    Clock(i64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 0..FRAMES.len(), 0u64..100_000)
            .prop_map(|(up, row, bytes)| Step::Frame(up, row, bytes)),
        (any::<bool>(), any::<u8>(), 0u64..100_000)
            .prop_map(|(up, kind, bytes)| Step::Object(up, kind, bytes)),
        (any::<u32>(), any::<u32>()).prop_map(|(up, down)| Step::Link(up, down)),
        (-3 * DAY..40_000 * DAY).prop_map(Step::Clock),
        Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn totals_survive_clock_changes_and_restarts(steps in prop::collection::vec(step(), 0..80)) {
        let way = |up| if up { Direction::Up } else { Direction::Down };
        let mut now = at(0);
        let mut meter = Meter::new(None, now);
        let (mut messages, mut bytes, mut objects, mut total) = (0, 0, 0, 0u64);
        let mut counter = (0u64, 0u64);
        for step in steps {
            match step {
                Step::Frame(up, row, size) => {
                    meter.frame(way(up), FRAMES[row], size as usize);
                    (messages, bytes) = (messages + 1, bytes + size);
                }
                Step::Object(up, number, size) => {
                    meter.object(way(up), &kind(&format!("Kind{number}"), ""), size as usize);
                    objects += 1;
                }
                Step::Link(up, down) => {
                    counter = (counter.0 + u64::from(up), counter.1 + u64::from(down));
                    total += u64::from(up) + u64::from(down);
                    meter.link(&tcp(counter.0, counter.1), now);
                }
                Step::Clock(second) => now = unset(second),
                Step::Restart => {
                    let restarted = Meter::new(Some(&meter.keep()), now);
                    prop_assert_eq!(restarted.frames(), meter.frames());
                    prop_assert_eq!(restarted.kinds(), meter.kinds());
                    meter = restarted;
                    counter = (0, 0);
                }
            }
            prop_assert_eq!(meter.frames().iter().map(|(.., count, _)| count).sum::<u64>(), messages);
            prop_assert_eq!(meter.frames().iter().map(|(.., bytes)| bytes).sum::<u64>(), bytes);
            prop_assert_eq!(meter.kinds().iter().map(|(.., count, _)| count).sum::<u64>(), objects);
            prop_assert!(meter.kinds.len() <= MAX_KINDS + 1);
            prop_assert!(meter.kinds.is_sorted_by(|one, other| one.name < other.name));
            let shown = shown(&meter);
            let sum = shown["total"]["bytesUp"].as_u64().unwrap() + shown["total"]["bytesDown"].as_u64().unwrap();
            prop_assert_eq!(sum, total);
            prop_assert!(meter.today() <= total);
            prop_assert!(meter.keep().len() < 10_000);
        }
    }

    #[test]
    fn persisted_text_never_panics(text in "(traffic 1 [0-9]{1,6} [0-9]{1,10}\n)?([a-zA-Z]{1,6}( [0-9]{0,3}){0,9}\n){0,6}(end)?") {
        if let Some(meter) = persisted::read(&text) {
            prop_assert_eq!(meter.keep(), text);
        }
    }
}
