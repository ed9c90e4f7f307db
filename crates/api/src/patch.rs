//! Patches: what a body of PATCH does to an object, by its content type. Pure; depends on `object` only.
//!
//! The patched value is not checked here: the caller reads it as an object, defaults and validates
//! it. Documents and patches have been read with [`MAX_DEPTH`](edgesync_object::MAX_DEPTH) as their limit; no
//! patch makes a document nest deeper than that.

mod json;
mod merge;
mod strategic;

pub(super) use json::json;
pub(super) use merge::merge;
pub(super) use strategic::strategic;

use edgesync_object::Status;
use edgesync_object::status::Result;

/// How a patch is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PatchType {
    /// A list of operations (RFC 6902): [`json()`].
    Json,
    /// An object with the fields to change, null for those to remove (RFC 7386): [`merge()`].
    Merge,
    /// The same, but lists are merged as the schema of the kind says: [`strategic()`].
    Strategic,
    /// The fields that a manager wants to own: server-side apply.
    Apply,
}

impl PatchType {
    const ALL: [Self; 4] = [Self::Json, Self::Merge, Self::Strategic, Self::Apply];

    /// The type of a body with this `Content-Type`; its parameters do not count. `strategic` says whether the kind
    /// takes strategic merge patches: those of CustomResourceDefinitions do not.
    ///
    /// # Errors
    /// 415 with the types that are read.
    pub(super) fn of(content_type: Option<&str>, strategic: bool) -> Result<Self> {
        let media = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
        let read = || Self::ALL.into_iter().filter(|one| strategic || *one != Self::Strategic);
        read().find(|one| one.media_type().eq_ignore_ascii_case(media.trim())).ok_or_else(|| {
            let offered: Vec<&str> = read().map(Self::media_type).collect();
            Status::unsupported_media_type(&offered)
        })
    }

    /// Its content type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_says_how_a_patch_is_read() {
        for one in PatchType::ALL {
            let with_charset = format!("{} ; charset=utf-8", one.media_type().to_uppercase());
            assert_eq!(PatchType::of(Some(one.media_type()), true), Ok(one));
            assert_eq!(PatchType::of(Some(&with_charset), true), Ok(one));
        }
    }

    #[test]
    fn any_other_content_type_is_refused_with_those_that_are_read() {
        for other in [None, Some(""), Some("application/json"), Some("application/merge-patch+jso")] {
            let status = PatchType::of(other, true).unwrap_err();
            assert_eq!(status.code, 415);
            for one in PatchType::ALL {
                assert!(status.message.contains(one.media_type()), "{status}");
            }
        }
    }

    #[test]
    fn a_kind_may_not_take_strategic_merge_patches() {
        let status = PatchType::of(Some("application/strategic-merge-patch+json"), false).unwrap_err();
        assert_eq!(status.code, 415);
        assert!(!status.message.contains("strategic"), "{status}");
        assert_eq!(PatchType::of(Some("application/merge-patch+json"), false), Ok(PatchType::Merge));
    }
}
