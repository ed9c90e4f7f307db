//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The top of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The agent, `edgesync`: the one in the variable `EDGESYNC_TEST_DEVICE`, if it is set, so that the tests run what devices get.
#[must_use]
pub fn device() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| std::env::var("EDGESYNC_TEST_DEVICE").unwrap_or_else(|_| built("edgesync")))
}

/// The cloud side, `edgesync-cloud`.
#[must_use]
pub fn cloud() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| built("edgesync-cloud"))
}

/// Both in one story, `edgesync-demo`.
#[must_use]
pub fn demo() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| built("edgesync-demo"))
}

/// A directory for files that must be on a disk, in that of the build.
#[must_use]
pub fn scratch() -> PathBuf {
    let directory = directory().join("scratch");
    std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    directory
}

/// The directory of the profile that this test was built with: tests are in its directory `deps`.
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
