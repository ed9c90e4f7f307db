//! API client for the command line: HTTP/1 over loopback, a Unix socket or TLS, with one kept-alive
//! connection and bounded responses.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::Builder;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::address::Address;
use super::connection::{self, Failure, Sender};
use edgesync_object::encoding::percent;
use edgesync_object::{Resource, Scope, Status};
use edgesync_transport::connect::reworded;
use edgesync_transport::tls::{self, HandshakeError};

/// Maximum length of an accepted response, in bytes: a page of large objects fits.
pub(crate) const MAX_ANSWER: usize = 256 << 20;
/// Time limit of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a request until its response is complete.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of retries of a request for which the server is too busy.
const MAX_RETRIES: u32 = 10;
/// Maximum wait before a retry. A server that asks for more is not waited for.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The content type of objects.
const JSON: &str = "application/json";
/// The content type of an apply; JSON is YAML too.
const APPLY: &str = "application/apply-patch+yaml";

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection cannot be opened.
    #[error("connect to {address}")]
    Connect {
        /// Address of the API server.
        address: Address,
        /// Cause of the failure.
        source: io::Error,
    },
    /// TLS fails, or a certificate is refused.
    #[error("TLS handshake with {address} failed")]
    Tls {
        /// Address of the API server.
        address: Address,
        /// Cause of the failure.
        source: HandshakeError,
    },
    /// The address needs TLS, and the client has no certificate.
    #[error("{address} needs TLS, and no CA and client certificate are given")]
    NoCertificate {
        /// Address of the API server.
        address: Address,
    },
    /// The connection broke during the exchange.
    #[error("{method} {path} at {address} failed")]
    Exchange {
        /// Address of the API server.
        address: Address,
        /// HTTP method of the request.
        method: Method,
        /// Request path, with its query.
        path: String,
        /// Cause of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The peer does not speak HTTP.
    #[error("{address} does not speak HTTP; hint: the address of an API with TLS begins with https://")]
    NoHttp {
        /// Address of the API server.
        address: Address,
        /// Cause of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The response was not complete in time.
    #[error("{method} {path} at {address} timed out after {} s", REQUEST_TIMEOUT.as_secs())]
    TimedOut {
        /// Address of the API server.
        address: Address,
        /// HTTP method of the request.
        method: Method,
        /// Request path, with its query.
        path: String,
    },
    /// The response is longer than [`MAX_ANSWER`].
    #[error(
        "the response to {method} {path} is longer than {MAX_ANSWER} bytes; hint: limit it with a selector or a namespace"
    )]
    TooLarge {
        /// HTTP method of the request.
        method: Method,
        /// Request path, with its query.
        path: String,
    },
    /// The response is not one of the API.
    #[error("{address} answered {method} {path} with an invalid response, code {code}: {problem}")]
    Unexpected {
        /// Address of the API server.
        address: Address,
        /// HTTP method of the request.
        method: Method,
        /// Request path, with its query.
        path: String,
        /// HTTP status code of the response.
        code: u16,
        /// Description of the mismatch.
        problem: String,
    },
    /// The API refused the request.
    #[error(transparent)]
    Api(#[from] Status),
}

impl ClientError {
    /// Returns the API's refusal, if the error is one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            _ => None,
        }
    }
}

/// A client of one API server. Requests at the same time use a connection each, which later ones
/// reuse.
#[derive(Debug)]
pub struct Client {
    address: Address,
    tls: Option<tls::Client>,
    /// Connections without a request, the last used one last.
    idle: Mutex<Vec<Sender>>,
}

impl Client {
    /// Creates a client that connects on its first request. An address with TLS needs
    /// [`Client::with_tls`].
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, tls: None, idle: Mutex::default() }
    }

    /// Creates a client that uses TLS if its address requires it.
    #[must_use]
    pub fn with_tls(address: Address, tls: tls::Client) -> Self {
        Self { address, tls: Some(tls), idle: Mutex::default() }
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Gets JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None, JSON).await
    }

    /// Gets text, such as metrics.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let exchange = self.exchange(Method::GET, path, Bytes::new(), JSON);
        let Ok(answered) = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await else {
            let (address, path) = (self.address.clone(), path.to_owned());
            return Err(ClientError::TimedOut { address, method: Method::GET, path });
        };
        match answered? {
            (200..300, bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            (code, _) => Err(ClientError::Unexpected {
                address: self.address.clone(),
                method: Method::GET,
                path: path.to_owned(),
                code,
                problem: "no text".to_owned(),
            }),
        }
    }

    /// Reads lines as they arrive, such as those of a watch, until the end or until `take` returns
    /// false.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lines(&self, path: &str, take: &mut dyn FnMut(&str) -> bool) -> Result<(), ClientError> {
        let failed = |source| self.failure(&Method::GET, path, source);
        let request =
            self.request(&Method::GET, path, Bytes::new(), JSON).map_err(|error| failed(error.into()))?;
        // The connection lives as long as its body is read.
        let (_sender, response) = self.attempt(request).await?.map_err(|error| failed(error.into()))?;
        if !response.status().is_success() {
            // The refusal is parsed like any other.
            return self.send_once::<Value>(&Method::GET, path, Bytes::new(), JSON).await.map(drop);
        }
        let mut body = response.into_body();
        let mut buffered = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| failed(error.into()))?.into_data() else { continue };
            buffered.extend_from_slice(&data);
            while let Some(end) = buffered.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffered.drain(..=end).collect();
                if !take(String::from_utf8_lossy(&line).trim()) {
                    return Ok(());
                }
            }
            if buffered.len() > MAX_ANSWER {
                return Err(ClientError::TooLarge { method: Method::GET, path: path.to_owned() });
            }
        }
        Ok(())
    }

    /// Posts JSON and reads JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.send(Method::POST, path, Some(body), JSON).await
    }

    /// Puts JSON and reads JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.send(Method::PUT, path, Some(body), JSON).await
    }

    /// Applies an object on the server with `force`: its fields then belong to `manager`. Unknown
    /// fields are refused.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn apply<T: DeserializeOwned>(
        &self,
        path: &str,
        manager: &str,
        object: &Value,
    ) -> Result<T, ClientError> {
        let path = format!("{path}?fieldManager={}&force=true&fieldValidation=Strict", percent(manager));
        self.send(Method::PATCH, &path, Some(object), APPLY).await
    }

    /// Deletes, optionally with `DeleteOptions`, and reads JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(
        &self,
        path: &str,
        options: Option<&Value>,
    ) -> Result<T, ClientError> {
        self.send(Method::DELETE, path, options, JSON).await
    }

    /// Sends a request, and sends it again while the server is too busy for it.
    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        content_type: &'static str,
    ) -> Result<T, ClientError> {
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut retries = 0;
        loop {
            let result = self.send_once(&method, path, body.clone(), content_type).await;
            let Some(delay) = result.as_ref().err().and_then(|error| retry_delay(error, retries)) else {
                return result;
            };
            retries += 1;
            tokio::time::sleep(delay).await;
        }
    }

    async fn send_once<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        content_type: &'static str,
    ) -> Result<T, ClientError> {
        let exchange = self.exchange(method.clone(), path, body, content_type);
        let Ok(answered) = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await else {
            let (address, method, path) = (self.address.clone(), method.clone(), path.to_owned());
            return Err(ClientError::TimedOut { address, method, path });
        };
        let (code, bytes) = answered?;
        let unexpected = |problem: String| ClientError::Unexpected {
            address: self.address.clone(),
            method: method.clone(),
            path: path.to_owned(),
            code,
            problem,
        };
        if (200..300).contains(&code) {
            return serde_json::from_slice(&bytes).map_err(|error| unexpected(error.to_string()));
        }
        match serde_json::from_slice::<Status>(&bytes) {
            Ok(status) => Err(ClientError::Api(status)),
            Err(_) => {
                let shown: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
                Err(unexpected(format!("{shown:?}")))
            }
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        content_type: &'static str,
    ) -> Result<(u16, Bytes), ClientError> {
        let failed = |source| self.failure(&method, path, source);
        let request =
            self.request(&method, path, body, content_type).map_err(|error| failed(error.into()))?;
        let (sender, response) = self.attempt(request).await?.map_err(|error| failed(error.into()))?;
        let code = response.status().as_u16();
        match connection::collect(response.into_body(), MAX_ANSWER).await {
            Ok(Some(body)) => {
                self.idle().push(sender);
                Ok((code, body))
            }
            Ok(None) => Err(ClientError::TooLarge { method: method.clone(), path: path.to_owned() }),
            Err(error) => Err(failed(error)),
        }
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        content_type: &'static str,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let host = match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Tls { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tls { host, port } => format!("{host}:{port}"),
            Address::Unix(_) => "localhost".to_owned(),
        };
        let request =
            Request::builder().method(method).uri(path).header(HOST, host).header(ACCEPT, "application/json");
        let request = if body.is_empty() { request } else { request.header(CONTENT_TYPE, content_type) };
        request.body(Full::new(body))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<Sender> {
        self.idle().pop()
    }

    /// Sends a request over an idle connection or a new one, and returns the connection with the
    /// response. A connection that the server closed while idle is replaced, but only if the
    /// request has not been sent over it.
    async fn attempt(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<hyper::Result<(Sender, Response<Incoming>)>, ClientError> {
        let mut request = request;
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(Ok((sender, response))),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Ok(Err(error.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        Ok(sender.send_request(request).await.map(|response| (sender, response)))
    }

    /// Builds the error of a failed exchange.
    fn failure(&self, method: &Method, path: &str, source: Failure) -> ClientError {
        let address = self.address.clone();
        match self.refusal(&*source) {
            Some(source) => ClientError::Tls { address, source },
            None if source.downcast_ref().is_some_and(hyper::Error::is_parse) => {
                ClientError::NoHttp { address, source }
            }
            None => ClientError::Exchange { address, method: method.clone(), path: path.to_owned(), source },
        }
    }

    /// Returns the TLS error of a failed exchange: a server may refuse a certificate after the
    /// handshake.
    fn refusal(&self, error: &(dyn std::error::Error + 'static)) -> Option<HandshakeError> {
        let Address::Tls { host, .. } = &self.address else { return None };
        let mut sources = std::iter::successors(Some(error), |error| error.source());
        sources.find_map(|error| HandshakeError::of_io(host, error.downcast_ref::<io::Error>()?))
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let failed = |error| ClientError::Connect { address: self.address.clone(), source: reworded(error) };
        let connecting = async {
            match &self.address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await.map_err(failed)?;
                    stream.set_nodelay(true).map_err(failed)?;
                    handshake(stream).await.map_err(failed)
                }
                Address::Tls { host, port } => {
                    let address = self.address.clone();
                    let Some(tls) = &self.tls else { return Err(ClientError::NoCertificate { address }) };
                    let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                    stream.set_nodelay(true).map_err(failed)?;
                    let secured = tls.connect(host, stream).await;
                    let secured = secured.map_err(|source| ClientError::Tls { address, source })?;
                    handshake(secured).await.map_err(failed)
                }
                Address::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(failed)?;
                    handshake(stream).await.map_err(failed)
                }
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(failed(io::Error::from(io::ErrorKind::TimedOut))),
        }
    }
}

/// Returns the delay after which to send a request again, if the server was too busy for it (429)
/// and named a bearable delay. The Status repeats `Retry-After`.
fn retry_delay(error: &ClientError, retries: u32) -> Option<Duration> {
    let status = error.status().filter(|status| status.code == 429 && retries < MAX_RETRIES)?;
    let delay = Duration::from_secs(status.details.as_ref()?.retry_after_seconds.into());
    (!delay.is_zero() && delay <= MAX_RETRY_DELAY).then_some(delay)
}

/// Starts HTTP on a stream in its own task: the connection stays open between requests.
async fn handshake<S>(stream: S) -> io::Result<Sender>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = connection::open(stream, &Builder::new()).await.map_err(io::Error::other)?;
    tokio::spawn(driver);
    Ok(sender)
}

/// Returns the path of a collection, in a namespace or in all. The namespace is left out for
/// cluster-scoped kinds.
#[must_use]
pub fn collection_path(resource: &Resource, namespace: Option<&str>) -> String {
    let root = if resource.group.is_empty() {
        "/api".to_owned()
    } else {
        format!("/apis/{}", percent(&resource.group))
    };
    let namespace = match namespace {
        Some(namespace) if resource.scope == Scope::Namespaced => {
            format!("/namespaces/{}", percent(namespace))
        }
        _ => String::new(),
    };
    format!("{root}/{}{namespace}/{}", percent(&resource.version), percent(&resource.plural))
}

/// Returns the path of an object.
#[must_use]
pub fn object_path(resource: &Resource, namespace: &str, name: &str) -> String {
    format!("{}/{}", collection_path(resource, Some(namespace)), percent(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    /// A TLS server answers a plaintext client with an alert (RFC 8446 section 6.2).
    #[tokio::test]
    async fn plaintext_request_to_a_tls_address_is_recognised() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let serving = async {
            let mut stream = listener.accept().await.unwrap().0;
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46").await.unwrap();
        };
        let client = Client::new(address);
        let (answer, ()) = tokio::join!(client.get::<Value>("/version"), serving);
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("does not speak HTTP") && error.contains("https://"), "{error}");
    }

    /// Answers requests for versions, on each of its connections once it has seen all of them.
    async fn serve(listener: tokio::net::TcpListener, connections: usize) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(listener.accept().await.unwrap().0);
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let answering = streams.into_iter().map(|mut stream| async move {
            let mut head = [0; 1024];
            while stream.read(&mut head).await.unwrap() > 0 {
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let answering: Vec<_> = answering.map(tokio::spawn).collect();
        for task in answering {
            task.await.unwrap();
        }
    }

    /// The server answers none of the first requests before it has a connection for each.
    #[tokio::test]
    async fn concurrent_requests_use_a_connection_each() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(Address::Tcp(listener.local_addr().unwrap()));
        let serving = tokio::spawn(serve(listener, 3));
        let get = || client.get::<Value>("/version");
        let answers = tokio::join!(get(), get(), get());
        assert!(answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok(), "{answers:?}");
        assert_eq!(client.idle().len(), 3);
        // Later requests reuse them: the server accepts no more.
        for _ in 0..5 {
            get().await.unwrap();
        }
        assert_eq!(client.idle().len(), 3);
        drop(client);
        serving.await.unwrap();
    }

    /// An apply of a large object waits for memory on the server, and may get 429.
    #[tokio::test]
    async fn a_busy_server_is_asked_again_after_its_delay() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(Address::Tcp(listener.local_addr().unwrap()));
        let busy = json!(Status::too_many_requests("too many large objects are being processed", 1));
        let answers = [(429, busy.to_string()), (429, busy.to_string()), (200, "{}".to_owned())];
        let serving = async {
            let mut stream = listener.accept().await.unwrap().0;
            let mut asked = Vec::new();
            for (code, body) in answers {
                let mut request = Vec::new();
                while !request.ends_with(b"}}") {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0, "{request:?}");
                }
                asked.push(request);
                let head = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
            asked
        };
        let begun = std::time::Instant::now();
        let object = json!({"data": {"a": "b"}});
        let (applied, asked) = tokio::join!(client.apply::<Value>("/x", "edgesync", &object), serving);
        assert_eq!(applied.unwrap(), json!({}));
        assert!(asked.windows(2).all(|pair| pair[0] == pair[1]), "each with the object: {asked:?}");
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    }

    #[test]
    fn retries_are_bounded_in_number_and_delay() {
        let refused = |status: Status, retries: u32| retry_delay(&ClientError::Api(status), retries);
        let busy = |seconds: u32| Status::too_many_requests("busy", seconds);
        assert_eq!(refused(busy(1), 0), Some(Duration::from_secs(1)));
        assert_eq!(refused(busy(10), MAX_RETRIES - 1), Some(MAX_RETRY_DELAY));
        assert_eq!(refused(busy(1), MAX_RETRIES), None);
        assert_eq!(refused(busy(3600), 0), None);
        assert_eq!(refused(busy(0), 0), None, "the server names no delay");
        assert_eq!(refused(Status::unavailable("stopping", 1), 0), None, "it may have been processed");
    }

    #[test]
    fn paths_follow_group_and_scope() {
        let resource = |word| kinds::by_word(word).unwrap().resource();
        assert_eq!(object_path(&resource("cm"), "a", "b"), "/api/v1/namespaces/a/configmaps/b");
        assert_eq!(collection_path(&resource("deploy"), None), "/apis/apps/v1/deployments");
        let role = object_path(&resource("clusterroles"), "ignored", "system:node");
        assert_eq!(role, "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode");
    }

    #[tokio::test]
    async fn tls_address_needs_a_certificate() {
        let client = Client::new("https://cloud.example:10551".parse().unwrap());
        let error = client.get::<Value>("/version").await.unwrap_err();
        assert!(matches!(error, ClientError::NoCertificate { .. }), "{error}");
    }

    #[tokio::test]
    async fn failed_connection_names_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none.sock");
        let client = Client::new(Address::Unix(path.clone()));
        let error = client.get::<Value>("/version").await.unwrap_err();
        assert_eq!(error.to_string(), format!("connect to unix:{}", path.display()));
    }
}
