//! Reads the sources of the workspace, package by package.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use edgesync_testkit::programs::root;

/// Packages that no program contains.
pub(crate) const FOR_TESTS: [&str; 3] = ["testkit", "fuzz", "tests"];

/// A source file: its path from the top of the repository, and its text.
pub(crate) type File = (String, String);

/// Returns all Rust files below a directory, sorted by path.
pub(crate) fn below(directory: &str) -> Vec<File> {
    let mut found = Vec::new();
    collect(&root().join(directory), &mut found);
    found.sort();
    found
}

fn collect(directory: &Path, found: &mut Vec<File>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Returns the sources of each package by the name of its directory; the agent's package is
/// `edgesync`.
pub(crate) fn packages() -> BTreeMap<String, Vec<File>> {
    let mut packages = BTreeMap::from([("edgesync".to_owned(), below("src"))]);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        packages.insert(name.clone(), below(&format!("crates/{name}/src")));
    }
    assert!(
        packages.len() > 10 && packages.values().all(|files| !files.is_empty()),
        "the sources were not found"
    );
    packages
}

/// Returns the sources of all programs.
pub(crate) fn product() -> Vec<File> {
    let packages = packages().into_iter().filter(|(name, _)| !FOR_TESTS.contains(&name.as_str()));
    packages.flat_map(|(_, files)| files).collect()
}

/// Returns whether the path of a file marks it as test code.
pub(crate) fn is_test(path: &str) -> bool {
    ["/tests.rs", "/tests/", "/testing.rs", "/simulation", "/samples"].iter().any(|part| path.contains(part))
}
