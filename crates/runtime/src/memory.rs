//! Settings of the allocator that return free memory: the only module with `unsafe` code.
//!
//! By default each thread gets its own arena, and an arena keeps the memory of a burst: with glibc,
//! 20,000 objects received and listed left 70 MB resident, with one arena 10 MB. The unit file sets
//! `MALLOC_ARENA_MAX=1` for the same reason; these functions apply without a unit file.
//!
//! Programs with musl have jemalloc, which replaces `malloc` for Rust and the libraries in C alike:
//! musl's own kept 9 MB after 10,000 objects. It returns memory by itself, by `malloc_conf`
//! (docs/decisions/0040-allocator.md). With other C libraries the functions do nothing.

// Plain C functions without safe bindings.
#![allow(unsafe_code)]

// Linked for its `malloc`: nothing of it is called by name.
#[cfg(target_env = "musl")]
use tikv_jemalloc_sys as _;

/// jemalloc reads its settings from the symbol `malloc_conf` before the first allocation: one
/// arena, thread caches for small blocks only, and free pages are returned at once.
// SAFETY: jemalloc declares the symbol as a pointer to a string that ends with a zero, and only
// reads it.
#[cfg(target_env = "musl")]
#[unsafe(export_name = "malloc_conf")]
static SETTINGS: &[u8; 59] = b"narenas:1,tcache_max:512,dirty_decay_ms:0,muzzy_decay_ms:0\0";

/// Limits the allocator to one arena that returns free memory early. Must be called first in
/// `main`: it does not move earlier allocations of other threads.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        /// Free memory at the top of the heap above which it is returned, in bytes.
        const TRIM_THRESHOLD: libc::c_int = 512 << 10;
        // SAFETY: mallopt takes two integers, touches only the allocator's own state under its
        // lock, and refuses unknown values by its result, which may be ignored: a limit is only
        // missing then.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
        }
    }
}

/// Returns free memory to the system, also from the middle of the heap. Called after a burst; takes
/// milliseconds per hundred megabytes of heap.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes one integer and locks each arena while it looks at it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn released_memory_leaves_the_process() {
        limit_arenas();
        // Small blocks come from the heap; the last one keeps the top of the heap in use, so that
        // only a trim in the middle can give the others back.
        let mut blocks = (0..64_000).map(|_| vec![1u8; 1024]).collect::<Vec<_>>();
        let last = blocks.pop();
        let full = resident_pages();
        drop(blocks);
        release();
        let after = resident_pages();
        assert!(full - after.min(full) > 32 << 20 >> 12, "{full} pages before, {after} after");
        drop(last);
    }
}
