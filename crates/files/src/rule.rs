//! A rule: which objects become which files, and what is done when they change. It stands in the configuration of the
//! device and nowhere else.

use std::collections::BTreeMap;
use std::time::Duration;

use super::template::Template;
use edgesync_object::matching::ObjectMatch;

/// A rule, as `[[files]]` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, by which everybody speaks of it.
    pub name: String,
    /// The objects.
    pub objects: ObjectMatch,
    /// Where their files go.
    pub to: Template,
    /// What is written of an object.
    pub write: Write,
    /// Which keys are written, and under which names; all under their own if empty.
    pub keys: BTreeMap<String, String>,
    /// Whether all objects go into one directory.
    pub gather: bool,
    /// The program that checks candidates; none if empty.
    pub check: Vec<String>,
    /// How the program learns of new files.
    pub reload: Reload,
    /// Permission bits of the files; by kind if absent.
    pub mode: Option<u32>,
    /// `user` or `user:group`; those of the helper if empty.
    pub owner: String,
    /// How long further changes are waited for.
    pub settle: Duration,
    /// Rules that come before this one.
    pub after: Vec<String>,
    /// How long a unit may take to become active after a reload.
    pub healthy_within: Duration,
    /// How long check and reload may take.
    pub timeout: Duration,
    /// Whether files of others are replaced.
    pub overwrite: bool,
    /// Whether Secrets may be written to a disk.
    pub plain_text_on_disk: bool,
    /// The most files.
    pub max_files: u64,
    /// The most bytes in them.
    pub max_size: u64,
    /// The rule as it was written, on one line.
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
            text: String::new(),
        }
    }
}

/// What is written of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Each key of `data` and `binaryData` as a file, in a directory of the object.
    Keys,
    /// The whole object as one file.
    Object(Format),
    /// What stands at this JSON pointer, as one file.
    Field(String),
}

/// How a whole object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// How a program learns of new files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// It looks itself, or nobody has to know.
    Nothing,
    /// This unit of systemd is reloaded, or restarted if it cannot be.
    Unit(String),
    /// This is run.
    Run(Vec<String>),
    /// This signal goes to the process whose number is in a file.
    Signal(Signal, String),
}

/// The signals that programs take for a wish to read their files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

impl Rule {
    /// Whether anything is done when files have changed.
    #[must_use]
    pub fn reloads(&self) -> bool {
        self.reload != Reload::Nothing
    }

    /// The permission bits of the files of an object, and of the directory that they are in.
    #[must_use]
    pub fn modes(&self, is_secret: bool) -> (u32, u32) {
        let file = self.mode.unwrap_or(match (is_secret, self.owner.contains(':')) {
            (false, _) => 0o644,
            (true, true) => 0o440,
            (true, false) => 0o400,
        });
        // Who may read a file may find it.
        (file, file | ((file & 0o444) >> 2) | 0o200)
    }
}

/// The rules in an order in which each comes behind those that it names.
///
/// # Errors
/// What is wrong: a name that is not there, or rules that wait for one another.
pub fn ordered(rules: &[Rule]) -> Result<Vec<&Rule>, String> {
    let mut order: Vec<&Rule> = Vec::with_capacity(rules.len());
    while order.len() < rules.len() {
        let is_there = |name: &String| order.iter().any(|rule| rule.name == *name);
        let next = rules.iter().find(|rule| !is_there(&rule.name) && rule.after.iter().all(is_there));
        let Some(next) = next else {
            let stuck = rules.iter().find(|rule| !is_there(&rule.name)).map_or("", |rule| &rule.name);
            return Err(format!(
                "files: the rule {stuck:?} waits for one that is not there, or that waits for it"
            ));
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
    fn rules_come_behind_those_that_they_name() {
        let rules = [rule("c", &["b"]), rule("b", &["a"]), rule("a", &[]), rule("d", &[])];
        let names: Vec<&str> = ordered(&rules).unwrap().iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert!(ordered(&[rule("a", &["b"]), rule("b", &["a"])]).unwrap_err().contains("\"a\""));
        assert!(ordered(&[rule("a", &["x"])]).is_err());
    }

    #[test]
    fn secrets_are_for_their_owner_alone() {
        assert_eq!(Rule::default().modes(false), (0o644, 0o755));
        assert_eq!(Rule::default().modes(true), (0o400, 0o700));
        let with_group = Rule { owner: "root:nginx".into(), ..Rule::default() };
        assert_eq!(with_group.modes(true), (0o440, 0o750));
        assert_eq!(Rule { mode: Some(0o640), ..with_group }.modes(true), (0o640, 0o750));
    }
}
