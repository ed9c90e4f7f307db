//! Objects get into files: the helper answers, and what rules concern is in effect.

use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::{Check, Examined, Finding, Look, ONE};
use edgesync_runtime::systemd;

pub(super) const CHECK: Check =
    Check { id: "files", title: "Files", needs: &["configuration"], limit: ONE, look: Look::Files(look) };

fn look(examined: &mut Examined) -> Finding {
    let config = examined.config();
    if config.files.rules.is_empty() {
        return Finding::skipped("there are no rules for files");
    }
    let status = examined.status.as_ref().map(|status| &status["files"]);
    if let Some(files) = status.filter(|files| files.is_object()) {
        return judge(files);
    }
    let socket = config.helper.socket.display();
    match UnixStream::connect(&config.helper.socket) {
        Ok(_) => Finding::ok(format!(
            "the helper answers at {socket}; what is in effect only a running agent knows"
        )),
        Err(error) => Finding::failed(
            format!("nobody writes files: the helper does not answer at {socket}: {error}"),
            enable(),
        ),
    }
}

/// What to do about a helper that is not there.
fn enable() -> &'static str {
    systemd::advice(
        "systemctl enable --now edgesync-files.socket",
        "run 'edgesync files-helper' beside the agent, see docs/files.md",
    )
}

fn judge(files: &Value) -> Finding {
    let count = |field: &str| files[field].as_u64().unwrap_or(0);
    let seen = format!("{} of {} objects are in effect", count("inEffect"), count("objects"));
    if let Some(problem) = files["problem"].as_str() {
        return Finding::failed(format!("{seen}: {problem}"), enable());
    }
    match count("notInEffect") + count("conflicts") {
        0 => Finding::ok(seen),
        _ => Finding::warning(seen, "'edgesync files' says why; 'edgesync files apply RULE' tries again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use serde_json::json;

    #[test]
    fn what_is_not_in_effect_has_its_next_step() {
        let files = |good: u64, bad: u64, problem: Value| json!({ "objects": good + bad, "inEffect": good, "notInEffect": bad, "conflicts": 0, "problem": problem });
        ok(judge(&files(3, 0, Value::Null)), "3 of 3 objects");
        warned(judge(&files(2, 1, Value::Null)), "2 of 3", "edgesync files");
        failed(
            judge(&files(0, 0, json!("the helper cannot be asked"))),
            "cannot be asked",
            systemd::advice("systemctl enable --now edgesync-files.socket", "'edgesync files-helper'"),
        );
    }
}
