//! Kubernetes' named formats and their validation.

/// The names of all formats.
pub(super) const NAMES: &[&str] = &[
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// Returns the errors of a text in a format; none if it complies.
pub(super) fn problem(format: &str, text: &str) -> Option<String> {
    let fits = |fits: bool, problem: &str| (!fits).then(|| problem.to_owned());
    match format {
        "dns1123Label" => check_label(text).err(),
        "dns1123Subdomain" => check_subdomain(text).err(),
        "dns1035Label" => check_label(text).err().or_else(|| {
            fits(
                text.starts_with(|letter: char| letter.is_ascii_lowercase()),
                "must start with a lower-case letter",
            )
        }),
        "dns1123LabelPrefix" => check_label(&whole(text)).err(),
        "dns1123SubdomainPrefix" => check_subdomain(&whole(text)).err(),
        "dns1035LabelPrefix" => problem("dns1035Label", &whole(text)),
        "labelValue" => fits(text.is_empty() || is_word(text), "must be a label's value"),
        "qualifiedName" => {
            let (prefix, name) =
                text.rsplit_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
            let prefixed = prefix.map_or(Ok(()), check_subdomain);
            prefixed.err().or_else(|| fits(is_word(name), "must be a qualified name"))
        }
        "uri" => fits(super::net::Url::parse(text).is_some(), "must be a URI"),
        "uuid" => fits(is_uuid(text), "does not match the UUID format"),
        "byte" => {
            use base64::Engine as _;
            let read = base64::engine::general_purpose::STANDARD.decode(text);
            fits(read.is_ok(), "invalid base64")
        }
        "date" => fits(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
        _ => fits(text.contains(['T', 't']) && text.parse::<jiff::Timestamp>().is_ok(), "invalid datetime"),
    }
}

/// Replaces the dash at the end of a name prefix, which is completed later.
fn whole(prefix: &str) -> String {
    prefix.strip_suffix('-').map_or_else(|| prefix.to_owned(), |rest| format!("{rest}a"))
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|letter| letter.is_ascii_alphanumeric() || b"-_.".contains(letter))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(place, letter)| match place {
            8 | 13 | 18 | 23 => letter == b'-',
            _ => letter.is_ascii_hexdigit(),
        })
}

/// Checks a DNS-1123 label (RFC 1123): at most 63 bytes.
fn check_label(text: &str) -> Result<(), String> {
    if text.len() <= 63 && is_label_text(text) {
        return Ok(());
    }
    Err("must be a DNS-1123 label: at most 63 lower-case letters, digits or '-', starting and ending with a letter or digit".to_owned())
}

/// Checks a DNS-1123 subdomain (RFC 1123): at most 253 bytes.
fn check_subdomain(text: &str) -> Result<(), String> {
    if text.len() <= 253 && text.split('.').all(is_label_text) {
        return Ok(());
    }
    Err("must be a DNS-1123 subdomain: at most 253 lower-case letters, digits, '-' or '.', each part starting and ending with a letter or digit".to_owned())
}

fn is_label_text(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
