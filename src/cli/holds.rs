//! The commands `edgesync hold`, `holds` and `release`: they ask the helper on a socket of its own,
//! which the agent cannot use.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use edgesync_admin::agent::FilesHold;
use edgesync_cli::output::{NONE, Output, Table, age};
use edgesync_cli::{EXIT_FAILED, EXIT_UNAVAILABLE, program, records};
use edgesync_files::hold::check_why;
use edgesync_files::wire::{HoldInfo, HoldReply, HoldRequest, MAX_FRAME};
use edgesync_transport::connect::describe;

/// Maximum characters of a reason in a table.
const MAX_WHY_CHARS: usize = 60;

/// Makes a hold.
pub(super) fn hold(rule: &str, time: Duration, why: &str, socket: &Path) -> anyhow::Result<u8> {
    check_why(why)?;
    // A part of a second is not less than asked for.
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (rule, why) = (rule.to_owned(), why.to_owned());
    run(&HoldRequest::Hold { rule, seconds, why }, socket, |holds| {
        let made = |hold: &FilesHold| {
            format!("hold {} on rule {} until {}\n", hold.id, shown(&hold.rule), time_of(hold.until))
        };
        (Output::Table, holds.iter().map(made).collect())
    })
}

/// Lists the holds in force.
pub(super) fn list(output: Output, socket: &Path) -> anyhow::Result<u8> {
    run(&HoldRequest::List, socket, |holds| {
        let text = match holds.is_empty() {
            true => "No holds\n".to_owned(),
            false => table(holds, Timestamp::now()),
        };
        (output, text)
    })
}

/// Ends a hold, or those of the user.
pub(super) fn release(id: Option<u64>, rule: Option<String>, socket: &Path) -> anyhow::Result<u8> {
    let request = id.map_or(HoldRequest::ReleaseOwn(rule), HoldRequest::Release);
    run(&request, socket, |holds| {
        let ended = |hold: &FilesHold| format!("hold {} on rule {} ended\n", hold.id, shown(&hold.rule));
        (Output::Table, holds.iter().map(ended).collect())
    })
}

/// Sends a request and prints the answer.
fn run(
    request: &HoldRequest,
    socket: &Path,
    show: impl FnOnce(&[FilesHold]) -> (Output, String),
) -> anyhow::Result<u8> {
    let (mut code, answer) = (0, exchange(request, socket));
    program::run_command(async |terminal| {
        let (holds, warning) = match answer {
            Ok(HoldReply::Done(holds)) => (holds, None),
            Ok(HoldReply::Unkept(holds, why)) => (holds, Some(why)),
            Ok(HoldReply::Refused(why)) => {
                code = EXIT_FAILED;
                return Ok(writeln!(terminal.err, "error: {why}")?);
            }
            Err(error) => {
                code = EXIT_UNAVAILABLE;
                return Ok(writeln!(terminal.err, "error: {}", unreachable(&error, socket))?);
            }
        };
        if let Some(why) = warning {
            writeln!(terminal.err, "warning: files in memory would be missing after a reboot: {why}")?;
        }
        let holds: Vec<FilesHold> = holds.iter().map(of).collect();
        let (output, text) = show(&holds);
        records::print(&json!({ "holds": holds }), output, |_| Ok(text), terminal)
    })?;
    Ok(code)
}

fn unreachable(error: &io::Error, socket: &Path) -> String {
    let at = socket.display();
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!(
                "connect to {at}: permission denied; hint: holds are for root and the group edgesync-hold"
            )
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!(
                "connect to {at}: {}; hint: 'systemctl enable --now edgesync-hold.socket'",
                describe(error)
            )
        }
        _ => format!("request to the files helper at {at}: {}", describe(error)),
    }
}

/// Sends a request. The answer comes when the helper has ended what it is doing.
fn exchange(request: &HoldRequest, socket: &Path) -> io::Result<HoldReply> {
    let mut stream = UnixStream::connect(socket)?;
    let text = serde_json::to_vec(request)?;
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let sent = stream.write_all(&[&length.to_le_bytes(), text.as_slice()].concat());
    let mut length = [0; 4];
    // A request that is too long is answered before it has been read.
    stream.read_exact(&mut length).map_err(|error| sent.err().unwrap_or(error))?;
    let length = u32::from_le_bytes(length);
    if length > MAX_FRAME {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut frame = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut frame)?;
    Ok(serde_json::from_slice(&frame)?)
}

fn of(hold: &HoldInfo) -> FilesHold {
    let HoldInfo { id, ref rule, uid, ref owner, ref why, since, until } = *hold;
    FilesHold { id, rule: rule.clone(), uid, owner: owner.clone(), why: why.clone(), since, until }
}

/// Returns the table of holds.
pub(super) fn table(holds: &[FilesHold], now: Timestamp) -> String {
    let mut table = Table::new(["id", "rule", "owner", "until", "age", "reason"]);
    for hold in holds {
        let since = Timestamp::from_microsecond(hold.since).ok();
        let why: String = hold.why.chars().take(MAX_WHY_CHARS).collect();
        table.row([
            hold.id.to_string(),
            shown(&hold.rule),
            shown(&hold.shown_owner()),
            time_of(hold.until),
            since.map_or_else(|| NONE.to_owned(), |since| age(now, &since.to_string())),
            shown(&why),
        ]);
    }
    table.render()
}

/// Returns what a change waits for, and until when.
pub(super) fn wait(reason: &str, until: Option<i64>, message: &str) -> String {
    match until {
        Some(until) => format!("{reason} until {}: {message}", time_of(until)),
        None => format!("{reason}: {message}"),
    }
}

fn time_of(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| NONE.to_owned(), |at| format!("{at:.0}"))
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_listed_with_owner_and_reason() {
        let now = Timestamp::from_second(1_700_000_060).unwrap();
        let hold = FilesHold {
            id: 3,
            rule: "plc".to_owned(),
            uid: 1001,
            owner: "plant".to_owned(),
            why: "harvest".to_owned(),
            since: 1_700_000_000_000_000,
            until: 1_700_007_200_000_000,
        };
        let expected = "\
ID   RULE   OWNER          UNTIL                  AGE   REASON
3    plc    plant (1001)   2023-11-15T00:13:20Z   60s   harvest
";
        assert_eq!(table(&[hold], now), expected);
        let shown = wait("Hold", Some(1_700_007_200_000_000), "held by plant (1001): harvest");
        assert_eq!(shown, "Hold until 2023-11-15T00:13:20Z: held by plant (1001): harvest");
    }

    /// The helper closed the connection.
    #[test]
    fn reason_that_is_too_long_is_refused_with_its_limit() {
        for why in ["x".repeat(5000), "x".repeat(201), " ".to_owned(), "a\nb".to_owned()] {
            let socket = Path::new("/no/such/socket");
            let refused = hold("plc", Duration::from_secs(60), &why, socket).unwrap_err().to_string();
            assert!(refused.contains("(--why): must have 1 to 200 bytes"), "{refused}");
        }
    }

    #[test]
    fn missing_permission_and_helper_have_a_hint() {
        let shown = |kind: ErrorKind| unreachable(&kind.into(), Path::new("/run/h.sock"));
        assert!(shown(ErrorKind::PermissionDenied).contains("group edgesync-hold"));
        assert!(shown(ErrorKind::NotFound).contains("systemctl enable --now edgesync-hold.socket"));
    }
}
