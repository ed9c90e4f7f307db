//! Checks that docs/figures.md is the unedited output of the benchmark.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use edgesync_store::checksum::checksum64;

/// Returns whether the last line of a page is the checksum of everything before it.
fn is_untouched(page: &str) -> bool {
    let sealed = page.trim_end().rsplit_once("\n<!-- checksum ");
    sealed.is_some_and(|(text, seal)| {
        seal.strip_suffix(" -->") == Some(&format!("{:016x}", checksum64(&[text.as_bytes()])))
    })
}

#[test]
fn figures_are_unedited_benchmark_output() {
    let page = edgesync_testkit::programs::root().join("docs/figures.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(is_untouched(&page), "docs/figures.md was edited: cargo bench -- --document writes it");
    assert!(!is_untouched(&page.replacen("KB", "MB", 1)));
    assert!(!is_untouched(page.split("<!--").next().unwrap()));
}
