//! Semantic versions.

use std::cmp::Ordering;

/// A version such as `1.2.3-rc.1`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Semver {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) patch: u64,
    before: Vec<String>,
}

impl Semver {
    /// Parses a version. Normalizing accepts a leading `v`, missing numbers and leading zeros.
    pub(super) fn parse(text: &str, normalize: bool) -> Option<Self> {
        let text = if normalize { text.strip_prefix(['v', 'V']).unwrap_or(text) } else { text };
        let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        let (core, before) = rest.split_once('-').map_or((rest, None), |(core, before)| (core, Some(before)));
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_digit());
            let led = part.len() > 1 && part.starts_with('0') && !normalize;
            part.parse::<u64>().ok().filter(|_| digits && !led)
        };
        let numbers: Option<Vec<u64>> = core.split('.').map(number).collect();
        let mut numbers = numbers?;
        if normalize && numbers.len() < 3 {
            numbers.resize(3, 0);
        }
        let [major, minor, patch] = numbers[..] else { return None };
        let words = |text: &str| -> Option<Vec<String>> {
            let known = |word: &str| {
                !word.is_empty()
                    && word.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'-')
            };
            text.split('.').map(|word| known(word).then(|| word.to_owned())).collect()
        };
        if let Some(build) = build {
            words(build)?;
        }
        let before = before.map_or(Some(Vec::new()), words)?;
        let led = |word: &String| {
            word.len() > 1 && word.starts_with('0') && word.bytes().all(|letter| letter.is_ascii_digit())
        };
        if before.iter().any(led) {
            return None;
        }
        Some(Self { major, minor, patch, before })
    }

    /// Bytes that a comparison reads.
    pub(super) fn weight(&self) -> usize {
        self.before.iter().map(|word| 32 + word.len()).sum()
    }

    /// Compares by precedence; build metadata does not count.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let numbers = |of: &Self| (of.major, of.minor, of.patch);
        numbers(self).cmp(&numbers(other)).then_with(|| {
            match (self.before.is_empty(), other.before.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => compare_words(&self.before, &other.before),
            }
        })
    }
}

fn compare_words(ours: &[String], theirs: &[String]) -> Ordering {
    for (one, two) in ours.iter().zip(theirs) {
        let order = match (one.parse::<u64>(), two.parse::<u64>()) {
            (Ok(one), Ok(two)) => one.cmp(&two),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => one.cmp(two),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    ours.len().cmp(&theirs.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_specified() {
        let order =
            ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0", "1.2.3", "10.0.0"];
        for pair in order.windows(2) {
            let [one, two] = [&pair[0], &pair[1]].map(|text| Semver::parse(text, false).unwrap());
            assert_eq!(one.compare(&two), Ordering::Less, "{pair:?}");
        }
        for text in ["1.0", "v1.0.0", "01.0.0", "1.0.0-01", "1.0.0-", "a.b.c", "1.0.0+", ""] {
            assert_eq!(Semver::parse(text, false), None, "{text}");
        }
        for text in ["1.0", "v1", "01.0.0"] {
            let read = Semver::parse(text, true).unwrap();
            assert_eq!((read.major, read.minor, read.patch), (1, 0, 0), "{text}");
        }
    }
}
