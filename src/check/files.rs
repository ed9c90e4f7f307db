//! Checks that the files helper answers, and that the objects of rules are in effect.

use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};
use edgesync_admin::agent::FilesSummary;
use edgesync_transport::connect::describe;

pub(super) const CHECK: Check = Check {
    id: "files",
    title: "Files",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    if config.files.rules.is_empty() {
        return Finding::skipped("no file rules configured");
    }
    if let Some(files) = examined.status.as_ref().and_then(|status| status.files.as_ref()) {
        return evaluate(files, &config.helper.socket);
    }
    let socket = config.helper.socket.display();
    match UnixStream::connect(&config.helper.socket) {
        Ok(_) => {
            Finding::ok(format!("helper reachable at {socket}; states of objects require a running agent"))
        }
        Err(error) => Finding::failed(
            format!("helper unreachable at {socket}: {}", describe(&error)),
            start_helper(&config.helper.socket),
        ),
    }
}

/// Returns the next step for a missing helper.
fn start_helper(socket: &Path) -> String {
    format!("{} as root", edgesync_helper::start_command(socket))
}

fn evaluate(files: &FilesSummary, socket: &Path) -> Finding {
    let counts = files.counts();
    let message = counts.map(|counts| {
        let waiting =
            if counts.waiting > 0 { format!(", {} waiting", counts.waiting) } else { String::new() };
        format!("{} of {} objects in effect{waiting}", counts.in_effect, counts.objects)
    });
    if let Some(problem) = &files.problem {
        // The next step takes the place of the agent's hint.
        let problem = problem.split("; hint: ").next().unwrap_or(problem);
        let next_step = match files.helper_unreachable {
            true => start_helper(socket),
            false => "see 'edgesync files' for the causes".to_owned(),
        };
        return match message {
            None => Finding::failed(problem, next_step),
            Some(message) => Finding::failed(format!("{problem}; before that, {message}"), next_step),
        };
    }
    match message {
        None => Finding::skipped("waiting for the first answer of the files helper"),
        // A wait is by plan.
        Some(message) if counts.is_some_and(|counts| counts.in_effect + counts.waiting == counts.objects) => {
            Finding::ok(message)
        }
        Some(message) => Finding::warning(
            message,
            "see 'edgesync files' for the causes, and retry with 'edgesync files apply RULE'",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use edgesync_admin::samples;
    use edgesync_runtime::systemd;

    #[test]
    fn objects_not_in_effect_have_a_next_step() {
        let files = |good: u64, bad: u64, problem: Option<&str>| FilesSummary {
            objects: Some(good + bad),
            in_effect: Some(good),
            not_in_effect: Some(bad),
            problem: problem.map(str::to_owned),
            helper_unreachable: problem.is_some_and(|problem| problem.starts_with("helper unreachable")),
            ..samples::files_summary()
        };
        let evaluate = |files: FilesSummary| evaluate(&files, Path::new("/run/h.sock"));
        ok(evaluate(files(3, 0, None)), "3 of 3 objects");
        let waiting = FilesSummary { objects: Some(3), waiting: Some(1), ..files(2, 0, None) };
        ok(evaluate(waiting), "2 of 3 objects in effect, 1 waiting");
        warned(evaluate(files(2, 1, None)), "2 of 3", "edgesync files");
        let start = systemd::advice(
            "systemctl enable --now edgesync-files.socket",
            "'edgesync files-helper --socket /run/h.sock'",
        );
        let unreachable = "helper unreachable at /run/h.sock: not found";
        let never = FilesSummary { objects: None, in_effect: None, ..files(0, 0, Some(unreachable)) };
        failed(evaluate(never), unreachable, start);
        failed(evaluate(files(0, 0, Some(unreachable))), "before that, 0 of 0 objects", start);
        let with_hint = format!("{unreachable}; hint: 'x'");
        let expected = format!("{unreachable}; before that, 2 of 2 objects in effect");
        failed(evaluate(files(2, 0, Some(with_hint.as_str()))), &expected, start);
        failed(evaluate(files(2, 0, Some("unknown rule"))), "unknown rule", "'edgesync files'");
    }
}
