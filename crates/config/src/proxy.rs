//! `link.proxy`: whether connections go through an HTTP proxy.

use std::fmt;

use super::host;

/// Whether connections to other machines go through an HTTP proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxySetting {
    /// Directly.
    #[default]
    Off,
    /// As the variables `HTTPS_PROXY` and `ALL_PROXY` of the process describe.
    Environment,
    /// Through this proxy.
    Http {
        /// Host name or address, without brackets.
        host: String,
        /// TCP port of the proxy.
        port: u16,
        /// User name, if the proxy requires one.
        username: Option<String>,
    },
}

/// The requirement for a value.
pub(super) const PROXY: &str = "\"env\", \"off\", or an HTTP proxy such as \"http://proxy.example:3128\"";
/// Default port, as curl's.
const PORT: u16 = 1080;
const MAX_USERNAME: usize = 256;

impl ProxySetting {
    /// Parses `off`, `env`, or `http://[USER@]HOST[:PORT]`. A refused value is not quoted: it may
    /// have a password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {PROXY}{why}");
        let rest = match (text, text.split_once("://")) {
            ("off" | "", _) => return Ok(Self::Off),
            ("env", _) => return Ok(Self::Environment),
            (_, Some(("http", rest))) => rest,
            (_, Some(("https" | "socks5" | "socks5h" | "socks4", _))) => {
                return Err(refused("; proxies with TLS or SOCKS are not supported"));
            }
            _ => return Err(refused("")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (username, authority) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((user, _)) if user.contains(':') => {
                return Err(refused("; the password belongs into the file of link.proxy_password_file"));
            }
            Some((user, authority)) => (Some(user), authority),
        };
        let is_plain = |b: u8| b.is_ascii_graphic() && b != b'%' && b != b'/';
        if let Some(user) = username
            && (user.is_empty() || user.len() > MAX_USERNAME || !user.bytes().all(is_plain))
        {
            return Err(refused("; the user name must be printable ASCII without ':', '/' and '%'"));
        }
        let (host, port) = host::split(authority).map_err(refused)?;
        let username = username.map(str::to_owned);
        Ok(Self::Http { host, port: port.unwrap_or(PORT), username })
    }
}

impl fmt::Display for ProxySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Environment => f.write_str("env"),
            Self::Http { host, port, username: None } => write!(f, "http://{}", host::join(host, *port)),
            Self::Http { host, port, username: Some(user) } => {
                write!(f, "http://{user}@{}", host::join(host, *port))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_a_round_trip() {
        for (text, shown) in [
            ("off", "off"),
            ("", "off"),
            ("env", "env"),
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("http://proxy.example/", "http://proxy.example:1080"),
            ("http://me@10.0.0.1:1", "http://me@10.0.0.1:1"),
            ("http://DOMAIN\\me@[2001:db8::1]:8080", "http://DOMAIN\\me@[2001:db8::1]:8080"),
        ] {
            let setting = ProxySetting::parse(text).unwrap();
            assert_eq!(setting.to_string(), shown);
            assert_eq!(ProxySetting::parse(shown), Ok(setting));
        }
    }

    #[test]
    fn invalid_value_is_refused_without_its_password() {
        for bad in ["on", "proxy:3128", "http://", "http://a:0", "http://@a", "http://m e@a", "ftp://a"] {
            assert!(ProxySetting::parse(bad).unwrap_err().starts_with("must be \"env\""), "{bad}");
        }
        assert!(ProxySetting::parse("socks5://a").unwrap_err().contains("SOCKS are not supported"));
        let error = ProxySetting::parse("http://me:secret@a").unwrap_err();
        assert!(error.contains("proxy_password_file") && !error.contains("secret"), "{error}");
    }
}
