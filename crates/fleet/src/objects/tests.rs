//! Tests of the cloud's object storage over real files.

mod keep;
mod replay;

use super::*;
use edgesync_object::kinds;

#[test]
fn continue_tokens_round_trip_and_others_are_refused() {
    let cursor = Cursor { namespace: "a".into(), name: "b/ä".into() };
    assert_eq!(read_token(&write_token(&cursor)), Ok(Some(cursor)));
    assert_eq!(read_token(""), Ok(None));
    for bad in ["x", "%%", "e30", "bnVsbA"] {
        assert_eq!(read_token(bad).unwrap_err().code, 400, "{bad}");
    }
}

#[test]
fn full_disk_returns_retry_after() {
    let secret = kinds::by_word("secret").unwrap().resource();
    let status = status(&secret, "s", &CloudError::Store(StoreError::Closed));
    assert_eq!((status.code, status.details.unwrap().retry_after_seconds), (503, RETRY_SECONDS));
}
