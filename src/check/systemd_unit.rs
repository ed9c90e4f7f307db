//! Checks that the agent's unit is loaded, enabled and active, has a watchdog, and waits for the
//! disk of its database but not for a network.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, disk_space, mounts};
use edgesync_store::durable::directory_of;

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
/// Target that is reached when the network is up, or after a timeout.
const ONLINE: &str = "network-online.target";
/// Services that delay `time-sync.target`, and the agent with it, until a time server answers.
const CLOCK_WAITERS: [&str; 2] = ["systemd-time-wait-sync.service", "chrony-wait.service"];
/// Properties of the unit that are evaluated.
const PROPERTIES: &str = "LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result,WatchdogUSec,After,Requires,\
                          Requisite,BindsTo,RequiresMountsFor";

fn examine(examined: &mut Examined) -> Finding {
    let text = match show(&[UNIT], PROPERTIES) {
        Ok(text) => text,
        Err(why) => return Finding::skipped(why),
    };
    let config = examined.config();
    let mount = mounts::of(disk_space::existing(directory_of(&config.store.path))).map(|mount| mount.point);
    let waiters = show(&CLOCK_WAITERS, "Id,UnitFileState").unwrap_or_default();
    let unit = properties(&text);
    match evaluate(&unit) {
        Finding::Ok(message) => {
            concerns(&unit, mount.as_deref(), &waiters).unwrap_or_else(|| Finding::ok(message))
        }
        other => other,
    }
}

/// Returns the unit's user, if systemd knows it.
pub(super) fn user() -> Option<String> {
    let text = show(&[UNIT], "User").ok()?;
    properties(&text).get("User").map(|user| (*user).to_owned()).filter(|user| !user.is_empty())
}

fn show(units: &[&str], names: &str) -> Result<String, String> {
    if !Path::new(BOOTED).exists() {
        return Err("systemd is not running".to_owned());
    }
    let output = Command::new("systemctl").args(["show", "-p", names]).args(units).output();
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

/// Returns a warning about the settings of a unit that works. `mount` is the mount point of
/// the database, `waiters` the state of [`CLOCK_WAITERS`].
fn concerns(unit: &BTreeMap<&str, &str>, mount: Option<&Path>, waiters: &str) -> Option<Finding> {
    let names = |key: &str, sought: &str| {
        unit.get(key).is_some_and(|text| text.split(' ').any(|name| name == sought))
    };
    let edit = format!("systemctl edit {UNIT}");
    let requires_network = ["Requires", "Requisite", "BindsTo"].into_iter().any(|key| names(key, ONLINE));
    if requires_network || names("After", ONLINE) {
        let message = if requires_network {
            format!("{UNIT} requires {ONLINE}: without a network it does not start")
        } else {
            format!("{UNIT} starts after {ONLINE}: a boot without a network delays it")
        };
        let next_step = format!("remove that from the files of 'systemctl cat {UNIT}'");
        return Some(Finding::warning(message, next_step));
    }
    if let Some(waiter) = enabled(waiters) {
        let message = format!("{waiter} is enabled: a boot without a time server delays {UNIT}");
        return Some(Finding::warning(message, format!("systemctl disable {waiter}")));
    }
    if unit.get("WatchdogUSec").is_some_and(|time| matches!(*time, "0" | "infinity")) {
        let message = format!("{UNIT} has no watchdog: systemd does not restart a hung agent");
        return Some(Finding::warning(message, format!("{edit}: [Service] WatchdogSec=30s")));
    }
    let mount = mount.filter(|mount| *mount != Path::new("/"))?;
    let waited_for = unit.get("RequiresMountsFor")?;
    if waited_for.split(' ').any(|path| Path::new(path).starts_with(mount)) {
        return None;
    }
    let mount = mount.display();
    let message = format!(
        "{UNIT} does not wait for {mount}, where the database is: started earlier, it makes a new one"
    );
    Some(Finding::warning(message, format!("{edit}: [Unit] RequiresMountsFor={mount}")))
}

/// Returns the first enabled unit of an output with `Id` and `UnitFileState`; an empty line
/// separates units.
fn enabled(text: &str) -> Option<&str> {
    let units = text.split("\n\n").map(properties);
    let mut enabled = units.filter(|unit| unit.get("UnitFileState").is_some_and(|state| *state == "enabled"));
    enabled.next()?.get("Id").copied()
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

    fn concern(settings: &str, mount: &str, waiters: &str) -> Option<Finding> {
        concerns(&properties(settings), Some(Path::new(mount)), waiters)
    }

    const PACKAGED: &str = "WatchdogUSec=30s\nAfter=network.target time-sync.target\nRequires=sysinit.target\n\
                            RequiresMountsFor=/var/lib/edgesync /etc/edgesync\n";

    #[test]
    fn the_packaged_unit_is_without_concerns() {
        let waiters = "Id=systemd-time-wait-sync.service\nUnitFileState=disabled\n\nId=chrony-wait.service\nUnitFileState=\n";
        for mount in ["/", "/var", "/var/lib/edgesync"] {
            assert_eq!(concern(PACKAGED, mount, waiters), None, "{mount}");
        }
        assert_eq!(concern("", "/data", ""), None, "an old systemd shows less");
        assert_eq!(concerns(&properties(PACKAGED), None, ""), None, "without /proc");
    }

    #[test]
    fn each_concern_about_the_unit_has_its_next_step() {
        let with = |line: &str| concern(&format!("{line}\n{PACKAGED}"), "/var", "").unwrap();
        let after = PACKAGED.replace("network.target", "network.target network-online.target");
        warned(concern(&after, "/var", "").unwrap(), "starts after network-online.target", "systemctl cat");
        warned(with("BindsTo=network-online.target"), "does not start", "systemctl cat");
        let hung = |value: &str| concern(&PACKAGED.replace("30s", value), "/var", "").unwrap();
        warned(hung("0"), "no watchdog", "WatchdogSec=30s");
        warned(hung("infinity"), "no watchdog", "WatchdogSec=30s");
        let elsewhere = concern(PACKAGED, "/data", "").unwrap();
        warned(elsewhere, "does not wait for /data", "RequiresMountsFor=/data");
        let waiters =
            "Id=a.service\nUnitFileState=disabled\n\nId=chrony-wait.service\nUnitFileState=enabled\n";
        let waits = concern(PACKAGED, "/var", waiters).unwrap();
        warned(waits, "chrony-wait.service is enabled", "systemctl disable chrony-wait.service");
    }
}
