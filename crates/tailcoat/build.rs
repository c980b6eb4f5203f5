//! Linker options of the program.

use std::process::Command;

/// The first C library that can load a program whose relative relocations are packed.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Each start reads all relocations. Packed, they take a twentieth of the megabyte that they take otherwise.
    if built_for_gnu() && glibc().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn built_for_gnu() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")
}

/// The version of the C library here: a program runs with that of the machine it was built on, and later ones.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
