//! `[[files]]`: rules that derive files from objects, with check and reload.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::binding::{Binding, Keys, Raw, Refusals, inline_without, quote};
use super::rules::{RuleList, rules};
use super::selection::{read_objects, read_table, table};
use super::units::{self, GIB, minutes, seconds};
use super::windows::windows;
use edgesync_files::rule::{CheckUser, Format, Reload, Rule, Signal, Write};
use edgesync_files::template::{Template, check_name};
use edgesync_object::name;

/// Maximum number of rules.
const MAX_RULES: usize = 100;

/// Rules that derive files, in the order of the file.
pub type Files = RuleList<Rule>;

impl Files {
    /// Visits the key at the top level.
    pub(super) fn bind(&mut self, keys: &mut dyn Keys) {
        keys.section("");
        keys.live("files", rules(self, "files", MAX_RULES, rule));
    }
}

type Value<'a> = Spanned<DeValue<'a>>;

const KEYS: &[&str] = &[
    "name",
    "objects",
    "to",
    "write",
    "format",
    "field",
    "keys",
    "gather",
    "check",
    "check_user",
    "reload",
    "mode",
    "owner",
    "settle",
    "after",
    "healthy_within",
    "timeout",
    "overwrite",
    "plain_text_on_disk",
    "max_files",
    "max_size",
    "apply",
    "unless",
    "condition",
    "condition_network",
    "overridable",
];
/// Keys that decide when changes take effect, and not what they are.
const WHEN: [&str; 5] = ["apply", "unless", "condition", "condition_network", "overridable"];
const RELOAD_KEYS: [&str; 4] = ["run", "unit", "signal", "pid_file"];
const NAME: &str = "a name such as \"nginx\"";
const TO: &str = "a path such as \"/etc/nginx/conf.d/{metadata.name}\"";
const UNLESS: &str = "an absolute path such as \"/run/busy\"";
const PROGRAM: &str = "a list such as [\"/usr/sbin/nginx\", \"-t\"]";
const CHECK_USERS: &[(&str, CheckUser)] = &[("transient", CheckUser::Transient), ("root", CheckUser::Root)];
const RELOAD: &str = "{ unit = \"nginx.service\" }, { run = [\"/usr/bin/program\"] } or { signal = \"HUP\", pid_file = \
                      \"/run/program.pid\" }";

/// The keys that decide together what is written.
#[derive(Default)]
struct WriteKeys {
    write: Option<String>,
    format: Option<String>,
    field: Option<String>,
}

fn rule(value: &Value<'_>, before: &[Rule]) -> Result<Rule, Refusals> {
    // Another window is no reason to write the files again.
    let mut rule = Rule { text: inline_without(value.get_ref(), &WHEN), ..Rule::default() };
    let (mut to, mut write) = (None, WriteKeys::default());
    let mut refusals = read_table(table(value, "a rule")?, KEYS, |key, value| {
        let raw = Raw::Toml(value.get_ref());
        Some(match key {
            "name" => text(raw, NAME).and_then(|name| {
                check_rule(&name)?;
                rule.name = name;
                Ok(())
            }),
            "objects" => read_objects(value, &mut rule.objects),
            "to" => text(raw, TO)
                .and_then(|text| Template::parse(&text).map_err(Into::into))
                .map(|path| to = Some(path)),
            "write" => text(raw, "a word").map(|word| write.write = Some(word)),
            "format" => text(raw, "\"yaml\" or \"json\"").map(|word| write.format = Some(word)),
            "field" => text(raw, "a JSON pointer such as \"/data/key\"").map(|word| write.field = Some(word)),
            "keys" => keys(value, &mut rule.keys),
            "gather" => units::flag(&mut rule.gather).set(raw),
            "check" => program(raw, &mut rule.check),
            "check_user" => units::choice(&mut rule.check_user, CHECK_USERS).set(raw),
            "reload" => reload(value).map(|reload| rule.reload = reload),
            "mode" => units::file_mode(rule.mode.insert(0)).set(raw),
            "owner" => text(raw, "a word").map(|owner| rule.owner = owner),
            "settle" => units::duration(&mut rule.settle, seconds(0)..=minutes(1)).set(raw),
            "after" => units::words(&mut rule.after, "a list of rules", check_rule).set(raw),
            "healthy_within" => units::duration(&mut rule.healthy_within, seconds(0)..=minutes(10)).set(raw),
            "timeout" => {
                units::duration(&mut rule.timeout, Duration::from_millis(100)..=minutes(10)).set(raw)
            }
            "overwrite" => units::flag(&mut rule.overwrite).set(raw),
            "plain_text_on_disk" => units::flag(&mut rule.plain_text_on_disk).set(raw),
            "max_files" => units::count(&mut rule.max_files, 1..=1_000_000).set(raw),
            "max_size" => units::size(&mut rule.max_size, 1..=GIB).set(raw),
            "apply" => windows(value, &mut rule),
            "unless" => text(raw, UNLESS).and_then(|path| {
                if !path.starts_with('/') {
                    return Err(Raw::Variable(&path).expected(UNLESS).into());
                }
                rule.unless = Some(path);
                Ok(())
            }),
            "condition" => program(raw, &mut rule.condition),
            "condition_network" => units::flag(&mut rule.condition_network).set(raw),
            "overridable" => units::flag(&mut rule.overridable).set(raw),
            _ => return None,
        })
    });
    // A violation by several keys together is reported at the rule.
    let mut require = |keys: &[&str], met: Result<(), String>| {
        if !keys.iter().any(|key| refusals.has(key)) {
            refusals.add("", &value.span(), met);
        }
    };
    let missing = |key: &str, what: &str, is_set: bool| match is_set {
        true => Ok(()),
        false => Err(format!("{key} is missing: must be {what}")),
    };
    require(&["name"], missing("name", NAME, !rule.name.is_empty()));
    require(&["to"], missing("to", TO, to.is_some()));
    require(&["write", "format", "field"], write.into_form().map(|form| rule.write = form));
    rule.to = to.unwrap_or_default();
    let keys = match rule.keys.is_empty() || rule.write == Write::Keys {
        true => Ok(()),
        false => Err("keys requires write = \"keys\"".to_owned()),
    };
    require(&["keys", "write", "format", "field"], keys);
    let check_user = match rule.check_user != CheckUser::Transient && rule.check.is_empty() {
        true => Err("check_user requires check".to_owned()),
        false => Ok(()),
    };
    require(&["check", "check_user"], check_user);
    let gather = match rule.gather && rule.to.has_name() {
        true => Err("gather requires one directory: to must not contain {metadata.name}".to_owned()),
        false => Ok(()),
    };
    require(&["gather", "to"], gather);
    let network = match rule.condition_network && rule.condition.is_empty() {
        true => Err("condition_network requires condition".to_owned()),
        false => Ok(()),
    };
    require(&["condition", "condition_network"], network);
    let overridable = match rule.overridable && rule.apply.is_empty() {
        true => Err("overridable requires apply: there is no window to override".to_owned()),
        false => Ok(()),
    };
    require(&["apply", "overridable"], overridable);
    refusals.result()?;
    let Some(other) = before.iter().find(|other| other.name == rule.name || other.to == rule.to) else {
        return Ok(rule);
    };
    let what = if other.name == rule.name { "name" } else { "to" };
    Err(format!("rules {:?} and {:?} have the same {what}", other.name, rule.name).into())
}

impl WriteKeys {
    /// Returns what is written.
    fn into_form(self) -> Result<Write, String> {
        match (self.write.as_deref().unwrap_or("keys"), self.format.as_deref(), self.field) {
            ("keys", None, None) => Ok(Write::Keys),
            ("object", None | Some("yaml"), None) => Ok(Write::Object(Format::Yaml)),
            ("object", Some("json"), None) => Ok(Write::Object(Format::Json)),
            ("field", None, Some(field)) if field.starts_with('/') => Ok(Write::Field(field)),
            _ => Err(
                "write must be \"keys\", \"object\" (with format = \"yaml\" or \"json\") or \"field\" (with \
                      field = \"/data/key\")"
                    .to_owned(),
            ),
        }
    }
}

fn text(raw: Raw<'_>, what: &str) -> Result<String, Refusals> {
    match raw {
        Raw::Toml(DeValue::String(text)) => Ok(text.to_string()),
        _ => Err(raw.expected(what).into()),
    }
}

/// Returns whether the unit of the helper hides a file of the system: PrivateTmp, ProtectHome and
/// PrivateDevices.
pub(super) fn hidden_from_helper(path: &str) -> bool {
    let is_below = |directory: &str| Path::new(path).starts_with(directory);
    ["/tmp", "/var/tmp", "/home", "/root", "/run/user", "/dev"].into_iter().any(is_below)
        && !is_below("/dev/shm")
}

fn check_rule(word: &str) -> Result<(), String> {
    name::check_label(word).map_err(|problem| format!("{} is not a rule name: it {problem}", quote(word)))
}

fn keys(value: &Value<'_>, keys: &mut BTreeMap<String, String>) -> Result<(), Refusals> {
    let mut refusals = Refusals::default();
    for (key, value) in table(value, "a table such as { \"nginx.conf\" = \"default.conf\" }")? {
        let read = text(Raw::Toml(value.get_ref()), "the name of a file").and_then(|file| {
            check_name(&file).map_err(|why| format!("invalid file name {}: {why}", quote(&file)))?;
            keys.insert(key.get_ref().to_string(), file);
            Ok(())
        });
        refusals.add("", &value.span(), read);
    }
    refusals.result()
}

fn program(raw: Raw<'_>, words: &mut Vec<String>) -> Result<(), Refusals> {
    units::words(words, PROGRAM, |_| Ok(())).set(raw)?;
    match words.first() {
        Some(program) if !program.starts_with('/') => {
            Err(format!("must name its program by an absolute path, not {}", quote(program)).into())
        }
        _ => Ok(()),
    }
}

fn reload(value: &Value<'_>) -> Result<Reload, Refusals> {
    let (mut run, mut unit, mut signal, mut file) = (Vec::new(), None, None, None);
    let refusals = read_table(table(value, RELOAD)?, &RELOAD_KEYS, |key, value| {
        let raw = Raw::Toml(value.get_ref());
        Some(match key {
            "run" => program(raw, &mut run),
            "unit" => text(raw, "a unit such as \"nginx.service\"").and_then(|name| {
                if !is_unit(&name) {
                    return Err(Raw::Variable(&name).expected("a unit such as \"nginx.service\"").into());
                }
                unit = Some(name);
                Ok(())
            }),
            "signal" => units::choice(signal.insert(Signal::Hup), SIGNALS).set(raw),
            "pid_file" => {
                text(raw, "an absolute path such as \"/run/program.pid\"").map(|path| file = Some(path))
            }
            _ => return None,
        })
    });
    refusals.result()?;
    match (unit, run.is_empty(), signal, file) {
        (Some(unit), true, None, None) => Ok(Reload::Unit(unit)),
        (None, false, None, None) => Ok(Reload::Run(run)),
        (None, true, Some(signal), Some(file)) if file.starts_with('/') => Ok(Reload::Signal(signal, file)),
        _ => Err(format!("must be {RELOAD}").into()),
    }
}

const SIGNALS: &[(&str, Signal)] = &[("HUP", Signal::Hup), ("USR1", Signal::Usr1), ("USR2", Signal::Usr2)];

fn is_unit(unit: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"@._:-\\".contains(&b);
    unit.len() <= 255 && unit.contains('.') && !unit.starts_with(['-', '.']) && unit.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::super::{edge, parse as load};
    use super::*;

    fn rules(text: &str) -> Result<Vec<Rule>, String> {
        let loaded = load::<edge::Config>(Path::new("x.toml"), text, []);
        loaded.map(|loaded| loaded.config.files.rules).map_err(|errors| errors.to_string())
    }

    /// Their file was never seen, and nothing said so.
    #[test]
    fn paths_that_the_helper_cannot_see_cause_a_warning() {
        let warnings = |path: &str| {
            let text = format!("[[files]]\nname = \"plc\"\nto = \"/x/y\"\nunless = \"{path}\"\n");
            load::<edge::Config>(Path::new("x.toml"), &text, []).unwrap().warnings
        };
        for path in
            ["/tmp/busy", "/var/tmp/a/b", "/home/plc/busy", "/root/busy", "/run/user/7/b", "/dev/sda1"]
        {
            let found = warnings(path).join("; ");
            assert!(found.starts_with("rule \"plc\": unless = ") && found.contains(path), "{found}");
            assert!(found.contains("hint: use a path below /run or /var/lib"), "{found}");
        }
        for path in
            ["/run/busy", "/var/lib/plc/busy", "/tmpfs/busy", "/run/users", "/dev/shm/busy", "/srv/tmp/x"]
        {
            assert_eq!(warnings(path), [""; 0], "{path}");
        }
    }

    #[test]
    fn rule_is_parsed() {
        let found = rules(
            r#"
            [[files]]
            name = "nginx"
            objects = { kinds = ["configmaps", "widgets.lab.io"], namespaces = ["plant-*"], selector = "app=nginx", names = ["a"] }
            to = "/etc/nginx/conf.d/{metadata.name}"
            keys = { "nginx.conf" = "default.conf" }
            check = ["/usr/sbin/nginx", "-t"]
            check_user = "root"
            reload = { unit = "nginx.service" }
            mode = "0640"
            owner = "root:nginx"
            settle = "500ms"
            after = ["certificates"]
            max_size = "1MiB"
            [[files]]
            name = "certificates"
            to = "/run/edgesync/tls/{metadata.namespace}.{metadata.name}.pem"
            write = "field"
            field = "/data/tls.crt"
            reload = { signal = "HUP", pid_file = "/run/x.pid" }
            "#,
        )
        .unwrap();
        let [nginx, certificates] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((nginx.mode, nginx.settle), (Some(0o640), Duration::from_millis(500)));
        assert_eq!((nginx.reload.clone(), nginx.max_size), (Reload::Unit("nginx.service".into()), 1 << 20));
        assert!(nginx.text.contains("name = \"nginx\"") && !nginx.text.contains('\n'));
        let rule = "[[files]]\nname = \"a\"\nto = \"/x/y\"\n";
        let windowed = format!("{rule}apply = {{ at = \"02:00-04:00\" }}\noverridable = true\n");
        let [plain, windowed] = [rule, &windowed].map(|text| rules(text).unwrap().remove(0));
        assert!(plain.text == windowed.text && plain != windowed, "{:?}", windowed.text);
        assert_eq!((nginx.check_user, certificates.check_user), (CheckUser::Root, CheckUser::Transient));
        assert_eq!(certificates.write, Write::Field("/data/tls.crt".into()));
        assert_eq!(certificates.reload, Reload::Signal(Signal::Hup, "/run/x.pid".into()));
    }

    #[test]
    fn invalid_rule_is_reported_with_its_requirement() {
        let rule =
            |line: &str| rules(&format!("[[files]]\nname = \"a\"\nto = \"/x/y\"\n{line}\n")).unwrap_err();
        for (line, expected) in [
            ("too = 1", "x.toml:4:1: files: unknown key: \"too\"; did you mean 'to'?"),
            ("objects.kinds = [\"Event\"]", "files.objects.kinds: objects of kind 'Event' cannot be placed"),
            ("objects.kind = []", "files.objects: unknown key: \"kind\"; did you mean 'kinds'?"),
            ("check = [\"nginx\"]", "files.check: must name its program by an absolute path"),
            ("check_user = \"www-data\"", "files.check_user: must be one of \"transient\", \"root\""),
            ("check_user = \"root\"", "check_user requires check"),
            ("reload = { unit = \"nginx\" }", "files.reload.unit: must be a unit such as"),
            ("reload = { unit = \"--x.service\" }", "files.reload.unit: must be a unit such as"),
            ("reload = { unit = \"a.service\", signal = \"HUP\" }", "files.reload: must be { unit"),
            (
                "reload = { signal = \"KILL\", pid_file = \"/x\" }",
                "files.reload.signal: must be one of \"HUP\"",
            ),
            ("mode = \"0999\"", "files.mode: must be"),
            ("write = \"field\"", "write must be \"keys\""),
            ("write = \"object\"\nformat = \"xml\"", "write must be \"keys\""),
            ("write = \"object\"\nkeys = { a = \"b\" }", "keys requires write = \"keys\""),
            ("keys = { a = \"../b\" }", "contains '/'"),
            ("after = [\"b\"]", "names a missing rule"),
            ("settle = 3", "files.settle: must be a duration"),
            ("[[files]]\nname = \"a\"\nto = \"/z\"", "have the same name"),
            ("[[files]]\nname = \"b\"\nto = \"/x/y\"", "have the same to"),
        ] {
            let error = rule(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(
            rules("[[files]]\nto = \"/x\"\n").unwrap_err().contains("files: name is missing: must be a name")
        );
        assert!(
            rules("[[files]]\nname = \"a\"\n").unwrap_err().contains("files: to is missing: must be a path")
        );
        assert!(
            rules("[[files]]\nname = \"a\"\nto = \"x/y\"\n")
                .unwrap_err()
                .contains("files.to: must be an absolute path")
        );
        assert!(rules("files = 7\n").unwrap_err().contains("each written [[files]]"));
        let gathered = "[[files]]\nname = \"a\"\nto = \"/x/{metadata.name}\"\ngather = true\n";
        assert!(rules(gathered).unwrap_err().contains("one directory"));
    }

    #[test]
    fn all_errors_of_all_rules_are_reported_together() {
        let error = rules(
            r#"
[[files]]
too = "/x"
objects = { kinds = ["cm", "Event", 7], name = "a" }
check = ["nginx"]
mode = "0999"
keys = { a = "../b", c = "/" }
write = "object"
format = "xml"
[[files]]
name = "b"
to = "x"
reload = { unit = "nginx", file = "/x" }
"#,
        )
        .unwrap_err();
        let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("x.toml:")).collect();
        let expected = [
            "x.toml:2:1: files: name is missing",
            "x.toml:2:1: files: to is missing",
            "x.toml:2:1: files: write must be",
            "x.toml:3:1: files: unknown key: \"too\"",
            "x.toml:4:28: files.objects.kinds: objects of kind 'Event'",
            "x.toml:4:37: files.objects.kinds: must be a string, not the integer 7",
            "x.toml:4:41: files.objects: unknown key: \"name\"",
            "x.toml:5:9: files.check: must name",
            "x.toml:6:8: files.mode: must be",
            "x.toml:7:14: files.keys: invalid file name",
            "x.toml:7:26: files.keys: invalid file name",
            "x.toml:12:6: files.to: must be an absolute path",
            "x.toml:13:19: files.reload.unit: must be",
            "x.toml:13:28: files.reload: unknown key: \"file\"",
        ];
        assert_eq!(lines.len(), expected.len(), "{error}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}: {expected}");
        }
    }
}
