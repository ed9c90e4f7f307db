//! Who goes when more come than there are places, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;

use tokio::time::{advance, timeout};

use super::*;

const LIMITS: GateLimits = GateLimits { places: 8, for_one: 3 };

fn v4(last: u8) -> Origin {
    Origin::of(IpAddr::from([192, 0, 2, last]))
}

/// Whether somebody gets in at once.
fn enters(gate: &Arc<Gate>, origin: Origin) -> Option<Arc<Guest>> {
    gate.try_enter(origin).map(Arc::new)
}

/// Waits for a place.
async fn enter(gate: &Arc<Gate>, origin: Origin) -> Option<Guest> {
    let mut comes = vec![(origin, 0)];
    come(&mut queue(gate, 1), &mut comes).await.1
}

/// A connection is a number. Those from [`SLOW`] on say something after a second, and those from [`SILENT`] on nothing.
impl Visitor for u32 {
    async fn speaks(&self) {
        match *self {
            SILENT.. => pending().await,
            SLOW.. => tokio::time::sleep(Duration::from_secs(1)).await,
            _ => {}
        }
    }
}

const SLOW: u32 = 10_000;
const SILENT: u32 = 100_000;
const SILENCE: Duration = Duration::from_secs(10);

fn queue(gate: &Arc<Gate>, most: usize) -> Queue<u32> {
    Queue::new(Arc::clone(gate), QueueLimits { most, silence: SILENCE })
}

/// Who is next of those who wait and of those who come now.
async fn come(queue: &mut Queue<u32>, comes: &mut Vec<(Origin, u32)>) -> (u32, Option<Guest>) {
    let left = Cell::new(std::mem::take(comes));
    let accept = || async {
        let mut coming = left.take();
        let next = if coming.is_empty() { None } else { Some(coming.remove(0)) };
        left.set(coming);
        match next {
            Some(next) => Ok::<_, Infallible>(next),
            None => pending().await,
        }
    };
    let Ok(next) = queue.next(accept).await;
    *comes = left.take();
    next
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
        idle.push(enters(&gate, Origin::Loopback).unwrap());
        advance(Duration::from_millis(1)).await;
    }
    assert!(enters(&gate, v4(1)).is_none(), "all of them have just come");
    let begun = Instant::now();
    let guest = enter(&gate, v4(1)).await.unwrap();
    assert!(begun.elapsed() <= GRACE);
    assert!(is_sent_away(&idle[0]).await && !is_sent_away(&idle[1]).await && !is_sent_away(&guest).await);
    drop(idle.pop());
    assert!(enters(&gate, v4(2)).is_some(), "a place was given back");
}

#[tokio::test(start_paused = true)]
async fn one_origin_takes_its_part_of_the_places_only() {
    let gate = Gate::new(LIMITS);
    let flood: Vec<_> = [enters(&gate, v4(1)), enters(&gate, v4(1)), enters(&gate, v4(1))].into();
    assert!(enters(&gate, v4(1)).is_none());
    let other = enters(&gate, v4(2)).unwrap();
    advance(GRACE).await;
    let newer = enters(&gate, v4(1)).unwrap();
    assert!(is_sent_away(flood[0].as_ref().unwrap()).await, "its own oldest goes");
    assert!(!is_sent_away(&other).await && !is_sent_away(&newer).await);
}

#[tokio::test(start_paused = true)]
async fn the_crowd_pays_and_not_the_one_that_came_before_it() {
    let gate = Gate::new(LIMITS);
    let early = enters(&gate, v4(9)).unwrap();
    advance(Duration::from_millis(10)).await;
    let mut crowd = Vec::new();
    for _ in 0..7 {
        crowd.push(enters(&gate, Origin::Loopback).unwrap());
    }
    advance(GRACE).await;
    let _guest = enters(&gate, v4(1)).unwrap();
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
    let served = enters(&gate, v4(1)).unwrap();
    let busy = served.busy();
    let idle = enters(&gate, v4(1)).unwrap();
    advance(GRACE).await;
    let next = enters(&gate, v4(2)).unwrap();
    assert!(is_sent_away(&idle).await && !is_sent_away(&served).await);
    let also = next.busy();
    advance(GRACE).await;
    assert!(enters(&gate, v4(3)).is_none());
    drop(busy);
    assert!(enters(&gate, v4(3)).is_none(), "it has just been served");
    advance(GRACE).await;
    assert!(enters(&gate, v4(3)).is_some());
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
            idle.extend(gate.try_enter(if second % 2 == 0 { Origin::Loopback } else { v4(number) }));
        }
        let begun = Instant::now();
        let guest = enter(&gate, v4(200)).await.unwrap();
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
        idle.push(enters(&gate, one).unwrap());
    }
    let _root = enters(&gate, root).unwrap();
    assert!(is_sent_away(&idle[0]).await && !is_sent_away(&idle[99]).await);
}

#[tokio::test(start_paused = true)]
async fn who_steps_aside_takes_no_place_until_it_is_back() {
    let gate = Gate::new(GateLimits { places: 1, for_one: 1 });
    let watcher = enters(&gate, v4(1)).unwrap();
    let watching = watcher.aside();
    drop(enters(&gate, v4(1)).unwrap());
    drop(watching);
    assert!(enters(&gate, v4(2)).is_none());
    drop(watcher);
    assert!(enters(&gate, v4(2)).is_some());
}

/// Each step of a handshake takes longer than the silent are left in peace, because all come at once.
#[tokio::test(start_paused = true)]
async fn who_goes_on_with_its_handshake_is_left_in_peace() {
    let gate = Gate::new(LIMITS);
    let crowd: Vec<_> = (0..8).filter_map(|_| enters(&gate, Origin::Loopback)).collect();
    let (silent, active) = crowd.split_first().unwrap();
    for _ in 0..2 {
        advance(GRACE - Duration::from_millis(1)).await;
        active.iter().for_each(|guest| guest.speaks());
    }
    let _next = enters(&gate, v4(1)).unwrap();
    assert!(is_sent_away(silent).await);
    advance(SPOKEN - Duration::from_millis(1)).await;
    for guest in active {
        assert!(!is_sent_away(guest).await);
    }
    let _other = enters(&gate, v4(2)).unwrap();
    assert!(enters(&gate, v4(3)).is_none(), "all others are still within their time");
    advance(Duration::from_millis(1)).await;
    assert!(enters(&gate, v4(3)).is_some(), "whoever says nothing more goes as well");
}

/// Until all who come have found their place or wait.
async fn all_come(queue: &mut Queue<u32>, mut comes: Vec<(Origin, u32)>) {
    assert!(timeout(Duration::from_millis(1), come(queue, &mut comes)).await.is_err());
}

/// A fleet that comes all at once: all get in, some at a time.
#[tokio::test(start_paused = true)]
async fn who_finds_no_place_waits_for_one() {
    let gate = Gate::new(LIMITS);
    let mut queue = queue(&gate, 1000);
    let mut inside: VecDeque<_> = (0..8).filter_map(|_| enters(&gate, Origin::Loopback)).collect();
    all_come(&mut queue, (0..500).map(|number| (Origin::Loopback, number)).collect()).await;
    let mut seen = Vec::new();
    for _ in 0..500 {
        advance(Duration::from_millis(1)).await;
        let known = inside.pop_front().unwrap();
        assert!(!is_sent_away(&known).await);
        drop(known);
        let (who, guest) = come(&mut queue, &mut Vec::new()).await;
        inside.push_back(Arc::new(guest.expect("nobody is refused")));
        seen.push(who);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
}

/// The silent do not only stand in the door, they wait before it as well.
#[tokio::test(start_paused = true)]
async fn whoever_comes_last_is_the_next_of_its_origin() {
    let gate = Gate::new(LIMITS);
    let mut queue = queue(&gate, 1000);
    let _silent: Vec<_> = (0..8).filter_map(|_| enters(&gate, Origin::Loopback)).collect();
    all_come(&mut queue, (0..900).map(|number| (Origin::Loopback, number)).collect()).await;
    let begun = Instant::now();
    let (who, guest) = come(&mut queue, &mut vec![(Origin::Loopback, 900)]).await;
    assert!(guest.is_some() && who == 900 && begun.elapsed() <= GRACE, "{who} after {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_crowd_in_the_queue_delays_itself_and_not_the_others() {
    let gate = Gate::new(LIMITS);
    let mut queue = queue(&gate, 100);
    let crowd: Vec<_> = (0..3).filter_map(|_| enters(&gate, v4(1))).collect();
    let comes = (0..50).map(|number| (v4(1), number));
    let mut comes: Vec<_> = comes.chain([(v4(2), 100), (v4(3), 101)]).collect();
    for expected in [100, 101] {
        let (who, guest) = come(&mut queue, &mut comes).await;
        assert_eq!((who, guest.is_some()), (expected, true), "one origin has three places");
    }
    let waits = Instant::now();
    let (who, guest) = come(&mut queue, &mut comes).await;
    assert_eq!((who, guest.is_some()), (49, true));
    assert!(waits.elapsed() >= GRACE && is_sent_away(&crowd[0]).await);
}

#[tokio::test(start_paused = true)]
async fn when_too_many_wait_the_oldest_of_the_crowd_goes() {
    let gate = Gate::new(GateLimits { places: 1, for_one: 1 });
    let mut queue = queue(&gate, 4);
    let busy = enters(&gate, v4(1)).unwrap().busy();
    let of = |origin, numbers: std::ops::Range<u32>| numbers.map(move |number| (origin, number));
    let mut comes: Vec<_> = of(v4(1), 0..3).chain(of(v4(2), 10..12)).chain(of(v4(1), 3..4)).collect();
    for refused in [0, 1] {
        let (who, guest) = come(&mut queue, &mut comes).await;
        assert_eq!((who, guest.is_some()), (refused, false));
    }
    drop(busy);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (who, guest) = come(&mut queue, &mut comes).await;
        assert!(guest.is_some());
        seen.push(who);
    }
    assert_eq!(seen, [11, 3, 10, 2], "in turn");
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_for_too_long_is_let_go_without_costing_anybody_a_place() {
    let gate = Gate::new(GateLimits { places: 1, for_one: 1 });
    let mut queue = queue(&gate, 10);
    let inside = enters(&gate, v4(1)).unwrap();
    let busy = inside.busy();
    all_come(&mut queue, vec![(v4(2), 1), (v4(3), 2)]).await;
    advance(Duration::from_secs(9)).await;
    drop(busy);
    for late in [1, 2] {
        let (who, guest) = come(&mut queue, &mut Vec::new()).await;
        assert_eq!((who, guest.is_some()), (late, false));
    }
    assert!(!is_sent_away(&inside).await);
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_takes_nobodys_place() {
    let gate = Gate::new(LIMITS);
    let mut queue = queue(&gate, 1000);
    all_come(&mut queue, (0..900).map(|number| (Origin::Loopback, SILENT + number)).collect()).await;
    let begun = Instant::now();
    let (who, guest) = come(&mut queue, &mut vec![(Origin::Loopback, 1)]).await;
    assert!(who == 1 && guest.is_some() && begun.elapsed().is_zero());
    // In the end they go, without a word.
    assert!(timeout(2 * SILENCE, come(&mut queue, &mut Vec::new())).await.is_err());
    assert!(format!("{queue:?}").contains("silent: 0"), "{queue:?}");
}

#[tokio::test(start_paused = true)]
async fn of_too_many_who_say_nothing_the_oldest_of_the_crowd_goes() {
    let gate = Gate::new(LIMITS);
    let mut queue = queue(&gate, 4);
    let of = |origin, numbers: std::ops::Range<u32>| numbers.map(move |number| (origin, SLOW + number));
    let mut comes: Vec<_> = of(v4(1), 0..3).chain(of(v4(2), 10..12)).collect();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(come(&mut queue, &mut comes).await.0 - SLOW);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 10, 11]);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_silent_until_it_does() {
    use tokio::io::AsyncWriteExt as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut theirs = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (ours, peer) = listener.accept().await.unwrap();
    let ours = Tcp(ours, peer);
    assert!(timeout(Duration::from_millis(100), ours.speaks()).await.is_err());
    theirs.write_all(b"a").await.unwrap();
    timeout(Duration::from_secs(10), ours.speaks()).await.unwrap();
}
