//! The address that all services share, and the addresses of the broker that nodes learn.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

use edgesync_enrollment::{AdvertisedBroker, BrokerScheme, EnrollmentService, service};
use edgesync_fleet::config::{BrokerMode, Config, SharedService};
use edgesync_transport::shared::{Inlet, Routes, Service, SharedCounters, SharedListener, SharedOptions};

/// The shared listener with the inlets of its services; nothing if it is not configured.
#[derive(Default)]
pub(super) struct SharedPort {
    pub(super) join: Option<Inlet>,
    pub(super) mqtt: Option<Inlet>,
    pub(super) api: Option<Inlet>,
    routes: Routes,
    counters: Option<Arc<SharedCounters>>,
    /// The listener before its start.
    listener: Option<SharedListener>,
    /// The listener in service. Aborted on drop.
    serving: JoinSet<()>,
}

/// Returns the service of the transport.
fn of(service: SharedService) -> Service {
    match service {
        SharedService::Join => Service::Join,
        SharedService::Mqtt => Service::Mqtt,
        SharedService::Api => Service::Api,
    }
}

/// Returns the address under which nodes reach the embedded endpoint beside its own, if any.
fn mqtt_address(config: &Config) -> Option<SocketAddr> {
    let is_embedded = config.broker.mode == BrokerMode::Embedded;
    config.listen.serves(SharedService::Mqtt).filter(|_| is_embedded)
}

impl SharedPort {
    /// Binds the address and creates the inlets of the services, which are served once it starts.
    ///
    /// # Errors
    /// The address is in use, or the system refuses it.
    pub(super) async fn open(config: &Config) -> anyhow::Result<Self> {
        let Some(address) = config.listen.address else { return Ok(Self::default()) };
        let bound = SharedListener::bind(address).await;
        let mut listener = bound.map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "; hint: a port below 1024 needs CAP_NET_BIND_SERVICE, docs/fleet.md has the unit's settings"
                }
                _ => "",
            };
            anyhow::anyhow!("open listen.address {address}: {error}{hint}")
        })?;
        let mut inlet = |is_served: bool, service| is_served.then(|| listener.inlet(service));
        let join = inlet(config.listen.serves(SharedService::Join).is_some(), Service::Join);
        let mqtt = inlet(mqtt_address(config).is_some(), Service::Mqtt);
        let api = inlet(config.listen.serves(SharedService::Api).is_some(), Service::Api);
        let served = [(&join, Service::Join), (&mqtt, Service::Mqtt), (&api, Service::Api)];
        let services = served.into_iter().filter(|(inlet, _)| inlet.is_some());
        let routes = Routes {
            services: services.map(|(_, service)| service).collect(),
            names: config.listen.reserved().map(|(name, service)| (name.to_owned(), of(service))).collect(),
            join_paths: service::PATHS,
        };
        let counters = Some(listener.counters());
        Ok(Self { join, mqtt, api, routes, counters, listener: Some(listener), serving: JoinSet::new() })
    }

    /// Returns the counters of the listener.
    pub(super) fn counters(&self) -> Option<Arc<SharedCounters>> {
        self.counters.clone()
    }

    /// Starts to accept connections, once.
    pub(super) fn start(&mut self, enrollment: &EnrollmentService) {
        let Some(listener) = self.listener.take() else { return };
        let address = listener.address();
        let services: Vec<String> = self.routes.services.iter().map(ToString::to_string).collect();
        tracing::info!(%address, services = services.join(","), "shared port started");
        let options = SharedOptions {
            routes: self.routes.clone(),
            mqtt: enrollment.endpoint_tls(),
            api: enrollment.api_tls(),
            open: enrollment.joining_tls(),
        };
        self.serving.spawn(listener.serve(options));
    }

    /// Closes the address. Connections that a service has taken over stay with it.
    pub(super) async fn stop(&mut self) {
        self.serving.shutdown().await;
    }
}

/// Returns the address of the broker for nodes that know one only, and all addresses. Without a
/// host, an address is on the host of the join service.
pub(super) fn advertised(config: &Config) -> (String, Vec<AdvertisedBroker>) {
    let one = config.enrollment.broker_url.as_ref();
    let brokers = match (&config.enrollment.broker_urls, one) {
        (configured, _) if !configured.is_empty() => configured.clone(),
        (_, Some(one)) => listed(&one.to_string()),
        (_, None) => derived(config),
    };
    // Earlier nodes know no WebSocket, and report that if there is nothing else.
    let oldest = brokers.iter().find(|broker| broker.scheme != BrokerScheme::Wss).or(brokers.first());
    let broker = one.map(ToString::to_string).or_else(|| oldest.map(ToString::to_string));
    (broker.unwrap_or_default(), brokers)
}

/// Parses addresses that the configuration has validated.
fn listed(text: &str) -> Vec<AdvertisedBroker> {
    text.split(", ").filter_map(|address| address.parse().ok()).collect()
}

/// Returns the addresses that follow from the configuration: the endpoint's own, then the shared
/// one, where networks permit only that.
fn derived(config: &Config) -> Vec<AdvertisedBroker> {
    if config.broker.mode == BrokerMode::External {
        return listed(&config.link.broker.to_string());
    }
    let here = |scheme, port| AdvertisedBroker { scheme, host: String::new(), port };
    let own = config.broker.listen.map(|listen| {
        let is_tls = config.broker.tls.at(listen);
        here(if is_tls { BrokerScheme::Mqtts } else { BrokerScheme::Mqtt }, listen.port())
    });
    let mut brokers: Vec<AdvertisedBroker> = own.into_iter().collect();
    if let Some(shared) = mqtt_address(config) {
        brokers.extend([BrokerScheme::Mqtts, BrokerScheme::Wss].map(|scheme| here(scheme, shared.port())));
    }
    brokers
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn brokers(text: &str) -> (String, Vec<String>) {
        let config = edgesync_config::parse::<Config>(Path::new("x.toml"), text, []).unwrap().config;
        let (broker, brokers) = advertised(&config);
        (broker, brokers.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nodes_learn_every_address_of_the_broker() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("", "mqtts://:8883", &["mqtts://:8883"]),
            ("[broker]\nlisten = \"127.0.0.1:1883\"\n", "mqtt://:1883", &["mqtt://:1883"]),
            (
                "[listen]\naddress = \":443\"\n",
                "mqtts://:8883",
                &["mqtts://:8883", "mqtts://:443", "wss://:443/mqtt"],
            ),
            (
                "[listen]\naddress = \":443\"\n[broker]\nlisten = \"off\"\n",
                "mqtts://:443",
                &["mqtts://:443", "wss://:443/mqtt"],
            ),
            ("[listen]\naddress = \":443\"\nservices = [\"join\"]\n", "mqtts://:8883", &["mqtts://:8883"]),
            (
                "[listen]\naddress = \":443\"\n[broker]\nmode = \"external\"\n[link]\nbroker = \"mqtts://b.example\"\n",
                "mqtts://b.example:8883",
                &["mqtts://b.example:8883"],
            ),
        ];
        for (text, broker, expected) in cases {
            let expected: Vec<String> = expected.iter().map(|broker| (*broker).to_owned()).collect();
            assert_eq!(brokers(text), ((*broker).to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn configured_addresses_replace_the_derived_ones() {
        let one = "[enrollment]\nbroker_url = \"mqtts://a.example:1\"\n";
        assert_eq!(brokers(one), ("mqtts://a.example:1".to_owned(), vec!["mqtts://a.example:1".to_owned()]));
        let list = "broker_urls = [\"wss://b.example/mqtt\", \"mqtts://b.example\"]\n";
        let all = vec!["wss://b.example:443/mqtt".to_owned(), "mqtts://b.example:8883".to_owned()];
        let (broker, found) = brokers(&format!("[enrollment]\n{list}"));
        assert_eq!((broker.as_str(), &found), ("mqtts://b.example:8883", &all));
        // Ports of a load balancer, at the host that the node used for joining.
        let mapped = "[enrollment]\nbroker_urls = [\"mqtts://:443\", \"wss://:443/mqtt\"]\n";
        let expected = ["mqtts://:443", "wss://:443/mqtt"].map(str::to_owned).to_vec();
        assert_eq!(brokers(mapped), ("mqtts://:443".to_owned(), expected));
        let (broker, found) = brokers(&format!("{one}{list}"));
        assert_eq!((broker.as_str(), &found), ("mqtts://a.example:1", &all));
    }
}
