//! Who goes when more come than there are places, in virtual time.

use tokio::time::{advance, timeout};

use super::*;

const LIMITS: GateLimits = GateLimits { places: 8, for_one: 3 };

fn v4(last: u8) -> Origin {
    Origin::of(IpAddr::from([192, 0, 2, last]))
}

/// Whether somebody gets in at once.
async fn enters(gate: &Arc<Gate>, origin: Origin) -> Option<Arc<Guest>> {
    timeout(Duration::from_millis(1), gate.enter(origin)).await.ok().flatten().map(Arc::new)
}

async fn is_sent_away(guest: &Guest) -> bool {
    timeout(Duration::ZERO, guest.must_go()).await.is_ok()
}

#[test]
fn an_origin_is_what_one_owner_has() {
    let of = |text: &str| Origin::of(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2:aaaa::1"), of("2001:db8:1:2:bbbb::2"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert!([of("127.0.0.1"), of("127.0.0.9"), of("::1")].iter().all(|origin| *origin == Origin::Loopback));
}

#[tokio::test(start_paused = true)]
async fn who_stands_about_for_longest_goes_for_whoever_comes() {
    let gate = Gate::new(LIMITS);
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(enters(&gate, Origin::Loopback).await.unwrap());
        advance(Duration::from_millis(1)).await;
    }
    assert!(enters(&gate, v4(1)).await.is_none(), "all of them have just come");
    let begun = Instant::now();
    let guest = gate.enter(v4(1)).await.unwrap();
    assert!(begun.elapsed() <= GRACE);
    assert!(is_sent_away(&idle[0]).await && !is_sent_away(&idle[1]).await && !is_sent_away(&guest).await);
    drop(idle.pop());
    assert!(enters(&gate, v4(2)).await.is_some(), "a place was given back");
}

#[tokio::test(start_paused = true)]
async fn one_origin_takes_its_part_of_the_places_only() {
    let gate = Gate::new(LIMITS);
    let flood: Vec<_> =
        [enters(&gate, v4(1)).await, enters(&gate, v4(1)).await, enters(&gate, v4(1)).await].into();
    assert!(gate.enter(v4(1)).await.is_none(), "it is refused, and keeps nobody waiting");
    let other = enters(&gate, v4(2)).await.unwrap();
    advance(GRACE).await;
    let newer = enters(&gate, v4(1)).await.unwrap();
    assert!(is_sent_away(flood[0].as_ref().unwrap()).await, "its own oldest goes");
    assert!(!is_sent_away(&other).await && !is_sent_away(&newer).await);
}

#[tokio::test(start_paused = true)]
async fn the_crowd_pays_and_not_the_one_that_came_before_it() {
    let gate = Gate::new(LIMITS);
    let early = enters(&gate, v4(9)).await.unwrap();
    advance(Duration::from_millis(10)).await;
    let mut crowd = Vec::new();
    for _ in 0..7 {
        crowd.push(enters(&gate, Origin::Loopback).await.unwrap());
    }
    advance(GRACE).await;
    let _guest = enters(&gate, v4(1)).await.unwrap();
    assert!(!is_sent_away(&early).await);
    let mut gone = 0;
    for guest in &crowd {
        gone += usize::from(is_sent_away(guest).await);
    }
    assert_eq!(gone, 1);
}

#[tokio::test(start_paused = true)]
async fn who_is_served_does_not_go() {
    let gate = Gate::new(GateLimits { places: 2, for_one: 2 });
    let served = enters(&gate, v4(1)).await.unwrap();
    let busy = served.busy();
    let idle = enters(&gate, v4(1)).await.unwrap();
    advance(GRACE).await;
    let next = enters(&gate, v4(2)).await.unwrap();
    assert!(is_sent_away(&idle).await && !is_sent_away(&served).await);
    let also = next.busy();
    advance(GRACE).await;
    assert!(enters(&gate, v4(3)).await.is_none());
    drop(busy);
    assert!(enters(&gate, v4(3)).await.is_none(), "it has just been served");
    advance(GRACE).await;
    assert!(enters(&gate, v4(3)).await.is_some());
    assert!(is_sent_away(&served).await);
    drop((also, next));
}

/// The attack that this is for: nine idle connections a second, and one honest one now and then.
#[tokio::test(start_paused = true)]
async fn a_trickle_of_idle_connections_keeps_nobody_out() {
    let gate = Gate::new(GateLimits { places: 256, for_one: 64 });
    let mut idle = Vec::new();
    for second in 0..300_u64 {
        for number in 0..9_u8 {
            idle.extend(gate.enter(if second % 2 == 0 { Origin::Loopback } else { v4(number) }).await);
        }
        let begun = Instant::now();
        let guest = gate.enter(v4(200)).await.unwrap();
        assert!(begun.elapsed() <= GRACE, "second {second}");
        assert!(!is_sent_away(&guest).await);
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_of_a_local_user_goes_for_the_next_one_at_once() {
    let gate = Gate::new(LIMITS);
    let (one, root) = (Origin::User(Some(1000)), Origin::User(Some(0)));
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(enters(&gate, one).await.unwrap());
    }
    let _root = enters(&gate, root).await.unwrap();
    assert!(is_sent_away(&idle[0]).await && !is_sent_away(&idle[99]).await);
}

#[tokio::test(start_paused = true)]
async fn who_steps_aside_takes_no_place_until_it_is_back() {
    let gate = Gate::new(GateLimits { places: 1, for_one: 1 });
    let watcher = enters(&gate, v4(1)).await.unwrap();
    let watching = watcher.aside();
    drop(enters(&gate, v4(1)).await.unwrap());
    drop(watching);
    assert!(enters(&gate, v4(2)).await.is_none());
    drop(watcher);
    assert!(enters(&gate, v4(2)).await.is_some());
}
