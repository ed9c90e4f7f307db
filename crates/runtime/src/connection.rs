//! Link options from the configuration: to a broker for either side, and to a CloudCore.

use std::path::Path;

use anyhow::Context as _;

use edgesync_config::edge::Config;
use edgesync_config::{Brokers, ProxySetting};
use edgesync_kubeedge::link::KubeEdgeOptions;
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Endpoint, LinkOptions, RetryOptions};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::tls::{Certificate, Trust};

/// Returns the options of the section `[link]`, which is the same on both sides.
///
/// # Errors
/// A password cannot be read, or the environment has no valid proxy.
pub fn configured_link(link: &edgesync_config::Link) -> anyhow::Result<LinkOptions> {
    let first = link.broker.first();
    let mut options = LinkOptions::new(&first.host, first.port, &link.client_id);
    options.endpoints = endpoints(&link.broker);
    options.dialer = dialer(link, LastGood::default())?;
    options.username.clone_from(&link.username);
    let password_file = link.password_file.as_deref();
    options.password = password_file.map(|path| read_password("link.password_file", path)).transpose()?;
    options.keepalive = link.keepalive;
    options.connect_timeout = link.connect_timeout;
    options.max_packet = packet_limit(link.max_frame);
    options.inflight = link.inflight;
    options.retry = retry_options(link);
    Ok(options)
}

fn endpoints(brokers: &Brokers) -> Vec<Endpoint> {
    let endpoint = |broker: &edgesync_config::BrokerUrl| Endpoint {
        host: broker.host.clone(),
        port: broker.port,
        tls: broker.tls,
        websocket: broker.websocket,
    };
    brokers.iter().map(endpoint).collect()
}

/// Returns the dialer of link, calls of the join service, and checks.
///
/// # Errors
/// The password for the proxy cannot be read, or the environment has no valid proxy.
pub fn dialer(link: &edgesync_config::Link, last_good: LastGood) -> anyhow::Result<Dialer> {
    Ok(Dialer::new(proxy_rules(link)?, last_good))
}

/// Returns which connections go through a proxy. The exceptions are those of the variable
/// `NO_PROXY`.
///
/// # Errors
/// The password cannot be read, or the environment has no valid proxy.
pub fn proxy_rules(link: &edgesync_config::Link) -> anyhow::Result<ProxyRules> {
    let variable = |name: &str| std::env::var(name).ok();
    let rules = match &link.proxy {
        ProxySetting::Off => return Ok(ProxyRules::default()),
        ProxySetting::Environment => {
            ProxyRules::of_environment(variable).map_err(anyhow::Error::msg).context("link.proxy")?
        }
        ProxySetting::Http { host, port, username } => {
            let proxy = Proxy::new(host, *port, username.as_deref());
            ProxyRules::new(proxy, &ProxyRules::exceptions_of(variable))
        }
    };
    let Some(path) = &link.proxy_password_file else { return Ok(rules) };
    Ok(rules.with_password(read_password("link.proxy_password_file", path)?))
}

/// Reads the trusted authorities in a PEM file.
///
/// # Errors
/// The file cannot be read, or has no certificate.
pub fn read_trust(path: &Path) -> anyhow::Result<Trust> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("read {name}"))?;
    Ok(Trust::new(Certificate::all_from_pem(&name, &text)?))
}

/// Returns the packet limit for frames of this size: a frame with its topic and the packet's own
/// fields.
pub fn packet_limit(max_frame: usize) -> u32 {
    u32::try_from(max_frame.saturating_add(2048)).unwrap_or(u32::MAX)
}

/// Reads a password: the first line of a file.
///
/// # Errors
/// The file cannot be read.
fn read_password(key: &str, path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {key} {}", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the options of the link to CloudCore, without TLS.
///
/// # Errors
/// No address is configured, or the proxy cannot be used.
pub fn kubeedge_options(config: &Config) -> anyhow::Result<KubeEdgeOptions> {
    let url = config.kubeedge.url.as_ref().context("kubeedge.url is not set")?;
    Ok(KubeEdgeOptions {
        host: url.host.clone(),
        port: url.port,
        project: config.kubeedge.project.clone(),
        node: config.node.name.clone(),
        tls: None,
        dialer: dialer(&config.link, LastGood::default())?,
        keepalive: config.kubeedge.keepalive,
        connect_timeout: config.link.connect_timeout,
        max_message: config.kubeedge.max_message,
        retry: retry_options(&config.link),
        queue: 64,
        queue_bytes: config.kubeedge.max_message,
        // CloudCore has one unacknowledged message in flight, and the answers to queries.
        events: 16,
    })
}

fn retry_options(link: &edgesync_config::Link) -> RetryOptions {
    RetryOptions {
        first: link.backoff_min,
        most: link.backoff_max,
        good_after: link.backoff_reset,
        taken_over: link.taken_over_backoff,
    }
}
