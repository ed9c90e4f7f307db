//! Parses the parts of an installed unit that the tests need.

use super::Root;

/// A unit's assignments in order.
pub(crate) struct Unit {
    pub(crate) name: String,
    assignments: Vec<(String, String)>,
}

impl Unit {
    /// Reads the unit `/usr/lib/systemd/system/<name>.service`.
    pub(crate) fn installed(root: &Root, name: &str) -> Self {
        let text = root.read(&format!("/usr/lib/systemd/system/{name}.service"));
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '[']));
        let assignments = lines.filter_map(|line| line.split_once('='));
        let assignments = assignments.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { name: name.to_owned(), assignments }
    }

    /// Returns all values of a key.
    pub(crate) fn all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.assignments.iter().filter(move |(found, _)| found == key).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a key that must occur once.
    pub(crate) fn one(&self, key: &str) -> &str {
        let values: Vec<&str> = self.all(key).collect();
        let [value] = values[..] else { panic!("{}: {key}= is there {} times", self.name, values.len()) };
        value
    }

    /// Returns whether systemd would start the unit instead of skipping it.
    pub(crate) fn conditions_hold(&self, root: &Root) -> bool {
        self.all("ConditionPathExists").all(|path| root.exists(path))
    }

    /// Returns the environment of the process: the unit's variables, and those of its files.
    pub(crate) fn environment(&self, root: &Root) -> Vec<String> {
        let mut variables: Vec<String> =
            self.all("Environment").flat_map(str::split_whitespace).map(str::to_owned).collect();
        for file in self.all("EnvironmentFile") {
            let path = file.trim_start_matches('-');
            if file.starts_with('-') && !root.exists(path) {
                continue;
            }
            let text = root.read(path);
            let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains('='));
            variables.extend(lines.map(str::to_owned));
        }
        variables
    }

    /// Returns a time such as `30s` in seconds.
    pub(crate) fn seconds(&self, key: &str) -> u64 {
        let value = self.one(key);
        value.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("{key}={value} in seconds"))
    }
}
