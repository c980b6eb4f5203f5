//! `cargo xtask release`: makes the files that users get, in `target/dist`: a tarball, a Debian package, an SBOM, the
//! programs' debug symbols, and the profile by which they are arranged.
//!
//! The same sources and profile give the same bytes: times are those of the commit, files are in order and root's. Paths of
//! the machine are taken out of the programs; compilers and libc are the machine's.

mod authorities;
mod debian;
mod programs;
mod sbom;
mod training;
mod tree;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub(crate) use programs::{ProfileSource, build_here};
pub(crate) use training::try_out;
pub(crate) use tree::unreleased;
use tree::{PROGRAMS, Tree};

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

const USAGE: &str = "\
usage: cargo xtask release [--target TRIPLE] [--profile FILE] [--programs | --no-build]
  --target TRIPLE  programs for another machine (default: this one)
  --profile FILE   arrange the programs by this profile, such as the one of a release (default: make one)
  --programs       only the programs, in target/programs, by the profile of the last build if there is one
  --no-build       pack the programs that are there";

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
    let (mut target, mut builds, mut packs) = (programs::machine(), true, true);
    let mut profile = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--target" => target = arguments.next().ok_or(USAGE)?,
            "--profile" => profile = Some(ProfileSource::File(arguments.next().ok_or(USAGE)?.into())),
            "--programs" => packs = false,
            // For work on packages.
            "--no-build" => builds = false,
            _ => return Err(USAGE.into()),
        }
    }
    if !packs && (target != programs::machine() || !builds) {
        return Err(USAGE.into());
    }
    if !packs {
        return Ok(vec![build_here(&profile.unwrap_or(ProfileSource::EarlierTraining))?]);
    }
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: commit_time()?,
        programs: Path::new("target/release-build").join(&target).join("stripped"),
        directory: "target/dist".into(),
        target,
    };
    fs::create_dir_all(&release.directory)?;
    let mut made = Vec::new();
    if builds {
        let built = programs::build(&release.target, &profile.unwrap_or(ProfileSource::Training))?;
        made.push(split_symbols(&release, &built.directory)?);
        made.push(copy_profile(&release, &built.profile)?);
    }
    let sbom = sbom::write(&release)?;
    let tree = Tree::make(&release)?;
    made.extend([tree.pack(&release)?, debian::pack(&tree, &release)?, sbom]);
    made.push(write_sums(&release, &made)?);
    Ok(made)
}

/// Seconds since 1970: when the commit was made.
fn commit_time() -> Result<u64, Box<dyn Error>> {
    Ok(read(Command::new("git").args(["log", "-1", "--format=%ct"]))?.trim().parse()?)
}

/// Puts the profile beside the packages: with it, the same sources give the same bytes.
fn copy_profile(release: &Release, profile: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let name = format!("tailcoat-{}-{}.profdata", release.version, release.architecture());
    let copy = release.directory.join(name);
    fs::copy(profile, &copy)?;
    Ok(copy)
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
