//! Execution of check and reload programs: with limits for time and output, a clean environment,
//! without the capability of the sandbox, and a process group that is killed at the end.

use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use edgesync_files::Failure;
use edgesync_files::rule::{Reload, Rule, Signal};

/// Limit for the kept end of a program's output, in bytes.
const MAX_OUTPUT: usize = 4 << 10;
/// Polling interval for a unit's state.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which a unit must stay active after a reload.
const STEADY_TIME: Duration = Duration::from_secs(1);
/// Minimum number of polls in which it must stay active, however delayed on a busy device.
const STEADY_POLLS: u32 = 3;
/// Limit for reading a PID file, in bytes.
const MAX_PID_FILE: u64 = 32;
/// Time for which output of leftover processes is awaited.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);
/// The capability that the helper needs for the sandbox of checks, and for nothing else.
const SANDBOX: CapabilitySet = CapabilitySet::SYS_ADMIN;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program to its end; returns its output.
pub(super) fn run(
    words: &[String],
    environment: &[(&str, &str)],
    timeout: Duration,
) -> Result<String, Failure> {
    run_started(words, environment, timeout, spawn)
}

/// Starts a program without [`SANDBOX`]. Capabilities are attributes of a thread, and inherited
/// by its children: a dedicated thread gives the capability up, starts the program, and ends.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let start = || {
        give_up(SANDBOX).map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("give up CAP_SYS_ADMIN: {error}"))
        })?;
        command.spawn()
    };
    thread::scope(|scope| {
        let started = thread::Builder::new().name("program".to_owned()).spawn_scoped(scope, start)?;
        started.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the program panicked")))
    })
}

/// Gives up a capability of the calling thread, also for the programs that it starts as root.
fn give_up(capability: CapabilitySet) -> rustix::io::Result<()> {
    let held = capabilities(None)?;
    if !held.permitted.contains(capability) {
        return Ok(());
    }
    match remove_capability_from_bounding_set(capability) {
        // Without CAP_SETPCAP, as in the packaged unit. A program of root then gains nothing that
        // this thread does not hold.
        Err(Errno::PERM) => set_no_new_privs(true)?,
        removed => removed?,
    }
    // This lowers the ambient set, too.
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective.difference(capability),
            permitted: held.permitted.difference(capability),
            inheritable: held.inheritable.difference(capability),
        },
    )
}

/// Runs a program to its end after `start` has started it; returns its output.
pub(super) fn run_started(
    words: &[String],
    environment: &[(&str, &str)],
    timeout: Duration,
    start: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> Result<String, Failure> {
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let (status, output) = run_to_end(program, arguments, environment, timeout, start)?;
    if status.success() {
        return Ok(output);
    }
    Err(Failure::new(with_output(format!("{program}: {status}"), &output)))
}

/// Appends the output of a program to a message, if there is any.
fn with_output(message: String, output: &str) -> String {
    match output.trim() {
        "" => message,
        output => format!("{message}: {output}"),
    }
}

fn run_to_end(
    program: &str,
    arguments: &[String],
    environment: &[(&str, &str)],
    timeout: Duration,
    start: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> Result<(ExitStatus, String), Failure> {
    let failed = |error: io::Error| Failure::new(format!("run {program}: {error}"));
    let (output, input) = io::pipe().map_err(failed)?;
    let mut child = {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.envs(environment.iter().copied()).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(input.try_clone().map_err(failed)?).stderr(input);
        start(&mut command).map_err(failed)?
    };
    let group = Pid::from_child(&child);
    let ends = pidfd_open(group, PidfdFlags::empty()).map_err(|error| {
        let _ = child.kill();
        failed(error.into())
    })?;
    let mut collector = Collector { output, is_open: true, kept: Vec::new() };
    let ended = collector.collect(Some(&ends), timeout);
    // Kills all descendants that have not left the group, and the program itself if it has.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let mut has_ended = matches!(ended, Ok(true));
    if !has_ended {
        let _ = child.kill();
        // A hanging disk can keep it from ending.
        has_ended = matches!(collector.collect(Some(&ends), OUTPUT_TIMEOUT), Ok(true));
    }
    let status = if has_ended { Some(child.wait()) } else { None };
    // A process that has left the group can keep the pipe open.
    let _ = collector.collect(None, OUTPUT_TIMEOUT);
    let text = printable(&collector.kept);
    match (ended, status) {
        (Ok(true), Some(status)) => Ok((status.map_err(failed)?, text)),
        (Err(error), _) => Err(failed(error)),
        _ => {
            let message = with_output(format!("{program}: timed out after {timeout:?}"), &text);
            Err(Failure { message, slow: true })
        }
    }
}

/// The output of a program. It is read by the thread that waits for the program, so nothing is left
/// behind, whatever keeps the pipe open.
struct Collector {
    output: PipeReader,
    is_open: bool,
    /// The end of the output.
    kept: Vec<u8>,
}

/// Result of a wait for a program.
enum Ready {
    /// The process has ended.
    Process,
    /// There is output, or its end.
    Output,
    /// Neither, within the limit.
    Nothing,
}

impl Collector {
    /// Collects output until the process of a pidfd ends; without one, until the output ends.
    /// Returns whether that happened within the limit.
    fn collect(&mut self, process: Option<&OwnedFd>, limit: Duration) -> io::Result<bool> {
        let until = Instant::now() + limit;
        while process.is_some() || self.is_open {
            let left = until.saturating_duration_since(Instant::now());
            match self.wait(process, left)? {
                Ready::Process => return Ok(true),
                _ if left.is_zero() => return Ok(false),
                Ready::Output => self.read()?,
                Ready::Nothing => {}
            }
        }
        Ok(true)
    }

    /// Waits for the end of the process, or for output.
    fn wait(&self, process: Option<&OwnedFd>, limit: Duration) -> io::Result<Ready> {
        let output = self.is_open.then(|| self.output.as_fd());
        let both = process.map(AsFd::as_fd).into_iter().chain(output);
        let mut watched: Vec<_> = both.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut watched, Some(&Timespec::try_from(limit).map_err(io::Error::other)?)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Ready::Nothing),
            polled => polled?,
        };
        let first = watched.first().is_some_and(|fd| !fd.revents().is_empty());
        Ok(if process.is_some() && first { Ready::Process } else { Ready::Output })
    }

    /// Reads what is there, and keeps the end.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1024];
        let read = match self.output.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        self.is_open = read > 0;
        self.kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let more = self.kept.len().saturating_sub(MAX_OUTPUT);
        self.kept.drain(..more);
        Ok(())
    }
}

/// Decodes output, without control characters.
fn printable(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect()
}

/// Makes the program of a rule reload its files.
pub(super) fn reload(rule: &Rule, systemctl: &Path) -> Result<(), Failure> {
    match &rule.reload {
        Reload::Nothing => Ok(()),
        Reload::Run(words) => run(words, &[("EDGESYNC_RULE", &rule.name)], rule.timeout).map(|_| ()),
        Reload::Signal(signal, file) => send_signal(*signal, file),
        Reload::Unit(unit) => reload_unit(rule, unit, systemctl),
    }
}

/// Signals the process in a PID file. Unless root owns the file, the process must belong to the
/// file's owner: a service cannot have processes of others signalled.
fn send_signal(signal: Signal, path: &str) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("read {path}: {error}"));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(&error))?;
    let file = std::fs::File::from(file);
    let found = file.metadata().map_err(|error| failed(&error))?;
    if !found.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_PID_FILE).read_to_string(&mut text).map_err(|error| failed(&error))?;
    let number = text.trim().parse().ok().filter(|number: &i32| *number > 1).and_then(Pid::from_raw);
    let pid = number.ok_or_else(|| Failure::new(format!("read {path}: no process ID")))?;
    let owner = || std::fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|of| of.uid()).ok();
    if found.uid() != 0 && owner() != Some(found.uid()) {
        return Err(Failure::new(format!(
            "signal the process in {path}: process and file have different owners"
        )));
    }
    let signal = match signal {
        Signal::Hup => rustix::process::Signal::HUP,
        Signal::Usr1 => rustix::process::Signal::USR1,
        Signal::Usr2 => rustix::process::Signal::USR2,
    };
    let sent = rustix::process::kill_process(pid, signal);
    sent.map_err(|error| Failure::new(format!("signal the process in {path}: {error}")))
}

/// State of a unit as reported by systemd.
struct Unit {
    /// `active`, `failed`, `activating`, …
    state: String,
    /// Restart count and main PID: a change means that the unit has not kept running.
    instance: String,
}

/// Reloads an active unit, restarts a failed one. An inactive unit reads its files when it starts;
/// waiting for it would block for ever if it is ordered after the agent, so jobs ignore
/// dependencies. The unit is healthy if it is still active, as the same process, some time later.
#[allow(clippy::disallowed_methods, reason = "systemctl reports a state only when queried")]
fn reload_unit(rule: &Rule, unit: &str, systemctl: &Path) -> Result<(), Failure> {
    let systemctl = systemctl.display().to_string();
    let systemctl_run = |words: &[&str]| {
        let arguments: Vec<String> =
            words.iter().chain(&["--", unit]).map(|word| (*word).to_owned()).collect();
        run_to_end(&systemctl, &arguments, &[], rule.timeout, spawn)
    };
    let poll = || {
        let (status, output) =
            systemctl_run(&["show", "--property=LoadState,ActiveState,NRestarts,MainPID"])?;
        let value = |key: &str| {
            output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
        };
        match value("LoadState") {
            "loaded" | "masked" => {
                let instance = format!("{} {}", value("NRestarts"), value("MainPID"));
                Ok(Unit { state: value("ActiveState").to_owned(), instance })
            }
            "not-found" => Err(Failure::new(format!("unit {unit} not found"))),
            _ => Err(Failure::new(with_output(format!("{systemctl} show {unit}: {status}"), &output))),
        }
    };
    let until = Instant::now() + rule.healthy_within;
    let settled = |expected: fn(&str) -> bool| {
        let mut found = poll()?;
        while !expected(&found.state) && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
            found = poll()?;
        }
        Ok::<_, Failure>(found)
    };
    let begun = settled(|state| state != "activating")?;
    let verb = match begun.state.as_str() {
        "active" | "reloading" | "refreshing" | "activating" => "reload-or-restart",
        "failed" => "restart",
        _ => return Ok(()),
    };
    let (status, output) = systemctl_run(&[verb, "--no-ask-password", "--job-mode=ignore-dependencies"])?;
    let mut found = settled(|state| matches!(state, "active" | "failed" | "inactive"))?;
    if status.success() && found.state == "active" {
        // A program that rejects its files often exits shortly after the reload.
        let before = found.instance;
        let watched = Instant::now() + STEADY_TIME.min(rule.healthy_within);
        let mut polls = 0;
        loop {
            found = poll()?;
            if found.state != "active" || found.instance != before {
                break;
            }
            polls += 1;
            if polls >= STEADY_POLLS && Instant::now() >= watched {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    let lines = systemctl_run(&["status", "--no-pager", "--full", "--lines=10"]);
    let log = lines.map(|(_, text)| text).unwrap_or_default();
    let state = if found.state == "active" { "restarted" } else { &found.state };
    let output = format!("{}\n{}", output.trim(), log.trim());
    Err(Failure::new(with_output(format!("{unit} is {state} after {verb}"), &output)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn words(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn output_is_kept_from_its_end() {
        assert_eq!(run(&words("echo out; echo err >&2"), &[], LONG).unwrap(), "out\nerr\n");
        let failure = run(&words("echo why; exit 3"), &[], LONG).unwrap_err();
        assert!(failure.message.contains("exit status: 3: why") && !failure.slow, "{failure:?}");
        let silent = run(&words("exit 3"), &[], LONG).unwrap_err();
        assert_eq!(silent.message, "/bin/sh: exit status: 3");
        let long = run(&words("yes 0123456 | head -n 100000; echo end"), &[], LONG).unwrap();
        assert!(long.len() <= MAX_OUTPUT && long.ends_with("\nend\n"));
        assert!(run(&["/no/such".to_owned()], &[], LONG).unwrap_err().message.contains("/no/such"));
    }

    #[test]
    fn program_gets_a_clean_environment() {
        let output = run(&words("env"), &[("EDGESYNC_RULE", "web")], LONG).unwrap();
        let mut names: Vec<&str> =
            output.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        names.retain(|name| !matches!(*name, "PWD" | "SHLVL" | "_" | "OLDPWD"));
        names.sort_unstable();
        assert_eq!(names, ["EDGESYNC_RULE", "LANG", "PATH"]);
    }

    #[test]
    fn timeout_kills_the_program_and_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; echo begun; wait", file.display());
        let failure = run(&words(&script), &[], Duration::from_millis(500)).unwrap_err();
        assert!(failure.slow && failure.message.contains("timed out") && failure.message.contains("begun"));
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
    fn process_that_leaves_the_group_keeps_nothing_of_the_helper() {
        let directory = tempfile::tempdir().unwrap();
        let (left, file) = (directory.path().join("left"), directory.path().join("closed"));
        // It writes until the pipe has no reader, and survives the signal for that.
        let leaves = format!(
            "trap \"\" PIPE; touch {}; while echo x; do :; done 2>/dev/null; touch {}",
            left.display(),
            file.display()
        );
        let script = format!("setsid sh -c '{leaves}' & while ! test -e {}; do :; done", left.display());
        let output = run(&words(&script), &[], LONG).unwrap();
        assert!(output.len() <= MAX_OUTPUT, "{}", output.len());
        let until = Instant::now() + LONG;
        while !file.exists() {
            assert!(Instant::now() < until, "its output is still read");
            std::thread::yield_now();
        }
    }

    /// The child keeps the pipe open, and is in no group that is killed.
    #[test]
    fn child_in_a_session_of_its_own_is_not_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!(
            "echo said; setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' & \
             while ! test -e {0}; do :; done",
            file.display()
        );
        let output = run(&words(&script), &[], LONG);
        let pid = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let survived =
            rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL);
        assert_eq!((output.unwrap().as_str(), survived), ("said\n", Ok(())));
    }

    /// Returns the sets of capabilities that a reload program has.
    fn sets_of_a_reload() -> BTreeMap<String, CapabilitySet> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sets");
        let script = format!("grep ^Cap /proc/self/status > {}", file.display());
        let rule = Rule { reload: Reload::Run(words(&script)), timeout: LONG, ..Rule::default() };
        reload(&rule, Path::new("/no/such/systemctl")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let sets = text.lines().filter_map(|line| line.split_once(":\t"));
        sets.map(|(name, bits)| {
            (name.to_owned(), CapabilitySet::from_bits_retain(u64::from_str_radix(bits, 16).unwrap()))
        })
        .collect()
    }

    #[test]
    fn reload_program_lacks_the_capability_of_the_sandbox() {
        let own = capabilities(None).unwrap().permitted;
        if !own.contains(SANDBOX) {
            eprintln!("notice: no CAP_SYS_ADMIN here; that reload programs lack it was not tested");
            return;
        }
        let sets = sets_of_a_reload();
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(!sets[name].contains(SANDBOX), "{sets:?}");
        }
        assert_eq!(sets["CapBnd"].contains(SANDBOX), !own.contains(CapabilitySet::SETPCAP), "{sets:?}");
        assert!(capabilities(None).unwrap().permitted == own, "the helper keeps it");
        // As in the packaged unit, which has no CAP_SETPCAP: the rest is kept.
        let unit = CapabilitySet::CHOWN | CapabilitySet::KILL | SANDBOX;
        let sets = thread::scope(|scope| {
            let in_unit = || {
                let inheritable = CapabilitySet::empty();
                let sets = CapabilitySets { effective: unit, permitted: unit, inheritable };
                set_capabilities(None, sets).unwrap();
                sets_of_a_reload()
            };
            scope.spawn(in_unit).join().unwrap()
        });
        let kept = unit.difference(SANDBOX);
        assert_eq!((sets["CapPrm"], sets["CapEff"]), (kept, kept), "{sets:?}");
    }

    #[test]
    fn endless_output_does_not_extend_the_time_limit() {
        let failure = run(&words("yes"), &[], Duration::from_millis(200)).unwrap_err();
        assert!(failure.slow && failure.message.ends_with("y\ny"), "{failure:?}");
    }

    #[test]
    fn program_that_closes_its_output_is_awaited() {
        assert_eq!(run(&words("echo said; exec >&- 2>&-; exit 0"), &[], LONG).unwrap(), "said\n");
        let failure =
            run(&words("exec >&- 2>&-; exec sleep 300"), &[], Duration::from_millis(200)).unwrap_err();
        assert!(failure.slow, "{failure:?}");
    }

    #[test]
    fn invalid_process_number_is_not_signalled() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let path = file.display().to_string();
        for text in ["", "x", "0", "1", "-1", "-5"] {
            std::fs::write(&file, text).unwrap();
            assert!(
                send_signal(Signal::Hup, &path).unwrap_err().message.contains("no process ID"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn pid_file_signals_processes_of_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let pipe = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(pipe.success());
        let text = path.display().to_string();
        assert!(send_signal(Signal::Hup, &text).unwrap_err().message.contains("not a regular file"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, std::process::id().to_string()).unwrap();
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_ok() {
            assert!(send_signal(Signal::Hup, &text).unwrap_err().message.contains("different owners"));
        }
    }

    /// Replaces systemctl by a program that returns prepared answers, and records its calls.
    fn reloaded(answers: &[&str]) -> (Result<(), Failure>, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (number, answer) in answers.iter().enumerate() {
            std::fs::write(at(&number.to_string()), answer.replace(' ', "\n")).unwrap();
        }
        let script = format!(
            "#!/bin/sh\ncd {}\ncase $1 in show) n=$(cat n 2>/dev/null || echo 0); test -e $n || n=$((n-1)); \
             cat $n; echo $((n+1)) > n;; *) echo \"$*\" >> asked;; esac\n",
            directory.path().display()
        );
        std::fs::write(at("systemctl"), script).unwrap();
        std::fs::set_permissions(at("systemctl"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let within = Duration::from_millis(400);
        let rule = Rule { healthy_within: within, timeout: LONG, ..Rule::default() };
        let result = reload_unit(&rule, "web.service", &at("systemctl"));
        let asked = std::fs::read_to_string(at("asked")).unwrap_or_default();
        (result, asked.lines().filter(|line| !line.starts_with("status")).map(str::to_owned).collect())
    }

    #[test]
    fn active_unit_is_reloaded_and_must_stay_active() {
        let active = "LoadState=loaded ActiveState=active NRestarts=0 MainPID=7";
        let (result, asked) = reloaded(&[active]);
        assert_eq!(result, Ok(()));
        assert_eq!(
            asked,
            ["reload-or-restart --no-ask-password --job-mode=ignore-dependencies -- web.service"]
        );
        // It exits shortly after its start, or was restarted by then.
        for dies in [
            "activating NRestarts=1 MainPID=0",
            "active NRestarts=1 MainPID=8",
            "failed NRestarts=0 MainPID=0",
        ] {
            let dies = format!("LoadState=loaded ActiveState={dies}");
            let (result, asked) = reloaded(&[active, active, active, &dies]);
            assert!(result.is_err() && asked.len() == 1, "{dies}: {result:?} {asked:?}");
        }
        let (result, asked) =
            reloaded(&["LoadState=loaded ActiveState=failed NRestarts=5 MainPID=0", active]);
        assert!(result.is_ok() && asked[0].starts_with("restart "), "{result:?} {asked:?}");
    }

    #[test]
    fn inactive_unit_is_skipped_and_a_missing_one_fails() {
        let (result, asked) = reloaded(&["LoadState=loaded ActiveState=inactive NRestarts=0 MainPID=0"]);
        assert_eq!((result, asked.len()), (Ok(()), 0));
        for (says, word) in [
            ("LoadState=not-found ActiveState=inactive", "not found"),
            ("Failed to connect to bus", "show web.service"),
        ] {
            let (result, asked) = reloaded(&[says]);
            assert!(result.unwrap_err().message.contains(word) && asked.is_empty(), "{says}");
        }
    }
}
