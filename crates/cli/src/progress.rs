//! Progress of a long command: one line on standard error, rewritten in place, on terminals only.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shorter commands show no progress.
const DELAY: Duration = Duration::from_secs(1);
/// Interval between updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum interval between a drawn line and the next one after other output, which would flicker.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// The widest line, so that it never wraps.
const WIDTH: usize = 78;

/// The progress of a command. The line appears after [`DELAY`] and is cleared on drop. It has no
/// colors and no escape sequences, so `NO_COLOR` needs nothing more.
pub struct Progress(Option<Running>);

/// A thread that updates the line.
struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
}

struct State {
    line: Line<Box<dyn Write + Send>>,
    is_stopped: bool,
}

impl Progress {
    /// Starts the progress of an operation, such as `verifying`. Does nothing unless standard error
    /// is a terminal that can rewrite a line.
    #[must_use]
    pub(crate) fn start(operation: &str) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_dumb || !io::stderr().is_terminal() {
            return Self::off();
        }
        Self::on(operation, Box::new(io::stderr()))
    }

    /// Runs an operation with its progress, which is gone from the terminal when it returns.
    pub fn during<T>(operation: &str, run: impl FnOnce(&Self) -> T) -> T {
        run(&Self::start(operation))
    }

    /// Returns a progress that shows nothing.
    #[must_use]
    pub(crate) fn off() -> Self {
        Self(None)
    }

    fn on(operation: &str, out: Box<dyn Write + Send>) -> Self {
        let line = Line::new(operation, out, Instant::now());
        let state = Mutex::new(State { line, is_stopped: false });
        let shared = Arc::new(Shared { state, stopped: Condvar::new() });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(move || own.update());
        // A command without its progress is better than none.
        Self(thread.ok().map(|thread| Running { shared, thread: Some(thread) }))
    }

    /// Sets what was counted so far: `480 of 10000 objects`, or `480 rows` without a total.
    pub fn count(&self, done: u64, total: Option<u64>, unit: &'static str) {
        if let Some(running) = &self.0 {
            running.shared.lock().line.count = Some(Count { done, total, unit });
        }
    }

    /// Writes other output to the same terminal, in place of the line. The line follows it again,
    /// at once or with the next update.
    pub(crate) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        let Some(running) = &self.0 else { return write() };
        let mut state = running.shared.lock();
        let was_shown = state.line.clear();
        let result = write();
        if was_shown {
            state.line.redraw(Instant::now());
        }
        result
    }

    /// Returns whether the line is shown, now or after a second.
    #[must_use]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns a writer of whole lines that appear above the progress.
    pub fn lines<W: Write>(&self, out: W) -> io::LineWriter<impl Write> {
        io::LineWriter::new(Above { progress: self, out })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // Only a panic of the thread is an error, and the line is gone with it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the line until the operation ends.
    fn update(&self) {
        let mut state = self.lock();
        let mut pause = DELAY;
        while !state.is_stopped {
            let waited = self.stopped.wait_timeout_while(state, pause, |state| !state.is_stopped);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !state.is_stopped {
                state.line.draw(Instant::now());
            }
            pause = UPDATE_INTERVAL;
        }
        state.line.clear();
    }
}

/// Writes above the progress.
struct Above<'a, W> {
    progress: &'a Progress,
    out: W,
}

impl<W: Write> Write for Above<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.progress.above(|| {
            let written = self.out.write(bytes)?;
            self.out.flush()?;
            Ok(written)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Clone, Copy)]
struct Count {
    done: u64,
    total: Option<u64>,
    unit: &'static str,
}

/// The line itself. Write errors are ignored: the command continues without a terminal.
struct Line<W> {
    operation: String,
    out: W,
    started: Instant,
    count: Option<Count>,
    /// Characters of the drawn text.
    drawn: usize,
    /// Time of the last draw.
    drawn_at: Option<Instant>,
}

impl<W: Write> Line<W> {
    fn new(operation: &str, out: W, started: Instant) -> Self {
        Self { operation: operation.to_owned(), out, started, count: None, drawn: 0, drawn_at: None }
    }

    /// Formats as `applying: 480 of 10000 objects, 3 s`.
    fn text(&self, now: Instant) -> String {
        let mut text = self.operation.clone();
        let mut separator = ": ";
        if let Some(Count { done, total, unit }) = self.count {
            let _ = match total {
                Some(total) => write!(text, ": {done} of {total} {unit}"),
                None => write!(text, ": {done} {unit}"),
            };
            separator = ", ";
        }
        let _ = write!(text, "{separator}{} s", now.saturating_duration_since(self.started).as_secs());
        text.chars().take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }

    /// Draws the line in place of the previous one.
    fn draw(&mut self, now: Instant) {
        let text = self.text(now);
        let width = text.chars().count();
        // Spaces cover the rest of a longer line.
        let rest = self.drawn.saturating_sub(width);
        let _ = write!(self.out, "\r{text}{:rest$}", "");
        let _ = self.out.flush();
        self.drawn = width;
        self.drawn_at = Some(now);
    }

    /// Draws the line again, unless it was drawn just before.
    fn redraw(&mut self, now: Instant) {
        let elapsed = self.drawn_at.map(|drawn| now.saturating_duration_since(drawn));
        if elapsed.is_none_or(|elapsed| elapsed >= REDRAW_INTERVAL) {
            self.draw(now);
        }
    }

    /// Removes the line. Returns whether it was shown.
    fn clear(&mut self) -> bool {
        let width = std::mem::take(&mut self.drawn);
        if width > 0 {
            let _ = write!(self.out, "\r{:width$}\r", "");
            let _ = self.out.flush();
        }
        width > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal whose output the test reads.
    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Screen {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_is_rewritten_and_cleared_without_escape_sequences() {
        let start = Instant::now();
        let mut out = Vec::new();
        let mut line = Line::new("applying", &mut out, start);
        assert!(!line.clear(), "nothing was drawn");
        line.count = Some(Count { done: 480, total: Some(10_000), unit: "objects" });
        line.draw(start + Duration::from_secs(3));
        line.count = None;
        line.draw(start + Duration::from_secs(4));
        assert!(line.clear());
        let (long, short) = ("applying: 480 of 10000 objects, 3 s", "applying: 4 s");
        let rest = " ".repeat(long.len() - short.len());
        let expected = format!("\r{long}\r{short}{rest}\r{}\r", " ".repeat(short.len()));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn line_never_wraps_and_has_no_control_characters() {
        let mut out = Vec::new();
        let start = Instant::now();
        Line::new(&"\u{1b}x".repeat(100), &mut out, start).draw(start);
        assert_eq!(String::from_utf8(out).unwrap(), format!("\r{}", " x".repeat(WIDTH / 2)));
    }

    #[test]
    fn short_operation_shows_nothing() {
        let screen = Screen::default();
        let progress = Progress::on("verifying", Box::new(screen.clone()));
        progress.count(7, None, "rows");
        progress.above(|| {});
        drop(progress);
        assert_eq!(screen.text(), "");
    }

    #[test]
    fn line_is_redrawn_at_most_every_100_ms() {
        let start = Instant::now();
        let mut out = Vec::new();
        let mut line = Line::new("applying", &mut out, start);
        line.draw(start);
        for milliseconds in [0, 50, 99] {
            line.redraw(start + Duration::from_millis(milliseconds));
        }
        assert_eq!(String::from_utf8(line.out.clone()).unwrap(), "\rapplying: 0 s");
        line.redraw(start + REDRAW_INTERVAL);
        assert_eq!(String::from_utf8(out).unwrap(), "\rapplying: 0 s".repeat(2));
    }

    #[test]
    fn output_above_takes_the_place_of_the_line() {
        let screen = Screen::default();
        let progress = Progress::on("verifying", Box::new(screen.clone()));
        let before = Instant::now().checked_sub(UPDATE_INTERVAL).unwrap();
        progress.0.as_ref().unwrap().shared.lock().line.draw(before);
        let (one, two) = ("one", "two");
        writeln!(progress.lines(screen.clone()), "{one} {two}").unwrap();
        drop(progress);
        let (line, clear) = ("\rverifying: 0 s", format!("\r{}\r", " ".repeat(14)));
        assert_eq!(screen.text(), format!("{line}{clear}one two\n{line}{clear}"));
    }

    #[test]
    fn progress_that_is_off_only_writes_the_output() {
        let mut out = Vec::new();
        let progress = Progress::off();
        progress.count(1, Some(2), "objects");
        writeln!(progress.lines(&mut out), "done").unwrap();
        assert!(!progress.is_on());
        assert_eq!(out, b"done\n");
    }
}
