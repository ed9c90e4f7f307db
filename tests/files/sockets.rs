//! The helper on its sockets, without an agent: passed by a service manager, or created by itself.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edgesync_files::wire::{Reply, Request};
use edgesync_testkit::site::{PATIENCE, Process, eventually};

/// Writes a configuration without rules.
fn config(directory: &Path) -> PathBuf {
    let path = directory.join("edgesync.toml");
    let state = directory.join("state");
    let text = "[node]\nname = \"a\"\n[link]\nbroker = \"mqtt://localhost\"\n";
    std::fs::write(&path, format!("{text}[helper]\nstate = {state:?}\n")).unwrap();
    path
}

/// Asks the helper for its rules.
fn show(socket: &Path) -> Reply {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for frame in [Vec::new(), serde_json::to_vec(&Request::default()).unwrap()] {
        stream.write_all(&u32::try_from(frame.len()).unwrap().to_le_bytes()).unwrap();
        stream.write_all(&frame).unwrap();
    }
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    serde_json::from_slice(&frame).unwrap()
}

fn stop(mut helper: Child) {
    helper.kill().unwrap();
    helper.wait().unwrap();
}

#[test]
fn socket_passed_by_a_service_manager_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (config(directory.path()), directory.path().join("files.sock"));
    let program = edgesync_testkit::programs::device();
    let listener = UnixListener::bind(&socket).unwrap();
    // As systemd passes it: as file descriptor 3, or as standard input.
    let passed = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\" 3<&0 0</dev/null";
    for script in [passed, "exec \"$@\""] {
        let stdin = Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program).arg("files-helper").arg("--config").arg(&config);
        let helper = command.stdin(stdin).spawn().unwrap();
        assert!(matches!(show(&socket), Reply::Done(_)), "{script}");
        stop(helper);
    }
}

#[test]
fn helper_without_a_socket_names_the_option() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(edgesync_testkit::programs::device());
    command.arg("files-helper").arg("--config").arg(config(directory.path())).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("files-helper --socket"), "{text}");
}

#[tokio::test]
async fn own_socket_is_served_until_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (config(directory.path()), directory.path().join("files.sock"));
    // A killed helper leaves its socket.
    drop(UnixListener::bind(&socket).unwrap());
    let arguments = ["files-helper".into(), "--config".into(), config.into_os_string()];
    let arguments = arguments.into_iter().chain(["--socket".into(), socket.clone().into_os_string()]);
    let program = Path::new(edgesync_testkit::programs::device());
    let mut helper = Process::with_arguments("the helper", program, arguments.collect());
    helper.start();
    helper.logged("files helper listening", 0).await;
    for _ in 0..2 {
        assert!(matches!(show(&socket), Reply::Done(_)));
    }
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(helper.terminate(Duration::from_secs(20)).await.success());
    assert!(!socket.exists());
    eventually("only configuration and state remain", PATIENCE, async || {
        (std::fs::read_dir(directory.path()).unwrap().count() == 2).then_some(())
    })
    .await;
}

/// Holds are made by root and by members of the group: not by the agent, even if it is compromised.
#[tokio::test]
async fn holds_are_for_the_group_of_the_socket() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("notice: without root no other user was tried on the socket of holds");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let permit =
        |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    permit(directory.path());
    let (config, socket) = (config(directory.path()), directory.path().join("files.sock"));
    let rule = "[[files]]\nname = \"plc\"\nto = \"/run/plc/{metadata.name}\"\n";
    let text = std::fs::read_to_string(&config).unwrap();
    let (head, helper) = text.split_once("[helper]").unwrap();
    std::fs::write(&config, format!("{rule}{head}[helper]{helper}")).unwrap();
    // Where other users can run it.
    let program = directory.path().join("edgesync");
    std::fs::copy(edgesync_testkit::programs::device(), &program).unwrap();
    permit(&program);
    let holds = directory.path().join("hold.sock");
    let (agent, group) = (65_531, 65_532);
    let arguments = ["files-helper".into(), "--config".into(), config.into_os_string()].into_iter().chain([
        "--socket".into(),
        socket.clone().into_os_string(),
        "--hold-socket".into(),
        holds.clone().into_os_string(),
        "--hold-group".into(),
        group.to_string().into(),
    ]);
    let mut helper = Process::with_arguments("the helper", &program, arguments.collect());
    helper.start();
    helper.logged("files helper listening", 0).await;
    let run = |(uid, gid): (u32, u32), words: &[&str]| {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(&program);
        command.args(words).arg("--socket").arg(&holds).uid(uid).gid(gid).current_dir("/");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let hold = ["hold", "--rule", "plc", "--for", "2h", "--why", "harvest"];
    let (code, text) = run((agent, agent), &hold);
    assert!(
        code == Some(69) && text.contains("permission denied") && text.contains("edgesync-hold"),
        "{text}"
    );
    assert_eq!(run((agent, group), &hold).0, Some(0));
    let (_, shown) = run((0, 0), &["holds"]);
    assert!(shown.contains("user 65531") && shown.contains("harvest"), "{shown}");
    let (code, text) = run((65_530, group), &["release", "1"]);
    assert!(code == Some(1) && text.contains("belongs to user 65531"), "{text}");
    let (code, text) = run((agent, group), &["hold", "--rule", "pls", "--for", "2h", "--why", "x"]);
    assert!(code == Some(1) && text.contains("no rule \"pls\"") && text.contains("rules: plc"), "{text}");
    assert!(run((agent, agent), &["release", "1"]).1.contains("permission denied"));
    assert_eq!(run((0, 0), &["release", "1"]).0, Some(0));
    assert!(helper.terminate(Duration::from_secs(20)).await.success());
    assert!(!holds.exists());
}
