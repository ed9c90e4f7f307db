//! Mapping from documented log targets to module paths.
//!
//! Up to 0.1 everything was one crate, so `log.level` uses its modules:
//! `info,edgesync::link=debug`. A line's target is the path of its module, which changes when code
//! moves. The table keeps the names of `log.level` stable.

use tracing_subscriber::filter::Targets;

/// A documented name, and the modules that it currently covers.
type Name = (&'static str, &'static [&'static str]);

/// The modules of the former single crate. A target of a filter is a prefix of the line's target,
/// so a path that is a prefix of another crate's name ends in `::`. A name includes the names below
/// it: `edgesync::store` includes `edgesync::store::cloud`.
const NAMES: &[Name] = &[
    ("edgesync::agent", &["edgesync::agent"]),
    ("edgesync::api", &["edgesync_api"]),
    ("edgesync::audit", &["edgesync::audit"]),
    ("edgesync::broker", &["edgesync_broker"]),
    ("edgesync::check", &["edgesync::check", "edgesync_cli::check", "edgesync_cloud::check"]),
    ("edgesync::cli", &["edgesync::cli", "edgesync_cli", "edgesync_cloud::cli"]),
    ("edgesync::cloud", &["edgesync_cloud::", "edgesync_fleet"]),
    ("edgesync::cloud::pairing", &["edgesync_enrollment"]),
    ("edgesync::cloud::source::kubernetes", &["edgesync_kubernetes::source"]),
    ("edgesync::cluster", &["edgesync_kubernetes::cluster"]),
    ("edgesync::config", &["edgesync_config"]),
    ("edgesync::demo", &["edgesync_demo"]),
    ("edgesync::files", &["edgesync_files"]),
    ("edgesync::gate", &["edgesync_transport::admission"]),
    ("edgesync::helper", &["edgesync_helper"]),
    ("edgesync::join", &["edgesync_join"]),
    ("edgesync::link", &["edgesync_transport::link"]),
    ("edgesync::link::kubeedge", &["edgesync_kubeedge::link"]),
    ("edgesync::object", &["edgesync_object", "edgesync_schema", "edgesync_cel"]),
    ("edgesync::placement", &["edgesync_placement"]),
    ("edgesync::process", &["edgesync_runtime"]),
    ("edgesync::store", &["edgesync_store"]),
    ("edgesync::store::cache", &["edgesync_kubernetes::cache"]),
    ("edgesync::store::cloud", &["edgesync_cloud_store"]),
    ("edgesync::store::edge", &["edgesync::store"]),
    ("edgesync::sync", &["edgesync_protocol"]),
    ("edgesync::sync::kubeedge", &["edgesync_kubeedge"]),
    ("edgesync::tls", &["edgesync_transport::tls"]),
];

/// Replaces every documented name in the levels by its modules. A module that the levels name by
/// its current path keeps its level.
pub(super) fn present(levels: &Targets) -> Targets {
    let mut named: Vec<_> = levels.iter().collect();
    // Longer names take precedence, as in a filter.
    named.sort_by_key(|(target, _)| target.len());
    let mut present = Targets::new();
    if let Some(default) = levels.default_level() {
        present = present.with_default(default);
    }
    for (target, level) in &named {
        present = present.with_targets(modules(target).into_iter().map(|module| (module, *level)));
    }
    present.with_targets(named)
}

/// Returns the modules that a target covers; none if it neither begins with a documented name nor
/// is the beginning of one.
fn modules(target: &str) -> Vec<String> {
    let is_at = |name: &str, end: usize| name.len() == end || name[end..].starts_with("::");
    let within = |(name, _): &&Name| target.starts_with(name) && is_at(target, name.len());
    let below = |(name, _): &&Name| {
        name.len() > target.len() && name.starts_with(target) && is_at(name, target.len())
    };
    let mut modules = Vec::new();
    if let Some((name, present)) = NAMES.iter().filter(within).max_by_key(|(name, _)| name.len()) {
        let rest = &target[name.len()..];
        let joined = |module: &&str| {
            if rest.is_empty() {
                (*module).to_owned()
            } else {
                module.trim_end_matches("::").to_owned() + rest
            }
        };
        modules.extend(present.iter().map(joined));
        modules.extend(
            NAMES.iter().filter(below).flat_map(|(_, present)| present.iter().map(ToString::to_string)),
        );
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tracing::Level;

    fn is_enabled(levels: &str, target: &str, level: Level) -> bool {
        present(&levels.parse().unwrap()).would_enable(target, &level)
    }

    #[test]
    fn documented_name_sets_the_level_of_its_modules() {
        for (name, target) in [
            ("edgesync::link", "edgesync_transport::link::task"),
            ("edgesync::link", "edgesync_kubeedge::link::session"),
            ("edgesync::link::mqtt", "edgesync_transport::link::mqtt::session"),
            ("edgesync::store", "edgesync_store::writer"),
            ("edgesync::store", "edgesync::store::salvage"),
            ("edgesync::store", "edgesync_cloud_store::feed"),
            ("edgesync::store::edge", "edgesync::store::salvage"),
            ("edgesync::agent", "edgesync::agent::driver"),
            ("edgesync::cloud", "edgesync_cloud::service"),
            ("edgesync::cloud", "edgesync_enrollment::service"),
            ("edgesync::cloud::fleet", "edgesync_fleet::fleet::bodies"),
            ("edgesync::cloud::pairing::service", "edgesync_enrollment::service"),
            ("edgesync::audit", "edgesync::audit"),
            ("edgesync_transport::link", "edgesync_transport::link::task"),
            ("edgesync", "edgesync_transport::link::task"),
        ] {
            let levels = format!("info,{name}=debug");
            assert!(is_enabled(&levels, target, Level::DEBUG), "{name} {target}");
        }
    }

    #[test]
    fn documented_name_leaves_other_modules_alone() {
        for (name, target) in [
            ("edgesync::link", "edgesync_transport::tls"),
            ("edgesync::link::mqtt", "edgesync_kubeedge::link::session"),
            ("edgesync::cloud", "edgesync_cloud_store::feed"),
            ("edgesync::store::cloud", "edgesync_store::writer"),
            ("edgesync::agents", "edgesync::agent"),
            ("edgesync::cluster", "edgesync_kubernetes::source"),
        ] {
            let levels = format!("info,{name}=debug");
            assert!(!is_enabled(&levels, target, Level::DEBUG), "{name} {target}");
            assert!(is_enabled(&levels, target, Level::INFO), "{name} {target}");
        }
    }

    #[test]
    fn longer_names_and_current_paths_take_precedence() {
        let levels = "info,edgesync::store::cloud=debug,edgesync::store=warn";
        assert!(is_enabled(levels, "edgesync_cloud_store::feed", Level::DEBUG));
        assert!(!is_enabled(levels, "edgesync_store::writer", Level::INFO));
        let levels = "info,edgesync::link=debug,edgesync_transport::link=warn";
        assert!(!is_enabled(levels, "edgesync_transport::link::task", Level::INFO));
        assert!(is_enabled(levels, "edgesync_kubeedge::link::session", Level::DEBUG));
    }

    /// Returns the directory of the workspace.
    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn every_module_of_the_table_exists() {
        for module in
            NAMES.iter().flat_map(|(_, present)| *present).filter(|module| **module != edgesync_api::AUDIT)
        {
            let (package, path) = module.split_once("::").unwrap_or((module, ""));
            let source = match package.strip_prefix("edgesync_") {
                Some(name) => root().join("crates").join(name.replace('_', "-")).join("src"),
                None => root().join("src"),
            };
            let file =
                if path.is_empty() { "lib.rs".to_owned() } else { format!("{}.rs", path.replace("::", "/")) };
            assert!(source.join(&file).exists(), "{module}: no {file} in {}", source.display());
        }
    }

    #[test]
    fn the_configuration_page_has_the_table() {
        let page = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
        for (name, present) in NAMES {
            let modules: Vec<_> =
                present.iter().map(|module| format!("`{}`", module.trim_end_matches("::"))).collect();
            let row = format!("| `{name}` | {} |", modules.join(", "));
            assert!(page.contains(&row), "docs/configuration.md lacks the row {row}");
        }
    }
}
