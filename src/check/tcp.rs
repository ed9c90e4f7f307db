//! Checks that broker or CloudCore, and the enrollment service accept connections: directly, or
//! through the proxy, whose refusal it names.

use std::time::Duration;

use super::{Check, CheckFn, Examined, Finding, examine_peers, split_hint};
use edgesync_config::Peer;
use edgesync_transport::dial::{DialError, Dialer};

pub(super) const CHECK: Check = Check {
    id: "tcp",
    title: "TCP",
    needs: &["configuration", "name-resolution"],
    limit: Duration::from_secs(9),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Time limit for each side.
const SIDE_TIMEOUT: Duration = Duration::from_secs(4);

async fn examine(examined: &Examined) -> Finding {
    let config = examined.config();
    let dialer = match examined.dialer() {
        Ok(dialer) => dialer,
        Err(finding) => return finding,
    };
    let finding = examine_peers(&config, |config, position| {
        let dialer = dialer.clone();
        async move {
            match config.peers().get(position) {
                Some(peer) => reach(&dialer, peer).await,
                None => Finding::skipped("no address"),
            }
        }
    })
    .await;
    let reached = match &finding {
        Finding::Ok(reached) => reached.clone(),
        _ => return finding,
    };
    let Some(join) = &config.identity.cloud else { return finding };
    match dialer.open(&join.host, join.port, SIDE_TIMEOUT).await {
        Ok(_) => Finding::ok(format!("{reached}; {join} reachable{}", way(&dialer, &join.host, join.port))),
        Err(error) => {
            let (problem, next_step) = explain(&error);
            let message = format!(
                "{reached}, but not the join service {join}, which renews the certificate: {problem}"
            );
            Finding::warning(message, next_step)
        }
    }
}

/// Connects to one address.
async fn reach(dialer: &Dialer, peer: &Peer<'_>) -> Finding {
    match dialer.open(peer.host, peer.port, SIDE_TIMEOUT).await {
        Ok(_) => Finding::ok(format!("{peer} reachable{}", way(dialer, peer.host, peer.port))),
        Err(error) => {
            let (problem, next_step) = explain(&error);
            Finding::failed(format!("connect to {peer}: {problem}"), next_step)
        }
    }
}

/// Returns the end of a message: the proxy of a connection, if it has one.
fn way(dialer: &Dialer, host: &str, port: u16) -> String {
    dialer.proxy_for(host, port).map_or(String::new(), |proxy| format!(" through {proxy}"))
}

/// Returns the problem and the next step.
fn explain(error: &DialError) -> (String, String) {
    let (problem, next_step) = match error {
        DialError::Refused { .. } => {
            ("connection refused".to_owned(), "start it there, or correct the port".to_owned())
        }
        DialError::TimedOut { after, .. } => {
            let next_step = "check firewalls on the way, and the address; many networks allow port 443 only, \
                             or require a proxy (docs/network.md)";
            (format!("no response within {after:?}"), next_step.to_owned())
        }
        DialError::Network { message, .. } => {
            (message.clone(), "check the route to it ('ip route get')".to_owned())
        }
        DialError::Dns { .. } => {
            (error.to_string(), "check the name server of this device (/etc/resolv.conf)".to_owned())
        }
        DialError::Proxy { .. } => {
            let (problem, hint) = split_hint(&error.to_string());
            (problem, hint.unwrap_or_else(|| "check link.proxy, and that the proxy runs".to_owned()))
        }
    };
    (problem, next_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn closed() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn a_listener_is_reached_and_a_closed_port_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closed = closed().await;
        let testbed = Testbed::new(&format!("[link]\nbroker = \"mqtt://{address}\"\n"));
        ok(examine(&testbed.examined()).await, "reachable");
        testbed.configure(&format!(
            "[link]\nbroker = \"mqtt://{address}\"\n[identity]\ncloud = \"https://{closed}\"\n"
        ));
        warned(
            examine(&testbed.examined()).await,
            "which renews the certificate: connection refused",
            "start it there",
        );
        testbed.configure(&format!("[link]\nbroker = \"mqtt://{closed}\"\n"));
        failed(examine(&testbed.examined()).await, "connection refused", "start it there");
        testbed.configure(&format!("[link]\nbroker = [\"mqtt://{closed}\", \"mqtt://{address}\"]\n"));
        warned(examine(&testbed.examined()).await, "connection refused", "start it there");
    }

    /// Starts a proxy that answers `answer` to everything.
    async fn proxy(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn each_refusal_of_a_proxy_has_its_next_step() {
        for (answer, part, step) in [
            (
                "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\n\r\n",
                "(HTTP status 407)",
                "proxy_password_file",
            ),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "does not allow broker.example:8883", "port 443 only"),
            ("HTTP/1.1 503 No\r\n\r\n", "cannot reach broker.example:8883", "name and port"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", "captive portal", "check link.proxy"),
            ("SSH-2.0-x\r\n", "not an HTTP response", "HTTP proxy listens"),
        ] {
            let address = proxy(answer).await;
            let link =
                format!("[link]\nbroker = \"mqtt://broker.example:8883\"\nproxy = \"http://{address}\"\n");
            failed(examine(&Testbed::new(&link).examined()).await, part, step);
        }
        let address = closed().await;
        let link = format!("[link]\nbroker = \"mqtt://broker.example\"\nproxy = \"http://{address}\"\n");
        failed(examine(&Testbed::new(&link).examined()).await, "unreachable", "that the proxy runs");
    }

    #[tokio::test]
    async fn open_tunnel_names_its_proxy() {
        let address = proxy("HTTP/1.1 200 Connection established\r\n\r\n").await;
        let link = format!("[link]\nbroker = \"mqtt://broker.example\"\nproxy = \"http://{address}\"\n");
        let way = format!("mqtt://broker.example:1883 reachable through http://{address}");
        ok(examine(&Testbed::new(&link).examined()).await, &way);
    }

    #[tokio::test]
    async fn missing_password_of_the_proxy_is_reported() {
        let link = "[link]\nproxy = \"http://me@192.0.2.1:1\"\nproxy_password_file = \"/nowhere/p\"\n";
        failed(examine(&Testbed::new(link).examined()).await, "/nowhere/p", "[link]");
    }
}
