//! Checks that the agent's unit is loaded, enabled and active.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};

pub(super) const CHECK: Check = Check {
    id: "systemd-unit",
    title: "Systemd unit",
    needs: &[],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

const UNIT: &str = "edgesync.service";
/// Exists if systemd manages this machine.
const BOOTED: &str = "/run/systemd/system";
/// Maximum number of automatic restarts without a warning.
const RESTARTS: u64 = 3;

fn examine(_: &mut Examined) -> Finding {
    match show("LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result") {
        Ok(text) => evaluate(&properties(&text)),
        Err(why) => Finding::skipped(why),
    }
}

/// Returns the unit's user, if systemd knows it.
pub(super) fn user() -> Option<String> {
    let text = show("User").ok()?;
    properties(&text).get("User").map(|user| (*user).to_owned()).filter(|user| !user.is_empty())
}

fn show(names: &str) -> Result<String, String> {
    if !Path::new(BOOTED).exists() {
        return Err("systemd is not running".to_owned());
    }
    let output = Command::new("systemctl").args(["show", UNIT, "-p", names]).output();
    let output = output.map_err(|error| format!("run systemctl: {error}"))?;
    if !output.status.success() {
        return Err(format!("systemctl show: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn properties(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

fn evaluate(unit: &BTreeMap<&str, &str>) -> Finding {
    let is = |name: &str| unit.get(name).copied().unwrap_or_default();
    let restarts: u64 = is("NRestarts").parse().unwrap_or(0);
    let state = format!("{UNIT} is {} ({})", is("ActiveState"), is("SubState"));
    match (is("LoadState"), is("ActiveState"), is("UnitFileState")) {
        ("not-found", ..) => Finding::warning(format!("{UNIT} not found"), "install the package of edgesync"),
        (load, ..) if load != "loaded" => Finding::failed(
            format!("{UNIT} is {load}"),
            format!("systemctl daemon-reload, then systemctl status {UNIT}"),
        ),
        (_, "failed", _) => Finding::failed(
            format!("{state}: {}", is("Result")),
            format!("see 'journalctl -u {UNIT}', then systemctl restart {UNIT}"),
        ),
        (
            _,
            "active" | "reloading",
            "enabled" | "enabled-runtime" | "static" | "linked" | "generated" | "",
        ) => match restarts > RESTARTS {
            true => Finding::warning(
                format!("{state}, but was restarted {restarts} times"),
                format!("see 'journalctl -u {UNIT}' for the cause"),
            ),
            false => Finding::ok(format!("{state}, {}", is("UnitFileState"))),
        },
        (_, "active" | "reloading", other) => Finding::warning(
            format!("{state}, but {other}: it does not start at boot"),
            format!("systemctl enable {UNIT}"),
        ),
        (_, "activating", _) => Finding::warning(
            format!("{state}, {restarts} restarts"),
            format!("see 'journalctl -u {UNIT}' for the cause"),
        ),
        _ => Finding::warning(state, format!("systemctl enable --now {UNIT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};

    fn unit(load: &str, active: &str, file: &str, restarts: u64) -> Finding {
        let text = format!(
            "LoadState={load}\nActiveState={active}\nSubState=running\nUnitFileState={file}\nNRestarts={restarts}\nResult=exit-code\n"
        );
        evaluate(&properties(&text))
    }

    #[test]
    fn each_state_of_the_unit_has_its_next_step() {
        ok(unit("loaded", "active", "enabled", 0), "edgesync.service is active (running), enabled");
        warned(
            unit("loaded", "active", "disabled", 0),
            "does not start at boot",
            "systemctl enable edgesync",
        );
        warned(unit("loaded", "active", "enabled", 9), "restarted 9 times", "journalctl");
        warned(unit("loaded", "inactive", "enabled", 0), "inactive", "enable --now");
        warned(unit("loaded", "activating", "enabled", 5), "5 restarts", "journalctl");
        failed(unit("loaded", "failed", "enabled", 0), "exit-code", "journalctl");
        failed(unit("bad-setting", "inactive", "", 0), "bad-setting", "daemon-reload");
        warned(unit("not-found", "inactive", "", 0), "not found", "install");
    }
}
