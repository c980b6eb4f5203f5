//! `cargo xtask release`: makes the files that users get, in `target/dist`: a tarball, a Debian package, an SBOM, and the
//! programs' debug symbols.
//!
//! The same programs are packed into the same bytes: times are those of the commit, files are in order and root's. Paths of
//! the machine are taken out of the programs; compilers and libc are the machine's.

mod authorities;
mod debian;
mod sbom;
mod tree;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub(crate) use tree::unreleased;
use tree::{PROGRAMS, Tree};

use crate::cargo;

/// Properties of a release.
struct Release {
    version: String,
    /// Seconds since 1970: when the commit was made.
    time: u64,
    /// The target's triple.
    target: String,
    /// Directory of the programs without symbols.
    programs: PathBuf,
    /// Directory for the results.
    directory: PathBuf,
}

impl Release {
    /// `x86_64` of `x86_64-unknown-linux-gnu`.
    fn architecture(&self) -> &str {
        self.target.split('-').next().unwrap_or(&self.target)
    }
}

const USAGE: &str = "usage: cargo xtask release [--target TRIPLE] [--no-build]";

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match try_run(arguments) {
        Ok(made) => {
            made.iter().for_each(|file| println!("{}", file.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(mut arguments: impl Iterator<Item = String>) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (mut target, mut builds) = (format!("{}-unknown-linux-gnu", std::env::consts::ARCH), true);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--target" => target = arguments.next().ok_or(USAGE)?,
            // For work on packages: those programs are packed that are there.
            "--no-build" => builds = false,
            _ => return Err(USAGE.into()),
        }
    }
    let output = Path::new("target/release-build");
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: read(Command::new("git").args(["log", "-1", "--format=%ct"]))?.trim().parse()?,
        programs: output.join(&target).join("stripped"),
        directory: "target/dist".into(),
        target,
    };
    fs::create_dir_all(&release.directory)?;
    let mut made = Vec::new();
    if builds {
        build(&release, output)?;
        made.push(split_symbols(&release, &output.join(&release.target).join("optimized"))?);
    }
    let sbom = sbom::write(&release)?;
    let tree = Tree::make(&release)?;
    made.extend([tree.pack(&release)?, debian::pack(&tree, &release)?, sbom]);
    made.push(write_sums(&release, &made)?);
    Ok(made)
}

/// Builds both programs with all but the kernel linked in.
fn build(release: &Release, output: &Path) -> Result<(), Box<dyn Error>> {
    let root = std::env::current_dir()?;
    let home = std::env::var_os("CARGO_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"), PathBuf::from);
    let (root, home) = (root.display(), home.display());
    let c_flags = format!("-ffile-prefix-map={root}=. -ffile-prefix-map={home}=cargo");
    let mut flags =
        format!("-Ctarget-feature=+crt-static --remap-path-prefix={root}=. --remap-path-prefix={home}=cargo");
    if release.target.ends_with("-gnu") {
        flags += &format!(" -Clink-arg={}", compile_lookups(output)?.display());
    }
    let build = ["build", "--profile", "optimized", "--locked", "-p", "tailcoat", "-p", "tailor", "--target"];
    let mut cargo = cargo::command(&build);
    cargo
        .arg(&release.target)
        .arg("--target-dir")
        .arg(output)
        .env("RUSTFLAGS", flags)
        .env("CFLAGS", &c_flags)
        .env("CXXFLAGS", &c_flags)
        .env("SOURCE_DATE_EPOCH", release.time.to_string());
    run_command(&mut cargo)
}

/// Splits the built programs into programs without symbols, and a tarball of `PROGRAM.debug` files. A debugger finds such a file
/// beside its program.
fn split_symbols(release: &Release, built: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let name = format!("tailcoat-{}-{}-symbols", release.version, release.architecture());
    let directory = release.directory.join(&name);
    tree::empty(&directory)?;
    tree::empty(&release.programs)?;
    for program in PROGRAMS {
        let symbols = directory.join(format!("{program}.debug"));
        let objcopy = || Command::new("objcopy");
        run_command(objcopy().arg("--only-keep-debug").arg(built.join(program)).arg(&symbols))?;
        let link = format!("--add-gnu-debuglink={}", symbols.display());
        run_command(
            objcopy().args(["--strip-all", &link]).arg(built.join(program)).arg(release.programs.join(program)),
        )?;
    }
    open_directories(&directory)?;
    tree::pack(release, &name)
}

/// Compiles what keeps a statically linked glibc from loading others' libraries.
fn compile_lookups(output: &Path) -> Result<PathBuf, Box<dyn Error>> {
    fs::create_dir_all(output)?;
    // A relative path: flags are in the names of symbols, which must not tell where the sources are.
    let object = output.join("lookups.o");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    run_command(compiler.args(["-O2", "-c", "xtask/src/release/lookups.c", "-o"]).arg(&object))?;
    Ok(object)
}

/// SHA-256 sums of all that was made, as `sha256sum -c` reads them.
fn write_sums(release: &Release, made: &[PathBuf]) -> Result<PathBuf, Box<dyn Error>> {
    let mut names: Vec<_> = made.iter().filter_map(|file| file.file_name()).collect();
    names.sort();
    let sums = read(Command::new("sha256sum").args(names).current_dir(&release.directory))?;
    let file = release.directory.join("SHA256SUMS");
    fs::write(&file, sums)?;
    Ok(file)
}

/// Has all directories below one be read by all, whatever the umask.
fn open_directories(root: &Path) -> Result<(), Box<dyn Error>> {
    run_command(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(root))
}

/// Runs a command that must end well.
fn run_command(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let name = command.get_program().display().to_string();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}").into()),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}

/// Output of a command.
fn read(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
