//! Linker options of the program.

use std::process::Command;

/// First version of the GNU C library that can load a program with packed relative relocations.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Each start reads all relocations. Packing reduces them from a megabyte to a twentieth of that.
    if built_for_gnu() && glibc().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn built_for_gnu() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")
}

/// Version of the C library on this machine. A program runs with the version it was built on, and with later ones.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
