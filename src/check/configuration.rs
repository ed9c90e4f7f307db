//! Checks that the configuration file is readable and valid.

use std::path::Path;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_config::{ConfigErrors, Place, Problem};

pub(super) const CHECK: Check = Check {
    id: "configuration",
    title: "Configuration",
    needs: &[],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Maximum number of problems listed; `check-config` lists all.
const MAX_LISTED: usize = 3;
/// Directory of the identities, beside the database.
const IDENTITIES: &str = "identity";

fn examine(examined: &mut Examined) -> Finding {
    let path = examined.config_path.display().to_string();
    let loaded = match config::load::<Config>(&examined.config_path) {
        Ok(loaded) => loaded,
        Err(errors) => return rejected(&errors, &Config::default().store.path.with_file_name(IDENTITIES)),
    };
    examined.not_joined = !loaded.config.is_joined(|key| loaded.sources.contains_key(key));
    examined.config = Some(loaded.config);
    if loaded.warnings.is_empty() {
        return Finding::ok(path);
    }
    Finding::warning(loaded.warnings.join("; "), format!("correct {path}, and see 'edgesync check-config'"))
}

/// `identities` is the directory of an earlier join, if there was one.
fn rejected(errors: &ConfigErrors, identities: &Path) -> Finding {
    let ConfigErrors { path, problems } = errors;
    let path = path.display();
    let show = |Problem { place, message }: &Problem| match place {
        Place::Line { line, column, .. } => format!("{path}:{line}:{column}: {message}"),
        Place::Variable(name) => format!("variable {name}: {message}"),
        Place::Whole => format!("{path}: {message}"),
    };
    let mut messages: Vec<String> = problems.iter().take(MAX_LISTED).map(show).collect();
    if problems.len() > MAX_LISTED {
        messages.push(format!("and {} more", problems.len() - MAX_LISTED));
    }
    let missing = !errors.path.exists();
    if missing && identities.is_dir() {
        // Such as after a reset of /etc.
        let identities = identities.display();
        messages.push(format!("{identities} is that of an earlier join, whose configuration is lost"));
        let next_step = format!(
            "restore {path}, or join again with 'edgesync join'; docs/devices.md shows how a reset can keep it"
        );
        return Finding::failed(messages.join("; "), next_step);
    }
    let next_step = if missing {
        "join a cloud with 'edgesync join', which writes it, or name another file with --config".to_owned()
    } else {
        format!("correct it, and run 'edgesync check-config --config {path}'")
    };
    Finding::failed(messages.join("; "), next_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok};

    #[test]
    fn a_valid_file_is_ok_and_sets_the_configuration() {
        let testbed = Testbed::new("");
        let mut examined = Examined::new(&testbed.config_path());
        ok(examine(&mut examined), "edgesync.toml");
        assert_eq!(examined.config.unwrap().node.name, "gw-1");
        assert!(examined.not_joined);
        testbed.configure("[link]\nbroker = \"mqtt://127.0.0.1:1883\"\n");
        let mut examined = Examined::new(&testbed.config_path());
        ok(examine(&mut examined), "edgesync.toml");
        assert!(!examined.not_joined);
    }

    #[test]
    fn configuration_problems_are_reported_with_their_location() {
        let testbed = Testbed::new("");
        let mut examined = Examined::new(&testbed.path("none.toml"));
        failed(examine(&mut examined), "cannot be read", "edgesync join");
        testbed.configure("[link]\nkeepalive = 20\n");
        let mut examined = Examined::new(&testbed.config_path());
        failed(examine(&mut examined), "link.keepalive: must be", "check-config");
        assert!(examined.config.is_none());
        let lost = edgesync_config::load::<Config>(&testbed.path("none.toml")).unwrap_err();
        failed(rejected(&lost, &testbed.path("")), "is that of an earlier join", "restore ");
        failed(rejected(&lost, &testbed.path("none")), "cannot be read", "which writes it");
        testbed.configure("[link]\nkeepalife = \"20s\"\n");
        failed(examine(&mut Examined::new(&testbed.config_path())), "keepalife", "check-config");
    }
}
