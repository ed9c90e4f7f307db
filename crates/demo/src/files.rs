//! Configuration files of the demo's processes, and the parser of the cloud side's ready status.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::DemoError;
use super::objects::NAMESPACES;
use super::processes::Workspace;

pub(super) const NODE: &str = "gateway-1";

/// Writes a file into the workspace.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(workspace: &Workspace, name: &str, text: &str) -> Result<PathBuf, DemoError> {
    let path = workspace.file(name);
    std::fs::write(&path, text)
        .map_err(|source| DemoError::io(format!("writing {}", path.display()), source))?;
    Ok(path)
}

/// Parses the address of the MQTT endpoint from the status sent to the service manager.
pub(super) fn endpoint(status: &str) -> Option<SocketAddr> {
    let (_, broker) = status.split_once(", broker embedded on ")?;
    // The status may continue with the current activity.
    let broker = broker.split_once(';').map_or(broker, |(address, _)| address);
    broker.parse().ok()
}

/// Returns the path of the cloud side's socket.
pub(super) fn cloud_socket(workspace: &Workspace) -> PathBuf {
    workspace.file("edgesync-cloud.sock")
}

/// Quotes a path as a TOML string: JSON escapes are valid TOML.
fn quoted(path: &Path) -> String {
    Value::from(path.to_string_lossy()).to_string()
}

/// Returns the configuration of the cloud side.
pub(super) fn cloud_config(workspace: &Workspace) -> String {
    let store = quoted(&workspace.file("cloud.db"));
    let socket = quoted(&cloud_socket(workspace));
    let namespaces = Value::from(NAMESPACES.to_vec());
    format!(
        "# The cloud side of the demo. Port 0: any free port.\n\
         [store]\npath = {store}\n\n\
         [broker]\nlisten = \"127.0.0.1:0\"\n\n\
         [api]\nsocket = {socket}\nlisten = \"127.0.0.1:0\"\n\n\
         [page]\nlisten = \"127.0.0.1:0\"\n\n\
         [enrollment]\nlisten = \"off\"\n\n\
         # Everything in the plant's namespaces belongs on its gateways.\n\
         [[placement]]\nnodes = {{ names = [\"gateway-*\"] }}\nobjects = {{ namespaces = {namespaces} }}\n"
    )
}

/// Returns the configuration of the agent, which reaches the broker over `link`.
pub(super) fn agent_config(workspace: &Workspace, link: SocketAddr) -> String {
    let store = quoted(&workspace.file("edgesync.db"));
    let socket = quoted(&workspace.file("edgesync.sock"));
    format!(
        "# The agent of the demo. The broker is reached over a link that the demo cuts.\n\
         [node]\nname = \"{NODE}\"\n\n\
         [store]\npath = {store}\n\n\
         # A demo has no fleet to spare: reconnect sooner than the default 1s to 1m.\n\
         [link]\nbroker = \"mqtt://{link}\"\nbackoff_min = \"50ms\"\nbackoff_max = \"200ms\"\n\n\
         [api]\nsocket = {socket}\nlisten = \"127.0.0.1:0\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_config as config;

    #[test]
    fn both_configurations_are_valid() {
        let workspace = Workspace::create().unwrap();
        let cloud = write(&workspace, "cloud.toml", &cloud_config(&workspace)).unwrap();
        let loaded = config::load::<edgesync_fleet::config::Config>(&cloud).unwrap();
        assert_eq!(loaded.config.store.path, workspace.file("cloud.db"));
        let link = "127.0.0.1:4711".parse().unwrap();
        let agent = write(&workspace, "agent.toml", &agent_config(&workspace, link)).unwrap();
        let loaded = config::load::<config::edge::Config>(&agent).unwrap();
        assert_eq!(loaded.config.peer().port, 4711);
        assert_eq!(loaded.config.api.socket, workspace.file("edgesync.sock"));
    }

    #[test]
    fn endpoint_is_parsed_from_the_ready_status() {
        let said = "API on https://127.0.0.1:10551, broker embedded on 127.0.0.1:1883";
        assert_eq!(endpoint(said), "127.0.0.1:1883".parse().ok());
        assert_eq!(endpoint(&format!("{said}; loading placement index")), endpoint(said));
        assert_eq!(endpoint("API on https://127.0.0.1:1, broker mqtt://x"), None);
    }

    #[test]
    fn path_is_quoted_for_toml() {
        assert_eq!(quoted(Path::new("/a \"b\"\\c")), r#""/a \"b\"\\c""#);
    }
}
