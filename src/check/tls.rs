//! Checks that the certificate of the broker, or of CloudCore, is trusted, and that it accepts this
//! node's. Ends after the handshake: a session would take over the agent's.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Check, CheckFn, Examined, Finding, JOIN_AGAIN, examine_peers};
use edgesync_config::Peer;
use edgesync_transport::dial::Dialer;
use edgesync_transport::tls::{Client, HandshakeError, Inner};

pub(super) const CHECK: Check = Check {
    id: "tls",
    title: "TLS",
    needs: &["configuration", "name-resolution", "tcp"],
    limit: Duration::from_secs(8),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Time limit of connecting and of the handshake.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait after the handshake for a refusal of the certificate.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

async fn examine(examined: &Examined) -> Finding {
    let config = examined.config();
    let dialer = match examined.dialer() {
        Ok(dialer) => dialer,
        Err(finding) => return finding,
    };
    let client = match examined.tls() {
        Some(Err(unusable)) => return unusable.into(),
        Some(Ok(client)) => Some(client),
        None => None,
    };
    examine_peers(&config, |config, position| {
        let (client, dialer) = (client.clone(), dialer.clone());
        async move {
            match config.peers().get(position) {
                Some(peer) => examine_peer(peer, client.as_ref().filter(|_| peer.tls), &dialer).await,
                None => Finding::skipped("no address"),
            }
        }
    })
    .await
}

async fn examine_peer(peer: &Peer<'_>, client: Option<&Client>, dialer: &Dialer) -> Finding {
    let Some(client) = client else {
        if peer.is_local() {
            return Finding::skipped("link without TLS, on this machine");
        }
        let message = format!("{peer}: link without TLS can be read and changed on the way");
        return Finding::warning(
            message,
            "join the cloud with 'edgesync join', or set link.broker to mqtts://",
        );
    };
    let host = peer.host;
    match handshake(client, peer, dialer).await {
        Ok(()) => {
            let shown = if client.shows().is_some() { ", and accepts that of this node" } else { "" };
            Finding::ok(format!("{host} has a trusted certificate{shown}"))
        }
        Err(error) => explain(&error, peer.key),
    }
}

async fn handshake(client: &Client, peer: &Peer<'_>, dialer: &Dialer) -> Result<(), HandshakeError> {
    let host = peer.host;
    let network = |problem: String| HandshakeError::Network { host: host.to_owned(), problem };
    let inner = if peer.is_websocket() { Inner::Http } else { Inner::Mqtt };
    let met = async {
        let dialed = dialer.open(host, peer.port, TIMEOUT).await;
        let stream = dialed.map_err(|error| network(error.to_string()))?;
        client.connect_for(inner, host, stream).await
    };
    let late = || Err(network(format!("no end of the handshake within {TIMEOUT:?}")));
    let mut stream = timeout(TIMEOUT, met).await.unwrap_or_else(|_| late())?;
    // TLS 1.3 verifies the client's certificate only now; a peer that accepts it waits for a
    // CONNECT or a request.
    match timeout(REFUSAL_TIMEOUT, stream.read_u8()).await {
        Ok(Err(error)) => match HandshakeError::of_io(host, &error) {
            Some(refused) => Err(refused),
            None => Err(HandshakeError::Network {
                host: host.to_owned(),
                problem: format!("closed after the handshake: {error}"),
            }),
        },
        Ok(Ok(_)) | Err(_) => {
            // Without a close_notify the peer would log a broken connection.
            let _ = timeout(REFUSAL_TIMEOUT, stream.shutdown()).await;
            Ok(())
        }
    }
}

/// Returns the next step for each failure of a handshake.
fn explain(error: &HandshakeError, key: &str) -> Finding {
    let next_step = match error {
        HandshakeError::OtherAuthority { .. } => {
            format!(
                "if a proxy with that issuer inspects TLS, have the connection passed through, or set link.ca_file to its CA \
                 (docs/network.md); otherwise check {key}; if the cloud has a new CA, {JOIN_AGAIN}"
            )
        }
        HandshakeError::OtherName { .. } => {
            format!("set {key} to one of those names, or issue the certificate for the name used here")
        }
        HandshakeError::OutsideItsTime { .. } => {
            "set the clock if it is wrong here, else renew the certificate there".to_owned()
        }
        HandshakeError::Refused { reason, .. } if reason == "no certificate presented" => {
            "join the cloud with 'edgesync join'".to_owned()
        }
        HandshakeError::Refused { .. } => {
            format!(
                "if the certificate has expired, start the agent, which renews it; if it was revoked, {JOIN_AGAIN}"
            )
        }
        HandshakeError::Http { .. } => {
            format!("log in to the network if it has a captive portal; otherwise check {key} and link.proxy")
        }
        HandshakeError::NotTls { .. } => {
            format!("set {key} to the TLS port (8883 of a broker, 10000 of a CloudCore)")
        }
        HandshakeError::Network { .. } => {
            "see the log there, and check for middleboxes that cut connections".to_owned()
        }
    };
    Finding::failed(error.to_string(), next_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, warned};

    #[test]
    fn every_way_a_handshake_fails_has_its_next_step() {
        let host = || "b".to_owned();
        let time = jiff::Timestamp::UNIX_EPOCH;
        for (error, next_step) in [
            (HandshakeError::OtherAuthority { host: host(), issuer: "x".into() }, "join --force"),
            (HandshakeError::OtherAuthority { host: host(), issuer: "x".into() }, "inspects TLS"),
            (HandshakeError::Http { host: host() }, "captive portal"),
            (HandshakeError::OtherName { host: host(), names: vec!["c".into()] }, "one of those names"),
            (
                HandshakeError::OutsideItsTime { host: host(), from: time, until: time, now: time },
                "set the clock",
            ),
            (HandshakeError::Refused { host: host(), reason: "revoked".into() }, "join --force"),
            (
                HandshakeError::Refused { host: host(), reason: "no certificate presented".into() },
                "join the cloud with 'edgesync join'",
            ),
            (HandshakeError::NotTls { host: host(), problem: "x".into() }, "8883"),
            (HandshakeError::Network { host: host(), problem: "x".into() }, "the log there"),
        ] {
            failed(explain(&error, "link.broker"), "b", next_step);
        }
    }

    #[tokio::test]
    async fn a_remote_link_without_tls_is_a_warning() {
        let testbed = Testbed::new("[link]\nbroker = \"mqtt://127.0.0.1\"\n");
        assert!(matches!(examine(&testbed.examined()).await, Finding::Skipped(_)));
        testbed.configure("[link]\nbroker = \"mqtt://broker.example\"\n");
        warned(examine(&testbed.examined()).await, "without TLS", "edgesync join");
    }
}
