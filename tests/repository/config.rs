//! Checks the documented configuration files against the built-in defaults, and the error messages
//! of the parser.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use edgesync_config as config;
use edgesync_config::{Change, ConfigErrors, Loaded, Settings, Source, edge, settings};

const EDGE: &str = include_str!("../../config/edgesync.toml");
const CLOUD: &str = include_str!("../../config/edgesync-cloud.toml");
const FILES: &str = include_str!("../../docs/files.md");

fn load<C: Settings>(text: &str, variables: &[(&str, &str)]) -> Result<Loaded<C>, ConfigErrors> {
    // The host name of the machine under test is not part of any test.
    let name = ("EDGESYNC_NODE_NAME", "gw-1");
    let given = variables.iter().any(|(key, _)| *key == name.0) || text.contains("name =");
    let variables = variables.iter().chain((!given).then_some(&name));
    let variables = variables.map(|(key, value)| (OsString::from(key), OsString::from(value)));
    config::parse(Path::new("/etc/edgesync/edgesync.toml"), text, variables)
}

fn edge_config(text: &str) -> edge::Config {
    load::<edge::Config>(text, &[]).unwrap().config
}

fn edge_errors(text: &str) -> ConfigErrors {
    load::<edge::Config>(text, &[]).unwrap_err()
}

/// The values of a configuration by `section.key`.
fn values<C: Settings>(config: &C) -> BTreeMap<String, String> {
    settings(config).into_iter().map(|s| (format!("{}.{}", s.section, s.key), s.value)).collect()
}

/// The documented defaults of a file: its `#key = value` lines by `section.key`.
fn documented(text: &str) -> BTreeMap<String, String> {
    let mut section = "";
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        let Some(line) =
            line.strip_prefix('#').filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        else {
            continue;
        };
        let (key, value) = line.split_once(" = ").unwrap_or_else(|| panic!("not a default: #{line}"));
        let twice = found.insert(format!("{section}.{key}"), value.to_owned());
        assert_eq!(twice, None, "{section}.{key} is documented twice");
    }
    found
}

/// Returns the file with all documented defaults made effective.
fn uncommented(text: &str) -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

/// Checks that the file documents the default of each key, and whether a reload applies it.
fn check_documented<C: Settings + PartialEq + std::fmt::Debug>(text: &str) {
    let mut built_in = values(&C::default());
    built_in.remove(".placement");
    built_in.remove(".files");
    assert_eq!(documented(text), built_in);

    let as_is = load::<C>(text, &[]).unwrap();
    let uncommented = load::<C>(&uncommented(text), &[]).unwrap();
    assert_eq!(as_is.config, uncommented.config);
    assert_eq!(as_is.warnings, Vec::<String>::new());

    for setting in settings(&C::default()).iter().filter(|setting| !setting.section.is_empty()) {
        let start = text.find(&format!("\n[{}]\n", setting.section)).unwrap();
        let at = start + text[start..].find(&format!("\n#{} = ", setting.key)).unwrap();
        // The comment above, which other keys may share.
        let above = text[..at].rsplit("\n\n").next().unwrap();
        let live = above.contains("[live]");
        assert_eq!(live, setting.change == Change::Live, "[{}] {}: {above}", setting.section, setting.key);
    }
}

#[test]
fn agent_file_documents_every_key_with_its_default() {
    check_documented::<edge::Config>(EDGE);
}

#[test]
fn cloud_file_documents_every_key_with_its_default() {
    check_documented::<edgesync_fleet::config::Config>(CLOUD);
}

#[test]
fn relative_paths_resolve_against_the_files_directory() {
    let text = "[store]\npath = \"db/edge.db\"\n[api]\nsocket = \"/run/e.sock\"\n[link]\nbroker = \"mqtts://b\"\nca_file = \"ca.crt\"\n";
    let variables = [("EDGESYNC_IDENTITY_DIRECTORY".into(), "identity/a".into())];
    let loaded = config::parse::<edge::Config>(Path::new("/srv/node/edge.toml"), text, variables).unwrap();
    let config = loaded.config;
    assert_eq!(config.store.path, Path::new("/srv/node/db/edge.db"));
    assert_eq!(config.api.socket, Path::new("/run/e.sock"));
    assert_eq!(config.identity.directory.as_deref(), Some(Path::new("/srv/node/identity/a")));
    assert_eq!(config.link.ca_file.as_deref(), Some(Path::new("/srv/node/ca.crt")));
    // Derived paths follow the paths they derive from.
    assert_eq!(config.api.kubeconfig, Path::new("/srv/node/db/kubeconfig"));
    let here = config::parse::<edge::Config>(Path::new("edge.toml"), text, []).unwrap().config;
    assert_eq!(here.store.path, Path::new("db/edge.db"));
    assert_eq!(here.link.password_file, None);
}

/// Returns the indented example in the comments of a file.
fn example(text: &str) -> String {
    let lines =
        text.lines().filter_map(|line| line.strip_prefix("#   ").filter(|line| !line.starts_with(' ')));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn example_file_rule_parses_with_the_defaults() {
    let config = edge_config(&example(EDGE));
    let [rule] = config.files.rules.as_slice() else { panic!("{:?}", config.files) };
    assert_eq!((rule.name.as_str(), rule.mode), ("nginx", Some(0o640)));
    let default = edgesync_files::Rule::default();
    assert_eq!(
        (rule.settle, rule.healthy_within, rule.timeout, rule.max_files, rule.max_size),
        (default.settle, default.healthy_within, default.timeout, default.max_files, default.max_size)
    );
}

/// Returns the blocks of TOML with file rules in a part of a document.
fn file_rules(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("\n```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.filter(|block| block.contains("[[files]]"))
}

/// The author of an object decides what the program of its rule reads, and operators copy examples.
#[test]
fn example_file_rules_name_namespaces_and_who_becomes_root() {
    for section in FILES.split("\n## ").filter(|section| file_rules(section).next().is_some()) {
        let says = section.contains("*Who becomes root:*") || section.contains("](#who-becomes-root)");
        assert!(says, "docs/files.md does not say who becomes root by the rules of: {section}");
    }
    let examples = file_rules(FILES).map(str::to_owned).chain([example(EDGE)]);
    let rules: Vec<_> = examples.flat_map(|example| edge_config(&example).files.rules).collect();
    assert!(rules.len() >= 9, "the examples were not found: {rules:?}");
    for rule in rules {
        let namespaces = &rule.objects.namespaces;
        assert!(!namespaces.is_empty(), "{} takes objects of every namespace", rule.name);
        assert!(!namespaces.iter().any(|glob| glob.matches("any")), "{}: {namespaces:?}", rule.name);
    }
}

#[test]
fn example_placement_rule_parses() {
    let example = CLOUD
        .lines()
        .filter_map(|line| line.strip_prefix("#   ").filter(|line| !line.starts_with(' ')))
        .collect::<Vec<_>>()
        .join("\n");
    let config = load::<edgesync_fleet::config::Config>(&example, &[]).unwrap().config;
    let [rule] = config.placement.rules.as_slice() else { panic!("{:?}", config.placement) };
    let north = BTreeMap::from([("site".to_owned(), "north".to_owned())]);
    assert!(rule.rule.nodes.matches("gw-7", &north));
    assert!(!rule.rule.nodes.matches("other", &north));
    assert_eq!(rule.name.as_deref(), Some("plant"));
    assert_eq!(rule.rollout.as_ref().map(|rollout| rollout.waves.count()), Some(3));
}

#[test]
fn check_config_output_parses_to_the_same_configuration() {
    let text = r#"
        [node]
        name = "gw-7"
        labels = { "example.com/site" = "north", rack = "4" }
        [store]
        scrub_interval = "never"
        [link]
        broker = "mqtt://[::1]:1884"
        username = 'a"b\c'
        keepalive = "90s"
        [sync]
        compress_above = "never"
        [log]
        level = "warn,edgesync::link=trace"
    "#;
    let loaded = load::<edge::Config>(text, &[("EDGESYNC_LINK_INFLIGHT", "8")]).unwrap();
    let shown = loaded.show();
    assert_eq!(edge_config(&shown), loaded.config, "{shown}");
    let origin = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        line.rsplit_once(" # ").unwrap().1.to_owned()
    };
    assert_eq!(origin("keepalive"), "line 10");
    assert_eq!(origin("inflight"), "EDGESYNC_LINK_INFLIGHT");
    assert_eq!(origin("client_id"), "default: the node name");
    assert_eq!(origin("socket_mode"), "default");
}

#[test]
fn cloud_check_config_output_parses_to_the_same_configuration() {
    let text = "[[placement]]\nnodes.names = [\"a*\"]\nobjects = { kinds = [\"cm\"] }\n[[placement]]\n[broker]\nmode = \"external\"\n";
    let loaded = load::<edgesync_fleet::config::Config>(text, &[]).unwrap();
    let again = load::<edgesync_fleet::config::Config>(&loaded.show(), &[]).unwrap();
    assert_eq!(again.config, loaded.config, "{}", loaded.show());
    assert_eq!(again.config.placement.rules.len(), 2);
}

#[test]
fn invalid_value_is_reported_with_its_line_and_range() {
    let errors = edge_errors("[link]\nkeepalive = \"1s\"\n");
    let expected = "\
/etc/edgesync/edgesync.toml:2:13: link.keepalive: must be between 2s and 20m, not 1s
  |
2 | keepalive = \"1s\"
  |             ^^^^";
    assert_eq!(errors.to_string(), expected);
}

#[test]
fn wrong_types_are_refused_with_the_expected_form() {
    for (text, expected) in [
        (
            "[link]\nkeepalive = 20",
            "link.keepalive: must be a duration: a whole number with the unit ms, s, m, h or d, such as \"20s\", not the integer 20",
        ),
        ("[link]\nkeepalive = \"20\"", "such as \"20s\", not \"20\""),
        ("[link]\nkeepalive = \"2.5s\"", "a whole number with the unit"),
        ("[link]\nkeepalive = \"2500ms\"", "link.keepalive: must be whole seconds"),
        ("[link]\nkeepalive = \"99999999999999999999s\"", "must be a duration"),
        ("[link]\nkeepalive = \"18446744073709551615d\"", "must be a duration"),
        ("[link]\nkeepalive = true", "not true"),
        ("[link]\ninflight = \"64\"", "must be a whole number between 1 and 64, not \"64\""),
        ("[link]\ninflight = 65", "must be a whole number between 1 and 64, not the integer 65"),
        ("[link]\ninflight = -1", "not the integer -1"),
        ("[link]\ninflight = 6.5", "not the number 6.5"),
        ("[link]\nmax_frame = \"256KB\"", "with the unit B, KiB, MiB, GiB or TiB"),
        ("[link]\nmax_frame = \"32MiB\"", "must be between 16KiB and 16MiB, not 32MiB"),
        ("[link]\nmax_frame = \"8KiB\"", "must be between 16KiB and 16MiB, not 8KiB"),
        (
            "[link]\nbroker = \"broker:1883\"",
            "must be a broker address such as \"mqtts://broker.example:8883\"",
        ),
        ("[link]\nprefix = \"a/#\"", "without '+', '#'"),
        ("[link]\ntype = \"ws\"", "link.type: must be one of \"mqtt\", \"kubeedge\", not \"ws\""),
        ("[kubeedge]\nurl = \"ws://192.0.2.1\"", "without TLS on loopback only"),
        ("[kubeedge]\nkeepalive = \"30s\"", "kubeedge.keepalive: must be between 1s and 25s, not 30s"),
        ("[kubeedge]\nmax_message = \"1GiB\"", "must be between 1MiB and 128MiB, not 1GiB"),
        ("[kubeedge]\nfetch = [\"default/pod/a\"]", "2:10: kubeedge.fetch: "),
        ("[kubeedge]\nwatch = [\"widgets\"]", "2:10: kubeedge.watch: "),
        ("[kubeedge]\nfetch = \"a\"", "must be a list such as [\"default/configmap/app-*\"], not \"a\""),
        ("[store]\npath = \"\"", "must be a path"),
        ("[store]\nscrub_interval = \"off\"", "must be a duration"),
        ("[store]\nscrub_interval = 0", "or \"never\", not the integer 0"),
        ("[node]\nname = \"Gateway_7\"", "must be a DNS-1123 subdomain"),
        ("[node]\nname = \"x\"\nlabels = { site = 4 }", "must be a string, not the integer 4"),
        ("[node]\nname = \"x\"\nlabels = { \"a b\" = \"\" }", "label \"a b\""),
        ("[node]\nname = \"x\"\nlabels = [\"a\"]", "must be a table"),
        ("[api]\nsocket_mode = \"0999\"", "permission bits in octal"),
        ("[api]\nsocket_mode = 660", "permission bits in octal such as \"0660\", not the integer 660"),
        (
            "[api]\nlisten = \"0.0.0.0:10550\"",
            "must be a loopback address with a port such as \"127.0.0.1:10550\", or \"off\", not 0.0.0.0:10550: the \
             local API has no TLS",
        ),
        ("[api]\nlisten = \"10550\"", "or \"off\", not \"10550\""),
        ("[api]\nwatch_buffer = \"1KiB\"", "must be between 64KiB and 64MiB, not 1KiB"),
        ("[log]\nlevel = \"chatty\"", "must be a level (off, error,"),
        ("[log]\nformat = \"xml\"", "must be one of \"auto\", \"text\", \"json\", \"journald\", not \"xml\""),
        ("log = \"info\"", "log must be a section, written [log]"),
    ] {
        let shown = edge_errors(text).to_string();
        assert!(shown.contains(expected), "{text}\n{shown}");
    }
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    for (text, expected) in [
        (
            "[link]\nkeep_alive = \"20s\"",
            "2:1: unknown key in [link]: \"keep_alive\"; did you mean 'keepalive'?",
        ),
        ("[link]\ncolour = 1", "unknown key in [link]: \"colour\"; must be one of type, broker, proxy"),
        ("[lnk]\n", "1:2: unknown section: \"lnk\"; did you mean 'link'?"),
        ("keepalive = 1", "unknown section: \"keepalive\"; must be one of"),
        // Of a later version, such as after a downgrade.
        ("[link]\nlanguage = \"x\"", "2:1: unknown key in [link]: \"language\"; must be one of type, broker"),
        ("[relay]\nlisten = 1", "; hint: remove it, or install the version that has it"),
    ] {
        let shown = edge_errors(text).to_string();
        assert!(shown.contains(expected), "{text}\n{shown}");
    }
}

#[test]
fn problems_are_reported_together_in_file_order() {
    let text = "[log]\nlevel = 3\n[link]\ninflight = 0\nkeepalife = \"3s\"\nkeepalive = \"0s\"\n";
    let errors = load::<edge::Config>(text, &[("EDGESYNC_STORE_PATH", "")]).unwrap_err();
    let lines = errors.to_string();
    let places =
        lines.lines().filter(|l| l.contains(": ")).map(|l| l.split(": ").next().unwrap()).collect::<Vec<_>>();
    let file = "/etc/edgesync/edgesync.toml";
    let expected =
        [format!("{file}:2:9"), format!("{file}:4:12"), format!("{file}:5:1"), format!("{file}:6:13")];
    assert_eq!(places[..4], expected, "{lines}");
    assert_eq!(places[4], "environment variable EDGESYNC_STORE_PATH", "{lines}");
    assert_eq!(places.len(), 5, "{lines}");
}

#[test]
fn syntax_errors_name_each_line_once() {
    let errors = edge_errors("[link\nkeepalive = \n\n[log]\nlevel = \"info\n");
    let shown = errors.to_string();
    assert!(shown.contains("edgesync.toml:1:"), "{shown}");
    assert!(shown.contains("edgesync.toml:5:"), "{shown}");
    assert!(errors.problems.len() <= 3, "{shown}");
}

#[test]
fn conflicting_values_are_reported_together() {
    let errors = edge_errors("[link]\nbackoff_min = \"2m\"\n");
    let shown = errors.to_string();
    assert!(
        shown.contains("2:15: link.backoff_min (2m) must not be more than link.backoff_max (1m)"),
        "{shown}"
    );

    let errors = load::<edge::Config>("", &[("EDGESYNC_SYNC_MAX_OBJECT", "8KiB")]).unwrap_err();
    let shown = errors.to_string();
    let expected = "environment variable EDGESYNC_SYNC_MAX_OBJECT: link.max_frame (256KiB) must not be more than \
                    sync.max_object (8KiB)";
    assert!(shown.contains(expected), "{shown}");

    let shown = edge_errors("[link]\npassword_file = \"/x\"\n").to_string();
    assert!(shown.contains("link.password_file needs link.username"), "{shown}");
}

#[test]
fn kubeedge_link_requires_cloudcore_and_a_certificate() {
    let shown = edge_errors("[link]\ntype = \"kubeedge\"\n").to_string();
    assert!(shown.contains("toml:2:8: link.type is \"kubeedge\" and kubeedge.url is not set"), "{shown}");
    let shown =
        edge_errors("[link]\ntype = \"kubeedge\"\n[kubeedge]\nurl = \"wss://cloud.example\"\n").to_string();
    assert!(shown.contains("toml:4:7: wss://cloud.example:10000 requires a certificate"), "{shown}");
    let with = |more: &str| {
        let text = format!("[link]\ntype = \"kubeedge\"\n{more}\n[kubeedge]\nurl = \"ws://127.0.0.1\"\n");
        load::<edge::Config>(&text, &[])
    };
    let loaded = with("").unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let peer = loaded.config.peer();
    assert_eq!((peer.to_string().as_str(), peer.key), ("ws://127.0.0.1:10000", "kubeedge.url"));
    assert!(peer.is_local() && !peer.tls);
    // A key that only MQTT needs is accepted with a warning.
    let loaded = with("password_file = \"/x\"\nbroker = \"mqtts://b\"").unwrap();
    assert!(
        loaded.warnings.iter().any(|w| w.starts_with("link.broker has no effect")),
        "{:?}",
        loaded.warnings
    );
    assert!(
        loaded.warnings.iter().any(|w| w.starts_with("link.password_file has no")),
        "{:?}",
        loaded.warnings
    );
    let shown = with("[sync]\nmax_object = \"64MiB\"").unwrap_err().to_string();
    let expected = "sync.max_object (64MiB) must not be more than kubeedge.max_message (32MiB)";
    assert!(shown.contains(expected), "{shown}");

    let loaded = load::<edge::Config>("[kubeedge]\nurl = \"wss://a\"\n", &[]).unwrap();
    assert_eq!(loaded.warnings, ["kubeedge.url is not used: link.type is \"mqtt\""]);
}

#[test]
fn environment_variables_override_every_key() {
    let config = edge::Config::default();
    // Rules have no variable.
    for setting in settings(&config).into_iter().filter(|setting| !setting.section.is_empty()) {
        let name = format!("EDGESYNC_{}_{}", setting.section, setting.key).to_uppercase();
        let loaded = load::<edge::Config>("", &[(name.as_str(), "\u{1}")]);
        // No key accepts a control character, except a path.
        match loaded {
            Err(errors) => assert!(errors.to_string().contains(&name), "{name}: {errors}"),
            Ok(loaded) => {
                let key = format!("{}.{}", setting.section, setting.key);
                assert_eq!(loaded.sources[&key], Source::Variable(name));
            }
        }
    }
    let loaded = load::<edge::Config>(
        "[link]\nkeepalive = \"30s\"\n",
        &[("EDGESYNC_LINK_KEEPALIVE", "40s"), ("EDGESYNC_NODE_LABELS", "site=north,rack=4")],
    )
    .unwrap();
    assert_eq!(loaded.config.link.keepalive, Duration::from_secs(40));
    assert_eq!(loaded.config.node.labels.len(), 2);
}

#[test]
fn unknown_environment_variables_are_reported() {
    let variables = [
        ("EDGESYNC_LINK_KEEPALIV", "40s"),
        ("EDGESYNC_CLOUD_API_LISTEN", "x"),
        ("EDGESYNC_CONFIG", "/x"),
        ("HOME", "/root"),
    ];
    let loaded = load::<edge::Config>("", &variables).unwrap();
    let [warning] = loaded.warnings.as_slice() else { panic!("{:?}", loaded.warnings) };
    assert!(warning.contains("EDGESYNC_LINK_KEEPALIV ignored"), "{warning}");
    assert!(warning.contains("did you mean EDGESYNC_LINK_KEEPALIVE?"), "{warning}");
}

#[test]
fn node_name_defaults_to_the_host_name() {
    let loaded = config::parse::<edge::Config>(Path::new("x"), "", []);
    // Either outcome is correct: the host name of this machine may be no valid node name.
    match loaded {
        Ok(loaded) => {
            assert!(!loaded.config.node.name.is_empty());
            assert_eq!(loaded.config.link.client_id, loaded.config.node.name);
            assert_eq!(loaded.sources["node.name"], Source::Derived("the host name"));
        }
        Err(errors) => assert!(errors.to_string().contains("node.name must be set"), "{errors}"),
    }
    assert_eq!(edge_config("[node]\nname = \"a.b\"\n").link.client_id, "a.b");
}

#[test]
fn api_defaults_to_loopback_with_the_kubeconfig_by_the_database() {
    let config = edge_config("[store]\npath = \"/data/e.db\"\n");
    assert_eq!(config.api.kubeconfig, Path::new("/data/kubeconfig"));
    assert_eq!(config.api.listen, "127.0.0.1:10550".parse().ok());
    let config = edge_config("[api]\nlisten = \"off\"\nkubeconfig = \"/etc/k\"\n");
    assert_eq!((config.api.listen, &*config.api.kubeconfig), (None, Path::new("/etc/k")));
    assert_eq!(edge_config("[api]\nlisten = \"\"\n").api.listen, None);
    assert_eq!(edge_config("[api]\nlisten = \"[::1]:0\"\n").api.listen, "[::1]:0".parse().ok());
}

#[test]
fn reload_applies_live_keys_and_lists_those_needing_a_restart() {
    let before = load::<edge::Config>("[link]\nbroker = \"mqtt://a\"\n", &[]).unwrap();
    let next = edge_config(
        "[link]\nbroker = \"mqtt://b\"\nbackoff_max = \"2m\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n[node]\nlabels = { a = \"b\" }\nname = \"gw-1\"\n",
    );
    let (config, differences) = before.reloaded(&next);
    let named = |change| {
        let of = differences.iter().filter(|difference| difference.change == change);
        of.map(|difference| difference.key.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(named(Change::Live), ["link.backoff_max", "log.level"]);
    assert_eq!(named(Change::Restart), ["node.labels", "link.broker", "log.format"]);
    assert_eq!(config.link.broker, before.config.link.broker);
    assert_eq!(config.node, before.config.node);
    assert_eq!(config.link.backoff_max, Duration::from_secs(120));
    assert_eq!(config.log.level, next.log.level);
    assert_eq!(differences[0].old, "{}");
    assert_eq!(differences[0].new, "{ \"a\" = \"b\" }");
}

#[test]
fn reload_without_changes_reports_none() {
    let loaded = load::<edge::Config>(EDGE, &[]).unwrap();
    let (config, differences) = loaded.reloaded(&loaded.config);
    assert_eq!(config, loaded.config);
    assert_eq!(differences, []);
}

#[test]
fn unreadable_file_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("edgesync.toml");
    let message = |path: &Path| config::load::<edge::Config>(path).unwrap_err().to_string();
    assert!(message(&path).contains("edgesync.toml: cannot be read: No such file"), "{}", message(&path));
    std::fs::write(&path, b"a = \"\xff\"").unwrap();
    assert!(message(&path).contains("offset 5"), "{}", message(&path));
    std::fs::write(&path, " ".repeat(2 << 20)).unwrap();
    assert!(message(&path).contains("exceeds 1048576 bytes"), "{}", message(&path));
}

mod cloud_side {
    use super::*;
    use edgesync_fleet::config::{BrokerMode, Config};

    fn errors(text: &str) -> String {
        load::<Config>(text, &[]).unwrap_err().to_string()
    }

    #[test]
    fn clients_beyond_loopback_need_a_certificate() {
        let shown = errors("[broker]\nlisten = \"0.0.0.0:1883\"\ntls = \"off\"\n");
        assert!(shown.contains("toml:3:7: broker.tls = \"off\" admits every client"), "{shown}");
        assert!(shown.contains("use \"auto\", which requires a certificate there"), "{shown}");
        let at = |text: &str| load::<Config>(text, &[]).unwrap().config;
        for (text, demanded) in [
            ("", true),
            ("[broker]\nlisten = \"192.0.2.1:1\"\n", true),
            ("[broker]\nlisten = \"[::ffff:127.0.0.1]:1\"\n", false),
            ("[broker]\nlisten = \"127.0.0.1:1\"\ntls = \"on\"\n", true),
            ("[broker]\nlisten = \"127.0.0.1:1\"\ntls = \"off\"\n", false),
        ] {
            let broker = at(text).broker;
            assert_eq!(broker.tls.at(broker.listen.unwrap()), demanded, "{text}");
        }
    }

    #[test]
    fn service_names_must_be_hosts() {
        let shown = errors("[enrollment]\nnames = [\"cloud.example\", \"https://x\"]\n");
        assert!(
            shown.contains("\"https://x\" is neither a host name in lower case nor an IP address"),
            "{shown}"
        );
        let loaded =
            load::<Config>("", &[("EDGESYNC_CLOUD_ENROLLMENT_NAMES", "cloud.example,192.0.2.1")]).unwrap();
        assert_eq!(loaded.config.enrollment.names, ["cloud.example", "192.0.2.1"]);
        assert_eq!(loaded.config.enrollment.directory.to_str(), Some("/var/lib/edgesync-cloud/pki"));
    }

    #[test]
    fn earlier_name_of_a_section_works_with_a_warning() {
        let variable = [("EDGESYNC_CLOUD_PAIRING_NAMES", "cloud.example")];
        let loaded = load::<Config>("[pairing]\nlisten = \"off\"\n", &variable).unwrap();
        let enrollment = &loaded.config.enrollment;
        assert_eq!(
            (enrollment.listen, enrollment.names.as_slice()),
            (None, &["cloud.example".to_owned()][..])
        );
        assert_eq!(loaded.sources["enrollment.listen"], Source::Line(2));
        assert_eq!(
            loaded.warnings,
            [
                "section [pairing] is deprecated; hint: rename it to [enrollment]",
                "environment variable EDGESYNC_CLOUD_PAIRING_NAMES is deprecated; hint: rename it to \
                 EDGESYNC_CLOUD_ENROLLMENT_NAMES",
            ]
        );
        let misspelt = load::<Config>("", &[("EDGESYNC_CLOUD_PAIRING_NAME", "x")]).unwrap();
        let hint = "PAIRING_NAME ignored: no such key; did you mean EDGESYNC_CLOUD_ENROLLMENT_NAMES?";
        assert!(misspelt.warnings.iter().any(|text| text.ends_with(hint)), "{:?}", misspelt.warnings);
        let shown = errors("[enrollment]\nlisten = \"off\"\n[pairing]\nnames = []\n");
        assert!(shown.contains("toml:3:2: section [pairing] beside [enrollment]"), "{shown}");
        let shown = errors("[pairing]\nname = []\n");
        assert!(shown.contains("unknown key in [enrollment]: \"name\"; did you mean 'names'?"), "{shown}");
        for names in [["PAIRING", "ENROLLMENT"], ["ENROLLMENT", "PAIRING"]] {
            let [first, second] = names.map(|name| format!("EDGESYNC_CLOUD_{name}_LISTEN"));
            let both = load::<Config>("", &[(first.as_str(), "off"), (second.as_str(), "off")]);
            let shown = both.unwrap_err().to_string();
            assert!(shown.contains("hint: unset EDGESYNC_CLOUD_PAIRING_LISTEN"), "{shown}");
        }
    }

    #[test]
    fn invalid_placement_rule_is_reported_at_its_line() {
        let shown = errors("[[placement]]\nobjects.kinds = [\"cm\", \"Event\"]\n");
        assert!(
            shown.contains("toml:2:24: placement.objects.kinds: objects of kind 'Event' cannot be placed"),
            "{shown}"
        );
        assert!(errors("[placement]\nnodes = {}\n").contains("each written [[placement]]"));
        assert!(
            errors("[[placement]]\nnode = {}\n")
                .contains("placement: unknown key: \"node\"; did you mean 'nodes'?")
        );
    }

    #[test]
    fn send_windows_hold_at_least_one_frame() {
        let shown = errors("[sync]\nwindow_bytes = \"64KiB\"\nwindow_objects = 10\n");
        assert!(
            shown.contains("link.max_frame (256KiB) must not be more than sync.window_bytes (64KiB)"),
            "{shown}"
        );
        assert!(
            shown.contains("sync.frame_objects (128) must not be more than sync.window_objects (10)"),
            "{shown}"
        );
        let shown = errors("[sync]\nresend_max = \"1s\"\n");
        assert!(shown.contains("sync.resend_min (5s) must not be more than sync.resend_max (1s)"), "{shown}");
        assert!(errors("[sync]\nmass_delete_share = 10\n").contains("0.1 for ten per cent"));
    }

    #[test]
    fn unused_broker_address_is_reported() {
        let text = "[link]\nbroker = \"mqtt://broker.example\"\n";
        let loaded = load::<Config>(text, &[]).unwrap();
        assert!(loaded.warnings[0].contains("link.broker is not used"), "{:?}", loaded.warnings);
        let loaded = load::<Config>(text, &[("EDGESYNC_CLOUD_BROKER_MODE", "external")]).unwrap();
        assert_eq!(loaded.warnings, Vec::<String>::new());
        assert_eq!(loaded.config.broker.mode, BrokerMode::External);
    }

    #[test]
    fn api_address_takes_off_as_on_the_node() {
        for word in ["off", ""] {
            let loaded = load::<Config>(&format!("[api]\nlisten = \"{word}\"\n"), &[]).unwrap();
            assert_eq!((loaded.config.api.listen, loaded.warnings), (None, Vec::new()), "{word:?}");
        }
        assert!(errors("[api]\nlisten = \"none\"\n").contains("or \"off\", not \"none\""));
        let loaded = load::<Config>("[api]\nlisten = \"off\"\n[page]\nlisten = \"off\"\n", &[]).unwrap();
        assert!(loaded.warnings[0].contains("page.enabled is not used"), "{:?}", loaded.warnings);
    }

    #[test]
    fn listeners_with_the_same_address_are_refused() {
        let shown = errors("[api]\nlisten = \"0.0.0.0:8883\"\n[enrollment]\nlisten = \"0.0.0.0:8883\"\n");
        assert!(shown.contains("broker.listen and api.listen must not both be 0.0.0.0:8883"), "{shown}");
        assert!(shown.contains("api.listen and enrollment.listen must not both be 0.0.0.0:8883"), "{shown}");
        assert!(
            load::<Config>("[api]\nlisten = \"127.0.0.1:0\"\n[broker]\nlisten = \"127.0.0.1:0\"\n", &[])
                .is_ok()
        );
    }
}
