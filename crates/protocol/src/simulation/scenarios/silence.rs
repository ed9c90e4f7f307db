//! Scenarios with a silent cloud behind a broker that acknowledges everything.

use super::*;
use crate::frame::Up;
use crate::upload::Lane;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the expected number of sends within `time`, if each wait is between half of `longest`
/// and `longest`.
fn often(time: Duration, longest: Duration) -> std::ops::RangeInclusive<usize> {
    let times = |wait: Duration| usize::try_from(time.as_micros() / wait.as_micros()).unwrap();
    times(longest)..=times(longest / 2) + 5
}

/// Returns a world in which the cloud answers everything but Uploads.
fn deaf_to_uploads() -> World {
    let mut world = in_sync(1);
    world.lose(|frame| matches!(frame, Up::Upload(_)));
    world.post(0, Lane::Events, 0);
    world
}

#[test]
fn a_silent_cloud_gets_hellos_for_a_day_despite_acked_leases() {
    let mut world = in_sync(1);
    let before = ["Hello", "Report", "Upload"].map(|name| world.frames(name));
    world.lose(|_| true);
    world.write("object-000", 20);
    world.post(0, Lane::Events, 0);
    world.pass(Duration::from_secs(1)).unwrap();
    world.lose_cloud();
    let sent = |world: &World| {
        let [hellos, reports, uploads] = before;
        let since = |name: &str, before: usize| world.frames(name) - before;
        (since("Hello", hellos), since("Report", reports), since("Upload", uploads))
    };
    world.pass(Duration::from_secs(8)).unwrap();
    assert_eq!(sent(&world), (0, 1, 1));
    // Three repetitions, after 10 s, 20 to 40 s and 30 to 60 s, and a Hello as long after the last
    // one.
    world.pass(Duration::from_secs(170)).unwrap();
    let (hellos, reports, uploads) = sent(&world);
    assert!((1..=3).contains(&hellos) && reports == 4 + hellos, "{hellos} Hellos, {reports} Reports");
    assert!((3..=6).contains(&uploads), "{uploads} Uploads");
    world.pass(DAY).unwrap();
    let (hellos, reports, now) = sent(&world);
    assert!(often(DAY, Duration::from_secs(120)).contains(&hellos), "{hellos} Hellos");
    assert_eq!(reports, 4 + hellos, "each Hello comes with what is not confirmed");
    assert_eq!(now, uploads, "nothing is uploaded without a session");
}

#[test]
fn an_unconfirmed_upload_is_resent_for_a_day() {
    let mut world = deaf_to_uploads();
    let (hellos, uploads) = (world.frames("Hello"), world.frames("Upload"));
    for hour in 0..24 {
        world.write("object-000", hour);
        world.pass(DAY / 24).unwrap();
    }
    let uploads = world.frames("Upload") - uploads;
    assert!(often(DAY, Duration::from_secs(60)).contains(&uploads), "{uploads} Uploads");
    assert_eq!(world.frames("Hello"), hellos);
    world.lose(|_| false);
    world.pass_until_in_sync(Duration::from_secs(61));
    assert_eq!(world.effects(), ["0/events/0"]);
}

#[test]
fn a_stream_of_objects_delays_timeouts_up_to_a_limit() {
    let mut world = deaf_to_uploads();
    let uploads = world.frames("Upload");
    for size in 0..1200 {
        world.write("object-000", size % 50);
        world.pass(Duration::from_secs(3)).unwrap();
    }
    let uploads = world.frames("Upload") - uploads;
    assert!(
        often(Duration::from_secs(3600), Duration::from_secs(60)).contains(&uploads),
        "{uploads} Uploads"
    );
}
