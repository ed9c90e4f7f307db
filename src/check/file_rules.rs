//! Checks that the device has the time zones of the rules, and that no rule lets objects choose
//! which file of the system they become.

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, split_hint};
use edgesync_files::Rule;
use edgesync_files::rule::Write;

pub(super) const CHECK: Check = Check {
    id: "file-rules",
    title: "File rules",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

/// Files and directories that root interprets on a usual system: programs, units, jobs, rights. A
/// file at a path of one's choice in them is root's power.
const INTERPRETED: [&str; 54] = [
    "/bin",
    "/boot",
    "/etc/NetworkManager",
    "/etc/apt",
    "/etc/binfmt.d",
    "/etc/containers",
    "/etc/cron.d",
    "/etc/cron.daily",
    "/etc/cron.hourly",
    "/etc/cron.monthly",
    "/etc/cron.weekly",
    "/etc/crontab",
    "/etc/dbus-1",
    "/etc/default",
    "/etc/dpkg",
    "/etc/environment",
    "/etc/fstab",
    "/etc/group",
    "/etc/init.d",
    "/etc/kubernetes",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/logrotate.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/network",
    "/etc/pam.d",
    "/etc/passwd",
    "/etc/polkit-1",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/rc.local",
    "/etc/security",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/tmpfiles.d",
    "/etc/udev",
    "/lib",
    "/lib64",
    "/root",
    "/run/systemd",
    "/sbin",
    "/usr/bin",
    "/usr/lib",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/sbin",
    "/usr/sbin",
    "/var/spool/cron",
];

fn examine(examined: &mut Examined) -> Finding {
    evaluate(&examined.config().files.rules)
}

fn evaluate(rules: &[Rule]) -> Finding {
    if rules.is_empty() {
        return Finding::skipped("no file rules configured");
    }
    let unknown: Vec<String> = rules
        .iter()
        .filter_map(|rule| Some(format!("rule {:?}: {}", rule.name, rule.unknown_zone.as_deref()?)))
        .collect();
    if let Some(first) = unknown.first() {
        let (_, next_step) = split_hint(first);
        let problems: Vec<String> = unknown.iter().map(|why| split_hint(why).0).collect();
        return Finding::failed(problems.join("; "), next_step.unwrap_or_default());
    }
    let problems: Vec<String> = rules.iter().filter_map(problem).collect();
    if problems.is_empty() {
        return Finding::ok("no rule lets objects choose a file that root interprets");
    }
    Finding::warning(
        problems.join("; "),
        "set objects.names, to without placeholders, and keys = { \"KEY\" = \"FILE\" }; docs/security.md has \
         the reason",
    )
}

/// Returns what an object can choose where root interprets files.
fn problem(rule: &Rule) -> Option<String> {
    let names_files = rule.write == Write::Keys && rule.keys.is_empty();
    let may_write = |path: &&&str| rule.to.may_reach(path) || (names_files && rule.to.contains(path));
    let path = INTERPRETED.iter().find(may_write)?;
    let what = if rule.to.has_placeholder() {
        "the object's name decides the path"
    } else if rule.objects.names.is_empty() {
        "objects of any name are written there"
    } else if names_files {
        "the object's keys are the file names"
    } else {
        return None;
    };
    Some(format!("rule {:?} may write {path}, which root interprets, and {what}", rule.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[test]
    fn objects_that_choose_a_file_of_the_system_cause_a_warning() {
        let examine = |to: &str, names: &str, write: &str| {
            let rule = format!("[[files]]\nname = \"r\"\nobjects = {{ {names} }}\nto = \"{to}\"\n{write}\n");
            examine(&mut Testbed::new(&rule).examined())
        };
        let one = "names = [\"gateway\"]";
        let field = "write = \"field\"\nfield = \"/data/a\"";
        let named = "keys = { \"a\" = \"50.conf\" }";
        for (to, write) in [
            ("/etc/systemd/system/gateway.service.d/50.conf", field),
            ("/etc/systemd/system/gateway.service.d", named),
            ("/etc", named),
            ("/etc/nginx/conf.d", ""),
            ("/etc/nginx/conf.d/{metadata.name}", ""),
            ("/run/edgesync-files/{metadata.namespace}/{metadata.name}", ""),
            ("/etc/systemd-like/{metadata.name}", ""),
        ] {
            ok(examine(to, one, write), "no rule");
        }
        for (to, names) in [
            ("/etc/systemd/system/gateway.service.d/50.conf", ""),
            ("/etc/ld.so.preload", ""),
            ("/etc/containers/systemd/{metadata.name}.container", one),
            ("/etc/cron.{metadata.namespace}/{metadata.name}", one),
            ("/etc/{metadata.namespace}/x", one),
            ("/{metadata.name}", one),
        ] {
            warned(examine(to, names, field), "which root interprets", "objects.names");
        }
        for to in ["/etc/systemd/system/gateway.service.d", "/etc/cron.d", "/etc"] {
            warned(examine(to, one, ""), "the object's keys are the file names", "keys = {");
        }
    }

    #[test]
    fn unknown_time_zone_of_a_rule_fails() {
        let rule =
            "[[files]]\nname = \"r\"\nto = \"/x\"\napply = { at = \"02:00-04:00\", zone = \"No/Where\" }\n";
        failed(
            examine(&mut Testbed::new(rule).examined()),
            "rule \"r\": windows are closed: time zone \"No/Where\"",
            "",
        );
    }

    #[test]
    fn without_rules_nothing_is_checked() {
        assert_eq!(evaluate(&[]), Finding::skipped("no file rules configured"));
    }
}
