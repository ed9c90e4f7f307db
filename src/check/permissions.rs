//! Checks who can read and write the agent's files.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, systemd_unit};
use edgesync_config::edge::Config;
use edgesync_join::files::{CA_FILE, IDENTITY_FILE, PREVIOUS_FILE};
use edgesync_store::durable::directory_of;
use edgesync_store::engine::wal_path;

pub(super) const CHECK: Check = Check {
    id: "permissions",
    title: "Permissions",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// The user whose access is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    name: String,
}

/// The problems found, failures before warnings.
#[derive(Default)]
struct Problems {
    failures: Vec<(String, String)>,
    warnings: Vec<(String, String)>,
}

fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let user = user(&config);
    let mut problems = Problems::default();
    let count = problems.examine_all(&examined.config_path, &config, &user);
    problems.finding(count, &user)
}

impl Problems {
    /// Checks all files and directories. Returns the number of existing files.
    fn examine_all(&mut self, config_path: &Path, config: &Config, user: &User) -> usize {
        let mut count = 0;
        for (path, rule) in files(config_path, config) {
            match fs::metadata(&path) {
                Ok(metadata) => {
                    count += 1;
                    self.file(&path, &metadata, rule, user);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let message = format!("stat {}: {error}", path.display());
                    self.warnings.push((message, "run the check as root".to_owned()));
                }
            }
        }
        self.state_directory(directory_of(&config.store.path), user);
        self.socket_directory(directory_of(&config.api.socket));
        count
    }

    fn file(&mut self, path: &Path, metadata: &Metadata, rule: Rule, user: &User) {
        let (shown, mode) = (path.display(), metadata.mode() & 0o7777);
        if matches!(rule, Rule::Key | Rule::Private) && mode & 0o007 != 0
            || matches!(rule, Rule::Key) && mode & 0o070 != 0
        {
            let message = format!("{shown} is readable by others (mode {mode:04o})");
            self.failures.push((message, format!("chmod 600 {shown}")));
        } else if rule == Rule::Private && mode & 0o070 != 0 {
            let message = format!("{shown} is readable by its group (mode {mode:04o})");
            self.warnings.push((message, format!("chmod 600 {shown}")));
        } else if mode & 0o022 != 0 {
            let message = format!("{shown} is writable by others than its owner (mode {mode:04o})");
            self.failures.push((message, format!("chmod go-w {shown}")));
        }
        if !user.may(metadata, 0o4) {
            let message =
                format!("{} cannot read {shown} (owner {}, mode {mode:04o})", user.name, metadata.uid());
            self.failures.push((message, format!("chown {} {shown}", user.uid)));
        }
    }

    fn state_directory(&mut self, directory: &Path, user: &User) {
        let shown = directory.display();
        match fs::metadata(directory) {
            Ok(metadata) if !metadata.is_dir() => {
                self.failures.push((
                    format!("{shown} is not a directory"),
                    "set store.path to a file in a directory".into(),
                ));
            }
            Ok(metadata) if !user.may(&metadata, 0o3) => {
                let mode = metadata.mode() & 0o7777;
                let message = format!(
                    "{} cannot write into {shown} (owner {}, mode {mode:04o})",
                    user.name,
                    metadata.uid()
                );
                self.failures.push((message, format!("chown -R {} {shown}", user.uid)));
            }
            Ok(metadata) if metadata.mode() & 0o1002 == 0o002 => {
                self.failures
                    .push((format!("{shown} is writable by all users"), format!("chmod o-w {shown}")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let next_step = "start the agent, which creates it, or correct store.path";
                self.warnings.push((format!("{shown} does not exist yet"), next_step.to_owned()));
            }
            Err(error) => {
                self.warnings.push((format!("stat {shown}: {error}"), "run the check as root".into()));
            }
        }
    }

    fn socket_directory(&mut self, directory: &Path) {
        let Ok(metadata) = fs::metadata(directory) else { return };
        if metadata.mode() & 0o1002 == 0o002 {
            let shown = directory.display();
            let message = format!("all users can replace the socket in {shown}");
            self.failures.push((message, format!("chmod o-w {shown}")));
        }
    }

    fn finding(mut self, count: usize, user: &User) -> Finding {
        let failed = !self.failures.is_empty();
        let all = if failed { &mut self.failures } else { &mut self.warnings };
        let Some((_, next_step)) = all.first().cloned() else {
            let files = if count == 1 { "file" } else { "files" };
            return Finding::ok(format!("{count} {files} readable by {}", user.name));
        };
        let text = all.iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>().join("; ");
        if failed { Finding::failed(text, next_step) } else { Finding::warning(text, next_step) }
    }
}

/// Permitted readers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Only the owner: a private key.
    Key,
    /// Not others: Secrets or a password.
    Private,
    Public,
}

fn files(config_path: &Path, config: &Config) -> Vec<(PathBuf, Rule)> {
    let mut files = vec![
        (config_path.to_owned(), Rule::Public),
        (config.store.path.clone(), Rule::Private),
        (wal_path(&config.store.path), Rule::Private),
        (config.seal.key_file.clone(), Rule::Key),
    ];
    if let Some(directory) = &config.identity.directory {
        files.push((directory.join(CA_FILE), Rule::Public));
        files.push((directory.join(IDENTITY_FILE), Rule::Key));
        files.push((directory.join(PREVIOUS_FILE), Rule::Key));
    }
    files.extend(config.link.password_file.clone().map(|path| (path, Rule::Private)));
    files.extend(config.link.ca_file.clone().map(|path| (path, Rule::Public)));
    files
}

impl User {
    /// Returns whether the user has all of `bits` (4 read, 2 write, 1 enter).
    fn may(&self, metadata: &Metadata, bits: u32) -> bool {
        let shift = match (self.uid == metadata.uid(), self.gid == metadata.gid()) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        self.uid == 0 || (metadata.mode() >> shift) & bits == bits
    }
}

/// Returns the owner of the agent's socket, else the unit's user, else the caller.
fn user(config: &Config) -> User {
    let by_owner = |path: &Path| fs::metadata(path).ok().map(|found| (found.uid(), found.gid()));
    if let Some((uid, gid)) = by_owner(&config.api.socket) {
        return User { uid, gid, name: format!("uid {uid}") };
    }
    if let Some(user) = systemd_unit::user().and_then(|name| in_passwd(&passwd(), &name)) {
        return user;
    }
    let (uid, gid) = by_owner(Path::new("/proc/self")).unwrap_or((0, 0));
    User { uid, gid, name: format!("uid {uid}") }
}

fn passwd() -> String {
    fs::read_to_string("/etc/passwd").unwrap_or_default()
}

fn in_passwd(text: &str, name: &str) -> Option<User> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let line = text.lines().map(fields).find(|fields| fields.first().is_some_and(|first| first == name))?;
    let number = |at: usize| line.get(at)?.parse().ok();
    Some(User { uid: number(2)?, gid: number(3)?, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};
    use std::os::unix::fs::PermissionsExt as _;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_readable_key_fails_and_a_group_readable_database_warns() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let config = examined.config();
        fs::create_dir_all(directory_of(&config.store.path)).unwrap();
        for path in [&config.store.path, &config.seal.key_file] {
            fs::write(path, "").unwrap();
            set_mode(path, 0o600);
        }
        ok(examine(&mut examined), "3 files readable by uid ");
        set_mode(&config.store.path, 0o640);
        warned(examine(&mut examined), "readable by its group", "chmod 600");
        set_mode(&config.seal.key_file, 0o640);
        failed(examine(&mut examined), "readable by others", "chmod 600");
        set_mode(&config.seal.key_file, 0o600);
        set_mode(&testbed.config_path(), 0o666);
        failed(examine(&mut examined), "writable by others", "chmod go-w");
    }

    #[test]
    fn a_missing_or_world_writable_state_directory_is_reported() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let directory = directory_of(&examined.config().store.path).to_owned();
        warned(examine(&mut examined), "does not exist yet", "start the agent");
        fs::create_dir_all(&directory).unwrap();
        set_mode(&directory, 0o777);
        failed(examine(&mut examined), "writable by all users", "chmod o-w");
    }

    #[test]
    fn permissions_of_another_user_follow_from_the_mode() {
        let testbed = Testbed::new("");
        let path = testbed.config_path();
        set_mode(&path, 0o600);
        let metadata = fs::metadata(&path).unwrap();
        let other = User { uid: metadata.uid() + 7, gid: metadata.gid() + 7, name: "x".into() };
        assert!(!other.may(&metadata, 4));
        let mut problems = Problems::default();
        problems.file(&path, &metadata, Rule::Key, &other);
        failed(problems.finding(1, &other), "x cannot read", "chown");
        ok(Problems::default().finding(1, &other), "1 file readable by x");
    }

    #[test]
    fn users_are_found_in_the_password_file() {
        let text = "root:x:0:0::/root:/bin/sh\nedgesync:x:997:995::/:/usr/sbin/nologin\n";
        let expected = User { uid: 997, gid: 995, name: "edgesync".into() };
        assert_eq!(in_passwd(text, "edgesync"), Some(expected));
        assert_eq!(in_passwd(text, "edge"), None);
    }
}
