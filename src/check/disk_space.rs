//! Checks that the disk has space for the database at its maximum size.

use std::path::Path;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, size};
use crate::store::inspect;
pub(super) use edgesync_cli::bundle::existing;
use edgesync_store::durable::directory_of;

pub(super) const CHECK: Check = Check {
    id: "disk-space",
    title: "Disk space",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Free bytes below which the next commits fail.
const MIN_FREE_BYTES: u64 = 8 << 20;

fn examine(examined: &mut Examined) -> Finding {
    let store = examined.config().store;
    let directory = existing(directory_of(&store.path));
    let found = match rustix::fs::statvfs(directory) {
        Ok(found) => found,
        Err(error) => {
            let message = format!("stat {}: {error}", directory.display());
            return Finding::failed(message, "run the check as root, or correct store.path");
        }
    };
    if found.f_files > 0 && found.f_favail == 0 {
        let message = format!("no inodes left on the disk of {}", directory.display());
        return Finding::failed(message, "remove files from this disk");
    }
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let used = inspect::bytes_on_disk(&store.path);
    evaluate(directory, free, used, store.max_size.saturating_add(store.wal_size))
}

fn evaluate(directory: &Path, free: u64, used: u64, max_bytes: u64) -> Finding {
    let shown = directory.display();
    let required = max_bytes.saturating_sub(used);
    let message = format!(
        "{} free in {shown}; database uses {} of at most {}",
        size(free),
        size(used),
        size(max_bytes)
    );
    if free < MIN_FREE_BYTES {
        Finding::failed(message, "free space on this disk: no new objects can be stored")
    } else if free < required {
        Finding::warning(
            message,
            format!("free space on this disk, or set store.max_size below {}", size(free + used)),
        )
    } else {
        Finding::ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[test]
    fn free_space_is_compared_with_the_databases_maximum() {
        let dir = Path::new("/x");
        ok(evaluate(dir, 2 << 30, 0, 1 << 30), "2.0 GiB free in /x; database uses 0 B of at most 1.0 GiB");
        ok(evaluate(dir, 600 << 20, 512 << 20, 1 << 30), "600 MiB free");
        warned(evaluate(dir, 100 << 20, 0, 1 << 30), "100 MiB free", "store.max_size below 100 MiB");
        failed(evaluate(dir, 1 << 20, 0, 1 << 30), "1 MiB free", "free space");
    }

    #[test]
    fn a_missing_directory_is_replaced_by_its_parent() {
        let testbed = Testbed::new("[store]\nmax_size = \"16MiB\"\n");
        let finding = examine(&mut testbed.examined());
        let Finding::Ok(message) = finding else { panic!("{finding:?}") };
        assert!(
            message.contains(
                &format!("free in {}", testbed.path("").display()).trim_end_matches('/').to_owned()
            ),
            "{message}"
        );
    }
}
