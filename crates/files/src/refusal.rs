//! Reasons why the files of an object are not written, as its status reports them.

/// A word that cannot be part of a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has no characters.
    #[error("empty")]
    Empty,
    /// It is `.` or `..`.
    #[error("reserved for directories")]
    Directory,
    /// It is longer than file systems permit.
    #[error("longer than 255 bytes")]
    TooLong,
    /// It has several components.
    #[error("contains '/'")]
    Slash,
    /// It has a character without a glyph, such as a line break.
    #[error("contains a control character")]
    Control,
    /// It begins as candidates or the layout of directories do.
    #[error("prefix reserved by edgesync")]
    Reserved,
    /// It begins with a dot.
    #[error("begins with a dot (hidden file)")]
    Hidden,
    /// It has a character that programs may treat as special.
    #[error("contains {0:?}: only letters, digits, '-', '_', '.' and ':' allowed")]
    Character(char),
}

/// Reason why a rule does not write an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The rule does not name the object.
    #[error("not selected by kind, namespace and name (objects of the rule)")]
    NotSelected,
    /// The rule does not select the labels of the object.
    #[error("labels do not match the selector (objects of the rule)")]
    Labels,
    /// The agent sent another object than it listed.
    #[error("body of another object received")]
    OtherObject,
    /// Name or namespace of the object cannot be part of the rule's path.
    #[error("invalid {part} in a path: {reason}")]
    PathWord {
        /// `name` or `namespace`.
        part: &'static str,
        /// Its problem.
        reason: NameError,
    },
    /// A component of the object's path cannot be a file name.
    #[error("invalid file name {name:?}: {reason}")]
    FileName {
        /// The component.
        name: String,
        /// Its problem.
        reason: NameError,
    },
    /// The object's file in a shared directory would have an invalid name.
    #[error("file {}: {reason}", shown(.name))]
    GatheredFile {
        /// The name.
        name: String,
        /// Its problem.
        reason: NameError,
    },
    /// A key would become a file with an invalid name.
    #[error("key {}: {reason}", shown(.name))]
    KeyName {
        /// The name of the file.
        name: String,
        /// Its problem.
        reason: NameError,
    },
    /// The value of a key is no text.
    #[error("key {} is not a string", shown(.0))]
    NotString(String),
    /// The value of a key or field of encoded bytes is not base64.
    #[error("key {} is not valid base64", shown(.0))]
    NotBase64(String),
    /// Two keys of the object would become the same file.
    #[error("two keys map to the file {}", shown(.0))]
    SameKey(String),
    /// The object has more keys than the rule permits files.
    #[error("more than {0} keys (max_files of the rule)")]
    TooManyKeys(u64),
    /// The object does not have the field that the rule writes.
    #[error("field {0} not found")]
    NoField(String),
    /// The object cannot be written as YAML, with the reason.
    #[error("{0}")]
    Yaml(String),
    /// Another object, `namespace/name`, has the place.
    #[error("same destination as {0}")]
    SameDestination(String),
    /// Another object has a file of this name in a shared directory.
    #[error("another object has a file of the same name in this directory")]
    SameFile,
    /// The object is sealed in the database and would be written to the disk of this directory.
    #[error(
        "{0} is on a disk: Secrets and other sealed kinds go to memory (tmpfs) unless the rule has plain_text_on_disk = true"
    )]
    OnDisk(String),
}

/// Quotes a name for messages, truncated: it comes from an object.
fn shown(name: &str) -> String {
    format!("{:?}", name.chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_quoted_and_truncated() {
        let reason = NameError::Character('\n');
        let refusal = Refusal::KeyName { name: "a\n".to_owned(), reason };
        let allowed = "only letters, digits, '-', '_', '.' and ':' allowed";
        assert_eq!(refusal.to_string(), format!("key \"a\\n\": contains '\\n': {allowed}"));
        let long = Refusal::NotString("x".repeat(1000)).to_string();
        assert_eq!(long, format!("key \"{}\" is not a string", "x".repeat(64)));
    }
}
