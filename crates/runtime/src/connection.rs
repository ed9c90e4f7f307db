//! Link options from the configuration: to a broker for either side, and to a CloudCore.

use std::path::Path;

use anyhow::Context as _;

use edgesync_config::edge::Config;
use edgesync_kubeedge::link::KubeEdgeOptions;
use edgesync_transport::link::{LinkOptions, RetryOptions};
use edgesync_transport::tls::{Certificate, Trust};

/// Returns the options of the section `[link]`, which is the same on both sides.
///
/// # Errors
/// The password cannot be read.
pub fn configured_link(link: &edgesync_config::Link) -> anyhow::Result<LinkOptions> {
    let mut options = LinkOptions::new(&link.broker.host, link.broker.port, &link.client_id);
    options.username.clone_from(&link.username);
    options.password = link.password_file.as_deref().map(read_password).transpose()?;
    options.keepalive = link.keepalive;
    options.connect_timeout = link.connect_timeout;
    options.max_packet = packet_limit(link.max_frame);
    options.inflight = link.inflight;
    options.retry = retry_options(link);
    Ok(options)
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
fn read_password(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("read link.password_file {}", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the options of the link to CloudCore, without TLS.
///
/// # Errors
/// No address is configured.
pub fn kubeedge_options(config: &Config) -> anyhow::Result<KubeEdgeOptions> {
    let url = config.kubeedge.url.as_ref().context("kubeedge.url is not set")?;
    Ok(KubeEdgeOptions {
        host: url.host.clone(),
        port: url.port,
        project: config.kubeedge.project.clone(),
        node: config.node.name.clone(),
        tls: None,
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
