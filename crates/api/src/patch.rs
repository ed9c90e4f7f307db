//! Applies the body of a PATCH to an object, by its content type. Pure; depends on `object` only.
//!
//! The result is not validated here: the caller parses it as an object, adds defaults and validates
//! it. Documents and patches were parsed with the depth limit
//! [`MAX_DEPTH`](edgesync_object::MAX_DEPTH); no patch makes a document nest deeper.

mod json;
mod merge;
mod strategic;

pub(super) use json::json;
pub(super) use merge::merge;
pub(super) use strategic::strategic;

use edgesync_object::Status;
use edgesync_object::status::Result;

/// The type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PatchType {
    /// A list of operations (RFC 6902): [`json()`].
    Json,
    /// An object with changed fields, and null for removed ones (RFC 7386): [`merge()`].
    Merge,
    /// A merge patch whose lists are merged by the schema: [`strategic()`].
    Strategic,
    /// Server-side apply: the fields that a manager owns.
    Apply,
}

impl PatchType {
    const ALL: [Self; 4] = [Self::Json, Self::Merge, Self::Strategic, Self::Apply];

    /// Returns the type of a `Content-Type`, ignoring its parameters. `strategic` is whether the
    /// kind accepts strategic merge patches; custom kinds do not.
    ///
    /// # Errors
    /// 415 with the accepted types.
    pub(super) fn of(content_type: Option<&str>, strategic: bool) -> Result<Self> {
        let media = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
        let read = || Self::ALL.into_iter().filter(|one| strategic || *one != Self::Strategic);
        read().find(|one| one.media_type().eq_ignore_ascii_case(media.trim())).ok_or_else(|| {
            let offered: Vec<&str> = read().map(Self::media_type).collect();
            Status::unsupported_media_type(&offered)
        })
    }

    /// Returns the content type.
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
    fn content_type_selects_the_patch_type() {
        for one in PatchType::ALL {
            let with_charset = format!("{} ; charset=utf-8", one.media_type().to_uppercase());
            assert_eq!(PatchType::of(Some(one.media_type()), true), Ok(one));
            assert_eq!(PatchType::of(Some(&with_charset), true), Ok(one));
        }
    }

    #[test]
    fn unknown_content_type_is_refused_with_the_accepted() {
        for other in [None, Some(""), Some("application/json"), Some("application/merge-patch+jso")] {
            let status = PatchType::of(other, true).unwrap_err();
            assert_eq!(status.code, 415);
            for one in PatchType::ALL {
                assert!(status.message.contains(one.media_type()), "{status}");
            }
        }
    }

    #[test]
    fn custom_kinds_refuse_strategic_merge_patches() {
        let status = PatchType::of(Some("application/strategic-merge-patch+json"), false).unwrap_err();
        assert_eq!(status.code, 415);
        assert!(!status.message.contains("strategic"), "{status}");
        assert_eq!(PatchType::of(Some("application/merge-patch+json"), false), Ok(PatchType::Merge));
    }
}
