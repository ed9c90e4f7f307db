//! Which links are metered, and what may come over them.

use edgesync_object::urgency::Urgency;

/// How the agent decides whether its link is metered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metered {
    /// By the interface of the route to the cloud, and by NetworkManager.
    #[default]
    Auto,
    /// It always is.
    On,
    /// It never is.
    Off,
}

impl Metered {
    pub(super) const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

/// The words of urgencies.
pub(super) const URGENCIES: &[(&str, Urgency)] =
    &[("low", Urgency::Low), ("normal", Urgency::Normal), ("high", Urgency::High)];

/// Checks the name of an interface, or its begin with `*` after it.
pub(super) fn check_interface(text: &str) -> Result<(), String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    // IFNAMSIZ of Linux, without the zero byte.
    let is_name =
        name.len() <= 15 && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'*');
    if is_name && !text.is_empty() {
        return Ok(());
    }
    Err(format!("{text:?} is not the name of an interface, such as \"wwan0\" or \"wwan*\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_names_or_begins() {
        for name in ["wwan0", "wwan*", "*", "ppp0", "enp0s31f6.100"] {
            assert_eq!(check_interface(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "w*n0", "**", "a/b", "a-name-of-16-byte"] {
            assert!(check_interface(name).is_err(), "{name}");
        }
    }
}
