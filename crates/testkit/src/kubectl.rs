//! The real kubectl against a server of a test: with a home directory and a kubeconfig of its own, so that
//! nothing of the machine gets in and nothing is left on it.
//!
//! A test program that uses this has `mod site;` beside it.
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

/// A cloud side and a kubectl for it.
pub struct Cluster {
    // The processes that use the directory end before it goes.
    pub cloud: Cloud,
    pub client: Kubectl,
    pub site: Site,
}

impl Cluster {
    /// Starts the cloud side in a directory of its own.
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

    /// Starts kubectl.
    pub fn follow(&self, arguments: &[&str]) -> Background {
        self.client.start(arguments, "")
    }

    /// Applies manifests from the standard input, all of them with success.
    #[track_caller]
    pub fn apply(&self, manifests: &str) -> String {
        self.client.feed(&["apply", "-f", "-"], manifests).ok()
    }

    /// Writes a file into the directory, and gives its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.site.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// An object, by kind and name.
    #[track_caller]
    pub fn get(&self, object: &str) -> Value {
        self.kubectl(&["get", object, "-o", "json"]).json()
    }

    /// Whether there is such an object.
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
    /// One that asks this server. `name` is that of its home in the directory of the test.
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

    /// One with a kubeconfig that somebody else writes.
    pub fn with_kubeconfig(site: &Site, name: &str, kubeconfig: &Path) -> Self {
        let home = site.path(name);
        std::fs::create_dir_all(&home).unwrap();
        Self { program: kubectl(), home, kubeconfig: kubeconfig.to_owned(), environment: Vec::new() }
    }

    /// Another version of the program from now on.
    pub fn program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// The directory in which it runs.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Sets a variable for the runs from now on.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// The editor of `kubectl edit` from now on: a shell script that gets the file as `$1`.
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

    /// Runs it with a text on its standard input.
    #[track_caller]
    pub fn feed(&self, arguments: &[&str], input: &str) -> Run {
        self.start(arguments, input).finish()
    }

    /// Starts it with a text on its standard input.
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

/// The program.
pub fn kubectl() -> PathBuf {
    tool("EDGESYNC_TEST_KUBECTL", "venv/bin/kubectl")
}

/// The oldest version of it that is tested.
pub fn old_kubectl() -> PathBuf {
    tool("EDGESYNC_TEST_KUBECTL_OLD", "kubectl-old/kubectl")
}

/// The Python interpreter that has the `kubernetes` package.
pub fn python() -> PathBuf {
    tool("EDGESYNC_TEST_PYTHON", "venv/bin/python")
}

/// The folder with the JavaScript package `@kubernetes/client-node`.
pub fn javascript() -> PathBuf {
    tool("EDGESYNC_TEST_JAVASCRIPT", "javascript")
}

/// The folder in which the scripts that run tests keep what takes long to get.
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache"))).unwrap_or_default();
    cache.join("edgesync-tests")
}

/// What `tests/run` has put into the cache folder: from the variable, or from where it is.
fn tool(variable: &str, place: &str) -> PathBuf {
    let told = std::env::var_os(variable).map(PathBuf::from);
    let path = told.unwrap_or_else(|| cache().join(place));
    assert!(path.exists(), "this test needs {}: run tests/run once, which puts it there", path.display());
    path
}
