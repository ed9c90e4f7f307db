//! Result of a kubectl command.

use std::fmt;

use serde_json::Value;

/// A finished kubectl command.
#[derive(Clone)]
pub struct Run {
    pub command: String,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Returns the output; asserts success.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "this should have succeeded: {self}");
        self.stdout
    }

    /// Returns the errors; asserts exit code 1.
    #[track_caller]
    pub fn fails(self) -> String {
        assert!(self.code == Some(1), "this should have failed: {self}");
        self.stderr
    }

    /// Asserts exit code 1 and an error that contains a text.
    #[track_caller]
    pub fn fails_with(self, text: &str) -> String {
        assert!(self.code == Some(1) && self.stderr.contains(text), "this should fail with {text:?}: {self}");
        self.stderr
    }

    /// Asserts success with this line as the only output.
    #[track_caller]
    pub fn says(self, line: &str) {
        assert!(self.code == Some(0) && self.stdout.trim_end() == line, "this should say {line:?}: {self}");
    }

    /// Asserts success with all texts in the output.
    #[track_caller]
    pub fn shows(self, texts: &[&str]) -> String {
        for text in texts {
            assert!(self.code == Some(0) && self.stdout.contains(text), "this should show {text:?}: {self}");
        }
        self.stdout
    }

    /// Returns the output as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        assert!(self.code == Some(0) && parsed.is_ok(), "this should print JSON: {self}");
        parsed.unwrap_or_default()
    }

    /// Returns the lines of the output.
    #[track_caller]
    pub fn lines(self) -> Vec<String> {
        self.ok().lines().map(str::to_owned).collect()
    }

    /// Returns the rows of the output's table, the header first. Cells are separated by three
    /// spaces or more.
    #[track_caller]
    pub fn rows(self) -> Vec<Vec<String>> {
        let row = |line: String| {
            line.split("   ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        self.lines().into_iter().map(row).collect()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, code, stdout, stderr } = self;
        write!(f, "\n$ kubectl {command}\nended with {code:?}\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}
