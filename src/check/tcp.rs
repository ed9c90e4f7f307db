//! Checks that broker or CloudCore, and the enrollment service accept connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Check, CheckFn, Examined, Finding};
use edgesync_object::time::rounded;
use edgesync_transport::connect::reworded;

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
    let peer = config.peer();
    if let Err(problem) = reach(&examined.addresses).await {
        return Finding::failed(format!("connect to {peer}: {problem}"), advice(&problem));
    }
    let Some(join) = &config.identity.cloud else { return Finding::ok(format!("{peer} reachable")) };
    let addresses = async { tokio::net::lookup_host((join.host.as_str(), join.port)).await };
    let reached = match timeout(SIDE_TIMEOUT, addresses).await {
        Ok(Ok(addresses)) => reach(&addresses.collect::<Vec<_>>()).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    match reached {
        Ok(()) => Finding::ok(format!("{peer} and {join} reachable")),
        Err(problem) => Finding::warning(
            format!(
                "{peer} reachable, but not the join service {join}, which renews the certificate: {problem}"
            ),
            advice(&problem),
        ),
    }
}

/// Tries addresses in turn, within the time limit for all.
async fn reach(addresses: &[SocketAddr]) -> io::Result<()> {
    let share = SIDE_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        last = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => reworded(error),
            Err(_) => {
                io::Error::new(io::ErrorKind::TimedOut, format!("no response within {}", rounded(share)))
            }
        };
    }
    Err(last)
}

fn advice(problem: &io::Error) -> &'static str {
    match problem.kind() {
        io::ErrorKind::ConnectionRefused => "start it there, or correct the port",
        io::ErrorKind::TimedOut => "check firewalls on the way, and the address",
        _ => "check the route to it ('ip route get')",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_listener_is_reached_and_a_closed_port_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let testbed = Testbed::new(&format!("[link]\nbroker = \"mqtt://{address}\"\n"));
        let mut examined = testbed.examined();
        examined.addresses = vec![closed, address];
        ok(examine(&examined).await, "reachable");
        testbed.configure(&format!(
            "[link]\nbroker = \"mqtt://{address}\"\n[identity]\ncloud = \"https://{closed}\"\n"
        ));
        examined.config = testbed.examined().config;
        warned(
            examine(&examined).await,
            "which renews the certificate: connection refused",
            "start it there",
        );
        examined.addresses = vec![closed];
        failed(examine(&examined).await, "connection refused", "start it there");
    }
}
