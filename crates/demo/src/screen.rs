//! Output of the demo: plain lines, and on a terminal a progress line updated in place.

use std::io::Write;
use std::time::Duration;

use tokio::time::Instant;

/// The widest progress line, so that it never wraps.
const WIDTH: usize = 78;
/// The shortest interval between updates of the progress line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(60);
/// Returns to the first column and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// The output of the demo. Write errors are ignored: the demo runs to its end without a reader.
pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    is_terminal: bool,
    last_update: Option<Instant>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(out: &'a mut dyn Write, is_terminal: bool) -> Self {
        Self { out, is_terminal, last_update: None }
    }

    /// Prints permanent lines, in place of the progress line.
    pub(super) fn print(&mut self, text: &str) {
        let clear = if self.last_update.take().is_some() { CLEAR } else { "" };
        let _ = writeln!(self.out, "{clear}{text}");
        let _ = self.out.flush();
    }

    /// Updates the progress line, on a terminal only.
    pub(super) fn progress(&mut self, text: impl FnOnce() -> String) {
        if !self.is_terminal || self.last_update.is_some_and(|at| at.elapsed() < UPDATE_INTERVAL) {
            return;
        }
        let line: String = text().chars().take(WIDTH).collect();
        let _ = write!(self.out, "{CLEAR}{line}");
        let _ = self.out.flush();
        self.last_update = Some(Instant::now());
    }

    /// Removes the progress line.
    pub(super) fn clear(&mut self) {
        if self.last_update.take().is_some() {
            let _ = write!(self.out, "{CLEAR}");
            let _ = self.out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn terminal_line_is_updated_in_place() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, true);
        screen.print("start");
        screen.progress(|| "1 of 9".into());
        screen.progress(|| "2 of 9, too soon after the first".into());
        tokio::time::advance(UPDATE_INTERVAL).await;
        screen.progress(|| "x".repeat(200));
        screen.print("done");
        let expected = format!("start\n{CLEAR}1 of 9{CLEAR}{}{CLEAR}done\n", "x".repeat(WIDTH));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[tokio::test]
    async fn other_outputs_get_plain_lines_only() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, false);
        screen.progress(|| "1 of 9".into());
        screen.print("done");
        screen.clear();
        assert_eq!(out, b"done\n");
    }
}
