//! Volumes of a Pod: types, file permissions. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{items, map};

/// Volume sources that create files.
const SOURCES: [&str; 4] = ["configMap", "secret", "downwardAPI", "projected"];

/// Returns whether a volume is of type `emptyDir`, which is the default.
pub(super) fn is_empty_dir(volume: &Map<String, Value>) -> bool {
    volume.contains_key("emptyDir") || volume.keys().all(|name| name == "name")
}

pub(super) fn check(volume: &Map<String, Value>, at: &Path, causes: &mut Causes) {
    for name in SOURCES {
        let (source, at) = (map(volume, name), at.field(name));
        check_mode(source, "defaultMode", &at, causes);
        check_items(source, &at, causes);
        for (number, part) in items(source, "sources") {
            let at = at.item("sources", number);
            SOURCES.iter().for_each(|name| check_items(map(part, name), &at.field(name), causes));
        }
    }
}

fn check_items(source: &Map<String, Value>, at: &Path, causes: &mut Causes) {
    for (number, item) in items(source, "items") {
        check_mode(item, "mode", &at.item("items", number), causes);
    }
}

fn check_mode(fields: &Map<String, Value>, name: &str, at: &Path, causes: &mut Causes) {
    if let Some(mode) = fields.get(name).and_then(Value::as_i64)
        && !(0..=0o777).contains(&mode)
    {
        let must = "must be a number between 0 and 0777 (octal), both inclusive";
        causes.invalid(&at.field(name), &mode.to_string(), must);
    }
}
