//! Checks that the configuration file is readable and valid.

use super::{Check, Examined, Finding, Look, ONE};
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_config::{ConfigErrors, Place, Problem};

pub(super) const CHECK: Check =
    Check { id: "configuration", title: "Configuration", needs: &[], limit: ONE, look: Look::Files(look) };

/// Maximum number of problems listed; `check-config` lists all.
const SHOWN: usize = 3;

fn look(examined: &mut Examined) -> Finding {
    let path = examined.config_path.display().to_string();
    let loaded = match config::load::<Config>(&examined.config_path) {
        Ok(loaded) => loaded,
        Err(errors) => return wrong(&errors),
    };
    examined.config = Some(loaded.config);
    if loaded.warnings.is_empty() {
        return Finding::ok(path);
    }
    Finding::warning(loaded.warnings.join("; "), format!("correct {path}, and see 'edgesync check-config'"))
}

fn wrong(errors: &ConfigErrors) -> Finding {
    let ConfigErrors { path, problems } = errors;
    let path = path.display();
    let show = |Problem { place, message }: &Problem| match place {
        Place::Line { line, column, .. } => format!("{path}:{line}:{column}: {message}"),
        Place::Variable(name) => format!("variable {name}: {message}"),
        Place::Whole => format!("{path}: {message}"),
    };
    let mut seen: Vec<String> = problems.iter().take(SHOWN).map(show).collect();
    if problems.len() > SHOWN {
        seen.push(format!("and {} more", problems.len() - SHOWN));
    }
    let missing = !errors.path.exists();
    let next = if missing {
        "join a cloud with 'edgesync join', which writes it, or name another file with --config".to_owned()
    } else {
        format!("correct it, and run 'edgesync check-config --config {path}'")
    };
    Finding::failed(seen.join("; "), next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Bed, failed, ok};

    #[test]
    fn a_file_that_is_right_is_ok_and_its_content_is_known_from_then_on() {
        let bed = Bed::new("");
        let mut examined = Examined::new(&bed.config_path());
        ok(look(&mut examined), "edgesync.toml");
        assert_eq!(examined.config.unwrap().node.name, "gw-1");
    }

    #[test]
    fn a_missing_file_a_wrong_value_and_an_unknown_key_are_told_with_their_place() {
        let bed = Bed::new("");
        let mut examined = Examined::new(&bed.path("none.toml"));
        failed(look(&mut examined), "cannot be read", "edgesync join");
        bed.configure("[link]\nkeepalive = 20\n");
        let mut examined = Examined::new(&bed.config_path());
        failed(look(&mut examined), "link.keepalive: must be", "check-config");
        assert!(examined.config.is_none());
        bed.configure("[link]\nkeepalife = \"20s\"\n");
        failed(look(&mut Examined::new(&bed.config_path())), "keepalife", "check-config");
    }
}
