//! Process metrics from `/proc`, under the names of Prometheus' client libraries. Without `/proc`
//! nothing is written.

use std::fs;

use super::MetricsWriter;
use crate::families;

/// Clock ticks per second in `/proc`; fixed in the kernel's user-space interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// Writes the available process metrics.
pub(super) fn write(out: &mut MetricsWriter<'_>) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
        families! { out;
            Gauge process_resident_memory_bytes = bytes, "Resident memory.";
        }
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // Reading the directory opens a descriptor itself.
        let files = files.count().saturating_sub(1) as u64;
        families! { out; Gauge process_open_fds = files, "Open file descriptors."; }
    }
    let Some((cpu, started)) = times(&read("/proc/self/stat")) else { return };
    families! { out; Counter process_cpu_seconds_total = cpu, "CPU time, user and system."; }
    if let Some(boot) = boot_time(&read("/proc/stat")) {
        let start = boot + started;
        families! { out;
            Gauge process_start_time_seconds = start, "Start of the process, as Unix time.";
        }
    }
}

/// Parses resident memory from `status`.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// Parses CPU seconds, and seconds from boot to the start of the process, from `stat`.
fn times(stat: &str) -> Option<(f64, f64)> {
    // The program's name is in parentheses and may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND, ticks(19)? / TICKS_PER_SECOND))
}

/// Parses the time of boot, in seconds since 1970.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 12345 9 9";
        assert_eq!(times(stat), Some((2.0, 123.45)));
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
    }

    #[test]
    fn unknown_formats_give_nothing() {
        for odd in ["", "x", "VmRSS: much", "7 (a) S", "btime then"] {
            assert_eq!((resident_bytes(odd), times(odd), boot_time(odd)), (None, None, None), "{odd}");
        }
    }
}
