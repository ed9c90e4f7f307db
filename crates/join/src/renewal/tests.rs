use std::cell::Cell;

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::tests::authority::{Authority, time};
use crate::tests::service::{Service, cloud_now};
use edgesync_config::JoinUrl;
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::proxy::ProxyRules;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
}

/// Start of the certificates in these tests: 2026-11-21.
const FROM: i64 = 1_795_219_200;

fn now() -> Timestamp {
    Timestamp::from_second(NOW.get()).unwrap()
}

fn at(second: i64) -> Clock {
    NOW.set(second);
    Clock::of(now, [Timestamp::from_second(FROM).unwrap()])
}

fn schedule(lifetime: i64, random: f64) -> Schedule {
    let time = |second| Timestamp::from_second(second).unwrap();
    Schedule::between(time(FROM), time(FROM + lifetime), random)
}

const YEAR: i64 = 365 * 86_400;

proptest! {
    #[test]
    fn renewal_is_planned_between_70_and_90_percent(lifetime in 10..20 * YEAR, random in 0.0..1.0_f64) {
        let planned = schedule(lifetime, random).planned().as_second() - FROM;
        #[expect(clippy::cast_precision_loss, reason = "far below 53 bits")]
        let share = planned as f64 / lifetime as f64;
        // Truncated to whole seconds.
        prop_assert!(share < 0.9 + 1e-9 && share > 0.7 - 0.1, "{share}");
        prop_assert!(lifetime < 100_000 || share > 0.6999, "{share}");
    }

    #[test]
    fn waits_are_bounded_and_lead_to_the_attempt(
        lifetime in 60..20 * YEAR,
        random in 0.0..1.0_f64,
        failures in 0..40_u32,
        start in -YEAR..3 * YEAR,
    ) {
        let mut schedule = schedule(lifetime, random);
        (0..failures).for_each(|_| schedule.failed());
        let most = (lifetime / 10 + 1).min(3600);
        let clock = at(FROM + start);
        let wait = schedule.wait(&clock, random);
        prop_assert!(wait <= Duration::from_secs(3600));
        if start < 0 {
            prop_assert!(wait <= Duration::from_secs(60) && !schedule.is_due(&clock));
            prop_assert_eq!(schedule.validity(&clock), Validity::Unknown);
        } else if schedule.is_due(&clock) {
            prop_assert_eq!(wait.is_zero(), failures == 0);
            prop_assert!(wait <= Duration::from_secs(most.unsigned_abs()));
        } else {
            prop_assert!(!wait.is_zero());
            let left = u64::try_from(schedule.planned().as_second() - clock.now().as_second()).unwrap() + 1;
            prop_assert!(wait <= Duration::from_secs(left));
        }
    }

    #[test]
    fn renewal_follows_once_the_clock_is_right(
        jumps in prop::collection::vec(-60 * YEAR..60 * YEAR, 0..20),
        random in 0.0..1.0_f64,
    ) {
        let schedule = schedule(YEAR, random);
        for jump in jumps {
            let clock = at((FROM + jump).max(0));
            prop_assert!(schedule.wait(&clock, random) <= Duration::from_secs(3600));
            prop_assert_eq!(schedule.is_due(&clock), clock.now() >= schedule.planned());
        }
        // Hourly steps reach the day in time.
        let mut second = FROM + YEAR / 2;
        while !schedule.is_due(&at(second)) {
            let wait = schedule.wait(&at(second), random);
            prop_assert!(!wait.is_zero());
            // A wait of less than a millisecond counts as one.
            second += i64::try_from(wait.as_secs()).unwrap() + 1;
        }
        prop_assert!(second <= FROM + YEAR * 9 / 10 + 2, "{}", second);
    }
}

#[test]
fn renewals_of_a_fleet_are_spread() {
    let planned = (0..100).map(|n| schedule(YEAR, f64::from(n) / 100.0).planned().as_second());
    let planned = planned.collect::<Vec<_>>();
    assert!(planned.windows(2).all(|pair| pair[1] - pair[0] > YEAR / 1000));
}

#[test]
fn failed_attempts_repeat_with_growing_delays() {
    for (lifetime, first, most) in [(YEAR, 3600.0 / 64.0, 3600.0), (600, 60.0 / 64.0, 60.0)] {
        let mut schedule = schedule(lifetime, 0.5);
        let clock = at(FROM + 2 * lifetime);
        assert_eq!(schedule.wait(&clock, 0.5), Duration::ZERO);
        let mut waits = Vec::new();
        for _ in 0..12 {
            schedule.failed();
            let (least, longest) = (schedule.wait(&clock, 0.0), schedule.wait(&clock, 0.999_999));
            assert!(least * 2 >= longest && least < longest);
            waits.push(longest.as_secs_f64());
            assert!(schedule.is_due(&clock));
        }
        assert!((waits[0] - first).abs() < 0.01, "{waits:?}");
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!((waits[11] - most).abs() < 0.01, "{waits:?}");
    }
}

#[test]
fn validity_is_unknown_with_a_clock_in_1970() {
    let schedule = schedule(1000, 0.0);
    for (second, validity) in [
        (FROM, Validity::Good),
        (FROM + 900, Validity::Good),
        (FROM + 901, Validity::Tight),
        (FROM + 999, Validity::Tight),
        (FROM + 1000, Validity::Expired),
        (FROM + 100 * YEAR, Validity::Expired),
        (FROM - 1, Validity::Unknown),
        (9, Validity::Unknown),
    ] {
        assert_eq!(schedule.validity(&at(second)), validity, "{second}");
    }
    assert_eq!(schedule.wait(&at(9), 0.5), Duration::from_secs(60));
    assert!(!schedule.is_due(&at(9)));
}

/// Renews the certificate of a node at a join service with this name, which resolves nowhere;
/// `addresses` are those that worked earlier. Returns the stored texts, too.
async fn renewed_at(name: &str, addresses: &str) -> (Result<Identity, CallError>, Vec<String>) {
    let authority = Arc::new(Authority::new("ca"));
    let cloud = Service::of_cloud(Arc::clone(&authority), "mqtts://:8883").await;
    let stored = format!(r#"{{"peer":"mqtts://cloud.example:8883","addresses":{addresses}}}"#);
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&written);
    let last_good = LastGood::new(Some(&stored), move |text| keep.lock().unwrap().push(text));
    let url = JoinUrl { host: name.to_owned(), port: cloud.url.port };
    let service = JoinService::new(url, Dialer::new(ProxyRules::default(), last_good));
    let current = authority.node("pump-7", time("2026-11-01T00:00:00Z"), time("2026-12-01T00:00:00Z"));
    let trust = Trust::new(vec![authority.ca.clone()]);
    let renewed = renew(&service, &trust, &current, "pump-7", Clock::of(cloud_now, [])).await;
    let written = written.lock().unwrap().clone();
    (renewed, written)
}

#[tokio::test]
async fn last_good_address_renews_without_a_name_server() {
    let (renewed, written) = renewed_at("cloud.example", r#"{"cloud.example":"127.0.0.1"}"#).await;
    assert_eq!(renewed.unwrap().certificate().node(), Some("pump-7"));
    assert!(written.is_empty(), "nothing has changed: {written:?}");

    let (refused, _) = renewed_at("cloud.example", "{}").await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("resolve host name 'cloud.example'"), "{error}");
    // The address of another host, whose certificate does not have the name.
    let (refused, written) = renewed_at("other.invalid", r#"{"other.invalid":"127.0.0.1"}"#).await;
    let error = refused.unwrap_err();
    assert!(matches!(&error, CallError::Tls(_)), "{error}");
    assert!(error.to_string().contains("not for 'other.invalid'"), "{error}");
    assert!(written.is_empty(), "{written:?}");
}

#[tokio::test]
async fn renewal_keeps_the_address_of_the_join_service() {
    let authority = Arc::new(Authority::new("ca"));
    let cloud = Service::start(
        &authority,
        &authority.server(&["localhost"], time("2026-11-01T00:00:00Z"), time("2027-11-01T00:00:00Z")),
        {
            let authority = Arc::clone(&authority);
            move |asked| crate::tests::service::cloud(&authority, "mqtts://:8883", asked)
        },
    )
    .await;
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&written);
    let last_good = LastGood::new(None, move |text| keep.lock().unwrap().push(text));
    let url = JoinUrl { host: "localhost".to_owned(), port: cloud.url.port };
    let service = JoinService::new(url, Dialer::new(ProxyRules::default(), last_good));
    let trust = Trust::new(vec![authority.ca.clone()]);
    let current = authority.node("pump-7", time("2026-11-01T00:00:00Z"), time("2026-12-01T00:00:00Z"));
    let clock = Clock::of(cloud_now, []);
    // A certificate of another authority proves nothing.
    let foreign = Trust::new(vec![Authority::new("other").ca]);
    renew(&service, &foreign, &current, "pump-7", clock).await.unwrap_err();
    assert!(written.lock().unwrap().is_empty());
    renew(&service, &trust, &current, "pump-7", clock).await.unwrap();
    let written = written.lock().unwrap().clone();
    assert_eq!(written.len(), 1, "{written:?}");
    assert!(written[0].contains(r#""localhost":"127.0.0.1""#), "{written:?}");
}
