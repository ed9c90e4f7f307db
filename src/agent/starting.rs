//! Requests more time of the service manager during the start. Opening the database may rebuild it,
//! seal it or remove plain text, in a time proportional to its size. More time is requested only
//! while files change, so a start that hangs still times out.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use edgesync_runtime::systemd;
use edgesync_store::durable::with_suffix;

/// Interval of the checks: shorter than any start timeout of a unit.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time requested, from each check on.
const EXTENSION: Duration = Duration::from_secs(60);

/// Requests time until it is dropped.
#[derive(Debug)]
pub(super) struct Starting {
    done: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Starting {
    /// Watches the files of a database. Without a thread the unit's own timeout applies.
    pub(super) fn watch(database: &Path) -> Self {
        Self::watch_every(database, CHECK_INTERVAL)
    }

    fn watch_every(database: &Path, interval: Duration) -> Self {
        let (done, is_done) = mpsc::channel();
        let mut files = Files::of(database);
        let look = move || {
            while is_done.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if let Some(bytes) = files.progress() {
                    let mib = bytes >> 20;
                    systemd::extend_start(EXTENSION, &format!("preparing the database, {mib} MiB written"));
                }
            }
        };
        let thread = std::thread::Builder::new().name("starting".to_owned()).spawn(look).ok();
        Self { done: Some(done), thread }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.done.take();
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but its channel.
            let _ = thread.join();
        }
    }
}

/// Size in bytes and time of the last change, in seconds and nanoseconds; `None` if the file is
/// missing.
type FileStamp = Option<(u64, i64, i64)>;

/// The files written while a database opens: itself, its log, and the rebuilt copies beside it.
#[derive(Debug)]
struct Files {
    paths: Vec<PathBuf>,
    stamps: Vec<FileStamp>,
}

impl Files {
    fn of(database: &Path) -> Self {
        let names = ["", "-wal", ".fresh", ".fresh-wal", ".fresh-journal", ".mended", ".mended-wal"];
        let paths: Vec<PathBuf> = names.iter().map(|suffix| with_suffix(database, suffix)).collect();
        let stamps = paths.iter().map(|path| look(path)).collect();
        Self { paths, stamps }
    }

    /// Returns the bytes in all files, if one has changed since the last call.
    fn progress(&mut self) -> Option<u64> {
        let now: Vec<FileStamp> = self.paths.iter().map(|path| look(path)).collect();
        let before = std::mem::replace(&mut self.stamps, now);
        (before != self.stamps).then(|| self.stamps.iter().flatten().map(|(bytes, ..)| bytes).sum())
    }
}

fn look(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_requires_a_change_of_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("edge.db");
        std::fs::write(&database, [0; 100]).unwrap();
        let mut files = Files::of(&database);
        assert_eq!(files.progress(), None);
        std::fs::write(with_suffix(&database, ".fresh"), [0; 20]).unwrap();
        assert_eq!(files.progress(), Some(120));
        assert_eq!(files.progress(), None);
        // A log rewritten from its start does not grow.
        let log = std::fs::File::create(with_suffix(&database, "-wal")).unwrap();
        assert_eq!(files.progress(), Some(120));
        log.set_modified(jiff::Timestamp::UNIX_EPOCH.into()).unwrap();
        assert_eq!(files.progress(), Some(120));
        assert_eq!(files.progress(), None);
    }

    /// A drop that waited for the next check would last a year.
    #[test]
    fn the_thread_ends_at_once_when_dropped() {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        let thread = Starting::watch_every(Path::new("/nowhere/edge.db"), YEAR);
        assert!(thread.thread.is_some());
        let (sender, dropped) = mpsc::channel();
        std::thread::spawn(move || {
            drop(thread);
            sender.send(())
        });
        let ended = dropped.recv_timeout(Duration::from_secs(600));
        assert_eq!(ended, Ok(()), "the drop waits for the next check");
    }
}
