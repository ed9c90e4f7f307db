//! Path templates for an object's files: placeholders for name and namespace, and validation of
//! names.

use std::path::Path;

use super::Place;
use super::refusal::{NameError, Refusal};

/// Maximum length of a file name in bytes.
const MAX_NAME: usize = 255;
const NAME: &str = "{metadata.name}";
const NAMESPACE: &str = "{metadata.namespace}";

/// A path with the placeholders `{metadata.name}` and `{metadata.namespace}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Directory that the rule itself names.
    pub base: String,
    /// Path below it, with placeholders; the last component is written.
    rest: String,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// The template is invalid, with the requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(relative) = text.strip_prefix('/') else {
            return Err("must be an absolute path".to_owned());
        };
        let parts: Vec<&str> = relative.strip_suffix('/').unwrap_or(relative).split('/').collect();
        for part in &parts {
            let bare = part.replace(NAME, "").replace(NAMESPACE, "");
            if matches!(*part, "" | "." | "..") || part.len() > MAX_NAME || part.chars().any(char::is_control)
            {
                return Err(format!("must be a path without the component {part:?}"));
            }
            if bare.contains(['{', '}']) {
                return Err(format!("may contain the placeholders {NAME} and {NAMESPACE} only"));
            }
        }
        let fixed = parts.iter().take_while(|part| !part.contains('{')).count().min(parts.len() - 1);
        let (base, rest) = parts.split_at(fixed);
        Ok(Self { base: format!("/{}", base.join("/")), rest: rest.join("/") })
    }

    /// Returns the directory that the rule itself names.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns whether the path depends on the object.
    #[must_use]
    pub fn has_placeholder(&self) -> bool {
        self.rest.contains(NAME) || self.rest.contains(NAMESPACE)
    }

    /// Returns whether a path of the template can be this one, or below it.
    #[must_use]
    pub fn may_reach(&self, path: &str) -> bool {
        let place = Place { base: self.base.clone(), below: self.rest.clone() }.path();
        match place.split_once('{') {
            Some((literal, _)) if path.starts_with(literal) => true,
            Some((literal, _)) => Path::new(literal).starts_with(path),
            None => Path::new(&place).starts_with(path),
        }
    }

    /// Returns whether this path can be that of a file in a directory that the template names
    /// without placeholders.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        let place = Place { base: self.base.clone(), below: self.rest.clone() }.path();
        Path::new(path).parent() == Some(Path::new(&place))
    }

    /// Returns whether the path depends on the object's name.
    #[must_use]
    pub fn has_name(&self) -> bool {
        self.rest.contains(NAME)
    }

    /// Returns the place of an object's files.
    ///
    /// # Errors
    /// A name cannot be part of a path.
    pub fn place(&self, namespace: &str, name: &str) -> Result<Place, Refusal> {
        for (word, part, holder) in [(name, "name", NAME), (namespace, "namespace", NAMESPACE)] {
            if self.rest.contains(holder) {
                let checked = match word.starts_with('.') {
                    true => Err(NameError::Hidden),
                    false => check_word(word),
                };
                checked.map_err(|reason| Refusal::PathWord { part, reason })?;
            }
        }
        let below = self.rest.replace(NAME, name).replace(NAMESPACE, namespace);
        for part in below.split('/') {
            check_name(part).map_err(|reason| Refusal::FileName { name: part.to_owned(), reason })?;
        }
        Ok(Place { base: self.base.clone(), below })
    }
}

/// Validates a word of an object that is part of a file name. Programs of rules may pass it to a
/// shell: it has only characters of ConfigMap keys, and the colon of names of roles.
///
/// # Errors
/// The word is invalid, with the reason.
pub(crate) fn check_word(word: &str) -> Result<(), NameError> {
    check_name(word)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    match word.chars().find(|c| !is_plain(*c)) {
        Some(other) => Err(NameError::Character(other)),
        None => Ok(()),
    }
}

/// Validates a file name.
///
/// # Errors
/// The name is invalid, with the reason.
pub fn check_name(name: &str) -> Result<(), NameError> {
    match name {
        "" => Err(NameError::Empty),
        "." | ".." => Err(NameError::Directory),
        _ if name.len() > MAX_NAME => Err(NameError::TooLong),
        _ if name.contains('/') => Err(NameError::Slash),
        _ if name.chars().any(char::is_control) => Err(NameError::Control),
        // Names reserved for candidates and for the layout itself.
        _ if name.starts_with("..") || name.starts_with(".edgesync-") => Err(NameError::Reserved),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn template_is_split_at_the_first_placeholder() {
        for (text, base, below) in [
            ("/etc/nginx/conf.d/{metadata.name}", "/etc/nginx/conf.d", "web"),
            ("/run/x/{metadata.namespace}/a-{metadata.name}.yaml", "/run/x", "plant/a-web.yaml"),
            ("/etc/motd", "/etc", "motd"),
            ("/etc/motd/", "/etc", "motd"),
            ("/motd", "/", "motd"),
        ] {
            let template = Template::parse(text).unwrap();
            let place = template.place("plant", "web").unwrap();
            assert_eq!((place.base.as_str(), place.below.as_str()), (base, below), "{text}");
        }
    }

    #[test]
    fn template_reaches_directories_by_placeholders() {
        let contains = |text: &str, path: &str| Template::parse(text).unwrap().contains(path);
        assert!(contains("/etc", "/etc/passwd") && contains("/etc/", "/etc/passwd"));
        assert!(!contains("/etc", "/etc/ssh/sshd_config") && !contains("/etc/ssh", "/etc/ssh"));
        let reaches = |text: &str, path: &str| Template::parse(text).unwrap().may_reach(path);
        assert!(reaches("/etc/cron.d/a", "/etc/cron.d") && reaches("/etc/cron.d", "/etc/cron.d"));
        assert!(reaches("/etc/cron.d/x-{metadata.name}", "/etc/cron.d"));
        assert!(reaches("/etc/{metadata.name}", "/etc/cron.d") && reaches("/{metadata.name}", "/bin"));
        assert!(!reaches("/etc/cron.daily/a", "/etc/cron.d") && !reaches("/etc/motd", "/etc/cron.d"));
        assert!(!reaches("/etc/nginx/{metadata.name}", "/etc/cron.d"));
    }

    #[test]
    fn paths_outside_the_base_are_refused() {
        for text in
            ["", "/", "etc/x", "/etc/../x", "/etc//x", "/a/./b", "/a/{metadata.uid}", "/a/{", "/a\n/b"]
        {
            assert!(Template::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_that_change_the_path_are_refused() {
        let template = Template::parse("/b/{metadata.namespace}/{metadata.name}").unwrap();
        for name in ["", ".", "..", "../x", "a/b", "a\0b", "a\nb", "..data", ".edgesync-1", &"x".repeat(256)]
        {
            assert!(template.place("ns", name).is_err(), "{name:?}");
            assert!(template.place(name, "a").is_err(), "{name:?}");
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["a b", "*", "$(reboot)", "a;b", "a'b", "-\"", "ä"] {
            assert!(template.place("ns", name).is_err(), "{name:?}");
        }
        assert!(template.place("ns", "system:node").is_ok());
        assert!(check_name(&"x".repeat(255)).is_ok());
        // A value not used in the path does not matter.
        assert!(Template::parse("/b/{metadata.name}").unwrap().place("../..", "a").is_ok());
    }

    proptest! {
        #[test]
        fn no_name_leaves_the_directory_of_the_rule(namespace in ".{0,12}", name in ".{0,12}") {
            let template = Template::parse("/b/{metadata.namespace}/x{metadata.name}").unwrap();
            if let Ok(place) = template.place(&namespace, &name) {
                let parts: Vec<&str> = place.below.split('/').collect();
                prop_assert_eq!(parts.len(), 2);
                prop_assert!(parts.iter().all(|part| !matches!(*part, "" | "." | "..") && !part.contains('\0')));
            }
        }
    }

    #[test]
    fn object_cannot_name_a_hidden_file() {
        let template = Template::parse("/home/x/{metadata.name}").unwrap();
        assert_eq!(
            template.place("n", ".ssh"),
            Err(Refusal::PathWord { part: "name", reason: NameError::Hidden })
        );
    }
}
