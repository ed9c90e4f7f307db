//! Checks that the disk has space for the database at its maximum size.

use std::path::Path;

use super::{Check, Examined, Finding, Look, ONE, size};
use crate::store::inspect;
pub(super) use edgesync_cli::bundle::existing;
use edgesync_store::durable::directory_of;

pub(super) const CHECK: Check = Check {
    id: "disk-space",
    title: "Disk space",
    needs: &["configuration"],
    limit: ONE,
    look: Look::Files(look),
};

/// Free bytes below which the next commits fail.
const LEAST: u64 = 8 << 20;

fn look(examined: &mut Examined) -> Finding {
    let store = examined.config().store;
    let directory = existing(directory_of(&store.path));
    let found = match rustix::fs::statvfs(directory) {
        Ok(found) => found,
        Err(error) => {
            let seen = format!("{} cannot be looked at: {error}", directory.display());
            return Finding::failed(seen, "run the check as root, or correct store.path");
        }
    };
    if found.f_files > 0 && found.f_favail == 0 {
        let seen = format!("no file can be made in {}: its disk has no inodes left", directory.display());
        return Finding::failed(seen, "remove files from that disk");
    }
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let used = inspect::bytes_on_disk(&store.path);
    judge(directory, free, used, store.max_size.saturating_add(store.wal_size))
}

fn judge(directory: &Path, free: u64, used: u64, most: u64) -> Finding {
    let shown = directory.display();
    let wanted = most.saturating_sub(used);
    let seen =
        format!("{} free in {shown}; the database has {} of at most {}", size(free), size(used), size(most));
    if free < LEAST {
        Finding::failed(seen, "make room on that disk: nothing new can be kept")
    } else if free < wanted {
        Finding::warning(
            seen,
            format!("make room on that disk, or set store.max_size below {}", size(free + used)),
        )
    } else {
        Finding::ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Bed, failed, ok, warned};

    #[test]
    fn room_is_compared_with_what_the_database_may_need() {
        let dir = Path::new("/x");
        ok(judge(dir, 2 << 30, 0, 1 << 30), "2.0 GiB free in /x; the database has 0 B of at most 1.0 GiB");
        ok(judge(dir, 600 << 20, 512 << 20, 1 << 30), "600 MiB free");
        warned(judge(dir, 100 << 20, 0, 1 << 30), "100 MiB free", "store.max_size below 100 MiB");
        failed(judge(dir, 1 << 20, 0, 1 << 30), "1 MiB free", "make room");
    }

    #[test]
    fn a_directory_that_does_not_exist_yet_stands_for_the_one_above() {
        let bed = Bed::new("[store]\nmax_size = \"16MiB\"\n");
        let finding = look(&mut bed.examined());
        let Finding::Ok(seen) = finding else { panic!("{finding:?}") };
        assert!(
            seen.contains(&format!("free in {}", bed.path("").display()).trim_end_matches('/').to_owned()),
            "{seen}"
        );
    }
}
