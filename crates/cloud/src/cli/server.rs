//! The server that a command uses: the API of a cloud side, or the Kubernetes cluster that is its
//! store.

use std::path::Path;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::args_cloud::{FleetArgs, SERVER_VARIABLE, SOCKET, ServerArgs};
use edgesync_admin::{Method, Route};
use edgesync_api::{Address, Client, ClientError, Kubeconfig};
use edgesync_cli::CliError;
use edgesync_cli::records::RecordSource;
use edgesync_object::{Object, Resource};

/// Maximum number of attempts to change an object.
const ATTEMPTS: u32 = 5;
/// Marks the version of our own API, in contrast to that of a cluster.
const VERSION_MARK: &str = "+edgesync.";

/// Prefix of the variables with `link.proxy` and `link.proxy_password_file`.
#[cfg(feature = "kubernetes")]
const PROXY_VARIABLES: &str = "EDGESYNC_CLOUD_LINK_PROXY";

/// The fleet that a command works on.
pub(super) enum Fleet {
    /// The API of a cloud side.
    Api(Client),
    /// The cluster that stores the fleet of its replicas.
    #[cfg(feature = "kubernetes")]
    Cluster(Box<edgesync_kubernetes::via_cluster::ViaCluster>),
}

impl Fleet {
    /// Opens the named server, or that of the environment variable, or that of this machine. The
    /// version of a kubeconfig's server distinguishes the two kinds.
    pub(super) async fn open(args: FleetArgs) -> Result<Self, CliError> {
        let FleetArgs { address, kubeconfig, context, namespace } = args;
        let in_cluster = context.is_some() || namespace.is_some();
        let Some(file) = kubeconfig else {
            return without_kubeconfig(address).map(Self::Api);
        };
        if address.is_none() {
            match Server::of(&file, context.as_deref()).await? {
                Server::CloudSide if in_cluster => {
                    return Err(CliError::Usage(format!(
                        "{} is the kubeconfig of a cloud side; --context and --namespace need that of a Kubernetes cluster",
                        file.display()
                    )));
                }
                Server::CloudSide => {}
                #[cfg(feature = "kubernetes")]
                Server::Cluster(cluster) => {
                    let namespace = namespace.as_deref().unwrap_or(super::args_cloud::NAMESPACE);
                    return Ok(Self::Cluster(Box::new(edgesync_kubernetes::via_cluster::ViaCluster::new(
                        cluster, namespace,
                    ))));
                }
                #[cfg(not(feature = "kubernetes"))]
                Server::Cluster(()) => return Err(without_feature(&file)),
            }
        }
        with_kubeconfig(address, &file).map(Self::Api)
    }

    /// Sends a request; `body` is used for POST.
    pub(super) async fn call(&self, route: Route<'_>, body: &Value) -> Result<Value, CliError> {
        match (self, route.method()) {
            (Self::Api(client), Method::Get) => Ok(client.get(&route.path()).await?),
            (Self::Api(client), Method::Post) => Ok(client.post(&route.path(), body).await?),
            #[cfg(feature = "kubernetes")]
            (Self::Cluster(via_cluster), _) => {
                Ok(via_cluster.call(route, body).await.map_err(edgesync_api::ClientError::Api)?)
            }
        }
    }

    /// Sets or removes an annotation of a Node.
    pub(super) async fn annotate_node(
        &self,
        name: &str,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), CliError> {
        match self {
            Self::Api(client) => {
                let path = format!("/api/v1/nodes/{name}");
                for attempt in 1.. {
                    let mut node: Object = client.get(&path).await?;
                    node.set_annotation(key, value);
                    let written = client.put::<Value>(&path, &json!(node)).await;
                    match written {
                        // Another writer was faster.
                        Err(ClientError::Api(status)) if status.code == 409 && attempt < ATTEMPTS => {}
                        written => return written.map(drop).map_err(CliError::from),
                    }
                }
                Ok(())
            }
            #[cfg(feature = "kubernetes")]
            Self::Cluster(via_cluster) => {
                Ok(via_cluster.annotate(name, key, value).await.map_err(ClientError::Api)?)
            }
        }
    }

    /// The address of the API, if the server is one.
    pub(super) fn address(&self) -> Option<&Address> {
        match self {
            Self::Api(client) => Some(client.address()),
            #[cfg(feature = "kubernetes")]
            Self::Cluster(_) => None,
        }
    }
}

impl RecordSource for Fleet {
    async fn page(
        &self,
        kind: &Resource,
        node: Option<&str>,
        from: Option<String>,
    ) -> Result<(Vec<Box<RawValue>>, Option<String>), CliError> {
        match self {
            Self::Api(client) => client.page(kind, node, from).await,
            #[cfg(feature = "kubernetes")]
            Self::Cluster(via_cluster) => {
                let page = via_cluster.syncs(kind, node, from.as_deref()).await;
                let (objects, next) = page.map_err(edgesync_api::ClientError::Api)?;
                let items = objects.iter().map(serde_json::value::to_raw_value);
                let items = items.collect::<Result<_, _>>();
                Ok((items.map_err(|error| CliError::Show(error.to_string()))?, next))
            }
        }
    }
}

/// Serializes the body of a request.
pub(super) fn body(request: &impl Serialize) -> Result<Value, CliError> {
    edgesync_admin::write(request).map_err(|error| CliError::Show(error.to_string()))
}

/// Opens the API for objects: the named one, or that of the kubeconfig, or that of the environment
/// variable, or that of this machine.
pub(super) async fn client(server: ServerArgs) -> Result<Client, CliError> {
    let ServerArgs { address, kubeconfig } = server;
    let Some(file) = kubeconfig else { return without_kubeconfig(address) };
    if address.is_none()
        && let Server::Cluster(_) = Server::of(&file, None).await?
    {
        return Err(CliError::Usage(format!(
            "{file} is the kubeconfig of a Kubernetes cluster; hint: kubectl --kubeconfig {file}",
            file = file.display()
        )));
    }
    with_kubeconfig(address, &file)
}

fn without_kubeconfig(address: Option<Address>) -> Result<Client, CliError> {
    match address.map_or_else(of_variable, |address| Ok(Some(address)))? {
        Some(Address::Tls { .. }) => Err(CliError::Usage(
            "an https:// address needs --kubeconfig FILE; hint: create it with 'edgesync-cloud kubeconfig'"
                .to_owned(),
        )),
        Some(address) => Ok(Client::new(address)),
        None => Ok(Client::new(Address::Unix(SOCKET.into()))),
    }
}

fn with_kubeconfig(address: Option<Address>, file: &Path) -> Result<Client, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let config = Kubeconfig::read(&file.display().to_string(), &text).map_err(|problem| {
        wrong(format!(
            "not a kubeconfig of a cloud side: {problem}; hint: create one with 'edgesync-cloud kubeconfig'"
        ))
    })?;
    let address = match address {
        Some(address) => address,
        None => config.server.parse().map_err(|error| wrong(format!("invalid server: {error}")))?,
    };
    match address {
        Address::Tls { .. } => {
            Ok(Client::with_tls(address, config.tls().map_err(|error| wrong(error.to_string()))?))
        }
        address => Ok(Client::new(address)),
    }
}

/// The kind of server that a kubeconfig names.
enum Server {
    /// The API of a cloud side.
    CloudSide,
    /// The API server of a Kubernetes cluster.
    #[cfg(feature = "kubernetes")]
    Cluster(edgesync_kubernetes::cluster::Cluster),
    /// A Kubernetes cluster, which this build does not support.
    #[cfg(not(feature = "kubernetes"))]
    Cluster(()),
}

impl Server {
    /// Detects the kind of server from its version.
    #[cfg(feature = "kubernetes")]
    async fn of(file: &Path, context: Option<&str>) -> Result<Self, CliError> {
        let connected = edgesync_kubernetes::cluster::Cluster::connect_in(file, context, &proxy()?).await;
        let cluster =
            connected.map_err(|error| CliError::Usage(edgesync_runtime::chain(&error).to_string()))?;
        let version = cluster.version().await.map_err(|error| CliError::Cluster(error.to_string()))?;
        Ok(if version.contains(VERSION_MARK) { Self::CloudSide } else { Self::Cluster(cluster) })
    }

    /// Detects the kind of server from its version. One that does not respond counts as a cloud
    /// side: the next request reports the error.
    #[cfg(not(feature = "kubernetes"))]
    async fn of(file: &Path, context: Option<&str>) -> Result<Self, CliError> {
        if context.is_some() {
            return Err(without_feature(file));
        }
        let client = with_kubeconfig(None, file).map_err(|error| {
            let advice = "a Kubernetes cluster needs an edgesync-cloud with the feature 'kubernetes'";
            CliError::Usage(format!("{error}: {advice}"))
        })?;
        let version: Result<Value, _> = client.get("/version").await;
        let is_other = version.is_ok_and(|version| {
            version["gitVersion"].as_str().is_some_and(|version| !version.contains(VERSION_MARK))
        });
        Ok(if is_other { Self::Cluster(()) } else { Self::CloudSide })
    }
}

/// Returns the proxy for a cluster: `link.proxy` and its password, from their variables, because
/// such a command has no configuration file.
#[cfg(feature = "kubernetes")]
fn proxy() -> Result<edgesync_transport::proxy::ProxyRules, CliError> {
    let is_proxy = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(PROXY_VARIABLES.as_bytes());
    let variables = std::env::vars_os().filter(|(name, _)| is_proxy(name));
    let parsed =
        edgesync_config::parse::<edgesync_fleet::config::Config>(Path::new("environment"), "", variables);
    let link = parsed.map_err(|errors| CliError::Usage(errors.to_string()))?.config.link;
    let rules = edgesync_runtime::connection::proxy_rules(&link);
    rules.map_err(|error| CliError::Usage(format!("{error:#}")))
}

/// The error of a build without support for clusters.
#[cfg(not(feature = "kubernetes"))]
fn without_feature(file: &Path) -> CliError {
    CliError::Usage(format!(
        "{}: this edgesync-cloud was built without the feature 'kubernetes', which a Kubernetes cluster needs; hint: cargo \
         build -p edgesync-cloud --features kubernetes",
        file.display()
    ))
}

/// The address in the environment variable, if it is set.
fn of_variable() -> Result<Option<Address>, CliError> {
    let Some(text) = std::env::var_os(SERVER_VARIABLE) else { return Ok(None) };
    let address = text.to_string_lossy().parse();
    address.map(Some).map_err(|error| CliError::Usage(format!("{SERVER_VARIABLE}: {error}")))
}
