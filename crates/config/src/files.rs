//! `[[files]]`: rules that derive files from objects, with check and reload.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::slot::{Keys, Raw, Refusal, Slot, inline, quote};
use super::units::{self, GIB, minutes, seconds};
use edgesync_files::rule::{CheckUser, Format, Reload, Rule, Signal, Write};
use edgesync_files::template::{Template, check_name};
use edgesync_object::name;

/// Maximum number of rules.
const MAX_RULES: usize = 100;

/// Rules in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Parsed rules, in order.
    pub rules: Vec<Rule>,
    /// Text of the rules, on one line.
    text: String,
}

impl Default for Files {
    fn default() -> Self {
        Self { rules: Vec::new(), text: "[]".into() }
    }
}

impl Files {
    /// Visits the key at the top level.
    pub(super) fn bind(&mut self, keys: &mut dyn Keys) {
        keys.section("");
        keys.live("files", Rules(self));
    }
}

struct Rules<'a>(&'a mut Files);

impl Slot for Rules<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusal> {
        let array = raw.rules("files", MAX_RULES)?;
        let mut rules: Vec<Rule> = Vec::with_capacity(array.len());
        for value in array {
            let at = |message: String| Refusal { message, span: Some(value.span()) };
            let rule = rule(value)
                .map_err(|refusal| Refusal { span: refusal.span.or(Some(value.span())), ..refusal })?;
            if let Some(other) = rules.iter().find(|other| other.name == rule.name || other.to == rule.to) {
                let what = if other.name == rule.name { "name" } else { "to" };
                return Err(at(format!("rules {:?} and {:?} have the same {what}", other.name, rule.name)));
            }
            rules.push(rule);
        }
        self.0.text =
            format!("[{}]", rules.iter().map(|rule| rule.text.as_str()).collect::<Vec<_>>().join(", "));
        self.0.rules = rules;
        Ok(())
    }

    fn show(&self) -> String {
        self.0.text.clone()
    }
}

type Value<'a> = Spanned<DeValue<'a>>;

const KEYS: &str = "name, objects, to, write, format, field, keys, gather, check, check_user, reload, mode, owner, settle, after, \
                    healthy_within, timeout, overwrite, plain_text_on_disk, max_files or max_size";
const TO: &str = "a path such as \"/etc/nginx/conf.d/{metadata.name}\"";
const PROGRAM: &str = "a list such as [\"/usr/sbin/nginx\", \"-t\"]";
const CHECK_USERS: &[(&str, CheckUser)] = &[("transient", CheckUser::Transient), ("root", CheckUser::Root)];
const RELOAD: &str = "{ unit = \"nginx.service\" }, { run = [\"/usr/bin/program\"] } or { signal = \"HUP\", pid_file = \
                      \"/run/program.pid\" }";

fn rule(value: &Value<'_>) -> Result<Rule, Refusal> {
    let raw = Raw::Toml(value.get_ref());
    let DeValue::Table(table) = value.get_ref() else { return Err(raw.expected("a rule")) };
    let mut rule = Rule { text: inline(value.get_ref()), ..Rule::default() };
    let (mut to, mut write, mut format, mut field) = (None, "keys".to_owned(), None, None);
    for (key, value) in table {
        let raw = Raw::Toml(value.get_ref());
        let read = match key.get_ref().as_ref() {
            "name" => word(raw, &mut rule.name),
            "objects" => objects(value, &mut rule),
            "to" => text(raw, TO)
                .and_then(|text| Template::parse(&text).map_err(Into::into))
                .map(|path| to = Some(path)),
            "write" => word(raw, &mut write),
            "format" => text(raw, "\"yaml\" or \"json\"").map(|word| format = Some(word)),
            "field" => text(raw, "a JSON pointer such as \"/data/key\"").map(|word| field = Some(word)),
            "keys" => keys(value, &mut rule.keys),
            "gather" => units::flag(&mut rule.gather).set(raw),
            "check" => program(raw, &mut rule.check),
            "check_user" => units::choice(&mut rule.check_user, CHECK_USERS).set(raw),
            "reload" => reload(value).map(|reload| rule.reload = reload),
            "mode" => units::file_mode(rule.mode.insert(0)).set(raw),
            "owner" => word(raw, &mut rule.owner),
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
            other => Err(format!("unknown key {}; must be {KEYS}", quote(other)).into()),
        };
        read.map_err(|refusal| {
            let message = match key.get_ref().as_ref() {
                known if KEYS.contains(known) => format!("{known} {}", refusal.message),
                _ => refusal.message,
            };
            Refusal { message, span: Some(refusal.span.unwrap_or_else(|| value.span())) }
        })?;
    }
    check_rule(&rule.name).map_err(|why| format!("must have a name: {why}"))?;
    rule.to = to.ok_or_else(|| format!("{}: to must be {TO}", rule.name))?;
    rule.write = match (write.as_str(), format.as_deref(), field) {
        ("keys", None, None) => Write::Keys,
        ("object", None | Some("yaml"), None) => Write::Object(Format::Yaml),
        ("object", Some("json"), None) => Write::Object(Format::Json),
        ("field", None, Some(field)) if field.starts_with('/') => Write::Field(field),
        _ => {
            let forms = "write must be \"keys\", \"object\" (with format = \"yaml\" or \"json\") or \"field\" (with field = \
                         \"/data/key\")";
            return Err(format!("{}: {forms}", rule.name).into());
        }
    };
    if !rule.keys.is_empty() && rule.write != Write::Keys {
        return Err(format!("{}: keys requires write = \"keys\"", rule.name).into());
    }
    if rule.check_user != CheckUser::Transient && rule.check.is_empty() {
        return Err(format!("{}: check_user requires check", rule.name).into());
    }
    if rule.gather && rule.to.has_name() {
        let message = "gather requires one directory: to must not contain {metadata.name}";
        return Err(format!("{}: {message}", rule.name).into());
    }
    Ok(rule)
}

fn text(raw: Raw<'_>, what: &str) -> Result<String, Refusal> {
    match raw {
        Raw::Toml(DeValue::String(text)) => Ok(text.to_string()),
        _ => Err(raw.expected(what)),
    }
}

fn word(raw: Raw<'_>, into: &mut String) -> Result<(), Refusal> {
    *into = text(raw, "a word")?;
    Ok(())
}

fn check_rule(word: &str) -> Result<(), String> {
    name::check_label(word).map_err(|problem| format!("{} is not a rule name: it {problem}", quote(word)))
}

fn table<'v, 't>(value: &'v Value<'t>, what: &str) -> Result<&'v toml::de::DeTable<'t>, Refusal> {
    value.get_ref().as_table().ok_or_else(|| Raw::Toml(value.get_ref()).expected(what))
}

fn objects(value: &Value<'_>, rule: &mut Rule) -> Result<(), Refusal> {
    let objects = &mut rule.objects;
    for (key, value) in
        table(value, "a table such as { kinds = [\"configmaps\"], namespaces = [\"plant\"] }")?
    {
        let raw = Raw::Toml(value.get_ref());
        let read = match key.get_ref().as_ref() {
            "kinds" => units::list(&mut objects.kinds, "a list of kinds", parse).set(raw),
            "namespaces" => units::list(&mut objects.namespaces, "a list of patterns", parse).set(raw),
            "names" => units::words(&mut objects.names, "a list of names", |_| Ok(())).set(raw),
            "selector" => text(raw, "a selector such as \"app=web\"").and_then(|text| {
                objects.selector = parse(&text)?;
                Ok(())
            }),
            other => {
                let known = "kinds, namespaces, names and selector";
                Err(format!("must have {known} only, not {}", quote(other)).into())
            }
        };
        read.map_err(|refusal| Refusal {
            span: Some(refusal.span.unwrap_or_else(|| value.span())),
            ..refusal
        })?;
    }
    Ok(())
}

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn keys(value: &Value<'_>, keys: &mut BTreeMap<String, String>) -> Result<(), Refusal> {
    for (key, value) in table(value, "a table such as { \"nginx.conf\" = \"default.conf\" }")? {
        let file = text(Raw::Toml(value.get_ref()), "the name of a file")?;
        check_name(&file).map_err(|why| format!("invalid file name {}: {why}", quote(&file)))?;
        keys.insert(key.get_ref().to_string(), file);
    }
    Ok(())
}

fn program(raw: Raw<'_>, words: &mut Vec<String>) -> Result<(), Refusal> {
    units::words(words, PROGRAM, |_| Ok(())).set(raw)?;
    match words.first() {
        Some(program) if !program.starts_with('/') => {
            Err(format!("must name its program by an absolute path, not {}", quote(program)).into())
        }
        _ => Ok(()),
    }
}

fn reload(value: &Value<'_>) -> Result<Reload, Refusal> {
    let (mut run, mut unit, mut signal, mut file) = (Vec::new(), None, None, None);
    for (key, value) in table(value, RELOAD)? {
        let raw = Raw::Toml(value.get_ref());
        match key.get_ref().as_ref() {
            "run" => program(raw, &mut run)?,
            "unit" => unit = Some(text(raw, "a unit")?),
            "signal" => signal = Some(text(raw, "a signal")?),
            "pid_file" => file = Some(text(raw, "a path")?),
            _ => return Err(format!("must be {RELOAD}").into()),
        }
    }
    let is_unit = |unit: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"@._:-\\".contains(&b);
        unit.len() <= 255 && unit.contains('.') && !unit.starts_with(['-', '.']) && unit.bytes().all(plain)
    };
    let signal = match signal.as_deref() {
        None => None,
        Some("HUP") => Some(Signal::Hup),
        Some("USR1") => Some(Signal::Usr1),
        Some("USR2") => Some(Signal::Usr2),
        Some(_) => return Err("signal must be \"HUP\", \"USR1\" or \"USR2\"".to_owned().into()),
    };
    match (unit, run.is_empty(), signal, file) {
        (Some(unit), true, None, None) if is_unit(&unit) => Ok(Reload::Unit(unit)),
        (None, false, None, None) => Ok(Reload::Run(run)),
        (None, true, Some(signal), Some(file)) if file.starts_with('/') => Ok(Reload::Signal(signal, file)),
        _ => Err(format!("must be {RELOAD}").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{edge, parse as load};
    use super::*;

    fn rules(text: &str) -> Result<Vec<Rule>, String> {
        let loaded = load::<edge::Config>(Path::new("x.toml"), text, []);
        loaded.map(|loaded| loaded.config.files.rules).map_err(|errors| errors.to_string())
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
        assert_eq!((nginx.check_user, certificates.check_user), (CheckUser::Root, CheckUser::Transient));
        assert_eq!(certificates.write, Write::Field("/data/tls.crt".into()));
        assert_eq!(certificates.reload, Reload::Signal(Signal::Hup, "/run/x.pid".into()));
    }

    #[test]
    fn invalid_rule_is_reported_with_its_requirement() {
        let rule =
            |line: &str| rules(&format!("[[files]]\nname = \"a\"\nto = \"/x/y\"\n{line}\n")).unwrap_err();
        for (line, expected) in [
            ("too = 1", "x.toml:4:7: files: unknown key \"too\"; must be name"),
            ("objects.kinds = [\"Event\"]", "objects of kind 'Event' cannot be placed"),
            ("objects.kind = []", "must have kinds, namespaces"),
            ("check = [\"nginx\"]", "check must name its program by an absolute path"),
            ("check_user = \"www-data\"", "check_user must be one of \"transient\", \"root\""),
            ("check_user = \"root\"", "check_user requires check"),
            ("reload = { unit = \"nginx\" }", "reload must be { unit"),
            ("reload = { unit = \"--x.service\" }", "reload must be { unit"),
            ("reload = { signal = \"KILL\", pid_file = \"/x\" }", "\"HUP\""),
            ("mode = \"0999\"", "mode must be"),
            ("write = \"field\"", "write must be \"keys\""),
            ("write = \"object\"\nformat = \"xml\"", "write must be \"keys\""),
            ("keys = { a = \"../b\" }", "contains '/'"),
            ("after = [\"b\"]", "names a missing rule"),
            ("settle = 3", "settle must be a duration"),
            ("[[files]]\nname = \"a\"\nto = \"/z\"", "have the same name"),
            ("[[files]]\nname = \"b\"\nto = \"/x/y\"", "have the same to"),
        ] {
            let error = rule(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(rules("[[files]]\nto = \"/x\"\n").unwrap_err().contains("must have a name"));
        assert!(rules("[[files]]\nname = \"a\"\n").unwrap_err().contains("to must be"));
        assert!(
            rules("[[files]]\nname = \"a\"\nto = \"x/y\"\n")
                .unwrap_err()
                .contains("to must be an absolute path")
        );
        assert!(rules("files = 7\n").unwrap_err().contains("each written [[files]]"));
        let gathered = "[[files]]\nname = \"a\"\nto = \"/x/{metadata.name}\"\ngather = true\n";
        assert!(rules(gathered).unwrap_err().contains("one directory"));
    }
}
