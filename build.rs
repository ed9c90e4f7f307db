//! Links the program for devices (the profile `edge`) without its tables for unwinding: with
//! `panic = "abort"` nothing unwinds, and they are a twelfth of the program.

use std::env::var;
use std::path::Path;

fn main() {
    let script = "packaging/no-unwinding.ld";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={script}");
    let (root, out) = (var("CARGO_MANIFEST_DIR").unwrap_or_default(), var("OUT_DIR").unwrap_or_default());
    // No variable names the profile: PROFILE has the one that it inherits from. OUT_DIR is
    // PROFILE/build/PACKAGE/out.
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    if profile.is_some_and(|name| name == "edge") && var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
    {
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{root}/{script}");
    }
}
