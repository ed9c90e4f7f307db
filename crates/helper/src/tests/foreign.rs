//! More files of others than are listed.

use super::*;

/// More than are listed in a directory.
const MANY: usize = 1_500;

/// Makes files of others in a directory, and returns their names.
fn plant(directory: &Path, prefix: &str) -> Vec<String> {
    let names: Vec<String> = (0..MANY).map(|number| format!("{prefix}-{number:04}")).collect();
    for name in &names {
        fs::write(directory.join(name), "theirs").unwrap();
    }
    names
}

#[test]
fn unlisted_files_of_others_block_no_change_and_stay() {
    let bed = Bed::new();
    let rule = bed.rule("{metadata.name}", Write::Keys);
    let web = bed.base().join("web");
    let run = |version: u32| {
        let objects = [config_map(version, &json!({ "a": version.to_string() }))];
        state(&bed.pass(&rule, &objects, None).0).0
    };
    assert_eq!(run(1), State::InEffect);
    // Beside the links they are no concern of the rule.
    let beside = plant(&web, "beside");
    assert_eq!(run(2), State::InEffect);
    assert_eq!(fs::read_to_string(web.join("a")).unwrap(), "2");
    let versions = bed.names("web").into_iter().filter(|name| name.starts_with("..v")).count();
    assert_eq!(versions, 1, "the old one is removed");
    // In a version they are a conflict, and none of them is lost with it.
    let inside = plant(&web.join("..data"), "inside");
    assert_eq!(run(2), State::Conflict);
    assert_eq!(run(3), State::Conflict);
    assert_eq!(fs::read_to_string(web.join("a")).unwrap(), "2");
    bed.pass(&rule, &[], None);
    assert_eq!(bed.names("web"), [beside, inside].concat());
}
