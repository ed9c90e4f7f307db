//! Compares pages that are written from the code with the files, or writes the files.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use edgesync_testkit::programs::root;

/// Set to 1 to write the pages instead of comparing them.
const WRITE: &str = "EDGESYNC_TEST_WRITE_DOCS";

/// Compares a page with its file.
#[track_caller]
pub(crate) fn check(file: &str, page: &str) {
    let path = root().join(file);
    if std::env::var(WRITE).is_ok_and(|value| value == "1") {
        return fs::write(path, page).unwrap();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = page.lines().zip(text.lines().chain(std::iter::repeat("")));
    let different = lines.find(|(expected, found)| expected != found);
    assert!(
        text == page,
        "{file} differs from the code, as in {different:#?}: {WRITE}=1 tests/run repository:: writes it"
    );
}
