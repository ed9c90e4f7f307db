//! Connection to a cluster: finds credentials, retries overloaded API servers, classifies errors.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::retry::RetryPolicy;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::retry::Retry;
use tower::{BoxError, service_fn};

use super::api_discovery;
use super::plan::Kinds;
use edgesync_object::ResourceVersion;
use edgesync_transport::connect::describe;
use edgesync_transport::proxy::{Proxy, ProxyRules};

/// Read timeout of a connection; exceeds the lifetime of an idle watch.
const READ_TIMEOUT: Duration = Duration::from_secs(150);
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Retries of a request to an overloaded server before the caller gets the error.
const ATTEMPTS: u32 = 3;
/// First and maximum backoff between retries, unless the server sends `Retry-After`.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// Source of the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The kubeconfig at a path given by the operator.
    Kubeconfig(PathBuf),
    /// The kubeconfig of this user: `$KUBECONFIG`, else `~/.kube/config`.
    User,
    /// The service account of the Pod that this program runs in.
    ServiceAccount,
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "kubeconfig {}", path.display()),
            Self::User => f.write_str("kubeconfig of this user ($KUBECONFIG, else ~/.kube/config)"),
            Self::ServiceAccount => f.write_str("service account of the Pod"),
        }
    }
}

/// Permanent error of the local credentials; retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig is unreadable or invalid.
    #[error("load {credentials}: {problem}")]
    Kubeconfig {
        credentials: Credentials,
        /// The cause, in one line.
        problem: String,
    },
    /// The kubeconfig is valid but has no context of this name.
    #[error("load {credentials}: no context '{context}' ({known})")]
    NoContext {
        credentials: Credentials,
        context: String,
        /// The existing contexts, as a phrase.
        known: String,
    },
    /// No kubeconfig was named and none was found.
    #[error(
        "find cluster credentials: kubernetes.kubeconfig is not set, and there is no service account of a Pod \
         ({service_account})"
    )]
    Nowhere {
        /// Reason why no service account is available.
        service_account: InClusterError,
        /// Reason why the user's kubeconfig is not available.
        source: KubeconfigError,
    },
    /// The client library rejects the credentials.
    #[error("create a client from {credentials}")]
    Credentials {
        credentials: Credentials,
        /// The client library's error.
        source: kube::Error,
    },
}

/// Error of the API server at the URL `server`. Retryable: each cause can be fixed on the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// The server is not reachable.
    #[error("connect to API server {server}: {cause}")]
    Unreachable {
        server: String,
        /// Innermost error of the connection.
        cause: String,
    },
    /// The server's certificate is not trusted.
    #[error(
        "verify certificate of API server {server}: {cause}: the CA of that server must be in {credentials}"
    )]
    Untrusted {
        server: String,
        /// Innermost TLS error, which mentions a certificate.
        cause: String,
        /// The credentials in use.
        credentials: Credentials,
    },
    /// The server rejects the credentials (401).
    #[error(
        "authenticate to API server {server} with {credentials}: expired, revoked or of another cluster ({cause})"
    )]
    Unknown {
        server: String,
        /// The credentials in use.
        credentials: Credentials,
        /// Message of the Status in the answer.
        cause: String,
    },
    /// The server answers with another error.
    #[error("API server {server}: {cause}")]
    Refused {
        server: String,
        /// Message of the Status in the answer.
        cause: String,
    },
}

/// A client of a cluster with credentials. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub(super) client: Client,
    /// Client without retries, for watches, which have their own backoff.
    pub(super) watch_client: Box<Client>,
    server: String,
    credentials: Credentials,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.server, self.credentials)
    }
}

impl Cluster {
    /// Finds the credentials: the named kubeconfig, else the Pod's service account, else the user's
    /// kubeconfig. Sends no request; [`Self::version`] does. Connections go through the proxy of
    /// the kubeconfig, else through that of `rules`; else, with a kubeconfig, through that of the
    /// environment, as with kubectl.
    ///
    /// # Errors
    /// No credentials are found, or they are unreadable, or the environment has no valid proxy.
    pub async fn connect(kubeconfig: Option<&Path>, rules: &ProxyRules) -> Result<Self, AccessError> {
        let found = match kubeconfig {
            Some(path) => load_kubeconfig(path, None).await?,
            None => find_credentials().await?,
        };
        Self::through(found, rules)
    }

    /// Loads the named kubeconfig with one of its contexts, by default the current one. The proxy
    /// is that of [`Self::connect`].
    ///
    /// # Errors
    /// The kubeconfig is unreadable or has no such context, or the environment has no valid proxy.
    pub async fn connect_in(
        kubeconfig: &Path,
        context: Option<&str>,
        rules: &ProxyRules,
    ) -> Result<Self, AccessError> {
        Self::through(load_kubeconfig(kubeconfig, context).await?, rules)
    }

    fn through((mut config, credentials): Found, rules: &ProxyRules) -> Result<Self, AccessError> {
        let variable = |name: &str| std::env::var(name).ok();
        let rules = effective_rules(rules, &credentials, variable);
        match rules.and_then(|rules| use_proxy(&mut config, &rules)) {
            Ok(()) => Self::with(config, credentials),
            Err(problem) => Err(AccessError::Kubeconfig { credentials, problem }),
        }
    }

    fn with(mut config: Config, credentials: Credentials) -> Result<Self, AccessError> {
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // The client's own retries last for minutes and report nothing meanwhile.
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        match Client::try_from(config) {
            Ok(watch_client) => Ok(Self {
                client: with_retries(watch_client.clone()),
                watch_client: Box::new(watch_client),
                server,
                credentials,
            }),
            Err(source) => Err(AccessError::Credentials { credentials, source }),
        }
    }

    /// Returns a client for tests, without discovery of credentials.
    #[cfg(test)]
    pub(super) fn at(config: Config) -> Self {
        Self::with(config, Credentials::User).unwrap()
    }

    /// Returns the version of the cluster, such as `v1.20.2`.
    ///
    /// # Errors
    /// The server is unavailable; the message says how to fix it.
    pub async fn version(&self) -> Result<String, Unserved> {
        let version = self.client.apiserver_version().await;
        version.map(|info| info.git_version).map_err(|error| self.unserved(&error))
    }

    /// Discovers the kinds that the cluster serves.
    ///
    /// # Errors
    /// The server is unavailable, not ready yet, or fails discovery.
    pub async fn kinds(&self) -> Result<Kinds, Unserved> {
        api_discovery::discover(&self.client).await.map_err(|error| self.unserved(&error))
    }

    /// Returns the newest resource version that the cluster has assigned. Later ones are newer,
    /// unless the cluster is restored from a backup.
    ///
    /// # Errors
    /// The server is unavailable, or does not let this program list Nodes.
    pub async fn reached(&self) -> Result<ResourceVersion, Unserved> {
        api_discovery::reached(&self.client).await.map_err(|error| self.unserved(&error))
    }

    /// Classifies an error of the client library.
    pub(super) fn unserved(&self, error: &kube::Error) -> Unserved {
        let (server, credentials) = (self.server.clone(), self.credentials.clone());
        let cause = root_cause(error);
        match error {
            kube::Error::Api(status) if status.code == 401 => {
                Unserved::Unknown { server, credentials, cause: status.message.clone() }
            }
            kube::Error::Api(status) => Unserved::Refused { server, cause: status.message.clone() },
            _ if cause.contains("certificate") => Unserved::Untrusted { server, cause, credentials },
            _ => Unserved::Unreachable { server, cause },
        }
    }
}

/// Returns a client that retries with backoff while the server is overloaded (429, 503, 504).
fn with_retries(client: Client) -> Client {
    let Ok(policy) = RetryPolicy::new(BACKOFF.0, BACKOFF.1, ATTEMPTS, true) else { return client };
    let namespace = client.default_namespace().to_owned();
    let once = service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await.map_err(BoxError::from) }
    });
    Client::new(Retry::new(policy, once), namespace)
}

/// Returns the message of the innermost error; the outer layers only wrap it.
pub(super) fn root_cause(error: &dyn Error) -> String {
    let Some(mut cause) = error.source() else { return error.to_string() };
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.downcast_ref::<io::Error>().map_or_else(|| cause.to_string(), describe)
}

/// Returns the cause of a kubeconfig error in one line.
fn problem(error: &KubeconfigError) -> String {
    if let KubeconfigError::ReadConfig(error, _) = error {
        return error.to_string();
    }
    let all = error.to_string();
    all.lines().next().unwrap_or_default().to_owned()
}

/// Returns the rules, or those of the environment if they have no proxy. A service account ignores
/// the environment: the API server is in the same network.
fn effective_rules(
    rules: &ProxyRules,
    credentials: &Credentials,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ProxyRules, String> {
    if *rules != ProxyRules::default() || *credentials == Credentials::ServiceAccount {
        return Ok(rules.clone());
    }
    ProxyRules::of_environment(variable)
}

/// Uses the proxy for connections to the cluster, if there is one and the kubeconfig has none.
fn use_proxy(config: &mut Config, rules: &ProxyRules) -> Result<(), String> {
    if config.proxy_url.is_some() {
        return Ok(());
    }
    let url = &config.cluster_url;
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let port = url.port_u16().unwrap_or(usual);
    let proxy = url.host().and_then(|host| rules.proxy_for(host, port)).map(Proxy::secret_url);
    if let Some(proxy) = proxy {
        // Without the address in the message: it may have a password.
        config.proxy_url = Some(proxy.parse().map_err(|_| "address of the proxy is invalid".to_owned())?);
    }
    Ok(())
}

/// The client library's configuration with its credentials.
type Found = (Config, Credentials);

async fn load_kubeconfig(path: &Path, context: Option<&str>) -> Result<Found, AccessError> {
    let credentials = Credentials::Kubeconfig(path.to_owned());
    let kubeconfig = match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => kubeconfig,
        Err(source) => return Err(AccessError::Kubeconfig { credentials, problem: problem(&source) }),
    };
    let contexts: Vec<&str> = kubeconfig.contexts.iter().map(|context| &*context.name).collect();
    if let Some(context) = context.filter(|context| !contexts.contains(context)) {
        let known = match contexts.as_slice() {
            [] => "no contexts defined".to_owned(),
            contexts => format!("contexts: {}", contexts.join(", ")),
        };
        return Err(AccessError::NoContext { credentials, context: context.to_owned(), known });
    }
    match configured(kubeconfig, context).await {
        Ok(config) => Ok((config, credentials)),
        Err(source) => Err(AccessError::Kubeconfig { credentials, problem: problem(&source) }),
    }
}

async fn find_credentials() -> Result<Found, AccessError> {
    let service_account = match Config::incluster() {
        Ok(config) => return Ok((config, Credentials::ServiceAccount)),
        Err(error) => error,
    };
    let found = match Kubeconfig::read() {
        Ok(kubeconfig) => configured(kubeconfig, None).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(config) => Ok((config, Credentials::User)),
        Err(source @ (KubeconfigError::FindPath | KubeconfigError::ReadConfig(..))) => {
            Err(AccessError::Nowhere { service_account, source })
        }
        Err(source) => {
            Err(AccessError::Kubeconfig { credentials: Credentials::User, problem: problem(&source) })
        }
    }
}

/// Returns the configuration of a context, with the proxy of its cluster only: the client library
/// compares `NO_PROXY` with the proxy, in place of the cluster.
async fn configured(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Config, KubeconfigError> {
    let own = proxy_of(&kubeconfig, context);
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = match own {
        Some(proxy) => Some(proxy.parse().map_err(KubeconfigError::ParseProxyUrl)?),
        None => None,
    };
    Ok(config)
}

/// Returns the proxy of the cluster of a context, by default the current one.
fn proxy_of(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    let proxy = named.cluster.as_ref()?.proxy_url.clone();
    proxy.filter(|proxy| !proxy.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use edgesync_testkit::timing::{PATIENCE, within};

    fn direct() -> ProxyRules {
        ProxyRules::default()
    }

    fn chain(error: &dyn Error) -> String {
        let below = error.source().map(|source| format!(": {}", chain(source)));
        format!("{error}{}", below.unwrap_or_default())
    }

    fn kubeconfig(server: &str) -> String {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
        .to_string()
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_with_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        for (text, expected) in [
            (None, "config: No such file or directory (os error 2)"),
            (Some("[store]\npath = 7\n"), "line 1 column 1"),
            (Some("clusters: 7"), "failed to parse"),
            (Some("apiVersion: v1\nkind: Config\n"), "current context"),
            (
                Some(
                    &*kubeconfig("https://127.0.0.1:0").replace("\"cluster\":\"k\"", "\"cluster\":\"other\""),
                ),
                "cluster",
            ),
        ] {
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let error = chain(&Cluster::connect(Some(&path), &direct()).await.unwrap_err());
            let expected_start = format!("load kubeconfig {}: ", path.display());
            assert!(error.starts_with(&expected_start) && error.contains(expected), "{error}");
            assert!(!error.contains('\n') && error.matches("os error").count() < 2, "{error}");
        }
    }

    #[tokio::test]
    async fn a_context_is_one_of_the_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let mut two: serde_json::Value = serde_json::from_str(&kubeconfig("http://127.0.0.1:1")).unwrap();
        let other = serde_json::json!({"name": "other", "cluster": {"server": "http://127.0.0.1:2"}});
        two["clusters"].as_array_mut().unwrap().push(other);
        let context = serde_json::json!({"name": "d", "context": {"cluster": "other", "user": "u"}});
        two["contexts"].as_array_mut().unwrap().push(context);
        fs::write(&path, two.to_string()).unwrap();
        for (context, server) in [(None, ":1"), (Some("c"), ":1"), (Some("d"), ":2")] {
            let cluster = Cluster::connect_in(&path, context, &direct()).await.unwrap();
            assert!(cluster.server.ends_with(server), "{context:?}: {cluster:?}");
        }
        let error = chain(&Cluster::connect_in(&path, Some("e"), &direct()).await.unwrap_err());
        assert!(error.ends_with(": no context 'e' (contexts: c, d)"), "{error}");
    }

    #[tokio::test]
    async fn an_unreachable_server_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        // The port is free: its listener is closed.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        fs::write(&path, kubeconfig(&format!("http://{address}"))).unwrap();
        let cluster = Cluster::connect(Some(&path), &direct()).await.unwrap();
        let error = cluster.version().await.unwrap_err();
        assert!(matches!(&error, Unserved::Unreachable { .. }), "{error:?}");
        let expected = format!("connect to API server http://{address}: connection refused");
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn cluster_is_reached_through_a_proxy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let version = r#"{"major":"1","minor":"20","gitVersion":"v1.20.2","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
        let serving = std::thread::spawn(move || {
            let (connection, _) = listener.accept().unwrap();
            let mut connection = BufReader::new(connection);
            let mut heads = Vec::new();
            for answer in [
                "HTTP/1.1 200 Connection established\r\n\r\n".to_owned(),
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{version}",
                    version.len()
                ),
            ] {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && connection.read_line(&mut head).unwrap() > 0 {}
                heads.push(head);
                connection.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            heads
        });
        // The name does not exist: only the proxy would resolve it.
        let config = || Config::new("http://cluster.invalid:6443".parse().unwrap());
        let proxy = Proxy::new("127.0.0.1", address.port(), Some("me")).with_password("p@ss".to_owned());
        let rules = ProxyRules::new(proxy, "");
        let mut proxied = config();
        use_proxy(&mut proxied, &rules).unwrap();
        let cluster = Cluster::at(proxied);
        assert_eq!(within("a version", PATIENCE, cluster.version()).await.unwrap(), "v1.20.2");
        let heads = serving.join().unwrap();
        assert!(heads[0].starts_with("CONNECT cluster.invalid:6443 HTTP/1.1\r\n"), "{heads:?}");
        // "me:p@ss" in base64.
        assert!(heads[0].to_lowercase().contains("proxy-authorization: basic bwu6cebzcw=="), "{heads:?}");
        assert!(heads[1].starts_with("GET /version HTTP/1.1\r\n"), "{heads:?}");

        let mut direct = config();
        use_proxy(&mut direct, &ProxyRules::new(Proxy::new("127.0.0.1", 1, None), ".invalid")).unwrap();
        assert_eq!(direct.proxy_url, None);
    }

    #[tokio::test]
    async fn proxy_of_a_kubeconfig_comes_first_and_no_proxy_names_the_cluster() {
        let with = |more: &str| {
            let text = kubeconfig("https://cluster.example:6443")
                .replace("\"server\"", &format!("{more}\"server\""));
            Kubeconfig::from_yaml(&text).unwrap()
        };
        let variables = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://env.example:1".to_owned()),
            "NO_PROXY" => Some("intern.example,.plant.example".to_owned()),
            _ => None,
        };
        let (user, pod) = (Credentials::User, Credentials::ServiceAccount);
        let own = "\"proxy-url\":\"http://own.example:1\",";
        let link = ProxyRules::new(Proxy::new("link.example", 1, None), "");
        let excepted = ProxyRules::new(Proxy::new("link.example", 1, None), "cluster.example");
        for (more, rules, credentials, expected) in [
            (own, &link, &user, Some("http://own.example:1/")),
            ("", &link, &user, Some("http://link.example:1/")),
            ("", &link, &pod, Some("http://link.example:1/")),
            ("", &direct(), &user, Some("http://env.example:1/")),
            ("", &direct(), &pod, None),
            ("", &excepted, &user, None),
        ] {
            let mut config = configured(with(more), None).await.unwrap();
            let rules = effective_rules(rules, credentials, variables).unwrap();
            use_proxy(&mut config, &rules).unwrap();
            assert_eq!(
                config.proxy_url.map(|url| url.to_string()).as_deref(),
                expected,
                "{more}, {credentials}"
            );
        }
        let mut config = Config::new("https://api.plant.example".parse().unwrap());
        use_proxy(&mut config, &effective_rules(&direct(), &user, variables).unwrap()).unwrap();
        assert_eq!(config.proxy_url, None, "an exception of the environment");
        let wrong = |name: &str| (name == "HTTPS_PROXY").then(|| "socks5://p:1".to_owned());
        let problem = effective_rules(&direct(), &user, wrong).unwrap_err();
        assert!(problem.starts_with("variable HTTPS_PROXY must be"), "{problem}");
    }

    /// Starts a server that gives these answers, one per connection, and repeats the last. Returns
    /// its address and the counter of answers.
    fn scripted(answers: [(&'static str, &'static str); 3]) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, given) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&given);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (mut connection, mut head) = (BufReader::new(connection.unwrap()), String::new());
                while !head.ends_with("\r\n\r\n") && connection.read_line(&mut head).unwrap() > 0 {}
                let (head, body) = answers[count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)];
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                connection.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, given)
    }

    const BUSY: (&str, &str) =
        ("429 Too Many Requests\r\nRetry-After: 1", "Too many requests, please try again later.\n");
    const DOWN: (&str, &str) = ("503 Service Unavailable", "overloaded\n");

    async fn version_of(address: SocketAddr) -> Result<String, Unserved> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        fs::write(&path, kubeconfig(&format!("http://{address}"))).unwrap();
        Cluster::connect(Some(&path), &direct()).await.unwrap().version().await
    }

    #[tokio::test]
    async fn an_overloaded_server_is_retried_after_its_retry_after() {
        let version = r#"{"major":"1","minor":"20","gitVersion":"v1.20.2","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
        let (address, given) = scripted([BUSY, BUSY, ("200 OK\r\nContent-Type: application/json", version)]);
        let begun = Instant::now();
        assert_eq!(version_of(address).await.unwrap(), "v1.20.2");
        assert_eq!(given.load(Ordering::SeqCst), 3);
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn an_unavailable_server_is_an_error_after_some_attempts() {
        let (address, given) = scripted([DOWN; 3]);
        let error = within("the attempts end", PATIENCE, version_of(address)).await.unwrap_err();
        assert!(
            matches!(&error, Unserved::Refused { cause, .. } if cause.contains("overloaded")),
            "{error:?}"
        );
        assert_eq!(given.load(Ordering::SeqCst), 1 + ATTEMPTS as usize);
    }
}
