//! Memory per item that a large fleet has by the million, counted by the allocator.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]
// Only a global allocator can count allocations.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgesync_object::kinds;
use edgesync_placement::{NODE_LABEL, Placement, Summary};
use serde_json::json;

mod api;

/// Serializes the counting tests, because all threads share the counters.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
/// Peak of allocated bytes.
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Allocated bytes as glibc counts them: with a header of eight, in steps of 16.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = ALLOCATED.fetch_add(taken(layout), Ordering::Relaxed);
        PEAK.fetch_max(before + taken(layout), Ordering::Relaxed);
        // SAFETY: as this function's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(taken(layout), Ordering::Relaxed);
        // SAFETY: as this function's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the bytes per object, without its name, once `count` objects are in an index without
/// rules. `object` builds their JSON.
fn bytes(count: usize, object: impl Fn(usize) -> serde_json::Value) -> usize {
    let resource = Arc::new(kinds::by_word("configmap").unwrap().resource());
    let mut placement = Placement::new(Vec::new());
    let (before, mut names) = (ALLOCATED.load(Ordering::Relaxed), 0);
    for n in 0..count {
        let mut object: edgesync_object::Object = serde_json::from_value(object(n)).unwrap();
        object.set_metadata("uid", format!("01234567-89ab-4cde-8f01-{n:012x}"));
        let version = (1_795_345_426_265_224 + n as u64).into();
        let summary = Summary::of(&object, resource.clone(), version);
        names += summary.name.len();
        placement.upsert(&summary);
    }
    assert_eq!(placement.len(), count);
    (ALLOCATED.load(Ordering::Relaxed) - before - names) / count
}

#[test]
fn object_placed_by_its_label_takes_at_most_150_bytes() {
    const NODES: usize = 1000;
    let _turn = TURN.lock();
    let own = |n: usize| {
        let labels = json!({ NODE_LABEL: format!("node-{:04}", n % NODES) });
        json!({ "metadata": { "namespace": "plant", "name": format!("settings-{n:08}"), "labels": labels } })
    };
    // Once just before hash tables grow, and once just after.
    for count in [100 * NODES, 120 * NODES] {
        let bytes = bytes(count, own);
        println!("{count} objects of {NODES} nodes: {bytes} bytes each");
        assert!(bytes <= 150, "{bytes} bytes");
    }
}

#[test]
fn unplaced_config_map_takes_at_most_150_bytes() {
    let _turn = TURN.lock();
    let idle = |n: usize| json!({ "metadata": { "namespace": "plant", "name": format!("settings-{n:08}") } });
    let bytes = bytes(100_000, idle);
    println!("{bytes} bytes each");
    assert!(bytes <= 150, "{bytes} bytes");
}
