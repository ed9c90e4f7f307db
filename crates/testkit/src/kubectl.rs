//! The real kubectl against a test's server, with its own home directory and kubeconfig: isolated
//! from the machine's configuration, and removed with the test.
//!
//! A test program that uses this needs `mod site;`.
//!
//! ```text
//! let cluster = Cluster::start().await;
//! cluster.kubectl(&["create", "configmap", "settings", "--from-literal=mode=fast"]).ok();
//! let watch = cluster.follow(&["get", "configmaps", "--watch"]);
//! watch.line("settings").await;
//! ```

mod background;
mod edge;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::site::{Cloud, Site};
pub use background::Background;
pub use edge::Edge;
pub use run::Run;

/// A cloud side with a kubectl for it.
pub struct Cluster {
    // Declared first: the processes that use the directory must end before it is removed.
    pub cloud: Cloud,
    pub client: Kubectl,
    pub site: Site,
}

impl Cluster {
    /// Starts the cloud side in a new directory.
    pub async fn start() -> Self {
        let site = Site::new();
        let cloud = Cloud::start(&site).await;
        let client = Kubectl::with_kubeconfig(&site, "kubectl", &cloud.kubeconfig);
        Self { cloud, client, site }
    }

    /// Runs kubectl and waits for its end.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> Run {
        self.client.run(arguments)
    }

    /// Starts kubectl in the background.
    pub fn follow(&self, arguments: &[&str]) -> Background {
        self.client.start(arguments, "")
    }

    /// Applies manifests from standard input; all must succeed.
    #[track_caller]
    pub fn apply(&self, manifests: &str) -> String {
        self.client.feed(&["apply", "-f", "-"], manifests).ok()
    }

    /// Writes a file into the directory, and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.site.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns an object by kind and name.
    #[track_caller]
    pub fn get(&self, object: &str) -> Value {
        self.kubectl(&["get", object, "-o", "json"]).json()
    }

    /// Returns whether an object exists.
    #[track_caller]
    pub fn has(&self, object: &str) -> bool {
        !self.kubectl(&["get", object, "--ignore-not-found", "-o", "name"]).ok().is_empty()
    }
}

/// A kubectl with its own home directory.
pub struct Kubectl {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    environment: Vec<(String, String)>,
}

impl Kubectl {
    /// Creates a client of a server. `name` is its home in the directory of the test.
    pub fn to_server(site: &Site, name: &str, url: &str) -> Self {
        let client = Self::with_kubeconfig(site, name, &site.path(name).join("kubeconfig"));
        let kubeconfig = format!(
            "apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: '{url}'}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
users: [{{name: test, user: {{}}}}]
"
        );
        std::fs::write(&client.kubeconfig, kubeconfig).unwrap();
        client
    }

    /// Creates a client with a kubeconfig that another process writes.
    pub fn with_kubeconfig(site: &Site, name: &str, kubeconfig: &Path) -> Self {
        let home = site.path(name);
        std::fs::create_dir_all(&home).unwrap();
        Self { program: kubectl(), home, kubeconfig: kubeconfig.to_owned(), environment: Vec::new() }
    }

    /// Uses another version of the program from now on.
    pub fn program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Returns its home and working directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Sets an environment variable for later runs.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Sets the editor of `kubectl edit`: a shell script that gets the file as `$1`.
    pub fn editor(&mut self, script: &str) {
        let path = self.home.join("editor.sh");
        std::fs::write(&path, script).unwrap();
        self.env("KUBE_EDITOR", &format!("sh {}", path.to_str().unwrap()));
    }

    /// Runs it and waits for its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.feed(arguments, "")
    }

    /// Runs it with text on its standard input.
    #[track_caller]
    pub fn feed(&self, arguments: &[&str], input: &str) -> Run {
        self.start(arguments, input).finish()
    }

    /// Starts it with text on its standard input.
    pub fn start(&self, arguments: &[&str], input: &str) -> Background {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig).env("LANG", "C.UTF-8");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Background::spawn(command, arguments, input)
    }
}

/// Returns the path of the program.
pub fn kubectl() -> PathBuf {
    tool("EDGESYNC_TEST_KUBECTL", "venv/bin/kubectl")
}

/// Returns the path of the oldest tested version.
pub fn old_kubectl() -> PathBuf {
    tool("EDGESYNC_TEST_KUBECTL_OLD", "kubectl-old/kubectl")
}

/// Returns the path of Helm, of its newest version. Exists on x86-64 only.
pub fn helm() -> PathBuf {
    tool("EDGESYNC_TEST_HELM", "helm/helm")
}

/// Returns the path of the oldest tested version of Helm. Exists on x86-64 only.
pub fn old_helm() -> PathBuf {
    tool("EDGESYNC_TEST_HELM_OLD", "kubectl-old/helm")
}

/// Returns the path of the Python interpreter with the `kubernetes` package.
pub fn python() -> PathBuf {
    tool("EDGESYNC_TEST_PYTHON", "venv/bin/python")
}

/// Returns the path of the folder with the JavaScript package `@kubernetes/client-node`.
pub fn javascript() -> PathBuf {
    tool("EDGESYNC_TEST_JAVASCRIPT", "javascript")
}

/// Returns the folder in which the scripts that run tests cache downloads.
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache"))).unwrap_or_default();
    cache.join("edgesync-tests")
}

/// Returns the path of a tool that `tests/run` has downloaded: from the variable, or from the
/// cache.
fn tool(variable: &str, place: &str) -> PathBuf {
    let configured = std::env::var_os(variable).map(PathBuf::from);
    let path = configured.unwrap_or_else(|| cache().join(place));
    assert!(path.exists(), "this test needs {}: run tests/run once, which puts it there", path.display());
    path
}
