//! Checks docs/devices.md: targets with the properties that the compiler knows, and the names of
//! checks.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::Command;

use edgesync_testkit::programs::root;

fn page() -> String {
    fs::read_to_string(root().join("docs/devices.md")).unwrap()
}

/// Returns what the compiler knows about a target.
fn properties(target: &str) -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "cfg", "--target", target]).output().unwrap();
    assert!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn listed_targets_match_the_compilers_properties() {
    let (page, mut atomics) = (page(), Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| `") && line.contains("-linux-")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, target, word, has_atomics, times, _] = cells[..] else { panic!("{row}") };
        let known = properties(target.trim_matches('`'));
        assert!(known.contains(&format!("target_pointer_width=\"{word}\"\n")), "{row}");
        let known_atomics = known.contains("target_has_atomic=\"64\"\n");
        assert_eq!(has_atomics, if known_atomics { "yes" } else { "no" }, "{row}");
        // Only 32-bit programs depend on the C library.
        assert_eq!(times == "yes", word == "64", "{row}");
        assert_eq!(times.contains("glibc"), word == "32" && known_atomics && target.contains("gnu"), "{row}");
        atomics.push(known_atomics);
    }
    assert!(atomics.contains(&true) && atomics.contains(&false), "{atomics:?}");
}

#[test]
fn targets_without_atomics_are_refused_by_the_lowest_crate() {
    let text = fs::read_to_string(root().join("crates/object/src/lib.rs")).unwrap();
    let guard = "#[cfg(not(target_has_atomic = \"64\"))]\ncompile_error!(";
    let (_, after) = text.split_once(guard).unwrap();
    // The night's test searches the compiler's output for the same words.
    let night = fs::read_to_string(root().join("tests/i386")).unwrap();
    let words = "edgesync counts in 64-bit atomic integers";
    assert!(after.trim_start().starts_with(&format!("\"{words}")) && night.contains(words));
}

#[test]
fn checks_named_for_devices_exist() {
    let page = page();
    let named: Vec<&str> = page.split('*').skip(1).step_by(2).collect();
    let titles = ["Systemd unit", "Disk type", "Persistence", "Configuration", "Permissions", "Seal key"];
    for title in titles {
        assert!(named.contains(&title), "{title} is not on the page");
        let file = title.to_lowercase().replace(' ', "_");
        let text = fs::read_to_string(root().join(format!("src/check/{file}.rs"))).unwrap();
        assert!(text.contains(&format!("title: \"{title}\"")), "src/check/{file}.rs");
    }
}
