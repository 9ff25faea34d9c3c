//! Notes the compiler's version, which reports of runs name.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").and_then(|rustc| Command::new(rustc).arg("--version").output().ok());
    let version = rustc.and_then(|output| String::from_utf8(output.stdout).ok());
    if let Some(version) = version.as_deref().and_then(|text| text.trim().strip_prefix("rustc ")) {
        println!("cargo:rustc-env=SECKILL_RUSTC={version}");
    }
}
