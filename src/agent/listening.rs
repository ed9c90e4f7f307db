//! Binds the TCP address of the local API. A failure does not stop the agent, whose job is sync: it
//! retries as long as the agent runs, and the status shows it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;

use super::access::Tokens;
use edgesync_admin::agent::ListenStatus;
use edgesync_api::{Address, Listener};

/// Delay before the first retry.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay between retries.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// State of the TCP address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ListenState {
    /// No address is configured.
    #[default]
    Off,
    /// The listener is bound: clients can connect.
    Open(SocketAddr),
    /// The address cannot be bound; it is retried.
    Waiting {
        address: SocketAddr,
        /// The cause, as text.
        why: String,
    },
}

impl ListenState {
    /// Returns the state for the status.
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

/// Binds the address, retrying without limit, and writes the kubeconfigs for it. Cancel-safe.
pub(super) async fn listen(
    address: SocketAddr,
    tokens: &Tokens,
    state: &watch::Sender<ListenState>,
) -> Listener {
    let mut wait = MIN_BACKOFF;
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
                        // Clients with a token can still connect, without TLS.
                        tracing::warn!(error = format!("{error:#}"), "kubeconfig not written");
                        listener
                    }
                };
                tracing::info!(address = %bound, "local API listening on TCP");
                state.send_replace(ListenState::Open(bound));
                return listener;
            }
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                if wait == MIN_BACKOFF {
                    tracing::warn!(
                        %address,
                        why,
                        "local API not listening on TCP, retrying; hint: end the other user of the port, \
                         or change api.listen"
                    );
                }
                state.send_replace(ListenState::Waiting { address, why });
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(MAX_BACKOFF);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_used_port_is_retried_and_then_written_to_the_kubeconfig() {
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
    async fn port_zero_is_written_as_the_bound_port() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::prepare(&dir.path().join("kubeconfig")).unwrap();
        let (state, _) = watch::channel(ListenState::Off);
        let listener = listen(([127, 0, 0, 1], 0).into(), &tokens, &state).await;
        let text = std::fs::read_to_string(dir.path().join("kubeconfig")).unwrap();
        let Address::Tcp(address) = listener.address() else { panic!("{:?}", listener.address()) };
        assert!(address.port() != 0 && text.contains(&format!("https://{address}\n")), "{text}");
    }
}
