//! Packs images with packaging/image, from packages that the test makes: ELF files without code.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use edgesync_testkit::image::Image;
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Machine numbers of ELF.
const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const ARM: u16 = 40;

/// Returns the head of a static program for a machine.
fn program(machine: u16) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    head[18..20].copy_from_slice(&machine.to_le_bytes());
    // Program headers: none, after the head, of 56 bytes.
    head[32] = 64;
    head[54] = 56;
    head
}

/// The same with a dynamic linker that no machine has.
fn dynamic_program(machine: u16) -> Vec<u8> {
    let mut content = program(machine);
    content[56] = 1;
    let name = b"/lib/ld-none.so.1\0";
    let mut header = [0; 56];
    header[0] = 3;
    header[8] = 120;
    header[32] = u8::try_from(name.len()).unwrap();
    content.extend(header);
    content.extend(name);
    content
}

/// A directory with packages.
struct Packages(TempDir);

impl Packages {
    fn new(packages: &[(&str, Vec<u8>)]) -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        for (name, program) in packages {
            made.add(name, VERSION, program);
        }
        made
    }

    /// Adds a tarball of this name and version.
    fn add(&self, name: &str, version: &str, program: &[u8]) -> PathBuf {
        let content = tempfile::tempdir().unwrap();
        fs::create_dir_all(content.path().join("usr/bin")).unwrap();
        fs::write(content.path().join("usr/bin/edgesync-cloud"), program).unwrap();
        fs::write(content.path().join("usr/third-party-notices.txt"), "notices").unwrap();
        let path = self.0.path().join(format!("edgesync-cloud-{version}-{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--gzip").arg("--file").arg(&path).arg("--directory").arg(content.path());
        assert!(tar.arg("usr").status().unwrap().success());
        path
    }

    /// Runs packaging/image with these packages, or with the directory.
    fn image(&self, packages: &[&Path], epoch: &str) -> Output {
        let mut command = Command::new(edgesync_testkit::programs::root().join("packaging/image"));
        if packages.is_empty() {
            command.arg(self.0.path());
        }
        command.args(packages).env("SOURCE_DATE_EPOCH", epoch).output().unwrap()
    }

    /// Packs the directory. Returns the path of the archive, and what is in it.
    fn packed(&self) -> (PathBuf, Image) {
        let output = self.image(&[], "1790000000");
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{errors}");
        let path = PathBuf::from(text.trim_end());
        let image = Image::open(&path);
        (path, image)
    }

    /// Asserts that the directory is refused with exit code 1 and these words.
    fn refused(&self, packages: &[&Path], words: &[&str]) {
        let output = self.image(packages, "1790000000");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        for word in words {
            assert!(errors.contains(word), "{word:?} in {errors}");
        }
        let images = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(images.filter(|path| path.to_string_lossy().ends_with(".oci.tar")).count(), 0);
    }
}

fn architectures(image: &Image) -> Vec<&str> {
    let variants = image.variants.iter();
    variants.map(|variant| variant.config["architecture"].as_str().unwrap()).collect()
}

#[test]
fn image_has_a_variant_for_each_architecture() {
    let packages =
        Packages::new(&[("one", program(X86_64)), ("other", program(AARCH64)), ("old", program(ARM))]);
    let (path, image) = packages.packed();
    assert_eq!(path.file_name().unwrap().to_str(), Some(&*format!("edgesync-cloud-{VERSION}.oci.tar")));
    assert_eq!(architectures(&image), ["amd64", "arm64"]);
    for variant in &image.variants {
        assert_eq!(variant.config["config"]["User"], "10002:10002");
        let labels = &variant.config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], VERSION);
        assert_eq!(labels["org.opencontainers.image.created"], "2026-09-21T14:13:20Z");
        let paths = variant.paths();
        for path in ["usr/bin/edgesync-cloud", "usr/share/doc/edgesync-cloud/third-party-notices.txt"] {
            assert!(paths.iter().any(|found| found == path), "{path} in {paths:?}");
        }
        // A static program needs no library.
        assert!(!paths.iter().any(|path| path.contains("lib/") && path.contains(".so")), "{paths:?}");
    }
}

#[test]
fn image_of_the_same_packages_has_the_same_bytes() {
    let packages = Packages::new(&[("one", program(X86_64)), ("other", program(AARCH64))]);
    let pack = |epoch: &str| {
        let output = packages.image(&[], epoch);
        fs::read(String::from_utf8(output.stdout).unwrap().trim_end()).unwrap()
    };
    let first = pack("1790000000");
    assert!(first == pack("1790000000"), "two archives of the same packages differ");
    assert!(first != pack("1790000001"), "the time is that of the commit");
}

/// Without a file of the operator, the program in the image runs with the defaults.
#[test]
fn image_has_the_configuration_with_the_defaults() {
    let packages = Packages::new(&[("one", program(X86_64))]);
    let (_, image) = packages.packed();
    let defaults = fs::read(edgesync_testkit::programs::root().join("config/edgesync-cloud.toml")).unwrap();
    assert!(image.variants[0].file("etc/edgesync/edgesync-cloud.toml") == defaults);
}

#[test]
fn image_prefers_a_static_program() {
    let packages = Packages::new(&[("gnu", dynamic_program(AARCH64)), ("musl", program(AARCH64))]);
    let (_, image) = packages.packed();
    assert_eq!(architectures(&image), ["arm64"]);
    assert!(!image.variants[0].paths().iter().any(|path| path.starts_with("lib/")));
}

#[test]
fn ambiguous_and_missing_packages_are_refused() {
    let empty = Packages::new(&[]);
    empty.refused(&[], &["no package of edgesync-cloud", "hint: packaging/build deb cloud"]);
    let other = empty.add("amd64", "0.0.1", &program(X86_64));
    empty.refused(&[], &["no package of edgesync-cloud"]);
    assert!(empty.image(&[other.as_path()], "1").status.success(), "a package that is named is taken");

    let two = Packages::new(&[("a", program(X86_64)), ("b", program(X86_64))]);
    two.refused(&[], &["are both for amd64", "hint: name one of them"]);
    let old = Packages::new(&[("old", program(ARM))]);
    old.refused(&[], &["no program for amd64 or arm64"]);
    let text = Packages::new(&[("text", b"#!/bin/sh".to_vec())]);
    text.refused(&[], &["text.tar.gz: bin/edgesync-cloud is not an ELF file"]);
    let cut = Packages::new(&[("cut", program(X86_64)[..40].to_vec())]);
    cut.refused(&[], &["cut.tar.gz: bin/edgesync-cloud is truncated"]);
    old.refused(&[Path::new("/nowhere/x.deb")], &["read /nowhere/x.deb: no such file or directory"]);
}
