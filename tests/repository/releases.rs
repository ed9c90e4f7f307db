//! Checks the scripts that make releases: refusals, notes, checksums, signature, bills of material,
//! tarballs, and what packages require. Nothing is built: a repository of the test replaces what
//! would build.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn root() -> &'static Path {
    edgesync_testkit::programs::root()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Variables by which git takes another repository than that of its working directory: a hook, or
/// a rebase that runs the tests, sets them.
const GIT_VARIABLES: [&str; 4] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"];

/// Returns a command that runs in a repository, whichever repository runs the tests.
fn command(program: impl AsRef<std::ffi::OsStr>, repository: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(repository);
    for variable in GIT_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Runs a script of `packaging` in a repository, with the variables of a release removed.
fn run(repository: &Path, script: &str, arguments: &[&str]) -> Output {
    let mut command = command(repository.join("packaging").join(script), repository);
    command.args(arguments);
    command.env_remove("PACKAGING_GLIBC_FLOOR").env_remove("SOURCE_DATE_EPOCH");
    command.output().unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns the error of a script that must fail with exit code 1.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

/// Stands in for the builds: its package lists the scripts, and the variables that change packages.
const BUILD: &str = "#!/bin/sh\n\
    { echo \"built $PACKAGING_MAINTAINER$CARGO_TARGET_DIR$SOURCE_DATE_EPOCH\"; ls packaging; } \\\n\
    >\"$2/edgesync_1.2.0-1_amd64.deb\"\n";
const CHART: &str = "#!/bin/sh\necho packed >\"$1/edgesync-cloud-1.2.0.tgz\"\n";
/// Fails before the packages are there.
const IMAGE: &str = "#!/bin/sh\ncp \"$1/edgesync_1.2.0-1_amd64.deb\" \"$1/edgesync-cloud-1.2.0.oci.tar\"\n";

const NOTES: &str = "### Added\n\n- A thing.\n";

/// A repository with the scripts of a release, and with two that stand in for the builds.
struct Repository(TempDir);

impl Repository {
    /// Creates a repository whose changelog has a section with this heading and text.
    fn new(heading: &str, notes: &str) -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        fs::create_dir(repository.path().join("packaging")).unwrap();
        repository.write("build", BUILD);
        repository.write("chart", CHART);
        repository.write("image", IMAGE);
        // By another process: a file that is open for writing cannot be run, and a thread that
        // starts a program at that moment would keep it open.
        let mut install = Command::new("install");
        install.arg(root().join("packaging/release")).arg(root().join("packaging/changelog"));
        succeeded(
            &install
                .args(["build", "chart", "image", "packaging"])
                .current_dir(repository.path())
                .output()
                .unwrap(),
        );
        for script in ["build", "chart", "image"] {
            fs::remove_file(repository.path().join(script)).unwrap();
        }
        let manifest = "[workspace.package]\nversion = \"1.2.0\"\n\n[package]\nname = \"x\"\n";
        repository.write("Cargo.toml", manifest);
        repository.write(".gitignore", "/target\n");
        let older = "## [1.1.0] - 2026-01-01\n\n- Old.\n";
        let changelog = format!("# Changelog\n\n## [Unreleased]\n\n{heading}\n\n{notes}\n{older}");
        repository.write("CHANGELOG.md", &changelog);
        repository.git(&["init", "--quiet"]);
        repository.commit();
        repository
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, content: &str) {
        fs::write(self.path().join(file), content).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = command("git", self.path());
        for setting in ["user.name=test", "user.email=test@edgesync.invalid", "commit.gpgsign=false"] {
            git.args(["-c", setting]);
        }
        succeeded(&git.args(arguments).output().unwrap());
    }

    fn head(&self) -> String {
        let mut git = Command::new("git");
        let output = git.args(["rev-parse", "HEAD"]).current_dir(self.path()).output().unwrap();
        succeeded(&output).trim().to_owned()
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "State of the test"]);
    }

    fn release(&self, arguments: &[&str]) -> Output {
        run(self.path(), "release", arguments)
    }

    fn released(&self, file: &str) -> String {
        let path = self.path().join("target/releases/1.2.0").join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn has_released(&self) -> bool {
        self.path().join("target/releases/1.2.0").exists()
    }
}

const HEADING: &str = "## [1.2.0] - 2026-11-26";

/// The toolchain of a release is for x86-64.
fn is_release_machine() -> bool {
    let is_one = cfg!(target_arch = "x86_64");
    if !is_one {
        eprintln!("notice: releases are made on x86-64; no release was made");
    }
    is_one
}

#[test]
fn release_refuses_uncommitted_changes() {
    let repository = Repository::new(HEADING, NOTES);
    repository.write("new.rs", "");
    let error = refused(&repository.release(&[]));
    assert!(error.contains("uncommitted changes") && error.contains("new.rs"), "{error}");
    assert!(!repository.has_released());
}

#[test]
fn release_refuses_a_version_without_notes() {
    for (heading, notes, expected) in [
        ("## [1.2.1] - 2026-11-26", NOTES, "no section of version 1.2.0"),
        ("## [1.2.0]", NOTES, "CHANGELOG.md:5: the heading of"),
        (HEADING, "### Added\n", "the section of version 1.2.0 is empty"),
    ] {
        let repository = Repository::new(heading, notes);
        let error = refused(&repository.release(&[]));
        assert!(error.contains(expected), "{heading}: {error}");
        assert!(!repository.has_released());
    }
}

/// The builds run code of all dependencies.
#[test]
fn release_keeps_the_key_from_the_builds() {
    let repository = Repository::new(HEADING, NOTES);
    let error = refused(&repository.release(&["--key", "Cargo.toml"]));
    assert!(error.contains("a key is for --sign"), "{error}");
    assert!(!repository.has_released());
    let error = refused(&repository.release(&["--sign", "target"]));
    assert!(error.contains("no key"), "{error}");
}

/// A path counts from the directory of the caller, also with a slash at its end.
#[test]
fn release_is_written_where_the_caller_says() {
    if !is_release_machine() {
        return;
    }
    let repository = Repository::new(HEADING, NOTES);
    let directory = tempfile::tempdir().unwrap();
    let release = |output: &str| {
        let mut command = Command::new(repository.path().join("packaging/release"));
        command.args(["--output", output]).current_dir(directory.path()).output().unwrap()
    };
    succeeded(&release("below/one/"));
    let names: Vec<_> =
        fs::read_dir(directory.path().join("below")).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(names.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["one"]);
    assert_eq!(names[0].metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(names[0].path().join("SHA256SUMS").is_file());
    let inside = repository.path().join("docs");
    let error = refused(&release(inside.to_str().unwrap()));
    assert!(error.contains("among the sources") && error.contains("hint: --output target/"), "{error}");
    assert!(!inside.exists());
}

/// Neither files that git ignores nor variables of the caller get into a package.
#[test]
fn release_builds_the_commit_alone() {
    if !is_release_machine() {
        return;
    }
    let repository = Repository::new(HEADING, NOTES);
    fs::create_dir_all(repository.path().join(".git/info")).unwrap();
    repository.write(".git/info/exclude", "/packaging/ignored\n");
    repository.write("packaging/ignored", "");
    let mut command = Command::new(repository.path().join("packaging/release"));
    for variable in ["PACKAGING_MAINTAINER", "CARGO_TARGET_DIR", "SOURCE_DATE_EPOCH"] {
        command.env(variable, "1");
    }
    succeeded(&command.output().unwrap());
    assert_eq!(
        repository.released("edgesync_1.2.0-1_amd64.deb"),
        "built \nbuild\nchangelog\nchart\nimage\nrelease\n"
    );
}

#[test]
fn release_fails_without_one_of_its_scripts() {
    if !is_release_machine() {
        return;
    }
    let repository = Repository::new(HEADING, NOTES);
    let script = repository.path().join("packaging/chart");
    fs::set_permissions(&script, Permissions::from_mode(0o644)).unwrap();
    repository.commit();
    let output = repository.release(&[]);
    assert!(!output.status.success() && text(&output.stderr).contains("packaging/chart"), "{output:?}");
    assert!(!repository.has_released());
}

#[test]
fn release_has_notes_and_checksums_of_all_files() {
    if !is_release_machine() {
        return;
    }
    let repository = Repository::new(HEADING, NOTES);
    let listed = succeeded(&repository.release(&[]));
    assert_eq!(repository.released("NOTES.md"), format!("# edgesync 1.2.0, 2026-11-26\n\n{NOTES}"));
    assert_eq!(repository.released("VERSION"), format!("edgesync 1.2.0, commit {}\n", repository.head()));
    let sums = repository.released("SHA256SUMS");
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    let expected = [
        "NOTES.md",
        "VERSION",
        "edgesync-cloud-1.2.0.oci.tar",
        "edgesync-cloud-1.2.0.tgz",
        "edgesync_1.2.0-1_amd64.deb",
    ];
    assert_eq!(names, expected);
    for line in sums.lines() {
        assert!(listed.contains(line), "{listed}");
    }
    let mut check = Command::new("sha256sum");
    check.args(["--check", "SHA256SUMS"]).current_dir(repository.path().join("target/releases/1.2.0"));
    succeeded(&check.output().unwrap());
    // The directory of a release is written once.
    let error = refused(&repository.release(&[]));
    assert!(error.contains("target/releases/1.2.0 exists"), "{error}");
}

#[test]
fn release_is_signed_with_the_key_of_the_repository() {
    if !is_release_machine() {
        return;
    }
    if Command::new("minisign").arg("-v").output().is_err() {
        eprintln!("notice: minisign is missing; no release was signed");
        return;
    }
    let repository = Repository::new(HEADING, NOTES);
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name).display().to_string();
    let minisign = |arguments: &[&str]| {
        Command::new("minisign").args(arguments).current_dir(repository.path()).output().unwrap()
    };
    // Without passwords.
    for name in ["right", "wrong"] {
        let public = format!("{}.pub", key(name));
        succeeded(&minisign(&["-G", "-W", "-s", &key(name), "-p", &public]));
    }
    fs::copy(key("right.pub"), repository.path().join("packaging/release.pub")).unwrap();
    repository.commit();
    succeeded(&repository.release(&[]));
    let directory = "target/releases/1.2.0";
    let sign = |name: &str| repository.release(&["--sign", directory, "--key", &key(name)]);
    let error = refused(&sign("wrong"));
    assert!(error.contains("packaging/release.pub does not verify signatures of "), "{error}");
    let sums = "target/releases/1.2.0/SHA256SUMS";
    assert!(!repository.path().join(format!("{sums}.minisig")).exists());
    for (file, content, expected) in
        [("extra", "", "contains other files"), ("VERSION", "edgesync 1.3.0", "differs from its checksums")]
    {
        let file = format!("{directory}/{file}");
        let before = fs::read_to_string(repository.path().join(&file)).ok();
        repository.write(&file, content);
        let error = refused(&sign("right"));
        assert!(error.contains(expected), "{error}");
        match before {
            Some(content) => repository.write(&file, &content),
            None => fs::remove_file(repository.path().join(&file)).unwrap(),
        }
    }

    succeeded(&sign("right"));
    let verify = || minisign(&["-V", "-p", "packaging/release.pub", "-m", sums]);
    let release = format!("edgesync 1.2.0, commit {}", repository.head());
    assert!(succeeded(&verify()).contains(&release), "the signature names the release");
    repository.write(sums, "");
    assert!(!verify().status.success(), "a changed file is not verified");
}

#[test]
fn notes_are_the_section_of_one_version() {
    let notes = succeeded(&run(root(), "changelog", &["notes", "0.1.0"]));
    assert!(notes.starts_with("# edgesync 0.1.0, 2026-11-21\n\n### Added\n\n- `edgesync run`"), "{notes}");
    assert!(!notes.contains("\n## "), "{notes}");
    let repository = Repository::new(HEADING, NOTES);
    let notes = succeeded(&run(repository.path(), "changelog", &["notes", "1.2.0"]));
    assert_eq!(notes, format!("# edgesync 1.2.0, 2026-11-26\n\n{NOTES}"));
    // The notes are published as text, away from the files that links name.
    let linked = "- A ([docs/a.md](docs/a.md#b)), and [`c`](README.md).\n- [d](https://example.com/d).\n";
    let repository = Repository::new(HEADING, linked);
    let notes = succeeded(&run(repository.path(), "changelog", &["notes", "1.2.0"]));
    let text = "- A (docs/a.md), and `c`.\n- [d](https://example.com/d).\n";
    assert_eq!(notes, format!("# edgesync 1.2.0, 2026-11-26\n\n{text}"));
}

#[test]
fn debian_changelog_has_an_entry_for_each_version() {
    let repository = Repository::new(HEADING, NOTES);
    let arguments = ["debian", "edgesync", "1.2.0-1", "1790000000", "A Name <a@edgesync.invalid>"];
    let changelog = succeeded(&run(repository.path(), "changelog", &arguments));
    let lines: Vec<&str> =
        changelog.lines().filter(|line| !line.is_empty() && !line.starts_with("  ")).collect();
    assert_eq!(
        lines,
        [
            "edgesync (1.2.0-1) unstable; urgency=medium",
            " -- A Name <a@edgesync.invalid>  Mon, 21 Sep 2026 14:13:20 +0000",
            "edgesync (1.1.0-1) unstable; urgency=medium",
            " -- A Name <a@edgesync.invalid>  Thu, 01 Jan 2026 00:00:00 +0000",
        ]
    );
}

/// The test program itself is one of those that need a C library.
#[test]
fn requirements_of_a_program_are_read_from_its_file() {
    let program = std::env::current_exe().unwrap().display().to_string();
    let requires = |form: &str, floor: &str| {
        let mut command = Command::new(root().join("packaging/requires"));
        command.args([form, &program]).env("PACKAGING_GLIBC_FLOOR", floor).output().unwrap()
    };
    let glibc = succeeded(&requires("glibc", "2.9999"));
    let glibc = glibc.trim();
    assert!(glibc.starts_with("2."), "{glibc}");
    assert_eq!(succeeded(&requires("deb", "2.9999")), format!("libc6 (>= {glibc})\n"));
    let rpm = succeeded(&requires("rpm", "2.9999"));
    let width = if cfg!(target_pointer_width = "64") { "(64bit)" } else { "" };
    for end in [format!("libc.so.6(){width}"), format!(".so.6(GLIBC_{glibc}){width}")] {
        assert!(rpm.lines().any(|line| line.ends_with(&end)), "{end} in\n{rpm}");
    }
    let error = refused(&requires("deb", "2.2"));
    assert!(error.contains(&format!("needs glibc {glibc}, and packages promise to run with 2.2")), "{error}");
    let error = refused(&requires("static", "2.9999"));
    assert!(error.contains("is not static: needs ") && error.contains(" libc.so.6"), "{error}");
    let script = root().join("packaging/requires").display().to_string();
    let error = refused(&run(root(), "requires", &["deb", &script]));
    assert!(error.contains("not an ELF file"), "{error}");
}

#[test]
fn documents_name_the_promised_glibc() {
    let floor = succeeded(&run(root(), "requires", &["floor"]));
    for document in ["docs/installation.md", "packaging/build"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        assert!(text.contains(&format!("glibc {}", floor.trim())), "{document}: glibc {floor}");
    }
}

#[test]
fn builds_of_unsupported_combinations_are_refused() {
    for (arguments, expected) in [
        (&["--arch", "riscv64", "deb"][..], "the architectures are amd64, arm64 and armhf"),
        (&["--arch", "arm64", "--libc", "uclibc", "tar"][..], "the C libraries gnu and musl"),
        (&["--libc", "musl", "tar"][..], "--libc musl needs --arch"),
        (&["--arch", "armhf", "--libc", "musl", "rpm"][..], "--libc musl is for tar"),
        (&["tar", "agent"][..], "tar needs --arch"),
    ] {
        let output = run(root(), "build", arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.starts_with("packaging/build: ") && error.contains(expected), "{arguments:?}: {error}");
    }
}

/// Notes how it is called, and compiles no program of the manual pages.
const CARGO: &str = "#!/bin/sh\n\
    echo \"$*\" >>calls\n\
    case \"$*\" in\n\
    metadata*) echo '{\"name\":\"edgesync\",\"version\":\"1.2.0\",\"target_directory\":\"target\"}' ;;\n\
    *manuals*) exit 3 ;;\n\
    esac\n";

#[test]
fn only_packages_with_manual_pages_wait_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let packaging = directory.path().join("packaging");
    fs::create_dir(&packaging).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").args(["build", "deb", "rpm"].map(|name| root().join("packaging").join(name)));
    succeeded(&copy.arg(&packaging).output().unwrap());
    let manifest = "[workspace.package]\nmaintainer = \"A Name <a@edgesync.invalid>\"\n";
    fs::write(directory.path().join("Cargo.toml"), manifest).unwrap();
    // By another process, as above.
    let script = directory.path().join("script");
    for name in ["cargo", "toolchain", "requires", "paths", "sbom", "tarball"] {
        fs::write(&script, if name == "cargo" { CARGO } else { "#!/bin/sh\n" }).unwrap();
        succeeded(&Command::new("install").arg(&script).arg(packaging.join(name)).output().unwrap());
    }
    let build = |arguments: &[&str]| {
        let mut command = command(packaging.join("build"), directory.path());
        command.args(arguments).env("CARGO", packaging.join("cargo")).env("SOURCE_DATE_EPOCH", "1790000000");
        command.env_remove("PACKAGING_MAINTAINER");
        let output = command.output().unwrap();
        (output, fs::read_to_string(directory.path().join("calls")).unwrap().contains("--example manuals"))
    };
    let (output, has_manuals) = build(&["--arch", "armhf", "--libc", "musl", "tar", "sbom", "agent"]);
    succeeded(&output);
    assert!(!has_manuals, "a tarball has no manual pages");
    for package in ["deb", "rpm"] {
        let (output, has_manuals) = build(&["--arch", "armhf", "tar", package, "agent"]);
        assert_eq!(output.status.code(), Some(3), "{package}: {}", text(&output.stderr));
        assert!(has_manuals, "{package}");
        fs::remove_file(directory.path().join("calls")).unwrap();
    }
}

/// Packs a tarball in a directory of its own, and returns its bytes.
fn tarball(directory: &Path, umask: &str) -> Vec<u8> {
    let program = directory.join("program");
    fs::write(&program, "program").unwrap();
    let notices = directory.join("notices");
    fs::write(&notices, "notices").unwrap();
    let output = directory.join("output");
    let mut pack = Command::new("sh");
    pack.args(["-c", "umask \"$0\" && exec \"$@\"", umask]).arg(root().join("packaging/tarball"));
    pack.arg(program).arg(notices).arg("edgesync-1").arg(&output).env("SOURCE_DATE_EPOCH", "1790000000");
    succeeded(&pack.output().unwrap());
    fs::read(output.join("edgesync-1.tar.gz")).unwrap()
}

#[test]
fn tarballs_of_the_same_program_are_equal() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert!(tarball(one.path(), "022") == tarball(other.path(), "077"), "the bytes differ");
}

#[test]
fn tarball_has_program_units_init_script_and_licences() {
    let directory = tempfile::tempdir().unwrap();
    tarball(directory.path(), "022");
    let mut list = Command::new("tar");
    list.args(["--list", "--verbose", "--gzip", "--file", "output/edgesync-1.tar.gz"]);
    let listed = succeeded(&list.current_dir(directory.path()).output().unwrap());
    for (mode, path) in [
        ("-rwxr-xr-x", "usr/bin/edgesync"),
        ("-rw-r--r--", "usr/lib/systemd/system/edgesync.service"),
        ("-rw-r--r--", "usr/share/edgesync/edgesync.toml"),
        ("-rwxr-xr-x", "openwrt/etc/init.d/edgesync"),
        ("-rw-r--r--", "openwrt/etc/edgesync/edgesync.toml"),
        ("-rw-r--r--", "yocto/edgesync.bb"),
        ("-rw-r--r--", "LICENSE"),
        ("-rw-r--r--", "third-party-notices.txt"),
    ] {
        let end = format!(" edgesync-1/{path}");
        let line = listed.lines().find(|line| line.ends_with(&end));
        assert!(line.is_some_and(|line| line.starts_with(&format!("{mode} 0/0 "))), "{path} in\n{listed}");
    }
}

/// bitbake refuses a recipe whose digest is not that of the licence.
#[test]
fn yocto_recipe_matches_licence_and_tarball() {
    let recipe = fs::read_to_string(root().join("packaging/yocto/edgesync.bb")).unwrap();
    let mut md5 = Command::new("md5sum");
    let digest = succeeded(&md5.arg(root().join("LICENSE")).output().unwrap());
    let digest = digest.split(' ').next().unwrap();
    assert!(recipe.contains(&format!("file://LICENSE;md5={digest}")), "{digest}");
    let build = fs::read_to_string(root().join("packaging/build")).unwrap();
    let targets: Vec<&str> =
        recipe.lines().filter_map(|line| line.strip_prefix("EDGESYNC_TARGET:")?.split('"').nth(1)).collect();
    assert_eq!(targets.len(), 3);
    for target in targets {
        assert!(
            build.contains(&format!("musl) target={target} ")),
            "packaging/build does not build {target}"
        );
    }
    let packed = fs::read_to_string(root().join("packaging/tarball")).unwrap();
    let installed: Vec<&str> =
        recipe.split("${S}/").skip(1).filter_map(|rest| rest.split([' ', '*', '\n']).next()).collect();
    assert!(installed.len() >= 5, "{installed:?}");
    for file in installed {
        assert!(packed.contains(&format!(" {file}")), "packaging/tarball does not pack {file}");
    }
}

/// The commands of rc.common and procd that the init script uses, as functions that print them.
const RC_COMMON: &str = r#"
group_exists() { return 1; }
group_add_next() { echo 32768; }
user_exists() { return 1; }
for command in user_add procd_open_instance procd_set_param procd_close_instance procd_send_signal mkdir chown chmod ln; do
    eval "$command() { echo $command "\$@"; }"
done
start() { start_service; }
"#;

/// Runs functions of the init script with a configuration, and returns the printed commands.
fn openwrt(config: &str, functions: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("edgesync.toml");
    fs::write(&file, config).unwrap();
    let init = root().join("packaging/openwrt/edgesync.init");
    let script = format!("set -eu\n{RC_COMMON}\n. \"$0\"\nCONFIG=$1\n{functions}\n");
    let mut sh = Command::new("sh");
    let output = sh.args(["-c", &script]).arg(init).arg(&file).output().unwrap();
    succeeded(&output).replace(file.to_str().unwrap(), "CONFIG")
}

#[test]
fn openwrt_service_runs_the_agent_as_its_user() {
    let shipped = fs::read_to_string(root().join("packaging/openwrt/edgesync.toml")).unwrap();
    let commands = openwrt(&shipped, "start_service");
    for line in [
        "user_add edgesync 32768 edgesync agent /etc/edgesync/state",
        "procd_set_param command /usr/bin/edgesync run --config CONFIG",
        "procd_set_param user edgesync",
    ] {
        assert!(commands.lines().any(|found| found == line), "{line} in\n{commands}");
    }
    assert!(!commands.contains("files-helper"), "no rule, no helper:\n{commands}");
    let with_a_rule = openwrt(&format!("{shipped}\n[[files]]\nname = \"a\"\n"), "reload_service");
    assert!(with_a_rule.contains("edgesync files-helper --config CONFIG --socket "), "{with_a_rule}");
    assert!(with_a_rule.ends_with("procd_send_signal edgesync agent HUP\n"), "{with_a_rule}");
}

#[test]
fn program_that_names_a_directory_of_the_build_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let check = |content: &str| {
        fs::write(&program, content).unwrap();
        run(root(), "paths", &[program.to_str().unwrap()])
    };
    succeeded(&check("\0/usr/src/edgesync/src/main.rs\0/usr/src/cargo/registry/src/x/lib.rs\0"));
    let sources = fs::canonicalize(root()).unwrap();
    let error = refused(&check(&format!("\0other{}/src/main.rs\0", sources.display())));
    assert!(error.contains("/src/main.rs"), "{error}");
    // A target directory of the caller counts from where cargo runs, and is no text to look for.
    fs::write(&program, "\0build/other\0").unwrap();
    let mut command = Command::new(root().join("packaging/paths"));
    command.arg(&program).current_dir(directory.path()).env("CARGO_TARGET_DIR", "build");
    succeeded(&command.output().unwrap());
    fs::write(&program, format!("\0{}/build/other\0", fs::canonicalize(&directory).unwrap().display()))
        .unwrap();
    let error = refused(&command.output().unwrap());
    assert!(error.contains("build/other"), "{error}");
}

/// The revision is a field of its own in rpm packages.
#[test]
fn package_version_without_a_revision_is_refused() {
    for version in ["1.2.0", "1.2.0-", "-1"] {
        let mut command = Command::new(root().join("packaging/build"));
        // Nothing may be built.
        command.args(["--version", version]).env("CARGO", "false");
        let output = command.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{version}: {error}");
        assert!(error.contains("--version must have a revision"), "{version}: {error}");
    }
}

#[test]
fn notices_have_the_licences_of_a_program() {
    let notices = |package: &str, features: &str| {
        let arguments = ["--notices", package, "x86_64-unknown-linux-gnu", features];
        succeeded(&run(root(), "sbom", &arguments))
    };
    let (device, cloud) = (notices("edgesync", ""), notices("edgesync-cloud", "kubernetes"));
    for text in [&device, &cloud] {
        assert!(text.contains("Copyright (c) Tokio Contributors"), "of tokio, under the MIT licence");
        assert!(text.contains("Meta Platforms, Inc."), "of zstd, inside of a crate");
        assert!(!text.contains("GNU GENERAL PUBLIC LICENSE"), "the other licence of zstd");
    }
    assert!(cloud.contains("tower-http ") && !device.contains("tower-http "));
}

/// A program with musl contains musl and Zig's runtime, of the toolchain, and jemalloc, of a crate.
#[test]
fn static_program_names_its_c_library_and_its_allocator() {
    let toolchain = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = toolchain.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("ziglang-0.17.1.dist-info/METADATA", "");
    write("ziglang/LICENSE", "licence of zig");
    write("ziglang/lib/libc/musl/COPYRIGHT", "licence of musl");
    write("ziglang/lib/libc/musl/src/internal/version.h", "#define VERSION \"1.2.5\"");
    let rustc = toolchain.path().join("bin/rustc");
    write("bin/rustc", "#!/bin/sh\nexec rustc \"$@\"\n");
    fs::set_permissions(&rustc, Permissions::from_mode(0o755)).unwrap();
    let sbom = |arguments: &[&str]| {
        let mut command = Command::new(root().join("packaging/sbom"));
        command.args(arguments).args(["edgesync", "armv7-unknown-linux-musleabihf"]).env("RUSTC", &rustc);
        succeeded(&command.output().unwrap())
    };
    let bill: Value = serde_json::from_str(&sbom(&[])).unwrap();
    for (name, version) in [("musl", "1.2.5"), ("zig-compiler-rt", "0.17.1"), ("jemalloc", "5.3.1")] {
        assert_eq!(component(&bill, name).unwrap()["version"], version, "{name}");
    }
    let notices = sbom(&["--notices"]);
    for text in ["licence of zig", "licence of musl", "Copyright (C) 2002-present Jason Evans"] {
        assert!(notices.contains(text), "{text}");
    }
}

/// Returns the bill of material of a program.
fn bill(package: &str, features: &str) -> Value {
    let text = succeeded(&run(root(), "sbom", &[package, "x86_64-unknown-linux-gnu", features]));
    serde_json::from_str(&text).unwrap()
}

fn component<'a>(bill: &'a Value, name: &str) -> Option<&'a Value> {
    bill["components"].as_array().unwrap().iter().find(|component| component["name"] == name)
}

#[test]
fn bill_of_materials_lists_what_is_linked_into_a_program() {
    let (device, cloud) = (bill("edgesync", ""), bill("edgesync-cloud", "kubernetes"));
    for bill in [&device, &cloud] {
        assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
        // SQLite, for which advisories are published, and the crate around it with its digest.
        assert!(component(bill, "sqlite").unwrap()["version"].as_str().unwrap().starts_with("3."));
        let digest = component(bill, "rusqlite").unwrap()["hashes"][0]["content"].as_str().unwrap();
        assert!(fs::read_to_string(root().join("Cargo.lock")).unwrap().contains(digest));
        // Tests, macros and build scripts are not in a program.
        for absent in ["proptest", "syn", "cc"] {
            assert_eq!(component(bill, absent), None, "{absent}");
        }
        let uses = bill["dependencies"].as_array().unwrap();
        assert_eq!(uses.len(), bill["components"].as_array().unwrap().len() + 1);
    }
    assert!(component(&cloud, "kube").is_some() && component(&bill("edgesync-cloud", ""), "kube").is_none());
    assert_eq!(component(&device, "kube"), None);
}
