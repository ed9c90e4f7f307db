//! `[listen]`: one address for all services.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use edgesync_config::section;
use edgesync_config::units;

use super::{NAMES, check_host};

section! {
    /// One TLS listener for joining, MQTT, MQTT over WebSocket, the API and the page.
    #[derive(Eq)]
    pub struct Listen in "listen";
    /// Its address; `None` for the addresses of the single services only.
    address: Option<SocketAddr> = None, fixed units::text(address, ADDRESS, parse_address, show_address);
    /// The services that are served there.
    services: Vec<SharedService> = vec![SharedService::Join, SharedService::Mqtt, SharedService::Api],
        fixed units::list(services, SERVICES, str::parse);
    /// Host names under which only joining is served.
    join_names: Vec<String> = Vec::new(), fixed units::words(join_names, NAMES, check_host);
    /// Host names under which only MQTT is served.
    mqtt_names: Vec<String> = Vec::new(), fixed units::words(mqtt_names, NAMES, check_host);
    /// Host names under which only the API and the page are served.
    api_names: Vec<String> = Vec::new(), fixed units::words(api_names, NAMES, check_host);
}

/// A service that can share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedService {
    /// Joining, and renewal of certificates.
    Join,
    /// MQTT, also over WebSocket.
    Mqtt,
    /// The API and the page.
    Api,
}

impl SharedService {
    const ALL: [Self; 3] = [Self::Join, Self::Mqtt, Self::Api];
}

impl fmt::Display for SharedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Mqtt => "mqtt",
            Self::Api => "api",
        })
    }
}

impl FromStr for SharedService {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|service| service.to_string() == text);
        found.ok_or_else(|| format!("must be one of \"join\", \"mqtt\", \"api\", not {text:?}"))
    }
}

const ADDRESS: &str = "an address with a port such as \":443\" or \"192.0.2.1:443\", or \"off\"";
const SERVICES: &str = "a list of services such as [\"join\", \"mqtt\"]";

/// Parses an address; one without a host means all addresses of IPv4 and IPv6.
fn parse_address(text: &str) -> Result<Option<SocketAddr>, String> {
    let refused = || format!("must be {ADDRESS}, not {text:?}");
    if text.is_empty() || text == "off" {
        return Ok(None);
    }
    let address = match text.strip_prefix(':') {
        Some(port) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port.parse().map_err(|_| refused())?)),
        None => text.parse().map_err(|_| refused())?,
    };
    Ok(Some(address))
}

fn show_address(address: &Option<SocketAddr>) -> String {
    match address {
        None => "off".to_owned(),
        Some(address) if address.ip() == Ipv6Addr::UNSPECIFIED => format!(":{}", address.port()),
        Some(address) => address.to_string(),
    }
}

impl Listen {
    /// Returns the address if this service is served there.
    #[must_use]
    pub fn serves(&self, service: SharedService) -> Option<SocketAddr> {
        self.address.filter(|_| self.services.contains(&service))
    }

    /// Returns the host names that are reserved for one service.
    pub fn reserved(&self) -> impl Iterator<Item = (&str, SharedService)> {
        named(&self.join_names, SharedService::Join)
            .chain(named(&self.mqtt_names, SharedService::Mqtt))
            .chain(named(&self.api_names, SharedService::Api))
    }
}

fn named(names: &[String], service: SharedService) -> impl Iterator<Item = (&str, SharedService)> {
    names.iter().map(move |name| (name.as_str(), service))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Config, String> {
        let loaded = edgesync_config::parse::<Config>(Path::new("x.toml"), text, []);
        loaded.map(|loaded| loaded.config).map_err(|errors| errors.to_string())
    }

    #[test]
    fn address_without_a_host_means_all_addresses() {
        for (text, shown) in [
            (":443", ":443"),
            ("[::]:443", ":443"),
            ("0.0.0.0:443", "0.0.0.0:443"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("off", "off"),
            ("", "off"),
        ] {
            let address = parse_address(text).unwrap();
            assert_eq!(show_address(&address), shown);
            assert_eq!(parse_address(shown), Ok(address));
        }
        for bad in [":", ":x", ":70000", "443", "cloud.example:443", "none"] {
            assert!(parse_address(bad).unwrap_err().contains("such as \":443\""), "{bad}");
        }
    }

    #[test]
    fn separate_ports_are_the_default() {
        let config = read("").unwrap();
        assert_eq!(config.listen.address, None);
        assert!(SharedService::ALL.into_iter().all(|service| config.listen.serves(service).is_none()));
        let all = read("[listen]\naddress = \":443\"\n").unwrap().listen;
        assert!(SharedService::ALL.into_iter().all(|service| all.serves(service).is_some()));
        let some = read("[listen]\naddress = \":443\"\nservices = [\"mqtt\"]\n").unwrap().listen;
        assert!(some.serves(SharedService::Mqtt).is_some() && some.serves(SharedService::Join).is_none());
        let error = read("[listen]\nservices = [\"mqtt\", \"web\"]\n").unwrap_err();
        assert!(error.contains("must be one of \"join\", \"mqtt\", \"api\", not \"web\""), "{error}");
    }

    #[test]
    fn services_without_an_address_are_refused() {
        let error = read("[broker]\nlisten = \"off\"\n").unwrap_err();
        assert!(error.contains("broker.listen = \"off\" leaves nodes without an address"), "{error}");
        let shared = "[broker]\nlisten = \"off\"\n[listen]\naddress = \":443\"\n";
        assert!(read(shared).is_ok());
        assert!(read(&format!("{shared}services = [\"join\"]\n")).is_err());
        let external = "[broker]\nmode = \"external\"\nlisten = \"off\"\n";
        assert!(read(external).is_ok());
    }

    #[test]
    fn names_of_two_services_are_refused() {
        let text =
            "[listen]\naddress = \":443\"\njoin_names = [\"a.example\"]\napi_names = [\"a.example\"]\n";
        let error = read(text).unwrap_err();
        assert!(error.contains("\"a.example\" is reserved for join and for api"), "{error}");
        let text = "[listen]\naddress = \":443\"\nmqtt_names = [\"192.0.2.1\"]\n";
        let error = read(text).unwrap_err();
        assert!(error.contains("192.0.2.1"), "clients send no address as a name: {error}");
    }

    #[test]
    fn relayed_joining_needs_a_port_of_its_own() {
        let text = "[store]\ntype = \"kubernetes\"\n[enrollment]\nsigner = \"https://signer.example\"\n\
                    [listen]\naddress = \":443\"\n";
        let error = read(text).unwrap_err();
        assert!(
            error.contains("listen.services must not contain \"join\" with enrollment.signer"),
            "{error}"
        );
        assert!(read(&format!("{text}services = [\"mqtt\"]\n")).is_ok());
    }

    #[test]
    fn shared_address_is_not_one_of_a_service() {
        let error = read("[listen]\naddress = \"0.0.0.0:8883\"\n").unwrap_err();
        assert!(error.contains("listen.address and broker.listen must not both be 0.0.0.0:8883"), "{error}");
    }
}
