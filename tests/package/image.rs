//! The image of the cloud side: verified, unpacked into a root and run as the Deployment of
//! packaging/kubernetes runs it, but with a database of its own as the store.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use edgesync_object::yaml;
use edgesync_testkit::image::{Image, Variant};
use serde_json::Value;

use crate::package::support::{PATIENCE, Root, eventually, packages};

/// The root of the image, in a throw-away root.
const IMAGE: &str = "/image";
/// Mounts an empty volume at each path, like an emptyDir with an fsGroup.
/// $1: the root, $2: the group; then the paths.
const MOUNT: &str = r#"
root=$1 group=$2; shift 2
mkdir "$root/proc"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
for path; do mount -t tmpfs -o "mode=2777,gid=$group" volume "$root$path"; done
"#;
/// Makes the root and the configuration read-only, as the runtime does.
const SEAL: &str = r#"mount -o remount,bind,ro "$1"; mount -o remount,ro "$1$2""#;
/// Records the process id, which `exec` keeps.
const BECOME: &str = r#"echo $$ >/run/image.pid; exec "$@""#;
/// Sends a request to 127.0.0.1: $1 is the port, $2 the path. Prints the first line of the answer.
const REQUEST: &str = r#"
exec 3<>"/dev/tcp/127.0.0.1/$1"
printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nConnection: close\r\n\r\n' "$2" "$1" >&3
head -n 1 <&3"#;
const CONFIGURATION: &str =
    "[enrollment]\nnames = [\"edge.example.com\"]\n\n[api]\nhealth = \"0.0.0.0:8080\"\n";

/// Returns the archive that `packaging/test` has packed beside the packages.
fn archive() -> PathBuf {
    let entries = fs::read_dir(packages()).unwrap().map(|entry| entry.unwrap().path());
    let mut images = entries.filter(|path| path.to_string_lossy().ends_with(".oci.tar"));
    images.next().expect("packaging/test packs an image")
}

/// Returns the variant for this machine.
fn own(image: &Image) -> &Variant {
    let own = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let found = image.variants.iter().find(|variant| variant.config["architecture"] == own);
    found.unwrap_or_else(|| panic!("the image has no variant for {own}"))
}

/// The Pod of the Deployment.
struct Pod(Value);

impl Pod {
    fn new() -> Self {
        let path = edgesync_testkit::programs::root().join("packaging/kubernetes/base/deployment.yaml");
        let text = fs::read_to_string(path).unwrap();
        let document = yaml::documents(&text).find(|document| !document.is_empty()).unwrap();
        Self(document.parse().unwrap()["spec"]["template"]["spec"].take())
    }

    fn container(&self) -> &Value {
        &self.0["containers"][0]
    }

    fn command(&self) -> Vec<String> {
        words(&self.container()["command"])
    }

    /// Returns a number of the Pod's security context, such as `runAsUser`.
    fn id(&self, field: &str) -> String {
        self.0["securityContext"][field].as_u64().unwrap().to_string()
    }

    fn mounts(&self) -> Vec<String> {
        let mounts = self.container()["volumeMounts"].as_array().unwrap().iter();
        mounts.map(|mount| mount["mountPath"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns path and port of a probe.
    fn probe(&self, name: &str) -> [String; 2] {
        let request = &self.container()[name]["httpGet"];
        let ports = self.container()["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == request["port"]).unwrap();
        [request["path"].as_str().unwrap().to_owned(), port["containerPort"].to_string()]
    }
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// A container: the unpacked image with the volumes of the Pod.
struct Container<'a> {
    root: &'a Root,
    pod: &'a Pod,
    /// Variables of the image and of the Pod.
    variables: Vec<String>,
}

impl<'a> Container<'a> {
    fn new(root: &'a Root, pod: &'a Pod, variant: &Variant) -> Self {
        root.run(&["mkdir", "-m", "0755", IMAGE]);
        variant.unpack(&root.path(IMAGE));
        let (group, mounts) = (pod.id("fsGroup"), pod.mounts());
        let mut mount = vec!["sh", "-euc", MOUNT, "sh", IMAGE, &group];
        mount.extend(mounts.iter().map(String::as_str));
        root.run(&mount);
        let [configuration, ..] = &mounts[..] else { panic!("{mounts:?}") };
        root.write(&format!("{IMAGE}{configuration}/edgesync-cloud.toml"), CONFIGURATION);
        root.run(&["sh", "-euc", SEAL, "sh", IMAGE, configuration]);
        let mut variables = words(&variant.config["config"]["Env"]);
        for variable in pod.container()["env"].as_array().unwrap() {
            let part = |name: &str| variable[name].as_str().unwrap();
            variables.push(format!("{}={}", part("name"), part("value")));
        }
        Self { root, pod, variables }
    }

    /// Returns the words that run a command in the container: as its user, without capabilities.
    fn words(&self, command: &[String]) -> Vec<String> {
        let mut words: Vec<String> =
            ["setpriv", "--no-new-privs", "--clear-groups", "env", "-i"].map(str::to_owned).into();
        words.extend(self.variables.iter().cloned());
        words.extend(["unshare".to_owned(), format!("--root={IMAGE}"), "--wd=/".to_owned()]);
        words.extend(["--setgid".to_owned(), self.pod.id("runAsGroup")]);
        words.extend(["--setuid".to_owned(), self.pod.id("runAsUser")]);
        words.extend(command.iter().cloned());
        words
    }

    /// Starts the command of the Pod. Returns its process, and its id within the root.
    fn start(&self) -> (Child, String) {
        let words = self.words(&self.pod.command());
        let mut all = vec!["sh", "-c", BECOME, "sh"];
        all.extend(words.iter().map(String::as_str));
        let log = File::create(self.root.log_file("image")).unwrap();
        let child = self.root.command(&all).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let pid = eventually("the container starts", PATIENCE, || {
            let pid = fs::read_to_string(self.root.path("/run/image.pid")).unwrap_or_default();
            if pid.ends_with('\n') { Ok(pid.trim().to_owned()) } else { Err("no process id".to_owned()) }
        });
        (child, pid)
    }

    /// Runs a command beside it, as `kubectl exec` and hooks do.
    fn exec(&self, command: &[String]) -> String {
        let words = self.words(command);
        self.root.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Waits until a probe succeeds.
    fn until(&self, probe: &str) {
        let [path, port] = self.pod.probe(probe);
        eventually(probe, PATIENCE, || {
            let answer = self.root.attempt(&["bash", "-c", REQUEST, "bash", &port, &path]);
            let line = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
            let log = || fs::read_to_string(self.root.log_file("image")).unwrap_or_default();
            if line.ends_with(" 200 OK") { Ok(()) } else { Err(format!("{line}\n{}", log())) }
        });
    }
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn image_has_the_user_and_command_of_the_deployment() {
    let (image, pod) = (Image::open(&archive()), Pod::new());
    for variant in &image.variants {
        let settings = &variant.config["config"];
        assert_eq!(settings["User"], format!("{}:{}", pod.id("runAsUser"), pod.id("runAsGroup")));
        let program = words(&settings["Entrypoint"]);
        assert_eq!(program, ["/usr/bin/edgesync-cloud"]);
        let command = [vec!["edgesync-cloud".to_owned()], words(&settings["Cmd"])].concat();
        assert_eq!(pod.command(), command);
        assert_eq!(words(&settings["Env"]), ["PATH=/usr/bin"], "the Pod names no directory");
        for port in pod.container()["ports"].as_array().unwrap() {
            let exposed = &settings["ExposedPorts"][format!("{}/tcp", port["containerPort"])];
            assert!(exposed.is_object(), "{port}");
        }
        // A record for scanners comes with each library.
        let paths = variant.paths();
        let has = |path: &str| paths.iter().any(|found| found == path);
        for (library, package) in [("libc.so.6", "libc6"), ("libgcc_s.so.1", "libgcc-s1")] {
            let is_there = paths.iter().any(|path| path.ends_with(&format!("/{library}")));
            assert_eq!(has(&format!("var/lib/dpkg/status.d/{package}")), is_there, "{package}");
            assert_eq!(has(&format!("usr/share/doc/{package}/copyright")), is_there, "{package}");
        }
        for shell in ["bin/sh", "usr/bin/sh", "usr/bin/sleep"] {
            assert!(!has(shell), "{shell}");
        }
    }
}

#[test]
#[ignore = "needs built packages: packaging/test"]
fn image_runs_as_the_deployment_runs_it() {
    let Some(root) = Root::new() else { return };
    let (image, pod) = (Image::open(&archive()), Pod::new());
    assert_eq!(pod.container()["securityContext"]["readOnlyRootFilesystem"], true);
    let container = Container::new(&root, &pod, own(&image));
    let (mut child, pid) = container.start();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        container.until(probe);
    }
    let status = root.read(&format!("/proc/{pid}/status"));
    for (field, value) in [("Uid", pod.id("runAsUser")), ("Gid", pod.id("runAsGroup"))] {
        let expected = [&*value; 4].join("\t");
        assert!(status.contains(&format!("\n{field}:\t{expected}\n")), "{status}");
    }
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(&format!("\n{line}\n")), "{line} in {status}");
    }
    // Mount points are those that the process sees.
    let mounts = root.read(&format!("/proc/{pid}/mountinfo"));
    let of_root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    assert!(of_root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|one| one == "ro")));

    let edgesync = |words: &str| {
        container.exec(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
    };
    edgesync("edgesync-cloud check-config --quiet --config /etc/edgesync/edgesync-cloud.toml");
    edgesync("edgesync-cloud token create --node gateway-7");
    container.exec(&words(&pod.container()["lifecycle"]["preStop"]["exec"]["command"]));
    root.run(&["kill", "-TERM", &pid]);
    let ended = child.wait().unwrap();
    let log = fs::read_to_string(root.log_file("image")).unwrap();
    assert!(ended.success() && !log.contains("ERROR"), "{ended}\n{log}");
}

/// skopeo reads both formats of the archive, and verifies every digest.
#[test]
#[ignore = "needs built packages: packaging/test"]
fn skopeo_takes_the_image_in_both_formats() {
    if Command::new("skopeo").arg("--version").output().is_err() {
        eprintln!("notice: skopeo is missing; no other program has read the image");
        return;
    }
    let (path, directory) = (archive(), tempfile::tempdir().unwrap());
    let image = Image::open(&path);
    let copy = |words: &[&str], source: String, name: &str| {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy"]).args(words).arg(source);
        let output = skopeo.arg(format!("dir:{}", directory.path().join(name).display())).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    copy(&["--all"], format!("oci-archive:{}", path.display()), "all");
    for variant in &image.variants {
        let architecture = variant.config["architecture"].as_str().unwrap();
        let version =
            variant.config["config"]["Labels"]["org.opencontainers.image.version"].as_str().unwrap();
        let source = format!("docker-archive:{}:edgesync-cloud:{version}-{architecture}", path.display());
        copy(&["--override-arch", architecture], source, architecture);
    }
}
