//! Checks in the sandbox of a real kernel.

use std::os::unix::fs::PermissionsExt as _;

use rustix::fs::OFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde_json::{Value, json};

use super::*;
use crate::tests::{Bed, config_map, state};
use edgesync_files::State;
use edgesync_files::rule::{Rule, Write};

/// Returns whether this process may create the namespaces; other programs decide, not the sandbox.
fn is_possible() -> bool {
    let arguments = ["--mount", "--net", "--ipc", "--pid", "--fork", "true"];
    let unshared = Command::new("unshare").args(arguments).output();
    let possible = unshared.is_ok_and(|unshared| unshared.status.success());
    if !possible {
        eprintln!("notice: no root or no namespaces here; the sandbox of checks was not tested");
    }
    possible
}

/// Runs a script as the check of a rule on an object, and returns its output.
fn output(bed: &Bed, rule: &Rule, object: &Value, script: &str) -> String {
    let check = ["/bin/sh", "-c", &format!("{{ {script}\n}}; exit 1")].map(str::to_owned).to_vec();
    let rule = Rule { check, ..rule.clone() };
    let (record, _) = bed.pass(&rule, std::slice::from_ref(object), None);
    let (head, output) = record.output.split_once("exit status: 1: ").expect(&record.output);
    assert_eq!(head, "/bin/sh: ", "{}", record.output);
    output.to_owned()
}

fn web() -> Value {
    config_map(1, &json!({ "a": "one" }))
}

#[test]
fn check_runs_without_privileges() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let script = "id -u; id -g; id -G; grep -E '^(NoNewPrivs|CapPrm|CapEff|CapAmb):' /proc/self/status";
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), script);
    let words: Vec<&str> = output.split_whitespace().collect();
    let user: u32 = words[0].parse().unwrap();
    assert!(USERS.contains(&user), "{output}");
    assert_eq!(words[1..3], [words[0], words[0]], "{output}");
    let none = "0000000000000000";
    assert_eq!(words[3..], ["CapPrm:", none, "CapEff:", none, "CapAmb:", none, "NoNewPrivs:", "1"]);
}

#[test]
fn check_is_in_namespaces_of_its_own() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let script = "for n in net mnt ipc pid; do readlink /proc/self/ns/$n; done; tail -n +3 /proc/net/dev | cut -d: -f1";
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), script);
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 5, "{output}");
    for (kind, line) in ["net", "mnt", "ipc", "pid"].iter().zip(&lines) {
        let own = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert!(line.starts_with(kind) && own != Path::new(line), "{output}");
    }
    assert_eq!(lines[4], "lo", "{output}");
}

#[test]
fn check_writes_to_its_own_tmp_only() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let open = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let own = format!("/tmp/edgesync-check-{}", std::process::id());
    let script = format!(
        "echo x > {own} && cat {own}; for d in {0} /run; do touch $d/x; done; touch /tmp/edgesync/x; ls -A /run",
        open.path().display()
    );
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), &script);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 4, "{output}");
    assert_eq!(lines[0], "x");
    assert!(lines[1..3].iter().all(|line| line.contains("Read-only file system")), "{output}");
    assert!(lines[3].contains("Permission denied"), "{output}");
    assert!(!Path::new(&own).exists());
    assert_eq!(fs::read_dir(open.path()).unwrap().count(), 0);
}

#[test]
fn check_reads_candidates_and_no_other_files_of_root() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let secret = {
        let mut secret = config_map(1, &json!({ "key": "c2VjcmV0" }));
        secret["kind"] = "Secret".into();
        secret
    };
    let field = |field: &str| Write::Field(format!("/data/{field}"));
    for (object, to, write, file, expected) in [
        (&web(), "{metadata.name}", Write::Keys, "/a", "one"),
        (&web(), "{metadata.name}.conf", field("a"), "", "one"),
        (&secret, "{metadata.name}-key", Write::Keys, "/key", "secret"),
        (&secret, "{metadata.name}.key", field("key"), "", "secret"),
    ] {
        let rule = Rule { plain_text_on_disk: true, ..bed.rule(to, write) };
        let state = bed.config.helper.state.display();
        let script = format!(
            "cat \"$EDGESYNC_CANDIDATE\"{file}; echo; cat \"$EDGESYNC_CANDIDATES\"; cat {state}/epoch"
        );
        let output = output(&bed, &rule, object, &script);
        let name = to.replace("{metadata.name}", "web");
        let list = format!("/tmp/edgesync/0/{name}\t{}/{name}", bed.base().display());
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[..2], [expected, &list], "{output}");
        assert!(lines[2].contains("Permission denied"), "{output}");
    }
}

#[test]
fn check_cannot_change_candidates() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let script = "echo two > \"$EDGESYNC_CANDIDATE/a\"; mv /tmp/edgesync /tmp/x; true";
    let check = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let rule = Rule { check, mode: Some(0o666), ..bed.rule("{metadata.name}", Write::Keys) };
    let (record, _) = bed.pass(&rule, &[web()], None);
    assert_eq!(state(&record), (State::InEffect, Some("1")), "{record:?}");
    assert_eq!(fs::read_to_string(bed.base().join("web/a")).unwrap(), "one");
}

#[test]
fn processes_of_a_check_end_with_it() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let seconds = format!("86399.{}", std::process::id());
    let script =
        format!("mkfifo /tmp/f; setsid sh -c 'echo begun > /tmp/f; exec sleep {seconds}' & cat /tmp/f");
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), &script);
    assert_eq!(output, "begun");
    let runs = |entry: &fs::DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        words.windows(seconds.len()).any(|window| window == seconds.as_bytes())
    };
    let left: Vec<_> = fs::read_dir("/proc").unwrap().flatten().filter(runs).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn check_has_no_descriptors_of_the_helper() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    // Those that this process has inherited, and passes on.
    let inherited = |name: &str| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
    };
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), "ls /proc/self/fd");
    let others = output.split_whitespace().filter(|name| !inherited(name)).collect::<Vec<_>>();
    assert_eq!(others.len(), 1, "the listed directory: {output}");
}

#[test]
fn check_may_listen_where_nobody_is_reached() {
    if !is_possible() {
        return;
    }
    let bed = Bed::new();
    let setting = Path::new("/proc").join(LISTENING[0].0);
    let before = fs::read_to_string(&setting).unwrap();
    let script = format!("cat {}", setting.display());
    let output = output(&bed, &bed.rule("{metadata.name}", Write::Keys), &web(), &script);
    assert_eq!((output.as_str(), fs::read_to_string(&setting).unwrap()), ("0", before));
}

#[test]
fn failed_sandbox_starts_nothing_and_names_the_cause() {
    let refused = require_root(rustix::process::Uid::from_raw(1000)).unwrap_err();
    assert!(refused.message.contains("user 1000") && refused.message.contains("hint:"), "{refused:?}");
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("started");
    let mut touch = Command::new("/usr/bin/touch");
    let sandbox = Sandbox::new(Path::new("/no/such/directory"), &[]).unwrap();
    let error = sandbox.spawn(touch.arg(&file)).unwrap_err().to_string();
    assert!(error.contains("sandbox of the check: mount a file system in memory: No such file"), "{error}");
    assert!(!file.exists());
    let sandbox = Sandbox::new(directory.path(), &[]).unwrap();
    let error = sandbox.spawn(&mut Command::new("/tmp/no-such-check")).unwrap_err().to_string();
    assert!(error.contains("where /tmp and /run are empty"), "{error}");
}

/// Starts a program in a sandbox from a thread with these capabilities only.
fn spawned_with(capabilities: CapabilitySet, command: &mut Command) -> io::Result<Child> {
    let directory = tempfile::tempdir().unwrap();
    let with_capabilities = || {
        let (effective, permitted) = (capabilities, capabilities);
        let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets)?;
        Sandbox::new(directory.path(), &[]).unwrap().spawn(command)
    };
    thread::scope(|scope| scope.spawn(with_capabilities).join().unwrap())
}

#[test]
fn capabilities_of_the_packaged_unit_suffice() {
    if !is_possible() {
        return;
    }
    let unit = include_str!("../../../../packaging/edgesync-files.service");
    let listed = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let listed = listed.split(' ').map(|name| name.strip_prefix("CAP_").unwrap());
    let unit: CapabilitySet = listed.map(|name| CapabilitySet::from_name(name).unwrap()).collect();
    let status = spawned_with(unit, &mut Command::new("/bin/true")).unwrap().wait().unwrap();
    assert!(status.success());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("started");
    let mut touch = Command::new("/usr/bin/touch");
    let less = unit.difference(CapabilitySet::SYS_ADMIN);
    let error = spawned_with(less, touch.arg(&file)).unwrap_err().to_string();
    assert!(
        error.contains("create namespaces: Operation not permitted") && error.contains("hint:"),
        "{error}"
    );
    assert!(!file.exists());
}

#[test]
fn links_in_place_of_candidates_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("key"), "secret").unwrap();
    fs::set_permissions(at("key"), fs::Permissions::from_mode(0o400)).unwrap();
    std::os::unix::fs::symlink(at("key"), at("link")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    fs::set_permissions(at("directory"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(at("key"), at("directory/link")).unwrap();
    let base = directory.path().display().to_string();
    for below in ["link", "directory"] {
        let (base, below) = (base.clone(), below.to_owned());
        let error = add(&Place { base, below }, &at("copy")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP), "{error}");
    }
}

#[test]
fn mount_points_are_parsed_with_their_flags() {
    let text = b"22 27 0:21 / /proc rw,nosuid,relatime - proc proc rw\n\
                 36 35 98:0 /a /mnt/two\\040words\\134x ro,nodev,noexec master:1 - ext4 /dev/x rw\n\
                 broken\n";
    let found: Vec<_> = mounts(text).collect();
    let expected = [
        (PathBuf::from("/proc"), MountFlags::NOSUID),
        (PathBuf::from("/mnt/two words\\x"), MountFlags::NODEV | MountFlags::NOEXEC),
    ];
    assert_eq!(found, expected);
    assert_eq!(unescaped(b"a\\04"), b"a\\04");
}
