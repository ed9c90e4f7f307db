//! Lookup of users and groups by name in the system's files.

use std::ops::RangeInclusive;
use std::path::Path;

/// Numeric ids of a user and a group.
pub(super) type Owner = (Option<u32>, Option<u32>);

/// An account that the system does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OwnerError {
    /// No user has this name.
    #[error("user {0:?} not found")]
    User(String),
    /// No group has this name.
    #[error("group {0:?} not found")]
    Group(String),
}

/// Finds the ids of `user`, `user:group` or numbers; none if empty.
pub(super) fn find(text: &str, etc: &Path) -> Result<Owner, OwnerError> {
    if text.is_empty() {
        return Ok((None, None));
    }
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let read = |file: &str| std::fs::read_to_string(etc.join(file)).unwrap_or_default();
    let users = read("passwd");
    let user = number(user, &users, 2).ok_or_else(|| OwnerError::User(user.to_owned()))?;
    let group = match group {
        Some(group) => {
            let found = number(group, &read("group"), 2);
            Some(found.ok_or_else(|| OwnerError::Group(group.to_owned()))?)
        }
        None => fields(&users)
            .find(|fields| fields.get(2) == Some(&user.to_string().as_str()))
            .and_then(|fields| fields.get(3)?.parse().ok()),
    };
    Ok((Some(user), group))
}

/// Returns the name of a user; none if it has no account.
pub(super) fn name_of(uid: u32, etc: &Path) -> Option<String> {
    let (users, number) = (std::fs::read_to_string(etc.join("passwd")).ok()?, uid.to_string());
    let found = fields(&users).find(|fields| fields.get(2) == Some(&number.as_str()));
    found.and_then(|fields| fields.first().map(|name| (*name).to_owned()))
}

/// Returns the first id with which neither a user nor a group has an account.
pub(super) fn without_account(mut ids: RangeInclusive<u32>, etc: &Path) -> Option<u32> {
    let read = |file: &str| std::fs::read_to_string(etc.join(file)).unwrap_or_default();
    let accounts = [read("passwd"), read("group")];
    let taken = |id: &u32| {
        let number = id.to_string();
        accounts.iter().any(|text| fields(text).any(|fields| fields.get(2) == Some(&number.as_str())))
    };
    ids.find(|id| !taken(id))
}

fn number(name: &str, text: &str, field: usize) -> Option<u32> {
    let named = fields(text).find(|fields| fields.first() == Some(&name));
    match named {
        Some(fields) => fields.get(field)?.parse().ok(),
        None => name.parse().ok(),
    }
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_or_number() {
        let etc = tempfile::tempdir().unwrap();
        std::fs::write(etc.path().join("passwd"), "root:x:0:0:root:/root:/bin/sh\nwww:x:33:34::/:/bin/sh\n")
            .unwrap();
        std::fs::write(etc.path().join("group"), "root:x:0:\nnginx:x:101:www\n").unwrap();
        let found = |text: &str| find(text, etc.path());
        assert_eq!(found(""), Ok((None, None)));
        assert_eq!(found("www"), Ok((Some(33), Some(34))));
        assert_eq!(found("root:nginx"), Ok((Some(0), Some(101))));
        assert_eq!(found("7:8"), Ok((Some(7), Some(8))));
        assert_eq!((name_of(33, etc.path()), name_of(8, etc.path())), (Some("www".to_owned()), None));
        assert_eq!(found("nobody"), Err(OwnerError::User("nobody".to_owned())));
        assert_eq!(found("root:x"), Err(OwnerError::Group("x".to_owned())));
    }

    #[test]
    fn ids_of_accounts_are_skipped() {
        let etc = tempfile::tempdir().unwrap();
        assert_eq!(without_account(33..=35, etc.path()), Some(33));
        std::fs::write(etc.path().join("passwd"), "www:x:33:7::/:/bin/sh\n").unwrap();
        std::fs::write(etc.path().join("group"), "nginx:x:34:www\n").unwrap();
        assert_eq!(without_account(33..=35, etc.path()), Some(35));
        assert_eq!(without_account(33..=34, etc.path()), None);
    }
}
