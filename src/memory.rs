//! glibc's allocator, and the pages of the program's own file, told to give memory back: the only module with `unsafe`
//! code.
//!
//! By default each thread gets an arena of its own, and an arena keeps what a burst made it take:
//! 20,000 objects received and listed left 70 MB resident, with one arena 10 MB. The unit file sets
//! `MALLOC_ARENA_MAX=1` for the same reason; this counts where no unit file does. On other C libraries
//! both functions do nothing.

// Plain C functions without safe bindings.
#![allow(unsafe_code)]

/// Limits the allocator to one arena that returns free memory early. To be called first in `main`:
/// what was allocated by other threads before stays where it is.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        /// Free memory at the top of the heap above this is given back, in bytes.
        const TRIM_THRESHOLD: libc::c_int = 512 << 10;
        // SAFETY: mallopt takes two integers, touches only the allocator's own state under its lock,
        // and refuses unknown values by its result, which may be ignored: a limit is only missing then.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
        }
    }
}

/// Gives free memory back to the system, also from the middle of the heap: for the moment after a
/// burst. Takes milliseconds per hundred megabytes of heap.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes one integer and locks each arena while it looks at it.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of the program's own code and constants: what of them is still needed comes back page by page, from the
/// page cache as long as the system has them there. Most of what runs at the start (reading the configuration, opening the
/// database, joining the cloud) never runs again, and a small device has better use for two megabytes than keeping
/// that in its working set.
pub fn let_go_of_code() {
    #[cfg(target_os = "linux")]
    for (start, length) in
        std::fs::read_to_string("/proc/self/maps").map_or_else(|_| Vec::new(), |maps| code(&maps))
    {
        // SAFETY: the ranges are whole mappings of the program's file that are private, not writable, and lie at or
        // below its code: nothing was ever written to them (relocated data comes after the code), so that what is
        // dropped is read again from the file, byte by byte the same.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

/// Address and length of the mappings of the program's file up to its code that cannot be written. The first file that is
/// mapped executable is the program's: the system maps it before any library.
#[cfg(target_os = "linux")]
fn code(maps: &str) -> Vec<(usize, usize)> {
    let program = std::env::current_exe().unwrap_or_default();
    let mut found = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { break };
        if fields.nth(3).map(std::path::Path::new) != Some(&program) {
            continue;
        }
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) =
            range.split_once('-').map(|(start, end)| (address(start), address(end)))
        else {
            break;
        };
        match rights {
            "r--p" => found.push((start, end - start)),
            "r-xp" => {
                found.push((start, end - start));
                return found;
            }
            _ => break,
        }
    }
    // Another layout than the usual one: nothing is known of it.
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_what_comes_before_written_data_is_let_go_of() {
        let program = std::env::current_exe().unwrap();
        let line =
            |range: &str, rights: &str| format!("{range} {rights} 00000000 fe:00 77 {}\n", program.display());
        let usual = line("1000-3000", "r--p")
            + &line("3000-8000", "r-xp")
            + &line("8000-9000", "r--p")
            + &line("9000-a000", "rw-p");
        let other = "f000-f800 r-xp 00000000 fe:00 78 /lib/libc.so.6\n";
        assert_eq!(code(&(usual.clone() + other)), [(0x1000, 0x2000), (0x3000, 0x5000)]);
        let odd = line("1000-3000", "rw-p") + &usual;
        assert_eq!(code(&odd), []);
        assert_eq!(code(other), []);
        assert_eq!(code("nonsense"), []);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_program_goes_on_without_its_code_in_memory() {
        let constant = [b"a constant".as_slice(), &[7]].concat();
        for _ in 0..3 {
            let_go_of_code();
            assert_eq!([b"a constant".as_slice(), &[7]].concat(), constant);
        }
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
