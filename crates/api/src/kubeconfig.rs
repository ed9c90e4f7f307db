//! Kubeconfigs with a client certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use edgesync_object::yaml;
use edgesync_transport::tls::{self, Certificate, Clock, Identity, TlsError, Trust};

/// The server's address and authority, and the user's identity.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Server address, `https://HOST:PORT`; `clusters[0].cluster.server` in the YAML.
    pub server: String,
    /// CA certificates that the server's is verified against.
    pub authority: Vec<Certificate>,
    /// User name in the kubeconfig.
    pub user: String,
    /// Certificate and key of the user.
    pub identity: Identity,
}

impl Kubeconfig {
    /// Formats the kubeconfig for `kubectl` and client libraries.
    ///
    /// # Errors
    /// Errors of the YAML library only.
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

    /// Parses the output of [`Self::to_yaml`], or another kubeconfig with a single cluster and user
    /// and embedded certificates. `what` names it in errors.
    ///
    /// # Errors
    /// A description of the missing or invalid field.
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

    /// Configures TLS to the server as the user.
    ///
    /// # Errors
    /// Errors of the TLS library.
    pub fn tls(&self) -> Result<tls::Client, TlsError> {
        tls::Client::new(&Trust::new(self.authority.clone()), Some(&self.identity), Clock::system([]))
    }
}
