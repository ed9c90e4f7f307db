//! The 409 of an apply that would change fields of other managers. Pure.

use std::fmt::Write;

use super::Operation;
use super::fieldset::FieldSet;
use super::managed::Entry;
use edgesync_object::Status;
use edgesync_object::status::{Cause, Details, MAX_CAUSES, Reason};

/// Returns a 409 with each manager and its fields, worded as in Kubernetes. Lists at most
/// [`MAX_CAUSES`] fields and counts all.
pub(super) fn refuse(conflicts: &[(&Entry, FieldSet)]) -> Status {
    let count: usize = conflicts.iter().map(|(_, fields)| fields.len()).sum();
    let mut causes = Vec::new();
    let mut message = String::new();
    for (entry, fields) in conflicts {
        let manager = describe_manager(entry);
        let paths = fields.paths(MAX_CAUSES.saturating_sub(causes.len()));
        if !paths.is_empty() {
            let separator = if message.is_empty() { "" } else { "\n" };
            let _ = write!(message, "{separator}conflicts with {manager}:");
        }
        for path in paths {
            let _ = write!(message, "\n- {path}");
            causes.push(Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path,
            });
        }
    }
    let message = match (count, causes.first()) {
        (1, Some(only)) => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
        _ => {
            if count > causes.len() {
                let _ = write!(message, "\nand {} more", count - causes.len());
            }
            format!("Apply failed with {count} conflicts: {message}")
        }
    };
    Status::new(Reason::Conflict, message).with(Details { causes, ..Details::default() })
}

fn describe_manager(entry: &Entry) -> String {
    let mut describe_manager = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        let _ = write!(describe_manager, " with subresource {:?}", entry.subresource);
    }
    if entry.operation == Operation::Update {
        let _ = write!(describe_manager, " using {}", entry.api_version);
    }
    describe_manager
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fieldset::Element;

    fn entry(operation: Operation, subresource: &str) -> Entry {
        Entry {
            manager: "kubectl".into(),
            operation,
            api_version: "apps/v1".into(),
            subresource: subresource.into(),
            time: String::new(),
            fields: FieldSet::default(),
        }
    }

    #[test]
    fn manager_is_named_with_its_operation() {
        assert_eq!(describe_manager(&entry(Operation::Apply, "")), "\"kubectl\"");
        let status = entry(Operation::Update, "status");
        assert_eq!(describe_manager(&status), "\"kubectl\" with subresource \"status\" using apps/v1");
    }

    #[test]
    fn conflicts_are_all_counted_and_listed_up_to_a_limit() {
        let mut fields = FieldSet::default();
        for number in 0..1_000 {
            fields.attach(Element::field(&number.to_string()), FieldSet::only_self());
        }
        let (one, two) = (entry(Operation::Apply, ""), entry(Operation::Update, ""));
        let status = refuse(&[(&one, fields.clone()), (&two, fields)]);
        assert!(
            status
                .message
                .starts_with("Apply failed with 2000 conflicts: conflicts with \"kubectl\":\n- .0\n")
        );
        assert!(status.message.ends_with("\nand 1968 more"));
        assert_eq!(status.details.unwrap().causes.len(), MAX_CAUSES);
    }
}
