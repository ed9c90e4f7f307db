//! The time before the device has joined: there is no cloud to look for.

use std::time::Duration;

use edgesync_config::LinkType;
use edgesync_config::edge::Config;
use edgesync_runtime::Service;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};

/// How often the configuration is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What is to be done.
const WORDS: &str = "not joined: run 'edgesync join --cloud https://HOST:10002 --token TOKEN'";

/// Waits until the configuration says where the cloud is. Tells whether it does; if not, the agent is to stop.
pub(super) async fn wait(service: &mut Service<Config>, signals: &mut Signals) -> bool {
    if is_joined(service) {
        return true;
    }
    tracing::warn!("{WORDS}; the agent waits for that");
    systemd::ready(WORDS);
    let watchdog = Watchdog::start();
    loop {
        watchdog.turned();
        tokio::select! {
            request = signals.next() => match request {
                Request::Stop => return false,
                Request::Reload => {
                    systemd::reloading();
                    systemd::ready(WORDS);
                }
            },
            () = tokio::time::sleep(LOOK) => {}
        }
        service.look_again();
        if is_joined(service) {
            tracing::info!("joined: the agent begins");
            return true;
        }
    }
}

/// Whether a broker or CloudCore is named, or an identity with which one is.
fn is_joined(service: &Service<Config>) -> bool {
    let config = service.config();
    config.link_type != LinkType::Mqtt || config.identity.directory.is_some() || service.is_set("link.broker")
}
