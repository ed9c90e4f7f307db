//! A rule: selects objects, derives files from them, and names the check and the reload. Stored in
//! the configuration of the device only.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calendar::Window;
use super::template::Template;
use edgesync_object::matching::ObjectMatch;

/// A rule, as configured by `[[files]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the rule, unique in the configuration.
    pub name: String,
    /// Selector of the objects.
    pub objects: ObjectMatch,
    /// Path of their files.
    pub to: Template,
    /// Part of an object that is written.
    pub write: Write,
    /// Keys to write, with their file names; all keys under their own names if empty.
    pub keys: BTreeMap<String, String>,
    /// Whether all objects share one directory.
    pub gather: bool,
    /// Command that checks candidates; none if empty.
    pub check: Vec<String>,
    /// User as whom it runs.
    pub check_user: CheckUser,
    /// Action after new files are in place.
    pub reload: Reload,
    /// Permission bits of the files; by kind if absent.
    pub mode: Option<u32>,
    /// `user` or `user:group`; the helper's if empty.
    pub owner: String,
    /// Debounce time for further changes.
    pub settle: Duration,
    /// Names of rules that are applied before this one.
    pub after: Vec<String>,
    /// Time limit for a unit to become active after a reload.
    pub healthy_within: Duration,
    /// Time limit for check and reload.
    pub timeout: Duration,
    /// Whether foreign files are replaced.
    pub overwrite: bool,
    /// Whether Secrets may be written to a disk.
    pub plain_text_on_disk: bool,
    /// Maximum number of files and directories.
    pub max_files: u64,
    /// Maximum size of all files in bytes.
    pub max_size: u64,
    /// Windows in which changes take effect; at any time if empty.
    pub apply: Vec<Window>,
    /// Reason why all windows stay closed: the device does not have the time zone of one of them.
    pub unknown_zone: Option<String>,
    /// File that defers changes while it exists.
    pub unless: Option<String>,
    /// Command whose exit code permits changes; none if empty.
    pub condition: Vec<String>,
    /// Whether that command may use the network.
    pub condition_network: bool,
    /// Whether objects may ask for their change outside of windows.
    pub overridable: bool,
    /// Text of the rule in the configuration, on one line, without the keys that decide only when
    /// changes take effect.
    pub text: String,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            name: String::new(),
            objects: ObjectMatch::default(),
            to: Template::default(),
            write: Write::Keys,
            keys: BTreeMap::new(),
            gather: false,
            check: Vec::new(),
            check_user: CheckUser::Transient,
            reload: Reload::Nothing,
            mode: None,
            owner: String::new(),
            settle: Duration::from_millis(200),
            after: Vec::new(),
            healthy_within: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            overwrite: false,
            plain_text_on_disk: false,
            max_files: 10_000,
            max_size: 64 << 20,
            apply: Vec::new(),
            unknown_zone: None,
            unless: None,
            condition: Vec::new(),
            condition_network: false,
            overridable: false,
            text: String::new(),
        }
    }
}

/// Part of an object that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Each key of `data` and `binaryData` as a file, in a directory of the object.
    Keys,
    /// The whole object as one file.
    Object(Format),
    /// The value at this JSON pointer as one file.
    Field(String),
}

/// Format of a whole object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, with the extension `.yaml`.
    Yaml,
    /// JSON, with the extension `.json`.
    Json,
}

/// User as whom the check of a rule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckUser {
    /// A user that owns nothing and has no account, without network and write access.
    Transient,
    /// The user of the helper, with all its rights.
    Root,
}

/// Action that makes a program use new files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// None: the program watches its files, or needs no reload.
    Nothing,
    /// Reloads this systemd unit, or restarts it if it cannot reload.
    Unit(String),
    /// Runs this program with its arguments, and the rule's name in `EDGESYNC_RULE`.
    Run(Vec<String>),
    /// Sends the signal to the process whose number is in a file.
    Signal(Signal, String),
}

/// Signals that programs use to reload their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP, `HUP` in the configuration.
    Hup,
    /// SIGUSR1, `USR1` in the configuration.
    Usr1,
    /// SIGUSR2, `USR2` in the configuration.
    Usr2,
}

impl Rule {
    /// Returns whether new files trigger an action.
    #[must_use]
    pub fn reloads(&self) -> bool {
        self.reload != Reload::Nothing
    }

    /// Returns whether changes may have to wait, even without a hold.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        !self.apply.is_empty() || self.unless.is_some() || !self.condition.is_empty()
    }

    /// Returns the permission bits of an object's files and of their directory.
    #[must_use]
    pub fn modes(&self, is_secret: bool) -> (u32, u32) {
        let file = self.mode.unwrap_or(match (is_secret, self.owner.contains(':')) {
            (false, _) => 0o644,
            (true, true) => 0o440,
            (true, false) => 0o400,
        });
        // A user with read access to a file may also search its directory.
        (file, file | ((file & 0o444) >> 2) | 0o200)
    }
}

/// Returns the rules in dependency order.
///
/// # Errors
/// A rule names a missing one, or rules form a cycle.
pub fn ordered(rules: &[Rule]) -> Result<Vec<&Rule>, String> {
    let mut order: Vec<&Rule> = Vec::with_capacity(rules.len());
    while order.len() < rules.len() {
        let is_there = |name: &String| order.iter().any(|rule| rule.name == *name);
        let next = rules.iter().find(|rule| !is_there(&rule.name) && rule.after.iter().all(is_there));
        let Some(next) = next else {
            let stuck = rules.iter().find(|rule| !is_there(&rule.name)).map_or("", |rule| &rule.name);
            return Err(format!("files: after of rule {stuck:?} names a missing rule or forms a cycle"));
        };
        order.push(next);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, after: &[&str]) -> Rule {
        let after = after.iter().map(|name| (*name).to_owned()).collect();
        Rule { name: name.to_owned(), after, ..Rule::default() }
    }

    #[test]
    fn rules_are_ordered_by_dependency() {
        let rules = [rule("c", &["b"]), rule("b", &["a"]), rule("a", &[]), rule("d", &[])];
        let names: Vec<&str> = ordered(&rules).unwrap().iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert!(ordered(&[rule("a", &["b"]), rule("b", &["a"])]).unwrap_err().contains("\"a\""));
        assert!(ordered(&[rule("a", &["x"])]).is_err());
    }

    #[test]
    fn secrets_are_readable_by_their_owner_only() {
        assert_eq!(Rule::default().modes(false), (0o644, 0o755));
        assert_eq!(Rule::default().modes(true), (0o400, 0o700));
        let with_group = Rule { owner: "root:nginx".into(), ..Rule::default() };
        assert_eq!(with_group.modes(true), (0o440, 0o750));
        assert_eq!(Rule { mode: Some(0o640), ..with_group }.modes(true), (0o640, 0o750));
    }
}
