//! Whether a place is as it was left, and whether it may be written to: what somebody else has made or changed is left alone.

use std::collections::BTreeMap;

use super::record::{Digest, Held, Shape};

/// What stands under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A link into `..data`, as edgesync makes it.
    Link,
    /// A file.
    File(Digest),
    /// Something else.
    Other,
}

/// What was found at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether the directory is there: the place itself, or the one that its file is in.
    pub directory: bool,
    /// Where `..data` leads to: the number of what edgesync wrote, or none if it leads elsewhere.
    pub data: Option<Option<u64>>,
    /// The files that `..data` leads to.
    pub inside: BTreeMap<String, Digest>,
    /// What stands in the directory, but for what edgesync uses itself.
    pub entries: BTreeMap<String, Entry>,
}

/// What is to be done with a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is as it should be.
    Same,
    /// It is to be written anew.
    Write,
    /// Somebody else has had a hand in it.
    Conflict(String),
}

/// Judges a place. `wanted` is what it is to hold; none if that is what it holds already.
#[must_use]
pub fn judge(
    shape: Shape,
    name: &str,
    held: Option<&Held>,
    wanted: Option<&BTreeMap<String, Digest>>,
    seen: &Seen,
    overwrite: bool,
) -> Verdict {
    let nothing = BTreeMap::new();
    let held_files = held.map_or(&nothing, |held| &held.files);
    let wanted = wanted.unwrap_or(held_files);
    let mut look = Look { foreign: None, stuck: None, missing: false };
    match shape {
        Shape::File => {
            let own = held_files.values().next();
            let new = wanted.values().next();
            match seen.entries.get(name) {
                None => look.missing = true,
                Some(Entry::File(found)) if Some(found) == own || Some(found) == new => {}
                Some(Entry::File(_)) => look.foreign(name, own.is_some()),
                Some(_) => look.stuck = Some(format!("{name} is not a file")),
            }
            // A file that is there and was not noted may be what is wanted: then nothing is lost.
            look.missing |= held.is_none() || own != new;
        }
        Shape::Directory => {
            let ours = match (held, seen.data) {
                (_, None) => {
                    look.missing = true;
                    false
                }
                (Some(held), Some(stamp)) if stamp == Some(held.stamp) => true,
                // What a lost record has left: taken over if it is what is wanted.
                (_, Some(Some(_))) if seen.inside == *wanted => {
                    look.missing = true;
                    false
                }
                (_, Some(Some(_))) => {
                    look.foreign("..data", false);
                    false
                }
                (_, Some(None)) => {
                    look.stuck = Some("..data is there, and not of edgesync".to_owned());
                    false
                }
            };
            if ours {
                for (file, digest) in held_files {
                    match seen.inside.get(file) {
                        Some(found) if found == digest => {}
                        Some(_) => look.foreign(file, true),
                        None => look.missing = true,
                    }
                }
                if let Some(file) = seen.inside.keys().find(|file| !held_files.contains_key(*file)) {
                    look.foreign(file, false);
                }
            }
            for (file, digest) in wanted {
                match seen.entries.get(file) {
                    Some(Entry::Link) => {}
                    None => look.missing = true,
                    Some(Entry::File(found)) if found == digest => look.missing = true,
                    Some(Entry::File(_)) => look.foreign(file, held_files.contains_key(file)),
                    Some(Entry::Other) => look.stuck = Some(format!("{file} is there, and is not a file")),
                }
            }
            look.missing |= held.is_none() || wanted != held_files;
        }
    }
    match look {
        Look { stuck: Some(why), .. } => Verdict::Conflict(why),
        Look { foreign: Some(why), .. } if !overwrite => Verdict::Conflict(why),
        Look { foreign: None, missing: false, .. } => Verdict::Same,
        Look { .. } => Verdict::Write,
    }
}

struct Look {
    /// Somebody else's file, that could be replaced.
    foreign: Option<String>,
    /// Something that is never replaced.
    stuck: Option<String>,
    /// Something has to be written.
    missing: bool,
}

impl Look {
    fn foreign(&mut self, name: &str, was_ours: bool) {
        let what = if was_ours { "was changed" } else { "was made" };
        self.foreign
            .get_or_insert_with(|| format!("{name} {what} by somebody else; overwrite = true replaces it"));
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
            files: files(pairs),
            bytes: 0,
            members: Vec::new(),
            rule: Digest::default(),
        }
    }

    fn directory(stamp: Option<Option<u64>>, inside: &[(&str, &str)], entries: &[(&str, Entry)]) -> Seen {
        let entries = entries.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        Seen { directory: true, data: stamp, inside: files(inside), entries }
    }

    #[test]
    fn a_directory_that_is_as_it_was_left_is_left() {
        let held = held(Shape::Directory, &[("a", "1")]);
        let seen = directory(
            Some(Some(7)),
            &[("a", "1")],
            &[("a", Entry::Link), ("other", Entry::File(digest("x")))],
        );
        let judged =
            |wanted: Option<&_>, seen: &_| judge(Shape::Directory, "p", Some(&held), wanted, seen, false);
        assert_eq!(judged(None, &seen), Verdict::Same);
        assert_eq!(judged(Some(&held.files), &seen), Verdict::Same);
        assert_eq!(judged(Some(&files(&[("a", "2")])), &seen), Verdict::Write);
        let without_link = directory(Some(Some(7)), &[("a", "1")], &[]);
        assert_eq!(judged(None, &without_link), Verdict::Write);
        assert_eq!(judged(None, &Seen::default()), Verdict::Write);
    }

    #[test]
    fn what_others_have_done_in_a_directory_is_a_conflict() {
        let held = held(Shape::Directory, &[("a", "1")]);
        let conflicts = [
            directory(Some(Some(7)), &[("a", "changed")], &[("a", Entry::Link)]),
            directory(Some(Some(7)), &[("a", "1"), ("b", "2")], &[("a", Entry::Link)]),
            directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::File(digest("x")))]),
            directory(Some(Some(8)), &[("a", "0")], &[]),
        ];
        for seen in &conflicts {
            let judged = |overwrite| judge(Shape::Directory, "p", Some(&held), None, seen, overwrite);
            assert!(matches!(judged(false), Verdict::Conflict(_)), "{seen:?}");
            assert!(matches!(judged(true), Verdict::Write), "{seen:?}");
        }
        for seen in
            [directory(Some(None), &[], &[]), directory(Some(Some(7)), &[("a", "1")], &[("a", Entry::Other)])]
        {
            let verdict = judge(Shape::Directory, "p", Some(&held), None, &seen, true);
            assert!(matches!(verdict, Verdict::Conflict(_)), "never replaced: {seen:?}");
        }
    }

    #[test]
    fn what_a_lost_record_has_left_is_taken_over_where_it_is_what_is_wanted() {
        let wanted = files(&[("a", "1")]);
        let same = directory(Some(Some(9)), &[("a", "1")], &[("a", Entry::Link)]);
        let judged = |seen: &_| judge(Shape::Directory, "p", None, Some(&wanted), seen, false);
        assert_eq!(judged(&same), Verdict::Write);
        let other = directory(Some(Some(9)), &[("a", "2")], &[("a", Entry::Link)]);
        assert!(matches!(judged(&other), Verdict::Conflict(_)));
    }

    #[test]
    fn a_file_of_somebody_else_is_a_conflict_unless_it_is_what_is_wanted() {
        let held = held(Shape::File, &[("x", "1")]);
        let with = |text: &str| Seen {
            directory: true,
            entries: [("p".to_owned(), Entry::File(digest(text)))].into(),
            ..Seen::default()
        };
        let judged = |held: Option<&Held>, text: &str, overwrite| {
            judge(Shape::File, "p", held, Some(&files(&[("x", "2")])), &with(text), overwrite)
        };
        assert_eq!(judged(Some(&held), "1", false), Verdict::Write);
        assert!(matches!(judged(Some(&held), "3", false), Verdict::Conflict(_)));
        assert_eq!(judged(Some(&held), "3", true), Verdict::Write);
        assert!(matches!(judged(None, "3", false), Verdict::Conflict(_)));
        assert_eq!(judged(None, "2", false), Verdict::Write);
        let same = judge(Shape::File, "p", Some(&held), None, &with("1"), false);
        assert_eq!(same, Verdict::Same);
        let missing = judge(Shape::File, "p", Some(&held), None, &Seen::default(), false);
        assert_eq!(missing, Verdict::Write);
    }
}
