//! `/version`, and the responses of `/healthz`, `/livez` and `/readyz` in the format of Kubernetes.
//! Pure.

use serde_json::{Value, json};

use edgesync_object::status::Result;

/// The minor Kubernetes version whose rules the API follows; clients compare it with theirs.
const KUBERNETES_MINOR: &str = "36";
/// Maximum number of checks that a client may exclude.
const MAX_EXCLUDED: usize = 64;

/// A response in plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// 200, or 500 if a check failed.
    pub(super) code: u16,
    pub(super) body: String,
}

/// Builds `/version`. Some clients require every member.
pub(super) fn version() -> Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": format!("v1.{KUBERNETES_MINOR}.0+edgesync.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Answers an endpoint such as `readyz` with its checks. The query may have `verbose` and checks to
/// `exclude`; other parameters are ignored.
pub(super) fn answer(
    endpoint: &str,
    checks: &[(&'static str, Result<()>)],
    query: &[(String, String)],
) -> Answer {
    let excluded = query.iter().filter(|(name, _)| name == "exclude").take(MAX_EXCLUDED);
    let excluded: Vec<&str> = excluded.map(|(_, value)| value.as_str()).collect();
    let verbose = query.iter().any(|(name, _)| name == "verbose");
    let mut body = String::from("[+]ping ok\n");
    let mut failed = false;
    for (name, outcome) in checks {
        let line = match outcome {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
            Ok(()) => format!("[+]{name} ok\n"),
            Err(status) => {
                failed = true;
                format!("[-]{name} failed: {}\n", one_line(&status.message))
            }
        };
        body.push_str(&line);
    }
    let unknown =
        excluded.iter().filter(|name| **name != "ping" && !checks.iter().any(|(known, _)| known == *name));
    let unknown: Vec<String> = unknown.map(|name| format!("\"{}\"", one_line(name))).collect();
    if !unknown.is_empty() {
        body.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            unknown.join(",")
        ));
    }
    match (failed, verbose) {
        (true, _) => body.push_str(&format!("{endpoint} check failed\n")),
        (false, true) => body.push_str(&format!("{endpoint} check passed\n")),
        (false, false) => body = "ok".into(),
    }
    Answer { code: if failed { 500 } else { 200 }, body }
}

/// Answers a single check, such as `/readyz/store`; `None` if it is unknown.
pub(super) fn single(name: &str, checks: &[(&'static str, Result<()>)]) -> Option<Answer> {
    let ok = Answer { code: 200, body: "ok".into() };
    if name == "ping" {
        return Some(ok);
    }
    let (_, outcome) = checks.iter().find(|(known, _)| *known == name)?;
    Some(match outcome {
        Ok(()) => ok,
        Err(status) => {
            Answer { code: 500, body: format!("internal server error: {}\n", one_line(&status.message)) }
        }
    })
}

/// Replaces control characters, to keep a text on one line.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::Status;

    fn checks(cloud: Result<()>) -> Vec<(&'static str, Result<()>)> {
        vec![("store", Ok(())), ("cloud", cloud)]
    }

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn unreachable() -> Vec<(&'static str, Result<()>)> {
        checks(Err(Status::unavailable("not\nreached", 0)))
    }

    #[test]
    fn healthy_server_lists_checks_only_if_verbose() {
        let short = answer("readyz", &checks(Ok(())), &[]);
        assert_eq!(short, Answer { code: 200, body: "ok".into() });
        let long = answer("readyz", &checks(Ok(())), &query(&[("verbose", "")]));
        assert_eq!(long.body, "[+]ping ok\n[+]store ok\n[+]cloud ok\nreadyz check passed\n");
        let live = answer("livez", &[], &query(&[("verbose", "true")]));
        assert_eq!(live.body, "[+]ping ok\nlivez check passed\n");
    }

    #[test]
    fn failed_check_is_explained_on_one_line() {
        let failed = answer("readyz", &unreachable(), &[]);
        assert_eq!(failed.code, 500);
        assert_eq!(
            failed.body,
            "[+]ping ok\n[+]store ok\n[-]cloud failed: not reached\nreadyz check failed\n"
        );
    }

    #[test]
    fn excluded_checks_are_ignored_and_unknown_ones_named() {
        let passed = answer("readyz", &unreachable(), &query(&[("exclude", "cloud"), ("verbose", "")]));
        assert_eq!(passed.code, 200);
        assert!(passed.body.contains("[+]cloud excluded: ok\n"), "{}", passed.body);
        let pairs = query(&[("exclude", "foo"), ("exclude", "b\nr"), ("verbose", "")]);
        let warned = answer("readyz", &checks(Ok(())), &pairs);
        assert!(warned.body.contains("no matches for \"foo\",\"b r\"\n"), "{}", warned.body);
    }

    #[test]
    fn single_checks_are_answered() {
        assert_eq!(single("store", &unreachable()).map(|answer| answer.code), Some(200));
        assert_eq!(single("ping", &[]).map(|answer| answer.code), Some(200));
        assert_eq!(single("cloud", &unreachable()).map(|answer| answer.code), Some(500));
        assert_eq!(single("other", &unreachable()), None);
    }

    #[test]
    fn version_has_every_required_member() {
        let version = version();
        for member in ["buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform"] {
            assert!(version[member].is_string(), "{member} is missing");
        }
        assert!(version["gitVersion"].as_str().is_some_and(|text| text.starts_with("v1.36.0+edgesync.")));
    }
}
