//! Kubeconfigs with a certificate: how a client finds a server of ours and shows who asks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use edgesync_object::yaml;
use edgesync_transport::tls::{self, Certificate, Clock, Identity, TlsError, Trust};

/// The address of a server, the authority of its certificate, and the identity of a user.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Its address, `https://HOST:PORT`.
    pub server: String,
    /// Who vouches for it.
    pub authority: Vec<Certificate>,
    /// The name of the user.
    pub user: String,
    /// Certificate and key of the user.
    pub identity: Identity,
}

impl Kubeconfig {
    /// As `kubectl` and client libraries take it.
    ///
    /// # Errors
    /// None but of the library.
    pub fn to_yaml(&self) -> Result<String, yaml::YamlError> {
        let pem =
            |certificates: &[Certificate]| certificates.iter().map(Certificate::to_pem).collect::<String>();
        let data = |pem: String| STANDARD.encode(pem);
        yaml::write(&json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "edgesync",
            "clusters": [{ "name": "edgesync", "cluster": {
                "server": self.server, "certificate-authority-data": data(pem(&self.authority)),
            }}],
            "users": [{ "name": self.user, "user": {
                "client-certificate-data": data(pem(self.identity.chain())),
                "client-key-data": data(self.identity.key().to_pem()),
            }}],
            "contexts": [{ "name": "edgesync", "context": { "cluster": "edgesync", "user": self.user } }],
        }))
    }

    /// Reads what [`Self::to_yaml`] wrote, or another one with a single cluster and user whose certificates stand in it.
    /// `what` names it in errors.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn read(what: &str, text: &str) -> Result<Self, String> {
        let config: Value = yaml::parse(text).map_err(|error| error.to_string())?;
        let word = |pointer: &str| {
            let word = config.pointer(pointer).and_then(Value::as_str);
            word.ok_or_else(|| format!("{pointer} is missing"))
        };
        let pem = |pointer: &str| {
            let data = STANDARD.decode(word(pointer)?).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            data.ok_or_else(|| format!("{pointer} is not PEM in base64"))
        };
        let tls = |error: TlsError| error.to_string();
        let authority = pem("/clusters/0/cluster/certificate-authority-data")?;
        let chain = pem("/users/0/user/client-certificate-data")? + &pem("/users/0/user/client-key-data")?;
        Ok(Self {
            server: word("/clusters/0/cluster/server")?.to_owned(),
            authority: Certificate::all_from_pem(what, &authority).map_err(tls)?,
            user: word("/users/0/name")?.to_owned(),
            identity: Identity::from_pem(what, &chain).map_err(tls)?,
        })
    }

    /// TLS to the server as the user.
    ///
    /// # Errors
    /// The library's.
    pub fn tls(&self) -> Result<tls::Client, TlsError> {
        tls::Client::new(&Trust::new(self.authority.clone()), Some(&self.identity), Clock::system([]))
    }
}
