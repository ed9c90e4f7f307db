//! Sandbox of check programs, which parse what others wrote before it is in effect.
//!
//! Attacker: the author of an object, through the candidates. Gain: root, as far as the input can
//! make the check program act. Defence: the program runs as a user that owns nothing, without
//! network, with a read-only file system but its own `/tmp`, and cannot gain privileges.
//!
//! Namespaces and `no_new_privs` are attributes of a thread, and inherited by its children. A
//! dedicated thread enters the sandbox, starts the program, and ends: no code runs between fork
//! and exec, and the helper itself stays outside. The program is the first process of its PID
//! namespace, so none of its processes outlives it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use rustix::fs::{FileType, Mode, fstat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_move,
    mount_remount, unmount,
};
use rustix::process::Uid;
use rustix::thread::{UnshareFlags, set_no_new_privs};

use super::disk::{names, open_file, open_place};
use super::owner;
use edgesync_files::{Failure, Place};

/// Size of the sandbox's `/tmp`, in bytes, with copies of candidates that not all users may read.
const TMP_SIZE: u64 = 64 << 20;
/// Maximum number of files in the sandbox's `/tmp`: two for each candidate, and copies.
const TMP_FILES: usize = 64 << 10;
/// Users without an account: systemd assigns the ids below, 65534 is `nobody`.
const USERS: RangeInclusive<u32> = 65_520..=65_533;
/// Directory of the candidates in the sandbox.
const CANDIDATES: &str = "/tmp/edgesync";
/// List of the candidates in the sandbox, see [`Candidate::line`].
pub(super) const LIST: &str = "/tmp/edgesync/candidates";
/// Remedy for a system that refuses the sandbox.
const HINT: &str = "; hint: the helper needs CAP_SYS_ADMIN and a kernel with namespaces, or check_user = \"root\" \
                    in the rule";
/// Parents of sockets: services answer there, some of them with access to the network.
const HIDDEN: [&str; 2] = ["/run", "/var/run"];
/// Settings of the network namespace that permit any port and address. No peer is reached there,
/// but a program that checks its configuration may open its listening sockets.
const LISTENING: [(&str, &str); 3] = [
    ("sys/net/ipv4/ip_unprivileged_port_start", "0"),
    ("sys/net/ipv4/ip_nonlocal_bind", "1"),
    ("sys/net/ipv6/ip_nonlocal_bind", "1"),
];

/// A new file or directory of a rule.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Its location until the swap.
    pub(super) at: Place,
    /// Path that it gets in the end.
    pub(super) destination: String,
}

impl Candidate {
    /// Returns the line of `EDGESYNC_CANDIDATES` for the candidate at this path.
    pub(super) fn line(&self, path: &str) -> String {
        format!("{path}\t{}\n", self.destination)
    }
}

/// A sandbox for one check of some candidates.
#[derive(Debug)]
pub(super) struct Sandbox<'a> {
    user: u32,
    /// Directory on which the future `/tmp` is prepared: the helper's own, which no check needs.
    stand: &'a Path,
    candidates: &'a [Candidate],
    /// Whether the program reaches the network of the device.
    network: bool,
}

impl<'a> Sandbox<'a> {
    /// Prepares a sandbox. `stand` is an existing directory of the helper.
    ///
    /// # Errors
    /// The helper does not run as root, or all suitable users have accounts.
    pub(super) fn new(stand: &'a Path, candidates: &'a [Candidate]) -> Result<Self, Failure> {
        require_root(rustix::process::geteuid())?;
        let user = owner::without_account(USERS, Path::new("/etc")).ok_or_else(|| {
            let (first, last) = (USERS.start(), USERS.end());
            Failure::new(format!("run the check as an unprivileged user: {first} to {last} have accounts"))
        })?;
        Ok(Self { user, stand, candidates, network: false })
    }

    /// Lets the program reach the network, if `network` is set. Sockets of services stay hidden.
    pub(super) fn with_network(self, network: bool) -> Self {
        Self { network, ..self }
    }

    /// Returns the path of the first candidate, as the check sees it.
    pub(super) fn first(&self) -> String {
        self.candidates.first().map(|candidate| shown(0, candidate)).unwrap_or_default()
    }

    /// Starts a program in the sandbox.
    ///
    /// # Errors
    /// The system or the unit of the helper does not permit the sandbox, or the program is not
    /// there.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let start = || {
            self.enter().map_err(|error| {
                // Without the capability, the system call or the kind of namespace.
                let is_refused = matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::Unsupported | ErrorKind::InvalidInput
                );
                let hint = if is_refused { HINT } else { "" };
                io::Error::new(error.kind(), format!("sandbox of the check: {error}{hint}"))
            })?;
            // Without supplementary groups, which root drops with its user.
            command.uid(self.user).gid(self.user).spawn().map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    let place = "in the sandbox of the check, where /tmp and /run are empty";
                    io::Error::new(ErrorKind::NotFound, format!("not found {place}"))
                }
                _ => error,
            })
        };
        thread::scope(|scope| {
            let started = thread::Builder::new().name("sandbox".to_owned()).spawn_scoped(scope, start)?;
            started.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the sandbox panicked")))
        })
    }

    /// Moves the calling thread into the sandbox.
    fn enter(&self) -> io::Result<()> {
        create_namespaces(self.network).map_err(tried("create namespaces"))?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).map_err(tried("detach mounts"))?;
        // Of this thread alone, whose file system context is its own.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        self.prepare()?;
        if !self.network {
            permit_listening(&self.stand.join("proc")).map_err(tried("permit listening sockets"))?;
        }
        mount_move(self.stand, "/tmp").map_err(tried("mount /tmp"))?;
        hide()?;
        make_read_only()?;
        set_no_new_privs(true).map_err(tried("set no_new_privs"))
    }

    /// Mounts the future `/tmp`, with the candidates and their list.
    fn prepare(&self) -> io::Result<()> {
        let options = CString::new(format!("mode=1777,size={TMP_SIZE},nr_inodes={TMP_FILES}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", self.stand, "tmpfs", flags, &*options)
            .map_err(tried("mount a file system in memory"))?;
        let mut list = String::new();
        let directory = within(self.stand, CANDIDATES);
        fs::create_dir(&directory).map_err(tried("create the directory of candidates"))?;
        for (number, candidate) in self.candidates.iter().enumerate() {
            let path = shown(number, candidate);
            let at = within(self.stand, &path);
            let added = at.parent().map_or(Ok(()), fs::create_dir).and_then(|()| add(&candidate.at, &at));
            added.map_err(tried(format!("add {}", candidate.at.path())))?;
            list.push_str(&candidate.line(&path));
        }
        fs::write(within(self.stand, LIST), list).map_err(tried("list the candidates"))
    }
}

/// Refuses a helper that cannot start a program as another user.
fn require_root(own: Uid) -> Result<(), Failure> {
    if own.is_root() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "run the check as an unprivileged user: the helper runs as user {}, not as root; \
         hint: check_user = \"root\" in the rule runs it as the helper",
        own.as_raw()
    )))
}

/// Returns the path of a candidate in the sandbox, with the name that it gets in the end.
fn shown(number: usize, candidate: &Candidate) -> String {
    let name = candidate.destination.rsplit('/').next().unwrap_or_default();
    format!("{CANDIDATES}/{number}/{name}")
}

/// Returns where a path below `/tmp` is while its file system is prepared.
fn within(stand: &Path, path: &str) -> PathBuf {
    stand.join(path.trim_start_matches("/tmp/"))
}

/// Creates namespaces for the mounts, System V IPC and future children of this thread, and for its
/// network unless it keeps that of the device.
#[expect(deprecated, reason = "unsound with UnshareFlags::FILES only: descriptors stay shared here")]
fn create_namespaces(keeps_network: bool) -> rustix::io::Result<()> {
    let network = if keeps_network { UnshareFlags::empty() } else { UnshareFlags::NEWNET };
    let others = UnshareFlags::NEWNS | UnshareFlags::FS | UnshareFlags::NEWIPC | UnshareFlags::NEWPID;
    rustix::thread::unshare(others | network)
}

/// Adds a candidate: the file or directory itself if all users may read it, otherwise a copy. As
/// everywhere below the directory of a rule, no link is followed.
fn add(candidate: &Place, at: &Path) -> io::Result<()> {
    let file = open_place(candidate)?;
    let mode = fstat(&file)?.st_mode;
    let permits = |bits| mode & bits == bits;
    match FileType::from_raw_mode(mode) {
        FileType::Directory if permits(0o005) => {
            fs::create_dir(at)?;
            bind(&file, at)
        }
        FileType::Directory => {
            fs::create_dir(at)?;
            names(&file, TMP_FILES)?.iter().try_for_each(|name| {
                copy(open_file(&file, name.as_c_str())?, &at.join(OsStr::from_bytes(name.to_bytes())))
            })
        }
        FileType::RegularFile if permits(0o004) => {
            File::create_new(at)?;
            bind(&file, at)
        }
        _ => copy(file, at),
    }
}

fn bind(file: &OwnedFd, at: &Path) -> io::Result<()> {
    Ok(mount_bind(format!("/proc/self/fd/{}", file.as_raw_fd()), at)?)
}

fn copy(from: OwnedFd, to: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    io::copy(&mut File::from(from), &mut File::create_new(to)?).map(|_| ())
}

/// Applies [`LISTENING`], through a fresh `/proc` because that of a unit may be read-only.
fn permit_listening(proc: &Path) -> io::Result<()> {
    fs::create_dir(proc)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", proc, "proc", flags, None::<&CStr>)?;
    for (name, value) in LISTENING {
        match fs::write(proc.join(name), value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            written => written?,
        }
    }
    unmount(proc, UnmountFlags::empty())?;
    fs::remove_dir(proc)
}

/// Covers directories of sockets, and the terminal of a helper that was started by hand.
fn hide() -> io::Result<()> {
    for path in HIDDEN {
        // One of them may be a link to the other.
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            let covered = mount("tmpfs", path, "tmpfs", flags, c"mode=0755,size=4k");
            covered.map_err(tried(format!("cover {path}")))?;
        }
    }
    if Path::new("/dev/tty").exists() {
        mount_bind("/dev/null", "/dev/tty").map_err(tried("cover /dev/tty"))?;
    }
    Ok(())
}

/// Makes all mounts but `/tmp` itself read-only.
fn make_read_only() -> io::Result<()> {
    let path = "/proc/thread-self/mountinfo";
    let text = fs::read(path).map_err(tried(format!("read {path}")))?;
    for (point, flags) in mounts(&text).filter(|(point, _)| point != Path::new("/tmp")) {
        match mount_remount(&point, MountFlags::BIND | MountFlags::RDONLY | flags, c"") {
            // Another mount covers it, so it cannot be reached.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL) => {}
            Err(error) => return Err(tried(format!("make {} read-only", point.display()))(error)),
        }
    }
    Ok(())
}

/// Parses mount points from `/proc/PID/mountinfo`, with those flags that a remount would reset.
fn mounts(text: &[u8]) -> impl Iterator<Item = (PathBuf, MountFlags)> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let (point, options) = (fields.next()?, fields.next()?);
        let flags = options.split(|byte| *byte == b',').map(|option| match option {
            b"nosuid" => MountFlags::NOSUID,
            b"nodev" => MountFlags::NODEV,
            b"noexec" => MountFlags::NOEXEC,
            _ => MountFlags::empty(),
        });
        Some((PathBuf::from(OsString::from_vec(unescaped(point))), flags.collect()))
    })
}

/// Decodes a path in which blanks and the like are `\040`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// Names the failed operation in an error.
fn tried<E: Into<io::Error>>(what: impl Display) -> impl FnOnce(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{what}: {error}"))
    }
}

#[cfg(test)]
mod tests;
