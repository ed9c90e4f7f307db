//! Windows over days, midnights, and changes of the clock of a zone.

use super::*;

/// Central European time, by its rule: no database is read.
fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

fn window(text: &str) -> Window {
    Window::parse(text, berlin()).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn is_open(window: &Window, now: &str) -> bool {
    matches!(opening(std::slice::from_ref(window), time(now)), Opening::Open(_))
}

/// Returns the minutes of a span in which a window is open, as pairs of opening and closing.
fn openings(window: &Window, from: &str, to: &str) -> Vec<(String, String)> {
    let (mut now, to) = (time(from), time(to));
    let (mut found, mut open) = (Vec::new(), None::<Timestamp>);
    while now < to {
        let is_open = matches!(opening(std::slice::from_ref(window), now), Opening::Open(_));
        match (open, is_open) {
            (None, true) => open = Some(now),
            (Some(since), false) => {
                found.push((since.to_string(), now.to_string()));
                open = None;
            }
            _ => {}
        }
        now += Span::new().minutes(1);
    }
    found
}

fn pair(from: &str, to: &str) -> (String, String) {
    (from.to_owned(), to.to_owned())
}

#[test]
fn window_is_open_on_its_days_only() {
    let night = window("Mon-Fri 02:00-04:00");
    // Thursday, 2026-11-26; Berlin is an hour ahead of UTC.
    assert!(is_open(&night, "2026-11-26T01:00:00Z") && is_open(&night, "2026-11-26T02:59:59Z"));
    assert!(!is_open(&night, "2026-11-26T00:59:59Z") && !is_open(&night, "2026-11-26T03:00:00Z"));
    assert!(!is_open(&night, "2026-11-28T01:30:00Z"), "Saturday");
    let next = opening(&[night], time("2026-11-27T03:00:00Z"));
    assert_eq!(next, Opening::Closed(Some(time("2026-11-30T01:00:00Z"))), "over the weekend");
}

#[test]
fn window_over_midnight_belongs_to_the_day_it_begins_on() {
    let weekend = window("Sat 22:00-06:00");
    assert!(is_open(&weekend, "2026-11-28T21:00:00Z") && is_open(&weekend, "2026-11-29T04:59:00Z"));
    assert!(!is_open(&weekend, "2026-11-28T04:00:00Z") && !is_open(&weekend, "2026-11-29T22:00:00Z"));
    assert_eq!(
        opening(&[weekend], time("2026-11-29T00:00:00Z")),
        Opening::Open(time("2026-11-29T05:00:00Z"))
    );
}

#[test]
fn several_windows_are_open_while_one_of_them_is() {
    let both = [window("02:00-04:00"), window("Thu 03:00-05:00")];
    assert_eq!(opening(&both, time("2026-11-26T02:30:00Z")), Opening::Open(time("2026-11-26T04:00:00Z")));
    assert_eq!(opening(&[], time("2026-11-26T02:30:00Z")), Opening::Closed(None));
    let days = window("Fri-Mon 00:00-24:00");
    let open: Vec<bool> = (23..30).map(|day| is_open(&days, &format!("2026-11-{day}T12:00:00Z"))).collect();
    assert_eq!(open, [true, false, false, false, true, true, true]);
}

/// On 2026-03-29 the clock goes from 02:00 to 03:00, at 01:00 UTC.
#[test]
fn skipped_window_opens_at_the_next_minute_that_exists() {
    let night = |text: &str| openings(&window(text), "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z");
    let change = "2026-03-29T01:00:00Z";
    assert_eq!(night("02:00-03:00"), [pair(change, "2026-03-29T02:00:00Z")]);
    assert_eq!(night("02:15-02:45"), [pair(change, "2026-03-29T01:30:00Z")]);
    // Times that exist are as written.
    assert_eq!(night("02:30-04:00"), [pair(change, "2026-03-29T02:00:00Z")]);
    assert_eq!(night("01:00-02:30"), [pair("2026-03-29T00:00:00Z", change)]);
    assert_eq!(night("01:00-04:00"), [pair("2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z")]);
}

/// On 2026-10-25 the clock goes from 03:00 back to 02:00, at 01:00 UTC.
#[test]
fn repeated_window_opens_once() {
    let night = |text: &str| openings(&window(text), "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z");
    assert_eq!(night("02:00-03:00"), [pair("2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z")]);
    assert_eq!(night("02:15-02:45"), [pair("2026-10-25T00:15:00Z", "2026-10-25T00:45:00Z")]);
    assert_eq!(night("01:30-02:30"), [pair("2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z")]);
    assert_eq!(night("02:30-04:00"), [pair("2026-10-25T00:30:00Z", "2026-10-25T03:00:00Z")]);
}

#[test]
fn zone_that_skips_a_whole_day_opens_its_window_afterwards() {
    let Ok(data) = std::fs::read("/usr/share/zoneinfo/Pacific/Apia") else { return };
    let apia = TimeZone::tzif("Pacific/Apia", &data).unwrap();
    // 2011-12-30 did not exist there.
    let friday = Window::parse("Fri 10:00-11:00", apia).unwrap();
    let found = openings(&friday, "2011-12-29T12:00:00Z", "2011-12-31T12:00:00Z");
    assert_eq!(found, [pair("2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z")]);
}

#[test]
fn invalid_windows_are_refused_with_their_requirement() {
    for (text, why) in [
        ("", "must be days and times"),
        ("Mon", "must be days and times"),
        ("Mon 02:00-04:00 UTC", "must be days and times"),
        ("Mo 02:00-04:00", "day \"Mo\" is unknown"),
        ("Mon-Fry 02:00-04:00", "day \"Fry\" is unknown"),
        ("2:00-04:00", "time \"2:00\" is invalid"),
        ("02:00-04:60", "time \"04:60\" is invalid"),
        ("02:00-24:01", "time \"24:01\" is invalid"),
        ("24:00-02:00", "time \"24:00\" is invalid"),
        ("02:00-02:00", "begins and ends at 02:00"),
        ("Mon,,Tue 02:00-04:00", "day \"\" is unknown"),
        ("+2:00-04:00", "time \"+2:00\" is invalid"),
    ] {
        let error = Window::parse(text, TimeZone::UTC).unwrap_err().to_string();
        assert!(error.contains(why), "{text:?}: {error}");
    }
    assert!(Window::parse("04:00-02:00", TimeZone::UTC).is_ok(), "over midnight");
}

#[test]
fn times_at_the_ends_of_the_calendar_are_closed_or_open_without_a_panic() {
    for now in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH] {
        let _ = opening(&[window("Mon-Fri 22:00-02:00")], now);
    }
}
