//! Leaves the unwind tables out of a program that never unwinds: a tenth of the agent for devices. See
//! docs/decisions/0008-program-for-devices.md.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=packaging/without-unwind-tables.ld");
    let directory = |variable: &str| PathBuf::from(env::var_os(variable).unwrap_or_default());
    // Cargo does not tell build scripts what a panic does in a profile. OUT_DIR is <target>/<profile>/build/<package>/out.
    let out = directory("OUT_DIR");
    let profile = out.ancestors().nth(3).and_then(Path::file_name);
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    // The profile "edge" aborts at a panic.
    if is_linux && profile.is_some_and(|profile| profile == "edge") {
        let script = directory("CARGO_MANIFEST_DIR").join("packaging/without-unwind-tables.ld");
        println!("cargo::rustc-link-arg-bin=edgesync=-Wl,-T,{}", script.display());
        // Rust links with LLD there. Functions that came out the same are kept once.
        if env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
            println!("cargo::rustc-link-arg-bin=edgesync=-Wl,--icf=all");
        }
    }
}
