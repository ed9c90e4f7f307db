//! Programs that check files and read them again: with a limit on their time and their output, without the environment of
//! the helper, in a process group that ends with them when they take too long.

use std::io::{PipeReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::files::Failure;
use crate::files::rule::{Reload, Rule, Signal};

/// What is kept of the output of a program: its end, in bytes.
const KEPT: usize = 4 << 10;
/// How often a unit is asked whether it runs.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the output of what a program has left behind is waited for.
const LINGER: Duration = Duration::from_millis(200);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program to its end. Gives what it said.
pub(super) fn run(
    words: &[String],
    environment: &[(&str, &str)],
    timeout: Duration,
) -> Result<String, Failure> {
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let (status, said) = finish(program, arguments, environment, timeout)?;
    if status.success() {
        return Ok(said);
    }
    Err(Failure::new(format!("{program}: {status}: {}", said.trim())))
}

fn finish(
    program: &str,
    arguments: &[String],
    environment: &[(&str, &str)],
    timeout: Duration,
) -> Result<(ExitStatus, String), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{program} cannot be run: {error}"));
    let (output, input) = std::io::pipe().map_err(failed)?;
    let mut child = {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.envs(environment.iter().copied()).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(input.try_clone().map_err(failed)?).stderr(input);
        command.spawn().map_err(failed)?
    };
    let group = Pid::from_child(&child);
    let (told, said) = mpsc::sync_channel(1);
    std::thread::spawn(move || told.send(tail(output)));
    let (ends, ended) = mpsc::sync_channel(1);
    std::thread::spawn(move || ends.send(child.wait()));
    let status = ended.recv_timeout(timeout);
    if status.is_err() {
        // With all that it has started.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let text = said.recv_timeout(LINGER).unwrap_or_default();
    match status {
        Ok(status) => Ok((status.map_err(failed)?, text)),
        Err(_) => {
            let message = format!("{program} did not end within {timeout:?}: {}", text.trim());
            Err(Failure { message, slow: true })
        }
    }
}

/// The end of what can be read, without what does not belong on a line.
fn tail(mut output: PipeReader) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(read) = output.read(&mut buffer) {
        if read == 0 {
            break;
        }
        kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let more = kept.len().saturating_sub(KEPT);
        kept.drain(..more);
    }
    let text = String::from_utf8_lossy(&kept);
    text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect()
}

/// Has the program of a rule read its files again.
pub(super) fn reload(rule: &Rule, systemctl: &Path) -> Result<(), Failure> {
    match &rule.reload {
        Reload::Nothing => Ok(()),
        Reload::Run(words) => run(words, &[("EDGESYNC_RULE", &rule.name)], rule.timeout).map(|_| ()),
        Reload::Signal(signal, file) => send(*signal, file),
        Reload::Unit(unit) => reload_unit(rule, unit, systemctl),
    }
}

fn send(signal: Signal, file: &str) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format!("cannot read {file}: {error}")))?;
    let number = text.trim().parse().ok().filter(|number: &i32| *number > 1).and_then(Pid::from_raw);
    let pid = number.ok_or_else(|| Failure::new(format!("there is no process number in {file}")))?;
    let signal = match signal {
        Signal::Hup => rustix::process::Signal::HUP,
        Signal::Usr1 => rustix::process::Signal::USR1,
        Signal::Usr2 => rustix::process::Signal::USR2,
    };
    let sent = rustix::process::kill_process(pid, signal);
    sent.map_err(|error| Failure::new(format!("the process of {file} cannot be signalled: {error}")))
}

/// Reloads a unit that runs, restarts one that has failed. One that does not run reads its files when it starts; to wait for
/// it would be to wait for ever if it is ordered behind the agent.
#[allow(clippy::disallowed_methods, reason = "systemctl tells of a state when it is asked, and only then")]
fn reload_unit(rule: &Rule, unit: &str, systemctl: &Path) -> Result<(), Failure> {
    let systemctl = systemctl.display().to_string();
    let ask = |verb: &str| {
        let arguments = [verb, "--no-ask-password", "--", unit].map(str::to_owned);
        finish(&systemctl, &arguments, &[], rule.timeout)
    };
    let state = || Ok::<_, Failure>(ask("is-active")?.1.trim().to_owned());
    let verb = match state()?.as_str() {
        "active" | "reloading" => "reload-or-restart",
        "failed" => "restart",
        _ => return Ok(()),
    };
    let (status, said) = ask(verb)?;
    let until = Instant::now() + rule.healthy_within;
    let mut found = state()?;
    while status.success() && !matches!(found.as_str(), "active" | "failed") && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        found = state()?;
    }
    if status.success() && found == "active" {
        return Ok(());
    }
    let lines = ["status", "--no-pager", "--full", "--lines=10", "--", unit].map(str::to_owned);
    let log = finish(&systemctl, &lines, &[], rule.timeout).map(|(_, text)| text).unwrap_or_default();
    Err(Failure::new(format!("{unit} is {found} after {verb}: {}\n{}", said.trim(), log.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn what_a_program_says_is_kept_to_its_end() {
        assert_eq!(run(&words("echo out; echo err >&2"), &[], LONG).unwrap(), "out\nerr\n");
        let failure = run(&words("echo why; exit 3"), &[], LONG).unwrap_err();
        assert!(failure.message.contains("exit status: 3: why") && !failure.slow, "{failure:?}");
        let long = run(&words("yes 0123456 | head -n 100000; echo end"), &[], LONG).unwrap();
        assert!(long.len() <= KEPT && long.ends_with("\nend\n"));
        assert!(run(&["/no/such".to_owned()], &[], LONG).unwrap_err().message.contains("/no/such"));
    }

    #[test]
    fn nothing_of_the_helpers_environment_is_there() {
        let said = run(&words("env"), &[("EDGESYNC_RULE", "web")], LONG).unwrap();
        let mut names: Vec<&str> =
            said.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        names.retain(|name| !matches!(*name, "PWD" | "SHLVL" | "_" | "OLDPWD"));
        names.sort_unstable();
        assert_eq!(names, ["EDGESYNC_RULE", "LANG", "PATH"]);
    }

    #[test]
    fn what_takes_too_long_ends_with_all_that_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; echo begun; wait", file.display());
        let failure = run(&words(&script), &[], Duration::from_millis(500)).unwrap_err();
        assert!(failure.slow && failure.message.contains("did not end") && failure.message.contains("begun"));
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let until = Instant::now() + LONG;
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while runs() {
            assert!(Instant::now() < until, "the program that it started still runs");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_number_that_is_none_is_not_signalled() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let path = file.display().to_string();
        for text in ["", "x", "0", "1", "-1", "-5"] {
            std::fs::write(&file, text).unwrap();
            assert!(send(Signal::Hup, &path).unwrap_err().message.contains("no process number"), "{text:?}");
        }
    }
}
