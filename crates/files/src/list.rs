//! Incremental list of a rule's objects: the record knows those of the last pass, the agent names
//! those changed since. A checksum verifies that both mean the same list.

use super::record::{Digest, Record, State};
use super::wire::Listed;

/// Returns a checksum of a list, independent of its order: it differs for other objects or
/// versions.
#[must_use]
pub fn number(list: &[Listed]) -> u64 {
    let each = |of: &Listed| Digest::of((0, 0), format!("{} {}", of.uid, of.version).as_bytes()).number();
    list.iter().map(each).fold(list.len() as u64, u64::wrapping_add)
}

/// Returns the list of the last pass, as far as the record knows it.
#[must_use]
pub fn last(record: &Record) -> Vec<Listed> {
    let mut list = Vec::new();
    for (uid, status) in &record.objects {
        if let (Some(version), true) = (&status.wanted, status.state != State::Gone) {
            list.push(Listed {
                uid: uid.clone(),
                api_version: status.api_version.clone(),
                kind: status.kind.clone(),
                plural: status.plural.clone(),
                namespace: status.namespace.clone(),
                name: status.name.clone(),
                version: version.clone(),
                sealed: status.sealed,
            });
        }
    }
    list
}

/// Returns the current list: the one with checksum `known`, updated by the changed objects; those
/// without a version are deleted. `None` if the record knows another list.
#[must_use]
pub fn since(record: &Record, known: u64, changed: Vec<Listed>) -> Option<Vec<Listed>> {
    let mut list = last(record);
    if number(&list) != known {
        return None;
    }
    // An object recreated under the same name replaces the old one, also in another version of its
    // group.
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
        Listed { uid, api_version, kind, namespace, name, version, ..Listed::default() }
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
    fn changes_update_the_list_of_the_record() {
        let before = [listed("1", "a", "1"), listed("2", "b", "1"), listed("3", "c", "1")];
        let mut record = record(&before);
        let gone = Status { state: State::Gone, wanted: None, ..Status::default() };
        record.objects.insert("0".into(), gone);
        assert_eq!(sorted(last(&record)), before);
        let changed = vec![
            listed("1", "a", "2"),
            listed("4", "d", "1"),
            // Recreated under the name of another.
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
        // It exists but no longer matches the rule, nor does the object whose name it has.
        let taken = vec![listed("6", "a", "")];
        let now = since(&record, number(&before), taken).unwrap();
        assert_eq!(sorted(now), [listed("2", "b", "1"), listed("3", "c", "1")]);
    }

    #[test]
    fn other_list_is_detected_by_its_checksum() {
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
