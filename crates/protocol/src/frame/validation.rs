//! Validation of the string fields in a node's frame: ids, UIDs, versions and names that later
//! enter records, paths and logs.
//!
//! The limits are those of Kubernetes.

use edgesync_object::{Budget, name};

use super::{FrameError, Item, PartialMessage, Report, Up};

/// The longest id or program name in a frame, in bytes.
pub const MAX_WORD: usize = 256;

impl Up {
    /// Charges the items to the budget and validates every string field.
    pub(super) fn check_fields(&self, budget: &mut Budget) -> Result<(), FrameError> {
        match self {
            Self::Hello(hello) => {
                let words = [&hello.session, &hello.agent, &hello.node];
                words.into_iter().chain(&hello.incarnation).try_for_each(|word| check_text(word))?;
                hello.partial.as_deref().map_or(Ok(()), check_partial)
            }
            Self::Report(report) => check_report(report, budget),
            Self::Inventory(inventory) => {
                check_text(&inventory.session)?;
                check_items(&inventory.objects, budget)
            }
            Self::Lease(lease) => check_text(&lease.session),
            Self::Renew(renew) => check_text(&renew.session),
            Self::Credit(credit) => check_text(&credit.session),
            Self::Upload(upload) => {
                check_text(&upload.session)?;
                check_text(&upload.outbox)?;
                // `Content::parse` validates the content of each item: an invalid one is refused by
                // its number, so that it does not block its lane.
                Ok(budget.take_items(upload.items.len())?)
            }
        }
    }
}

fn check_report(report: &Report, budget: &mut Budget) -> Result<(), FrameError> {
    check_text(&report.session)?;
    check_items(&report.objects, budget)?;
    budget.take_items(report.removed.len() + report.rejected.len() + report.unpatched.len())?;
    for uid in report.removed.iter().chain(&report.receiving) {
        check_uid(uid)?;
    }
    for unpatched in &report.unpatched {
        check_uid(&unpatched.uid)?;
        check_version(unpatched.base.as_str())?;
    }
    for rejected in &report.rejected {
        // A rejected object may lack UID and version.
        if !rejected.uid.is_empty() {
            check_uid(&rejected.uid)?;
        }
        check_text(rejected.resource_version.as_str())?;
    }
    Ok(())
}

fn check_items(items: &[Item], budget: &mut Budget) -> Result<(), FrameError> {
    budget.take_items(items.len())?;
    for item in items {
        check_uid(&item.uid)?;
        check_version(item.resource_version.as_str())?;
        if let Some(object) = &item.object {
            object.check().map_err(FrameError::Invalid)?;
        }
    }
    Ok(())
}

fn check_partial(partial: &PartialMessage) -> Result<(), FrameError> {
    check_uid(&partial.uid)?;
    check_version(partial.resource_version.as_str())?;
    if partial.received <= partial.total {
        return Ok(());
    }
    Err(FrameError::Invalid("`partial.received` must be at most `partial.total`".into()))
}

fn check_version(version: &str) -> Result<(), FrameError> {
    name::check_version(version).map_err(|problem| invalid("resourceVersion", &problem))
}

fn check_uid(uid: &str) -> Result<(), FrameError> {
    name::check_uid(uid).map_err(|problem| invalid("uid", &problem))
}

fn check_text(word: &str) -> Result<(), FrameError> {
    if word.len() <= MAX_WORD {
        return Ok(());
    }
    Err(FrameError::Invalid(format!("an id must have at most {MAX_WORD} bytes, one has {}", word.len())))
}

fn invalid(field: &str, problem: &str) -> FrameError {
    FrameError::Invalid(format!("`{field}` {problem}"))
}
