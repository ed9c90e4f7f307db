//! Waits for the device to join: before that, no cloud is configured.

use std::time::Duration;

use edgesync_config::edge::Config;
use edgesync_runtime::Service;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};

/// Interval at which the configuration is reread.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Instruction for the operator.
const INSTRUCTION: &str = "not joined, waiting; hint: 'edgesync join --cloud https://HOST:10002 --token -'";

/// Waits until the configuration names the cloud. Returns `false` if the agent was stopped instead.
pub(super) async fn wait(service: &mut Service<Config>, signals: &mut Signals) -> bool {
    if is_joined(service) {
        return true;
    }
    tracing::warn!("{INSTRUCTION}");
    systemd::ready(INSTRUCTION);
    let watchdog = Watchdog::start();
    loop {
        watchdog.turned();
        tokio::select! {
            request = signals.next() => match request {
                Request::Stop => return false,
                Request::Reload => {
                    systemd::reloading();
                    systemd::ready(INSTRUCTION);
                }
            },
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        service.look_again();
        if is_joined(service) {
            tracing::info!("joined, starting");
            return true;
        }
    }
}

fn is_joined(service: &Service<Config>) -> bool {
    service.config().is_joined(|key| service.is_set(key))
}
