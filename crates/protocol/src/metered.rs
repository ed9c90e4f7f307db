//! The terms of a metered link: which objects a node takes over it, and how many bytes of them.
//!
//! The node states it in its Hello. The bytes are a credit, as in the flow control of other
//! protocols: what the cloud side sends counts against it until the node grants another one with a
//! [`Credit`] frame. The cloud side never sends more. Objects that it may not send stay desired:
//! they *wait for the link*.

use serde::{Deserialize, Serialize};

use edgesync_object::urgency::Urgency;

/// The terms of a metered link in a [`Hello`](crate::frame::Hello).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeteredLink {
    /// The lowest urgency of objects that may come. Absent if all may. Removals always may.
    #[serde(default = "lowest", skip_serializing_if = "is_lowest")]
    pub urgency: Urgency,
    /// The largest object that may come, in bytes of JSON. Absent if any may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The bytes of frames with objects that may come until the next [`Credit`]. Absent if any
    /// number may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<u64>,
}

impl Default for MeteredLink {
    /// Everything may come.
    fn default() -> Self {
        Self { urgency: lowest(), size: None, credit: None }
    }
}

impl MeteredLink {
    /// Returns whether the terms are the same but for the amount of the credit, which a
    /// [`Credit`] frame changes.
    #[must_use]
    pub(crate) fn has_same_terms(&self, other: &Self) -> bool {
        (self.urgency, self.size, self.credit.is_some())
            == (other.urgency, other.size, other.credit.is_some())
    }
}

fn lowest() -> Urgency {
    Urgency::Low
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_lowest(urgency: &Urgency) -> bool {
    *urgency == Urgency::Low
}

/// Grants another credit, which replaces the one before. Only for a cloud side with
/// [`Feature::Metered`](crate::renewal::Feature::Metered), in a session whose Hello had a credit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// The session of the Hello.
    pub session: String,
    /// The bytes of frames with objects that may come.
    pub bytes: u64,
    /// The newest receipt that the node has received. Frames up to it do not count against the
    /// bytes; later ones are on their way and do. Absent if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The numbers of objects that wait for the link, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Objects below the urgency that may come.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub urgency: u64,
    /// Objects above the size that may come.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// Objects and removals for which the credit does not suffice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub credit: u64,
}

impl Waiting {
    /// Returns the number of all of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.urgency.saturating_add(self.size).saturating_add(self.credit)
    }

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_differ_by_everything_but_the_amount_of_the_credit() {
        let open = MeteredLink::default();
        let credit = MeteredLink { credit: Some(7), ..open };
        assert!(credit.has_same_terms(&MeteredLink { credit: Some(0), ..open }));
        assert!(!credit.has_same_terms(&open));
        assert!(!open.has_same_terms(&MeteredLink { urgency: Urgency::High, ..open }));
        assert!(!open.has_same_terms(&MeteredLink { size: Some(1), ..open }));
        assert_eq!(serde_json::to_string(&open).unwrap(), "{}");
        assert_eq!(serde_json::from_str::<MeteredLink>("{}").unwrap(), open);
    }

    #[test]
    fn waiting_objects_add_up() {
        let waiting = Waiting { urgency: 1, size: 2, credit: 3 };
        assert_eq!((waiting.all(), waiting.is_none()), (6, false));
        assert!(Waiting::default().is_none());
        assert_eq!(Waiting { credit: u64::MAX, ..waiting }.all(), u64::MAX);
    }
}
