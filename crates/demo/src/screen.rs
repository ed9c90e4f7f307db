//! What the demo prints: plain lines, and on a terminal one more line that is updated in place.

use std::io::Write;
use std::time::Duration;

use tokio::time::Instant;

/// The progress line is at most this wide, so that it never wraps.
const WIDTH: usize = 78;
/// The progress line changes no more often than this.
const EVERY: Duration = Duration::from_millis(60);
/// Back to the first column, and empty the line.
const CLEAR: &str = "\r\x1b[K";

/// Where the demo prints. Nobody may be left to read it: the demo goes on to its end all the same.
pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    is_terminal: bool,
    shown: Option<Instant>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(out: &'a mut dyn Write, is_terminal: bool) -> Self {
        Self { out, is_terminal, shown: None }
    }

    /// Prints lines that stay.
    pub(super) fn print(&mut self, text: &str) {
        let clear = if self.shown.take().is_some() { CLEAR } else { "" };
        let _ = writeln!(self.out, "{clear}{text}");
        let _ = self.out.flush();
    }

    /// Shows what is going on right now, on a terminal.
    pub(super) fn progress(&mut self, text: impl FnOnce() -> String) {
        if !self.is_terminal || self.shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        let line: String = text().chars().take(WIDTH).collect();
        let _ = write!(self.out, "{CLEAR}{line}");
        let _ = self.out.flush();
        self.shown = Some(Instant::now());
    }

    /// Takes the progress line away.
    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(self.out, "{CLEAR}");
            let _ = self.out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn on_a_terminal_one_line_is_updated_in_place() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, true);
        screen.print("start");
        screen.progress(|| "1 of 9".into());
        screen.progress(|| "2 of 9, too soon after the first".into());
        tokio::time::advance(EVERY).await;
        screen.progress(|| "x".repeat(200));
        screen.print("done");
        let expected = format!("start\n{CLEAR}1 of 9{CLEAR}{}{CLEAR}done\n", "x".repeat(WIDTH));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[tokio::test]
    async fn elsewhere_there_are_only_plain_lines() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, false);
        screen.progress(|| "1 of 9".into());
        screen.print("done");
        screen.clear();
        assert_eq!(out, b"done\n");
    }
}
