//! The mark of a database file, SQLite's application id: it says whose it is. Pure.

/// That of the database of an agent: "esyE".
pub const AGENT: i32 = 0x6573_7945;
/// That of the database of the cloud side: "esCl".
pub const CLOUD: i32 = 0x6573_436c;
/// That of the cache of a replica over a Kubernetes cluster: "esCa".
pub const CACHE: i32 = 0x6573_4361;

/// What a file with a mark is.
pub(super) fn whose(mark: i32) -> String {
    match mark {
        AGENT => "the database of edgesync, the agent of a device".to_owned(),
        CLOUD => "the database of edgesync-cloud, the cloud side".to_owned(),
        CACHE => "the cache of edgesync-cloud over a Kubernetes cluster".to_owned(),
        other => format!("a database of another program (application id {other:#x})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    #[test]
    fn the_database_of_the_other_side_is_named() {
        for (found, words) in [
            (AGENT, "'/x' is the database of edgesync, the agent of a device"),
            (CLOUD, "'/x' is the database of edgesync-cloud, the cloud side"),
            (CACHE, "'/x' is the cache of edgesync-cloud over a Kubernetes cluster"),
            (0x2a, "'/x' is a database of another program (application id 0x2a)"),
        ] {
            assert_eq!(StoreError::Foreign { path: "/x".into(), found }.to_string(), words);
        }
    }
}
