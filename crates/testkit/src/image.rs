//! The archive of an image: OCI layout and docker-archive in one file, unpacked and verified.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A verified archive.
pub struct Image {
    /// The images by architecture.
    pub variants: Vec<Variant>,
    /// Deleted at the end; the layers of the variants are in it.
    _directory: TempDir,
}

/// The image of one architecture.
pub struct Variant {
    /// Configuration of the image, with the architecture and the settings of a container.
    pub config: Value,
    layers: Vec<PathBuf>,
}

impl Image {
    /// Unpacks an archive, and verifies that each descriptor names a blob of its size and digest,
    /// that there is no other blob, and that both formats describe the same images.
    #[must_use]
    pub fn open(archive: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(directory.path());
        assert!(tar.status().unwrap().success(), "unpack {}", archive.display());
        let mut reader = Reader { directory: directory.path(), named: BTreeSet::new() };
        let variants = reader.variants();
        let blobs = fs::read_dir(directory.path().join("blobs/sha256")).unwrap();
        let stored: BTreeSet<PathBuf> =
            blobs.map(|blob| Path::new("blobs/sha256").join(blob.unwrap().file_name())).collect();
        assert_eq!(stored, reader.named, "each blob is named by a descriptor");
        Self { variants, _directory: directory }
    }
}

impl Variant {
    /// Unpacks the layers into a directory, with their owners: as root.
    pub fn unpack(&self, directory: &Path) {
        for layer in &self.layers {
            let mut tar = Command::new("tar");
            tar.args(["--extract", "--gzip", "--same-owner", "--same-permissions", "--file"]).arg(layer);
            tar.arg("--directory").arg(directory);
            assert!(tar.status().unwrap().success(), "unpack {}", layer.display());
        }
    }

    /// Returns the content of a file.
    #[must_use]
    pub fn file(&self, path: &str) -> Vec<u8> {
        for layer in &self.layers {
            let mut tar = Command::new("tar");
            tar.args(["--extract", "--gzip", "--to-stdout", "--file"]).arg(layer).arg(path);
            let extracted = tar.output().unwrap();
            if extracted.status.success() {
                return extracted.stdout;
            }
        }
        panic!("no {path} in the image")
    }

    /// Returns the paths in all layers, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for layer in &self.layers {
            let listed =
                Command::new("tar").args(["--list", "--gzip", "--file"]).arg(layer).output().unwrap();
            assert!(listed.status.success(), "list {}", layer.display());
            let text = String::from_utf8(listed.stdout).unwrap();
            paths.extend(text.lines().map(|path| path.trim_end_matches('/').to_owned()));
        }
        paths.sort();
        paths.dedup();
        paths
    }
}

/// Reads and verifies an unpacked archive.
struct Reader<'a> {
    directory: &'a Path,
    /// Blobs that a descriptor has named, by their path in the archive.
    named: BTreeSet<PathBuf>,
}

impl Reader<'_> {
    fn variants(&mut self) -> Vec<Variant> {
        assert_eq!(self.json("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
        let outer = self.json("index.json");
        let index = self.described(only(&outer["manifests"]));
        let of_docker = self.json("manifest.json");
        let (entries, of_docker) = (list(&index["manifests"]), list(&of_docker));
        assert_eq!(entries.len(), of_docker.len());
        entries.iter().zip(of_docker).map(|(entry, of_docker)| self.variant(entry, of_docker)).collect()
    }

    fn variant(&mut self, entry: &Value, of_docker: &Value) -> Variant {
        let manifest = self.described(entry);
        let config = self.described(&manifest["config"]);
        assert_eq!(config["architecture"], entry["platform"]["architecture"]);
        assert_eq!(config["os"], entry["platform"]["os"]);
        assert_eq!(of_docker["Config"], json!(path_of(&manifest["config"])));
        let (mut layers, mut contents) = (Vec::new(), Vec::new());
        for descriptor in list(&manifest["layers"]) {
            self.blob(descriptor);
            let layer = self.directory.join(path_of(descriptor));
            let mut gzip = Command::new("gzip");
            let content = gzip.args(["--decompress", "--stdout"]).arg(&layer).output().unwrap();
            // gzip warns about names that it does not know.
            assert!(!content.stdout.is_empty(), "decompress {}", layer.display());
            contents.push(sha256(&content.stdout));
            layers.push(layer);
        }
        assert_eq!(config["rootfs"]["diff_ids"], json!(contents));
        let paths: Vec<PathBuf> = list(&manifest["layers"]).iter().map(path_of).collect();
        assert_eq!(of_docker["Layers"], json!(paths));
        Variant { config, layers }
    }

    /// Reads a JSON file of the archive.
    fn json(&self, name: &str) -> Value {
        let text = fs::read(self.directory.join(name)).unwrap();
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Reads the blob of a descriptor as JSON.
    fn described(&mut self, descriptor: &Value) -> Value {
        let blob = self.blob(descriptor);
        serde_json::from_slice(&blob).unwrap_or_else(|error| panic!("{descriptor}: {error}"))
    }

    /// Reads the blob of a descriptor, which must have its size and digest.
    fn blob(&mut self, descriptor: &Value) -> Vec<u8> {
        let path = path_of(descriptor);
        let content = fs::read(self.directory.join(&path)).unwrap();
        assert_eq!(descriptor["size"], json!(content.len()), "{descriptor}");
        assert_eq!(descriptor["digest"], json!(sha256(&content)), "{descriptor}");
        self.named.insert(path);
        content
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the only item of a list.
fn only(value: &Value) -> &Value {
    match list(value) {
        [item] => item,
        _ => panic!("must have one item: {value}"),
    }
}

/// Returns the path of a blob in the archive.
fn path_of(descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    let (algorithm, digits) = digest.split_once(':').unwrap_or_else(|| panic!("no digest: {descriptor}"));
    Path::new("blobs").join(algorithm).join(digits)
}

fn sha256(content: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in ring::digest::digest(&ring::digest::SHA256, content).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
