//! Validation of names, UIDs and label syntax, worded as in the Kubernetes API conventions (section
//! "Validation": "must …", values in single quotes).

/// Maximum length of a DNS-1123 subdomain in bytes (RFC 1123).
pub const MAX_SUBDOMAIN: usize = 253;
/// Maximum length of a DNS-1123 label in bytes.
pub(crate) const MAX_LABEL: usize = 63;
/// Maximum length of a UID in bytes: an ObjectSync name must hold it in addition to the node name.
pub const MAX_UID: usize = 128;

/// Problem of a value, as a sentence without the field's name.
pub type Problem = String;

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    !bytes.is_empty()
        && bytes.len() <= MAX_LABEL
        && bytes.iter().all(inner)
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// Quotes a value, truncated to 64 characters.
fn quoted(value: &str) -> String {
    match value.char_indices().nth(64) {
        Some((end, _)) => format!("'{}…'", value[..end].escape_debug()),
        None => format!("'{}'", value.escape_debug()),
    }
}

/// Checks a DNS-1123 label, such as the name of a namespace.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_label(value: &str) -> Result<(), Problem> {
    if is_dns_label(value) {
        return Ok(());
    }
    Err(format!(
        "must be a DNS-1123 label: at most {MAX_LABEL} lower-case letters, digits or '-', starting and \
         ending with a letter or digit; {} is not",
        quoted(value)
    ))
}

/// Checks a DNS-1123 subdomain: the name of a node and of most objects.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_subdomain(value: &str) -> Result<(), Problem> {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    if value.len() <= MAX_SUBDOMAIN && value.split('.').all(part) {
        return Ok(());
    }
    Err(format!(
        "must be a DNS-1123 subdomain: at most {MAX_SUBDOMAIN} lower-case letters, digits, '-' or '.', each \
         part starting and ending with a letter or digit; {} is not",
        quoted(value)
    ))
}

/// Checks a name that is one segment of a path: the weakest rule of any kind.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_path_segment(value: &str) -> Result<(), Problem> {
    let allowed = |c: char| !c.is_control() && !matches!(c, '/' | '%' | ' ');
    if !value.is_empty()
        && value.len() <= MAX_SUBDOMAIN
        && !value.contains("..")
        && value != "."
        && value.chars().all(allowed)
    {
        return Ok(());
    }
    Err(format!(
        "must be 1 to {MAX_SUBDOMAIN} bytes that can stand in a path: not '.', without '..', '/', '%', spaces \
         and control characters; {} is not",
        quoted(value)
    ))
}

/// Checks a text that is written into the path of a URL as it is: one segment of RFC 3986 without
/// percent-encoding. Stricter than [`check_path_segment`], which permits names that need encoding.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_url_segment(value: &str) -> Result<(), Problem> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b);
    if (1..=MAX_SUBDOMAIN).contains(&value.len())
        && value.bytes().all(allowed)
        && !matches!(value, "." | "..")
    {
        return Ok(());
    }
    Err(format!(
        "must be one segment of a URL's path: 1 to {MAX_SUBDOMAIN} letters, digits or '-._~!$&'()*+,;=:@', not \
         '.' or '..'; {} is not",
        quoted(value)
    ))
}

/// Checks the name of an object of a group: roles and bindings may have any path segment, other
/// kinds a DNS-1123 subdomain.
///
/// # Errors
/// The value is invalid, with the requirement.
pub(crate) fn check_object_name(group: &str, value: &str) -> Result<(), Problem> {
    if group == "rbac.authorization.k8s.io" { check_path_segment(value) } else { check_subdomain(value) }
}

/// Checks a UID. Kubernetes specifies no format; this one fits into an ObjectSync name and a path.
/// It has no dots, because the last dot in an ObjectSync name, `<node>.<uid>`, separates the two.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_uid(value: &str) -> Result<(), Problem> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if (1..=MAX_UID).contains(&value.len()) && value.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("must be 1 to {MAX_UID} letters, digits, '-' or '_'; {} is not", quoted(value)))
}

/// Checks the length of a resource version, which is otherwise opaque.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_version(value: &str) -> Result<(), Problem> {
    if (1..=MAX_UID).contains(&value.len()) {
        return Ok(());
    }
    Err(format!("must have 1 to {MAX_UID} bytes, has {}", value.len()))
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_LABEL
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Checks the key of a label or annotation: `[prefix/]name`.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_label_key(value: &str) -> Result<(), Problem> {
    let (prefix, name) = match value.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, value),
    };
    if is_qualified_part(name) && prefix.is_none_or(|prefix| check_subdomain(prefix).is_ok()) {
        return Ok(());
    }
    Err(format!(
        "must be a name of at most {MAX_LABEL} letters, digits, '-', '_' or '.', starting and ending with a \
         letter or digit, with an optional DNS subdomain and '/' before it; {} is not",
        quoted(value)
    ))
}

/// Checks the value of a label.
///
/// # Errors
/// The value is invalid, with the requirement.
pub fn check_label_value(value: &str) -> Result<(), Problem> {
    if value.is_empty() || is_qualified_part(value) {
        return Ok(());
    }
    Err(format!(
        "must be empty or at most {MAX_LABEL} letters, digits, '-', '_' or '.', starting and ending with a \
         letter or digit; {} is not",
        quoted(value)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains_follow_rfc_1123() {
        for good in ["a", "a-b", "0", "a.b.c", "kube-root-ca.crt"] {
            assert_eq!(check_subdomain(good), Ok(()), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["", ".", "a..b", "../x", "A", "a_b", "-a", "a-", "a/b", "ä", &long] {
            assert!(check_subdomain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn long_values_are_truncated() {
        let message = check_subdomain(&"Z".repeat(10_000)).unwrap_err();
        assert!(message.len() < 400, "{}", message.len());
    }

    #[test]
    fn role_names_may_be_any_path_segment() {
        let group = "rbac.authorization.k8s.io";
        assert_eq!(check_object_name(group, "system:node"), Ok(()));
        assert!(check_object_name("", "system:node").is_err());
        for bad in ["..", "a/../b", "a%2fb", "", "a\nb"] {
            assert!(check_object_name(group, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn url_segments_change_no_request() {
        for good in ["a", "kube-root-ca.crt", "system:node", "a..b", "lab.io", &"x".repeat(MAX_SUBDOMAIN)] {
            assert_eq!(check_url_segment(good), Ok(()), "{good}");
        }
        let long = "x".repeat(MAX_SUBDOMAIN + 1);
        for bad in
            ["", ".", "..", "?x=1", "a?b", "a#b", "a/b", "../x", "a%2fb", "a b", "a\n", "\0", "ä", &long]
        {
            assert!(check_url_segment(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn uids_have_no_dots() {
        assert_eq!(check_uid("413d5245-1fd6-4e85-b576-9a25b00c7340"), Ok(()));
        for bad in ["", "a.b", "a/b", "ä", &"u".repeat(MAX_UID + 1)] {
            assert!(check_uid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn label_keys_and_values_have_different_rules() {
        assert_eq!(check_label_key("app.kubernetes.io/name"), Ok(()));
        assert_eq!(check_label_key("App_1"), Ok(()));
        for bad in ["", "/x", "a/", "a/b/c", "-x", "Ä"] {
            assert!(check_label_key(bad).is_err(), "{bad}");
        }
        assert_eq!(check_label_value(""), Ok(()));
        assert_eq!(check_label_value("v1.2_X"), Ok(()));
        assert!(check_label_value("a b").is_err());
    }
}
