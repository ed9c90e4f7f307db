//! Paths of the programs under test.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the path of the agent, `edgesync`: from the variable `EDGESYNC_TEST_DEVICE` if set, to
/// test the release build.
#[must_use]
pub fn device() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| std::env::var("EDGESYNC_TEST_DEVICE").unwrap_or_else(|_| built("edgesync")))
}

/// Returns the path of the cloud side, `edgesync-cloud`.
#[must_use]
pub fn cloud() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| built("edgesync-cloud"))
}

/// Returns the path of the demo, `edgesync-demo`.
#[must_use]
pub fn demo() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| built("edgesync-demo"))
}

/// Returns a directory on a disk for files, below that of the build.
#[must_use]
pub fn scratch() -> PathBuf {
    let directory = directory().join("scratch");
    std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    directory
}

/// Returns the directory of the test's build profile: tests are in its subdirectory `deps`.
fn directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let own = test.parent().expect("it is in a directory");
    if own.ends_with("deps") { own.parent().expect("of a profile").to_owned() } else { own.to_owned() }
}

fn built(name: &str) -> String {
    let program = directory().join(name);
    assert!(program.is_file(), "{} is missing: run tests/run, or cargo build first", program.display());
    program.to_str().expect("the path is UTF-8").to_owned()
}
