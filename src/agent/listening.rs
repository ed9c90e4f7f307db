//! The TCP address of the local API. Syncing is the agent's job, so an address that cannot be had does not
//! stop it: it is tried again for as long as the agent runs, and the status says so.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;

use super::access::Tokens;
use edgesync_admin::agent::ListenStatus;
use edgesync_api::{Address, Listener};

/// The first wait before an address is tried again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What has become of the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ListenState {
    /// The configuration has none.
    #[default]
    Off,
    /// Clients can connect.
    Open(SocketAddr),
    /// It cannot be listened on; it is tried again.
    Waiting {
        /// The address.
        address: SocketAddr,
        /// Why, for people.
        why: String,
    },
}

impl ListenState {
    /// The state for the status.
    pub(super) fn show(&self) -> ListenStatus {
        match self {
            Self::Off => ListenStatus::Off,
            Self::Open(address) => ListenStatus::Open { address: address.to_string() },
            Self::Waiting { address, why } => {
                ListenStatus::Waiting { address: address.to_string(), why: why.clone() }
            }
        }
    }
}

/// Listens on the address, however long it takes, and writes the kubeconfigs for it. To be dropped when the
/// agent stops.
pub(super) async fn listen(
    address: SocketAddr,
    tokens: &Tokens,
    state: &watch::Sender<ListenState>,
) -> Listener {
    let mut wait = FIRST_WAIT;
    loop {
        match Listener::bind(&Address::Tcp(address)).await {
            Ok(listener) => {
                let bound = match listener.address() {
                    Address::Tcp(bound) => *bound,
                    Address::Tls { .. } | Address::Unix(_) => address,
                };
                let secured = tokens.secure(bound.ip()).and_then(|(tls, authority)| {
                    tokens.write_kubeconfigs(bound, &authority)?;
                    Ok(tls)
                });
                let listener = match secured {
                    Ok(tls) => listener.with_local_tls(tls),
                    Err(error) => {
                        // Who has a token can still connect, without TLS.
                        tracing::warn!(error = format!("{error:#}"), "no kubeconfig could be written");
                        listener
                    }
                };
                tracing::info!(address = %bound, "the local API answers over TCP");
                state.send_replace(ListenState::Open(bound));
                return listener;
            }
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                if wait == FIRST_WAIT {
                    let hint = "another process has the port? api.listen says which one is used";
                    tracing::warn!(%address, why, hint, "the local API does not answer over TCP; trying again");
                }
                state.send_replace(ListenState::Waiting { address, why });
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_taken_port_is_waited_for_and_then_stands_in_the_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::prepare(&dir.path().join("kubeconfig")).unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (state, mut seen) = watch::channel(ListenState::Off);
        let opening = tokio::spawn(async move { listen(address, &tokens, &state).await });
        let waiting = |state: &ListenState| matches!(state, ListenState::Waiting { .. });
        seen.wait_for(waiting).await.unwrap();
        assert!(matches!(seen.borrow().show(), ListenStatus::Waiting { .. }));
        drop(taken);
        let listener = opening.await.unwrap();
        assert_eq!(listener.address(), &Address::Tcp(address));
        assert_eq!(*seen.borrow(), ListenState::Open(address));
        let text = std::fs::read_to_string(dir.path().join("kubeconfig")).unwrap();
        assert!(text.contains(&format!("https://{address}\n")), "{text}");
    }

    #[tokio::test]
    async fn port_zero_is_written_as_the_one_that_was_taken() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::prepare(&dir.path().join("kubeconfig")).unwrap();
        let (state, _) = watch::channel(ListenState::Off);
        let listener = listen(([127, 0, 0, 1], 0).into(), &tokens, &state).await;
        let text = std::fs::read_to_string(dir.path().join("kubeconfig")).unwrap();
        let Address::Tcp(address) = listener.address() else { panic!("{:?}", listener.address()) };
        assert!(address.port() != 0 && text.contains(&format!("https://{address}\n")), "{text}");
    }
}
