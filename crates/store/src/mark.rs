//! The mark of a database file, SQLite's application id: identifies the owning program and whether
//! a released version made it.

use std::path::Path;

use super::StoreError;

/// The mark of an agent's database: "esEg".
pub const AGENT: i32 = 0x6573_4567;
/// The mark of the cloud side's database: "esCd".
pub const CLOUD: i32 = 0x6573_4364;
/// The mark of a replica's cache over a Kubernetes cluster: "esCa".
pub const CACHE: i32 = 0x6573_4361;

/// [`AGENT`] before the first release: "esyE".
const UNRELEASED_AGENT: i32 = 0x6573_7945;
/// [`CLOUD`] before the first release: "esCl".
const UNRELEASED_CLOUD: i32 = 0x6573_436c;

/// Returns the error for a file with another mark than `expected`.
#[must_use]
pub fn mismatch(path: &Path, expected: i32, found: i32) -> StoreError {
    let path = path.to_owned();
    match (expected, found) {
        (AGENT, UNRELEASED_AGENT) | (CLOUD, UNRELEASED_CLOUD) => StoreError::Unreleased { path },
        _ => StoreError::Foreign { path, found },
    }
}

/// Describes a file by its mark, for error messages.
pub(super) fn describe(mark: i32) -> String {
    match mark {
        AGENT | UNRELEASED_AGENT => "the database of edgesync, the agent of a device".to_owned(),
        CLOUD | UNRELEASED_CLOUD => "the database of edgesync-cloud, the cloud side".to_owned(),
        CACHE => "the cache of edgesync-cloud over a Kubernetes cluster".to_owned(),
        other => format!("a database of another program (application id {other:#x})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_the_other_side_is_named() {
        for (found, words) in [
            (AGENT, "'/x' is the database of edgesync, the agent of a device"),
            (CLOUD, "'/x' is the database of edgesync-cloud, the cloud side"),
            (UNRELEASED_AGENT, "'/x' is the database of edgesync, the agent of a device"),
            (UNRELEASED_CLOUD, "'/x' is the database of edgesync-cloud, the cloud side"),
            (CACHE, "'/x' is the cache of edgesync-cloud over a Kubernetes cluster"),
            (0x2a, "'/x' is a database of another program (application id 0x2a)"),
        ] {
            assert_eq!(mismatch("/x".as_ref(), 77, found).to_string(), words);
        }
    }

    #[test]
    fn an_unreleased_database_is_distinguished_from_a_foreign_one() {
        for (expected, found) in [(AGENT, UNRELEASED_AGENT), (CLOUD, UNRELEASED_CLOUD)] {
            let error = mismatch("/x".as_ref(), expected, found);
            assert!(matches!(error, StoreError::Unreleased { .. }), "{error}");
            let error = mismatch("/x".as_ref(), found, expected);
            assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        }
        let crossed = mismatch("/x".as_ref(), AGENT, UNRELEASED_CLOUD);
        assert!(matches!(crossed, StoreError::Foreign { .. }), "{crossed}");
    }
}
