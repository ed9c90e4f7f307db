//! Checks the subjects of commits: imperative and short, as CONTRIBUTING.md demands.

use std::process::Command;

/// The last commit before the rule.
const BEFORE: &str = "6ccd0af26d281d5377414a1f1e279470f4843b1b";

/// Maximum characters of a subject.
const LONGEST: usize = 72;

/// Imperatives with the ending of another form of a verb.
const IMPERATIVES: [&str; 14] = [
    "Alias", "Bring", "Embed", "Exceed", "Feed", "Focus", "Need", "Ping", "Proceed", "Seed", "Shed", "Speed",
    "String", "Succeed",
];

/// Returns the problem of a subject. git writes those of reverts.
fn problem(subject: &str) -> Option<&'static str> {
    if subject.starts_with("Revert \"") || subject.starts_with("Reapply \"") {
        return None;
    }
    let word = subject.split([' ', ',']).next().unwrap_or_default();
    let is_other_form =
        word.ends_with("ing") || word.ends_with("ed") || (word.ends_with('s') && !word.ends_with("ss"));
    if subject.chars().count() > LONGEST {
        Some("is longer than 72 characters")
    } else if !word.starts_with(|first: char| first.is_uppercase()) {
        Some("begins in lower case")
    } else if subject.ends_with('.') {
        Some("ends with a full stop")
    } else if is_other_form && !IMPERATIVES.contains(&word) {
        Some("does not begin with an imperative")
    } else {
        None
    }
}

/// Returns the subjects of the commits since [`BEFORE`]; `None` without git, in an archive, or in a
/// clone that does not reach back to it.
fn subjects() -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(edgesync_testkit::programs::root());
    git.args(["log", "--no-merges", "--format=%s", &format!("{BEFORE}..HEAD"), "--"]);
    let found = git.output().ok().filter(|found| found.status.success())?;
    Some(String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn subjects_of_commits_are_short_and_imperative() {
    let Some(subjects) = subjects() else {
        eprintln!("notice: no history since {BEFORE}; no subjects were checked");
        return;
    };
    let bad: Vec<String> =
        subjects.iter().filter_map(|subject| Some(format!("\"{subject}\" {}", problem(subject)?))).collect();
    assert!(bad.is_empty(), "subjects of commits:\n{}", bad.join("\n"));
}

#[test]
fn other_forms_of_subjects_are_found() {
    for good in [
        "Refuse frames of another session",
        "Pass the lease on",
        "Seed the tests, and run them",
        "Alias the old key",
        "Focus the search field",
        "Ping idle connections",
        "Succeed without a database",
        "String the parts together",
    ] {
        assert_eq!(problem(good), None, "{good}");
    }
    assert_eq!(problem(&format!("Revert \"{}\"", "x".repeat(LONGEST))), None);
    for bad in [
        "Tests of the link",
        "Refused frames are counted",
        "Counting frames",
        "refuse frames",
        "Refuse frames.",
        "",
        &format!("Refuse {}", "x".repeat(LONGEST)),
    ] {
        assert!(problem(bad).is_some(), "{bad}");
    }
}
