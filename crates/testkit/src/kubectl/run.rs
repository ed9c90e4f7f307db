//! What kubectl has said when it ended.

use std::fmt;

use serde_json::Value;

/// A kubectl that has ended.
#[derive(Clone)]
pub struct Run {
    pub command: String,
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// What it printed; it must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "this should have succeeded: {self}");
        self.stdout
    }

    /// What it said went wrong; it must have ended with 1.
    #[track_caller]
    pub fn fails(self) -> String {
        assert!(self.code == Some(1), "this should have failed: {self}");
        self.stderr
    }

    /// It must have failed and said this.
    #[track_caller]
    pub fn fails_with(self, text: &str) -> String {
        assert!(self.code == Some(1) && self.stderr.contains(text), "this should fail with {text:?}: {self}");
        self.stderr
    }

    /// It must have succeeded and printed this line, and no other.
    #[track_caller]
    pub fn says(self, line: &str) {
        assert!(self.code == Some(0) && self.stdout.trim_end() == line, "this should say {line:?}: {self}");
    }

    /// It must have succeeded and printed a text with all of these.
    #[track_caller]
    pub fn shows(self, texts: &[&str]) -> String {
        for text in texts {
            assert!(self.code == Some(0) && self.stdout.contains(text), "this should show {text:?}: {self}");
        }
        self.stdout
    }

    /// The JSON that it printed.
    #[track_caller]
    pub fn json(self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        assert!(self.code == Some(0) && parsed.is_ok(), "this should print JSON: {self}");
        parsed.unwrap_or_default()
    }

    /// The lines that it printed.
    #[track_caller]
    pub fn lines(self) -> Vec<String> {
        self.ok().lines().map(str::to_owned).collect()
    }

    /// The table that it printed, the head first. Cells are apart by three spaces or more.
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
