//! Returns unused memory to the system: the only module with `unsafe` code.
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

/// Returns free memory to the system, also from the middle of the heap, and unmaps the program.
/// Called after a burst; takes milliseconds per hundred megabytes of heap.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes one integer and locks each arena while it looks at it.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the callback has the type that dl_iterate_phdr expects, and does not unwind.
    unsafe {
        libc::dl_iterate_phdr(Some(unmap_program), std::ptr::null_mut());
    }
}

/// Unmaps the code and the constants of the program, the first object for which `dl_iterate_phdr`
/// calls this. They stay in the page cache, from where those in use come back one by one: what only
/// the start or a burst needed no longer counts as memory of the process, and the kernel can take
/// it at once.
#[cfg(target_os = "linux")]
unsafe extern "C" fn unmap_program(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    const STOP: libc::c_int = 1;
    // SAFETY: the C library passes a valid object with its program headers, which it does not
    // change while the callback runs.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr as usize, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // SAFETY: sysconf takes an integer and has no effect.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return STOP };
    for header in headers {
        let is_constant = header.p_flags & libc::PF_W == 0;
        if header.p_type != libc::PT_LOAD || !is_constant {
            continue;
        }
        // Only whole pages of the segment: another one may begin on its last page.
        let start = base.wrapping_add(header.p_vaddr as usize);
        let (first, end) = (start.next_multiple_of(page), start.wrapping_add(header.p_filesz as usize));
        let length = end.saturating_sub(first) / page * page;
        // SAFETY: the range is a segment of this program that is mapped from its file and was never
        // writable: the kernel reads each page from that file again. A refusal has no effect.
        unsafe {
            libc::madvise(first as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
    STOP
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Returns the range of the program's code, and how much of it is resident, in KiB.
    #[cfg(target_os = "linux")]
    fn code() -> (std::ops::Range<u64>, u64) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap().display().to_string();
        let mut lines =
            smaps.lines().skip_while(|line| !(line.contains(" r-xp ") && line.ends_with(&program)));
        let (range, _) = lines.next().unwrap().split_once(' ').unwrap();
        let (first, end) = range.split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        (address(first)..address(end), resident.trim().trim_end_matches(" kB").parse().unwrap())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn unused_code_leaves_the_process() {
        let (range, _) = code();
        // Reading memory this way maps each page.
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        memory.read_exact_at(&mut bytes, range.start).unwrap();
        let (_, full) = code();
        assert!(full >= (range.end - range.start) >> 10, "{full} KiB of {range:x?}");
        release();
        let (_, after) = code();
        assert!(after < full / 2, "{full} KiB before, {after} after");
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
