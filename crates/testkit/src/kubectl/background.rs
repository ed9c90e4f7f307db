//! A kubectl in the background: its lines as they are printed, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Run;
use crate::site::{PATIENCE, eventually};
use crate::timing::receive_within;

/// Time limit of any kubectl in tests; its own waits are shorter.
const LIMIT: Duration = Duration::from_secs(90);

/// A running kubectl, killed on drop.
pub struct Background {
    command: String,
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    /// Receives one message for each closed output.
    closed: Receiver<()>,
}

impl Background {
    /// Starts a command whose streams are all piped.
    pub fn spawn(mut command: Command, arguments: &[&str], input: &str) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (close, closed) = channel();
        let collect = |stream: Box<dyn Read + Send>| {
            let (text, close) = (Arc::<Mutex<String>>::default(), close.clone());
            let into = Arc::clone(&text);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    *into.lock().unwrap() += &(line + "\n");
                }
                let _ = close.send(());
            });
            text
        };
        let stdout = collect(Box::new(child.stdout.take().unwrap()));
        let stderr = collect(Box::new(child.stderr.take().unwrap()));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // It may end without reading.
        std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        Self { command: arguments.join(" "), child, stdout, stderr, closed }
    }

    /// Returns the lines printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.stdout.lock().unwrap().lines().map(str::to_owned).collect()
    }

    /// Waits for a line that contains a text, and returns it.
    pub async fn line(&self, text: &str) -> String {
        self.lines_with(&[text]).await.remove(0)
    }

    /// Waits for lines that contain these texts in this order, with others in between.
    pub async fn lines_with(&self, texts: &[&str]) -> Vec<String> {
        let what = format!("`kubectl {}` prints {texts:?} in this order", self.command);
        eventually(&what, PATIENCE, async || {
            let lines = self.lines();
            let mut rest = lines.iter();
            let found = texts.iter().map_while(|text| rest.find(|line| line.contains(text)).cloned());
            let found: Vec<String> = found.collect();
            (found.len() == texts.len()).then_some(found)
        })
        .await
    }

    /// Returns whether it is still running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(mut self) -> Run {
        let ended = (0..2).all(|_| receive_within(&self.closed, LIMIT).is_ok());
        if !ended {
            let _ = self.child.kill();
        }
        let code = self.child.wait().unwrap().code();
        let run = self.so_far(code);
        assert!(ended, "this did not end within {LIMIT:?}: {run}");
        run
    }

    /// Kills it, and returns its output.
    pub fn end(mut self) -> Run {
        let code = self.child.try_wait().unwrap().and_then(|status| status.code());
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.so_far(code)
    }

    fn so_far(&self, code: Option<i32>) -> Run {
        let text = |from: &Mutex<String>| from.lock().unwrap().clone();
        Run { command: self.command.clone(), code, stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("=== in the background{}", self.so_far(None));
        }
    }
}
