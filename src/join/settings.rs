//! Edits the configuration file: sets keys and leaves everything else as its author wrote it. Pure.

/// A key and its value: section, key, TOML text of the value.
pub type Setting<'a> = (&'a str, &'a str, String);

/// Sets keys in the text of a configuration. A line that sets the key (or a comment `#key = …` that shows its default)
/// in its section is replaced; else the key comes right behind the header of its section, which is added at the end
/// where it is missing.
///
/// # Errors
/// The result does not have the values that were asked for (a key inside a multi-line string, a section written as an
/// inline table or with dots): says which, and that the file is to be edited by hand.
pub fn set_all(text: &str, settings: &[Setting<'_>]) -> Result<String, String> {
    todo!()
}
