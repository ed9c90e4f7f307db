//! Tests for eviction and order when more connections come than there are permits, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;

use tokio::time::{advance, timeout};

use super::*;

const LIMITS: ConnectionLimits = ConnectionLimits { total: 8, per_origin: 3 };

fn v4(last: u8) -> Origin {
    Origin::of(IpAddr::from([192, 0, 2, last]))
}

/// Acquires a permit at once if possible.
fn try_acquire(limiter: &Arc<ConnectionLimiter>, origin: Origin) -> Option<Arc<Permit>> {
    limiter.try_acquire(origin).map(Arc::new)
}

/// Waits for a permit.
async fn acquire(limiter: &Arc<ConnectionLimiter>, origin: Origin) -> Option<Permit> {
    let mut arriving = vec![(origin, 0)];
    next(&mut queue(limiter, 1), &mut arriving).await.1
}

/// A connection is a number. From [`SLOW`] on it sends something after a second, from [`SILENT`] on
/// nothing.
impl Visitor for u32 {
    async fn readable(&self) {
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

fn queue(limiter: &Arc<ConnectionLimiter>, most: usize) -> Queue<u32> {
    Queue::new(Arc::clone(limiter), QueueLimits { most, silence: SILENCE })
}

/// Returns the next connection of those that wait and those that arrive now.
async fn next(queue: &mut Queue<u32>, arriving: &mut Vec<(Origin, u32)>) -> (u32, Option<Permit>) {
    let left = Cell::new(std::mem::take(arriving));
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
    *arriving = left.take();
    next
}

async fn is_evicted(permit: &Permit) -> bool {
    timeout(Duration::ZERO, permit.evicted()).await.is_ok()
}

#[test]
fn origin_covers_all_addresses_of_one_owner() {
    let of = |text: &str| Origin::of(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2:aaaa::1"), of("2001:db8:1:2:bbbb::2"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert!([of("127.0.0.1"), of("127.0.0.9"), of("::1")].iter().all(|origin| *origin == Origin::Loopback));
}

#[tokio::test(start_paused = true)]
async fn oldest_idle_permit_is_evicted_for_a_new_connection() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(try_acquire(&limiter, Origin::Loopback).unwrap());
        advance(Duration::from_millis(1)).await;
    }
    assert!(try_acquire(&limiter, v4(1)).is_none(), "all of them have just come");
    let begun = Instant::now();
    let permit = acquire(&limiter, v4(1)).await.unwrap();
    assert!(begun.elapsed() <= GRACE);
    assert!(is_evicted(&idle[0]).await && !is_evicted(&idle[1]).await && !is_evicted(&permit).await);
    drop(idle.pop());
    assert!(try_acquire(&limiter, v4(2)).is_some(), "a place was given back");
}

#[tokio::test(start_paused = true)]
async fn origin_gets_its_part_of_the_permits_only() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let flood: Vec<_> =
        [try_acquire(&limiter, v4(1)), try_acquire(&limiter, v4(1)), try_acquire(&limiter, v4(1))].into();
    assert!(try_acquire(&limiter, v4(1)).is_none());
    let other = try_acquire(&limiter, v4(2)).unwrap();
    advance(GRACE).await;
    let newer = try_acquire(&limiter, v4(1)).unwrap();
    assert!(is_evicted(flood[0].as_ref().unwrap()).await, "its own oldest goes");
    assert!(!is_evicted(&other).await && !is_evicted(&newer).await);
}

#[tokio::test(start_paused = true)]
async fn eviction_hits_the_largest_origin_not_the_oldest_permit() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let early = try_acquire(&limiter, v4(9)).unwrap();
    advance(Duration::from_millis(10)).await;
    let mut flood = Vec::new();
    for _ in 0..7 {
        flood.push(try_acquire(&limiter, Origin::Loopback).unwrap());
    }
    advance(GRACE).await;
    let _guest = try_acquire(&limiter, v4(1)).unwrap();
    assert!(!is_evicted(&early).await);
    let mut gone = 0;
    for permit in &flood {
        gone += usize::from(is_evicted(permit).await);
    }
    assert_eq!(gone, 1);
}

#[tokio::test(start_paused = true)]
async fn busy_permit_is_not_evicted() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: 2, per_origin: 2 });
    let served = try_acquire(&limiter, v4(1)).unwrap();
    let busy = served.busy();
    let idle = try_acquire(&limiter, v4(1)).unwrap();
    advance(GRACE).await;
    let next = try_acquire(&limiter, v4(2)).unwrap();
    assert!(is_evicted(&idle).await && !is_evicted(&served).await);
    let also = next.busy();
    advance(GRACE).await;
    assert!(try_acquire(&limiter, v4(3)).is_none());
    drop(busy);
    assert!(try_acquire(&limiter, v4(3)).is_none(), "it has just been served");
    advance(GRACE).await;
    assert!(try_acquire(&limiter, v4(3)).is_some());
    assert!(is_evicted(&served).await);
    drop((also, next));
}

/// Nine idle connections arrive each second, and an honest one now and then.
#[tokio::test(start_paused = true)]
async fn idle_connections_keep_no_others_out() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: 256, per_origin: 64 });
    let mut idle = Vec::new();
    for second in 0..300_u64 {
        for number in 0..9_u8 {
            idle.extend(limiter.try_acquire(if second % 2 == 0 { Origin::Loopback } else { v4(number) }));
        }
        let begun = Instant::now();
        let permit = acquire(&limiter, v4(200)).await.unwrap();
        assert!(begun.elapsed() <= GRACE, "second {second}");
        assert!(!is_evicted(&permit).await);
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_permit_of_a_local_user_is_evicted_at_once() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let (one, root) = (Origin::User(Some(1000)), Origin::User(Some(0)));
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(try_acquire(&limiter, one).unwrap());
    }
    let _root = try_acquire(&limiter, root).unwrap();
    assert!(is_evicted(&idle[0]).await && !is_evicted(&idle[99]).await);
}

#[tokio::test(start_paused = true)]
async fn suspended_permit_is_free_until_it_resumes() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: 1, per_origin: 1 });
    let watcher = try_acquire(&limiter, v4(1)).unwrap();
    let watching = watcher.suspend();
    drop(try_acquire(&limiter, v4(1)).unwrap());
    drop(watching);
    assert!(try_acquire(&limiter, v4(2)).is_none());
    drop(watcher);
    assert!(try_acquire(&limiter, v4(2)).is_some());
}

/// Each step of a handshake takes longer than the grace of silent ones, because all arrive at once.
#[tokio::test(start_paused = true)]
async fn permit_with_progress_gets_the_longer_grace() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let flood: Vec<_> = (0..8).filter_map(|_| try_acquire(&limiter, Origin::Loopback)).collect();
    let (silent, active) = flood.split_first().unwrap();
    for _ in 0..2 {
        advance(GRACE - Duration::from_millis(1)).await;
        active.iter().for_each(|permit| permit.progressed());
    }
    let _next = try_acquire(&limiter, v4(1)).unwrap();
    assert!(is_evicted(silent).await);
    advance(GRACE_PROGRESSED - Duration::from_millis(1)).await;
    for permit in active {
        assert!(!is_evicted(permit).await);
    }
    let _other = try_acquire(&limiter, v4(2)).unwrap();
    assert!(try_acquire(&limiter, v4(3)).is_none(), "all others are still within their time");
    advance(Duration::from_millis(1)).await;
    assert!(try_acquire(&limiter, v4(3)).is_some(), "whoever says nothing more goes as well");
}

/// Runs the queue until it has accepted all arriving connections.
async fn take_in_all(queue: &mut Queue<u32>, mut arriving: Vec<(Origin, u32)>) {
    assert!(timeout(Duration::from_millis(1), next(queue, &mut arriving)).await.is_err());
}

/// A fleet connects all at once: all get permits, some at a time.
#[tokio::test(start_paused = true)]
async fn queue_serves_a_whole_fleet_in_turn() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut queue = queue(&limiter, 1000);
    let mut inside: VecDeque<_> = (0..8).filter_map(|_| try_acquire(&limiter, Origin::Loopback)).collect();
    take_in_all(&mut queue, (0..500).map(|number| (Origin::Loopback, number)).collect()).await;
    let mut seen = Vec::new();
    for _ in 0..500 {
        advance(Duration::from_millis(1)).await;
        let known = inside.pop_front().unwrap();
        assert!(!is_evicted(&known).await);
        drop(known);
        let (connection, permit) = next(&mut queue, &mut Vec::new()).await;
        inside.push_back(Arc::new(permit.expect("nobody is refused")));
        seen.push(connection);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
}

/// A silent connection holds a permit, and others wait in the queue.
#[tokio::test(start_paused = true)]
async fn queue_serves_the_newest_of_an_origin_first() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut queue = queue(&limiter, 1000);
    let _silent: Vec<_> = (0..8).filter_map(|_| try_acquire(&limiter, Origin::Loopback)).collect();
    take_in_all(&mut queue, (0..900).map(|number| (Origin::Loopback, number)).collect()).await;
    let begun = Instant::now();
    let (connection, permit) = next(&mut queue, &mut vec![(Origin::Loopback, 900)]).await;
    assert!(
        permit.is_some() && connection == 900 && begun.elapsed() <= GRACE,
        "{connection} after {:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn queue_delays_a_flood_and_not_other_origins() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut queue = queue(&limiter, 100);
    let flood: Vec<_> = (0..3).filter_map(|_| try_acquire(&limiter, v4(1))).collect();
    let arriving = (0..50).map(|number| (v4(1), number));
    let mut arriving: Vec<_> = arriving.chain([(v4(2), 100), (v4(3), 101)]).collect();
    for expected in [100, 101] {
        let (connection, permit) = next(&mut queue, &mut arriving).await;
        assert_eq!((connection, permit.is_some()), (expected, true), "one origin has three places");
    }
    let waits = Instant::now();
    let (connection, permit) = next(&mut queue, &mut arriving).await;
    assert_eq!((connection, permit.is_some()), (49, true));
    assert!(waits.elapsed() >= GRACE && is_evicted(&flood[0]).await);
}

#[tokio::test(start_paused = true)]
async fn full_queue_drops_the_oldest_of_the_largest_origin() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: 1, per_origin: 1 });
    let mut queue = queue(&limiter, 4);
    let busy = try_acquire(&limiter, v4(1)).unwrap().busy();
    let of = |origin, numbers: std::ops::Range<u32>| numbers.map(move |number| (origin, number));
    let mut arriving: Vec<_> = of(v4(1), 0..3).chain(of(v4(2), 10..12)).chain(of(v4(1), 3..4)).collect();
    for refused in [0, 1] {
        let (connection, permit) = next(&mut queue, &mut arriving).await;
        assert_eq!((connection, permit.is_some()), (refused, false));
    }
    drop(busy);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (connection, permit) = next(&mut queue, &mut arriving).await;
        assert!(permit.is_some());
        seen.push(connection);
    }
    assert_eq!(seen, [11, 3, 10, 2], "in turn");
}

#[tokio::test(start_paused = true)]
async fn connection_that_waited_too_long_evicts_no_permit() {
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: 1, per_origin: 1 });
    let mut queue = queue(&limiter, 10);
    let inside = try_acquire(&limiter, v4(1)).unwrap();
    let busy = inside.busy();
    take_in_all(&mut queue, vec![(v4(2), 1), (v4(3), 2)]).await;
    advance(Duration::from_secs(9)).await;
    drop(busy);
    for late in [1, 2] {
        let (connection, permit) = next(&mut queue, &mut Vec::new()).await;
        assert_eq!((connection, permit.is_some()), (late, false));
    }
    assert!(!is_evicted(&inside).await);
}

#[tokio::test(start_paused = true)]
async fn silent_connection_takes_no_permit() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut queue = queue(&limiter, 1000);
    take_in_all(&mut queue, (0..900).map(|number| (Origin::Loopback, SILENT + number)).collect()).await;
    let begun = Instant::now();
    let (connection, permit) = next(&mut queue, &mut vec![(Origin::Loopback, 1)]).await;
    assert!(connection == 1 && permit.is_some() && begun.elapsed().is_zero());
    // Finally they are closed.
    assert!(timeout(2 * SILENCE, next(&mut queue, &mut Vec::new())).await.is_err());
    assert!(format!("{queue:?}").contains("silent: 0"), "{queue:?}");
}

#[tokio::test(start_paused = true)]
async fn full_queue_drops_the_oldest_silent_connection() {
    let limiter = ConnectionLimiter::new(LIMITS);
    let mut queue = queue(&limiter, 4);
    let of = |origin, numbers: std::ops::Range<u32>| numbers.map(move |number| (origin, SLOW + number));
    let mut arriving: Vec<_> = of(v4(1), 0..3).chain(of(v4(2), 10..12)).collect();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(next(&mut queue, &mut arriving).await.0 - SLOW);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 10, 11]);
}

#[tokio::test]
async fn tcp_connection_is_silent_until_it_sends() {
    use tokio::io::AsyncWriteExt as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut theirs = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (ours, peer) = listener.accept().await.unwrap();
    let ours = Tcp(ours, peer);
    assert!(timeout(Duration::from_millis(100), ours.readable()).await.is_err());
    theirs.write_all(b"a").await.unwrap();
    let readable = timeout(Duration::from_secs(600), ours.readable()).await;
    assert!(readable.is_ok(), "a connection with a byte is not readable");
}
