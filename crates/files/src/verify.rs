//! Verification of a place: whether it is unchanged, and whether it may be written. Foreign files
//! and foreign changes are left alone.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Digest, Held, Shape};

/// An entry of an observed directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A link into `..data`, as edgesync creates it.
    Link,
    /// A regular file with its digest.
    File(Digest),
    /// A regular file of another size than the held and the desired one, so it was not read.
    Unread,
    /// Anything else, such as a directory.
    Other,
}

/// Observed state of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the directory exists: the place itself, or the parent of its file.
    pub directory: bool,
    /// Number of parent directories below the base that do not exist.
    pub missing_parents: u32,
    /// Target of `..data`: the stamp of a version written by edgesync, or none if it leads
    /// elsewhere.
    pub data: Option<Option<u64>>,
    /// Digests of the held and desired files behind `..data`.
    pub inside: BTreeMap<String, Digest>,
    /// Names of other files behind `..data`, not all of them if they are many, and of those that
    /// have another size than the held and the desired one. None of them is read.
    pub foreign: BTreeSet<String>,
    /// Entries of the directory, except the names that edgesync reserves.
    pub entries: BTreeMap<String, Entry>,
}

/// Action required for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The place has the desired state.
    Same,
    /// The place must be written.
    Write,
    /// Files were changed or created by another party.
    Conflict(String),
}

/// Verifies a place. `desired` are its desired files; none if those are the held ones.
#[must_use]
pub fn verify(
    shape: Shape,
    name: &str,
    held: Option<&Held>,
    desired: Option<&BTreeMap<String, Digest>>,
    observed: &Observed,
    overwrite: bool,
) -> Verdict {
    let nothing = BTreeMap::new();
    let held_files = held.map_or(&nothing, |held| &held.files);
    let desired = desired.unwrap_or(held_files);
    let mut findings = Findings { foreign: None, blocked: None, missing: false };
    match shape {
        Shape::File => {
            let own = held_files.values().next();
            let new = desired.values().next();
            match observed.entries.get(name) {
                None => findings.missing = true,
                Some(Entry::File(found)) if Some(found) == own || Some(found) == new => {}
                Some(Entry::File(_) | Entry::Unread) => findings.foreign(name, own.is_some()),
                Some(_) => findings.blocked = Some(format!("{name} is not a regular file")),
            }
            // An unrecorded file may already be the desired one: then writing loses nothing.
            findings.missing |= held.is_none() || own != new;
        }
        Shape::Directory => {
            let ours = match (held, observed.data) {
                (_, None) => {
                    findings.missing = true;
                    false
                }
                (Some(held), Some(stamp)) if stamp == Some(held.stamp) => true,
                // Left by a lost record: taken over if it is the desired version.
                (_, Some(Some(_))) if observed.inside == *desired && observed.foreign.is_empty() => {
                    findings.missing = true;
                    false
                }
                (_, Some(Some(_))) => {
                    findings.foreign("..data", false);
                    false
                }
                (_, Some(None)) => {
                    findings.blocked = Some("..data exists and was not created by edgesync".to_owned());
                    false
                }
            };
            if ours {
                for (file, digest) in held_files {
                    match observed.inside.get(file) {
                        Some(found) if found == digest => {}
                        Some(_) => findings.foreign(file, true),
                        None => findings.missing = true,
                    }
                }
                let others = observed.inside.keys().filter(|file| !held_files.contains_key(*file));
                if let Some(file) = observed.foreign.iter().chain(others).next() {
                    findings.foreign(file, held_files.contains_key(file));
                }
            }
            for (file, digest) in desired {
                match observed.entries.get(file) {
                    Some(Entry::Link) => {}
                    None => findings.missing = true,
                    Some(Entry::File(found)) if found == digest => findings.missing = true,
                    Some(Entry::File(_) | Entry::Unread) => {
                        findings.foreign(file, held_files.contains_key(file));
                    }
                    Some(Entry::Other) => {
                        findings.blocked = Some(format!("{file} exists and is not a regular file"));
                    }
                }
            }
            findings.missing |= held.is_none() || desired != held_files;
        }
    }
    match findings {
        Findings { blocked: Some(why), .. } => Verdict::Conflict(why),
        Findings { foreign: Some(why), .. } if !overwrite => Verdict::Conflict(why),
        Findings { foreign: None, missing: false, .. } => Verdict::Same,
        Findings { .. } => Verdict::Write,
    }
}

struct Findings {
    /// A foreign file that overwriting could replace.
    foreign: Option<String>,
    /// An entry that is never replaced.
    blocked: Option<String>,
    /// Whether something must be written.
    missing: bool,
}

impl Findings {
    fn foreign(&mut self, name: &str, was_ours: bool) {
        let what = if was_ours { "modified" } else { "created" };
        self.foreign
            .get_or_insert_with(|| format!("{name} {what} by another program; overwrite = true replaces it"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    fn digest(text: &str) -> Digest {
        Digest::of((1, 2), text.as_bytes())
    }

    fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, Digest> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), digest(text))).collect()
    }

    fn held(shape: Shape, pairs: &[(&str, &str)]) -> Held {
        let place = Place { base: "/b".into(), below: "p".into() };
        Held {
            place,
            shape,
            stamp: 7,
            made: true,
            parents: 0,
            files: files(pairs),
            sizes: Vec::new(),
            bytes: 0,
            members: Vec::new(),
            rule: Digest::default(),
            kept: None,
            lost: false,
        }
    }

    fn directory(stamp: Option<Option<u64>>, inside: &[(&str, &str)], entries: &[(&str, Entry)]) -> Observed {
        let entries = entries.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        Observed { directory: true, data: stamp, inside: files(inside), entries, ..Observed::default() }
    }

    #[test]
    fn unchanged_directory_needs_no_write() {
        let held = held(Shape::Directory, &[("a", "1")]);
        let observed = directory(
            Some(Some(7)),
            &[("a", "1")],
            &[("a", Entry::Link), ("other", Entry::File(digest("x")))],
        );
        let verdict_for = |desired: Option<&_>, observed: &_| {
            verify(Shape::Directory, "p", Some(&held), desired, observed, false)
        };
        assert_eq!(verdict_for(None, &observed), Verdict::Same);
        assert_eq!(verdict_for(Some(&held.files), &observed), Verdict::Same);
        assert_eq!(verdict_for(Some(&files(&[("a", "2")])), &observed), Verdict::Write);
        let without_link = directory(Some(Some(7)), &[("a", "1")], &[]);
        assert_eq!(verdict_for(None, &without_link), Verdict::Write);
        assert_eq!(verdict_for(None, &Observed::default()), Verdict::Write);
    }

    #[test]
    fn foreign_change_in_a_directory_is_a_conflict() {
        let held = held(Shape::Directory, &[("a", "1")]);
        let conflicts = [
            directory(Some(Some(7)), &[("a", "changed")], &[("a", Entry::Link)]),
            directory(Some(Some(7)), &[("a", "1"), ("b", "2")], &[("a", Entry::Link)]),
            directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::File(digest("x")))]),
            directory(Some(Some(8)), &[("a", "0")], &[]),
        ];
        for observed in &conflicts {
            let verdict_for =
                |overwrite| verify(Shape::Directory, "p", Some(&held), None, observed, overwrite);
            assert!(matches!(verdict_for(false), Verdict::Conflict(_)), "{observed:?}");
            assert!(matches!(verdict_for(true), Verdict::Write), "{observed:?}");
        }
        for observed in
            [directory(Some(None), &[], &[]), directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::Other)])]
        {
            let verdict = verify(Shape::Directory, "p", Some(&held), None, &observed, true);
            assert!(matches!(verdict, Verdict::Conflict(_)), "never replaced: {observed:?}");
        }
    }

    #[test]
    fn unread_files_are_foreign() {
        let held = held(Shape::Directory, &[("a", "1")]);
        let whole = || directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::Link)]);
        let with = |name: &str| Observed { foreign: [name.to_owned()].into(), ..whole() };
        let resized = directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::Unread)]);
        for observed in [with("x"), Observed { inside: BTreeMap::new(), ..with("a") }, resized] {
            let verdict_for =
                |overwrite| verify(Shape::Directory, "p", Some(&held), None, &observed, overwrite);
            assert!(matches!(verdict_for(false), Verdict::Conflict(_)), "{observed:?}");
            assert_eq!(verdict_for(true), Verdict::Write, "{observed:?}");
        }
        let taken = verify(Shape::Directory, "p", None, Some(&held.files), &with("x"), false);
        assert!(matches!(taken, Verdict::Conflict(_)), "a lost record: {taken:?}");
        let file = Observed { entries: [("p".to_owned(), Entry::Unread)].into(), ..Observed::default() };
        let verdict = verify(Shape::File, "p", None, Some(&files(&[("x", "2")])), &file, false);
        assert!(matches!(verdict, Verdict::Conflict(_)), "{verdict:?}");
    }

    #[test]
    fn version_of_a_lost_record_is_taken_over_if_desired() {
        let desired = files(&[("a", "1")]);
        let same = directory(Some(Some(9)), &[("a", "1")], &[("a", Entry::Link)]);
        let verdict_for = |observed: &_| verify(Shape::Directory, "p", None, Some(&desired), observed, false);
        assert_eq!(verdict_for(&same), Verdict::Write);
        let other = directory(Some(Some(9)), &[("a", "2")], &[("a", Entry::Link)]);
        assert!(matches!(verdict_for(&other), Verdict::Conflict(_)));
    }

    #[test]
    fn foreign_file_is_a_conflict_unless_it_is_desired() {
        let held = held(Shape::File, &[("x", "1")]);
        let with = |text: &str| Observed {
            directory: true,
            entries: [("p".to_owned(), Entry::File(digest(text)))].into(),
            ..Observed::default()
        };
        let verdict_for = |held: Option<&Held>, text: &str, overwrite| {
            verify(Shape::File, "p", held, Some(&files(&[("x", "2")])), &with(text), overwrite)
        };
        assert_eq!(verdict_for(Some(&held), "1", false), Verdict::Write);
        assert!(matches!(verdict_for(Some(&held), "3", false), Verdict::Conflict(_)));
        assert_eq!(verdict_for(Some(&held), "3", true), Verdict::Write);
        assert!(matches!(verdict_for(None, "3", false), Verdict::Conflict(_)));
        assert_eq!(verdict_for(None, "2", false), Verdict::Write);
        let same = verify(Shape::File, "p", Some(&held), None, &with("1"), false);
        assert_eq!(same, Verdict::Same);
        let missing = verify(Shape::File, "p", Some(&held), None, &Observed::default(), false);
        assert_eq!(missing, Verdict::Write);
    }
}
