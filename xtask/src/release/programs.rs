//! Builds the programs, arranged by a profile: which of their paths are taken often.
//!
//! They are built twice. The first ones count while they serve and send the requests of [`training`]. Then the compiler
//! knows what to inline, and which code to keep together. Code that the requests do not reach is compiled as without a profile.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::PROGRAMS;
use super::{read, run_command, training};
use crate::cargo;

/// Directory in which the programs are built.
const OUTPUT: &str = "target/release-build";

/// Directory of the programs of this machine, with their symbols.
const HERE: &str = "target/programs";

/// Keeps the compiler from inlining less, and from saving space, where no request came.
const AS_WITHOUT_PROFILE: &str = "-Cllvm-args=-inline-cold-callsite-threshold=225 -Cllvm-args=-pgso=false";

/// Origin of a profile.
pub(crate) enum ProfileSource {
    /// Makes one for these programs.
    Training,
    /// Makes one, unless there is that of an earlier build.
    EarlierTraining,
    /// Takes this file.
    File(PathBuf),
}

/// Programs that were built.
pub(super) struct BuiltPrograms {
    /// Their directory.
    pub(super) directory: PathBuf,
    /// The profile by which they are arranged.
    pub(super) profile: PathBuf,
}

/// Triple of this machine.
pub(super) fn machine() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds the programs of this machine in [`HERE`], to try or measure them.
pub(crate) fn build_here(source: &ProfileSource) -> Result<PathBuf, Box<dyn Error>> {
    let built = build(&machine(), source)?;
    fs::create_dir_all(HERE)?;
    for program in PROGRAMS {
        fs::copy(built.directory.join(program), Path::new(HERE).join(program))?;
    }
    Ok(HERE.into())
}

/// Builds both programs with all but the kernel linked in.
pub(super) fn build(target: &str, source: &ProfileSource) -> Result<BuiltPrograms, Box<dyn Error>> {
    let output = std::path::absolute(OUTPUT)?;
    let kept = output.join("kept.profdata");
    let profile = match source {
        ProfileSource::File(file) => file,
        ProfileSource::EarlierTraining if kept.exists() => &kept,
        _ => {
            make_profile(target, &output.join("counting"), &kept)?;
            &kept
        }
    };
    // A profile of other content has another name, and one that is there stays: a newer file would be a reason to compile
    // everything again.
    let sum = read(Command::new("sha256sum").arg(profile))?;
    let named = output.join(format!("{}.profdata", sum.get(..16).unwrap_or(&sum)));
    fs::create_dir_all(&output)?;
    if !named.exists() {
        fs::copy(profile, &named)?;
    }
    let flags = format!("-Cprofile-use={} {AS_WITHOUT_PROFILE}", named.display());
    let directory = compile(target, &output, &flags)?;
    if target == machine() {
        training::try_out(&directory)?;
    }
    Ok(BuiltPrograms { directory, profile: named })
}

/// Trains programs that count, and writes a profile.
fn make_profile(target: &str, output: &Path, profile: &Path) -> Result<(), Box<dyn Error>> {
    if target != machine() {
        return Err(format!(
            "programs for {target} can't be trained here: give the profile of others by `--profile FILE`"
        )
        .into());
    }
    let merge = llvm_profdata()?;
    let counts = output.join("counts");
    super::tree::empty(&counts)?;
    let programs = compile(target, output, &format!("-Cprofile-generate={}", counts.display()))?;
    training::train(&programs, &counts)?;
    let counted = fs::read_dir(&counts)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    run_command(Command::new(merge).arg("merge").arg("-o").arg(profile).args(counted))
}

/// The program that merges counts, of the compiler's version.
fn llvm_profdata() -> Result<PathBuf, Box<dyn Error>> {
    let libraries = read(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let program = Path::new(libraries.trim()).with_file_name("bin").join("llvm-profdata");
    if program.exists() {
        return Ok(program);
    }
    Err("a profile needs `llvm-profdata`: install it by `rustup component add llvm-tools`".into())
}

/// Compiles both programs. Returns their directory.
fn compile(target: &str, output: &Path, profile_flags: &str) -> Result<PathBuf, Box<dyn Error>> {
    let root = std::env::current_dir()?;
    let home = std::env::var_os("CARGO_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"), PathBuf::from);
    let (root, home) = (root.display(), home.display());
    let c_flags = format!("-ffile-prefix-map={root}=. -ffile-prefix-map={home}=cargo");
    let mut flags = format!(
        "-Ctarget-feature=+crt-static --remap-path-prefix={root}=. --remap-path-prefix={home}=cargo {profile_flags}"
    );
    if target.ends_with("-gnu") {
        flags += &format!(" -Clink-arg={}", compile_lookups()?.display());
    }
    let build = ["build", "--profile", "optimized", "--locked", "-p", "tailcoat", "-p", "tailor", "--target"];
    let mut cargo = cargo::command(&build);
    cargo
        .arg(target)
        .arg("--target-dir")
        .arg(output)
        .env("RUSTFLAGS", flags)
        .env("CFLAGS", &c_flags)
        .env("CXXFLAGS", &c_flags)
        .env("SOURCE_DATE_EPOCH", super::commit_time()?.to_string());
    run_command(&mut cargo)?;
    Ok(output.join(target).join("optimized"))
}

/// Compiles what keeps a statically linked glibc from loading others' libraries.
fn compile_lookups() -> Result<PathBuf, Box<dyn Error>> {
    fs::create_dir_all(OUTPUT)?;
    // A relative path: flags of the linker must not tell where the sources are.
    let object = Path::new(OUTPUT).join("lookups.o");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    run_command(compiler.args(["-O2", "-c", "xtask/src/release/lookups.c", "-o"]).arg(&object))?;
    Ok(object)
}
