//! The list of the objects that a rule concerns, without listing them again: the record knows those that its last pass was made
//! of, the agent names those that have changed since. A number says whether both speak of the same list.

use super::record::{Digest, Record, State};
use super::wire::Listed;

/// A number for a list, in whatever order it is: another one for other objects or versions.
#[must_use]
pub fn number(list: &[Listed]) -> u64 {
    let each = |of: &Listed| Digest::of((0, 0), format!("{} {}", of.uid, of.version).as_bytes()).number();
    list.iter().map(each).fold(list.len() as u64, u64::wrapping_add)
}

/// The list that the last pass was made of, as far as the record knows it.
#[must_use]
pub fn last(record: &Record) -> Vec<Listed> {
    let mut list = Vec::new();
    for (uid, status) in &record.objects {
        if let (Some(version), true) = (&status.wanted, status.state != State::Gone) {
            list.push(Listed {
                uid: uid.clone(),
                api_version: status.api_version.clone(),
                kind: status.kind.clone(),
                namespace: status.namespace.clone(),
                name: status.name.clone(),
                version: version.clone(),
                sealed: status.sealed,
            });
        }
    }
    list
}

/// The list of now: that with this number, and what has become of some objects since, those without a version being gone.
/// None if the record knows another list.
#[must_use]
pub fn since(record: &Record, known: u64, changed: Vec<Listed>) -> Option<Vec<Listed>> {
    let mut list = last(record);
    if number(&list) != known {
        return None;
    }
    // An object that was made anew under the name of another has taken its place, also in another version of its group.
    let same = |old: &Listed, new: &Listed| {
        old.uid == new.uid
            || (old.name == new.name
                && old.namespace == new.namespace
                && old.kind == new.kind
                && group(&old.api_version) == group(&new.api_version))
    };
    list.retain(|old| !changed.iter().any(|new| same(old, new)));
    list.extend(changed.into_iter().filter(|new| !new.version.is_empty()));
    Some(list)
}

fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    fn listed(uid: &str, name: &str, version: &str) -> Listed {
        let text = str::to_owned;
        let (api_version, kind, namespace) = (text("v1"), text("ConfigMap"), text("n"));
        let (uid, name, version) = (text(uid), text(name), text(version));
        Listed { uid, api_version, kind, namespace, name, version, sealed: false }
    }

    fn record(list: &[Listed]) -> Record {
        let mut record = Record::default();
        for of in list {
            let status = Status {
                api_version: of.api_version.clone(),
                kind: of.kind.clone(),
                namespace: of.namespace.clone(),
                name: of.name.clone(),
                wanted: Some(of.version.clone()),
                state: State::Conflict,
                ..Status::default()
            };
            record.objects.insert(of.uid.clone(), status);
        }
        record
    }

    fn sorted(mut list: Vec<Listed>) -> Vec<Listed> {
        list.sort_by(|a, b| a.uid.cmp(&b.uid));
        list
    }

    #[test]
    fn what_has_changed_is_put_into_the_list_that_the_record_knows() {
        let before = [listed("1", "a", "1"), listed("2", "b", "1"), listed("3", "c", "1")];
        let mut record = record(&before);
        let gone = Status { state: State::Gone, wanted: None, ..Status::default() };
        record.objects.insert("0".into(), gone);
        assert_eq!(sorted(last(&record)), before);
        let changed = vec![
            listed("1", "a", "2"),
            listed("4", "d", "1"),
            // Made anew under the name of another.
            listed("5", "b", "1"),
            Listed { uid: "3".into(), ..Listed::default() },
            Listed { uid: "9".into(), ..Listed::default() },
        ];
        let now = since(&record, number(&before), changed).unwrap();
        assert_eq!(sorted(now), [listed("1", "a", "2"), listed("4", "d", "1"), listed("5", "b", "1")]);
        let other = |uid: &str, version: &str| Listed {
            api_version: format!("example.com/{version}"),
            ..listed(uid, "w", "1")
        };
        let replaced = since(
            &self::record(&[other("7", "v1beta1")]),
            number(&[other("7", "v1beta1")]),
            vec![other("8", "v1")],
        );
        assert_eq!(replaced, Some(vec![other("8", "v1")]));
        // It is there and does not fit the rule any more, nor does the one whose name it has taken.
        let taken = vec![listed("6", "a", "")];
        let now = since(&record, number(&before), taken).unwrap();
        assert_eq!(sorted(now), [listed("2", "b", "1"), listed("3", "c", "1")]);
    }

    #[test]
    fn another_list_is_not_taken_for_the_one_that_was_meant() {
        let before = [listed("1", "a", "1"), listed("2", "b", "1")];
        let others = [
            vec![],
            vec![listed("1", "a", "1")],
            vec![listed("1", "a", "2"), listed("2", "b", "1")],
            vec![listed("1", "a", "1"), listed("3", "b", "1")],
            vec![listed("1", "a", "1"), listed("2", "b", "1"), listed("3", "c", "1")],
        ];
        for other in others {
            assert_eq!(since(&record(&before), number(&other), Vec::new()), None, "{other:?}");
        }
        let turned = [before[1].clone(), before[0].clone()];
        assert!(since(&record(&before), number(&turned), Vec::new()).is_some());
    }
}
