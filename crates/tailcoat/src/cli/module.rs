//! `module`: WebAssembly modules, from their beginning to where they may run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use rustix::process::geteuid;

use super::{EXIT_FAILURE, configuration, fail, print};
use crate::config::{self, Config};
use crate::confinement;
use crate::modules::{ImportAccess, Inspection, inspect, precompile};

#[derive(Debug, Subcommand)]
pub(super) enum ModuleCommand {
    /// Check a module: its imports, and its ability to answer requests; it is not run
    Check {
        /// Component to check
        file: PathBuf,
    },
    /// Compile modules now, so that the server starts faster
    ///
    /// The machine code is stored where `run` looks for it (`modules { compiled }`). It fits this version of tailcoat and
    /// this kind of CPU. Run the command as the user of the server; root switches to the user in the configuration.
    Compile {
        /// Configuration file that names the directory of compiled modules
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Modules to compile [default: all of the configuration]
        files: Vec<PathBuf>,
    },
    /// Create a project for a module
    New(NewModule),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat module new shop
  tailcoat module new --language python shop")]
pub(super) struct NewModule {
    /// Directory to create; its name becomes the module's name
    #[arg(value_parser = parse_directory)]
    directory: PathBuf,

    /// Programming language
    #[arg(short, long, value_enum, default_value_t = Language::Rust)]
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// Rust, built by Cargo
    Rust,
    /// JavaScript, built by componentize-js from npm
    Javascript,
    /// Python, built by componentize-py from PyPI
    Python,
}

/// A file of a template. `@NAME@` stands for the module's name, `@FILE@` for what Cargo makes of it.
type TemplateFile = (&'static str, &'static str);

const RUST: &[TemplateFile] = &[
    ("Cargo.toml", include_str!("module_templates/rust/Cargo.toml.template")),
    ("src/lib.rs", include_str!("module_templates/rust/lib.rs.template")),
    ("README.md", include_str!("module_templates/rust/README.md.template")),
    ("tailcoat.kdl", include_str!("module_templates/rust/tailcoat.kdl.template")),
];

const JAVASCRIPT: &[TemplateFile] = &[
    ("package.json", include_str!("module_templates/javascript/package.json.template")),
    ("build.js", include_str!("module_templates/javascript/build.js.template")),
    ("module.js", include_str!("module_templates/javascript/module.js.template")),
    ("README.md", include_str!("module_templates/javascript/README.md.template")),
    ("wit/module.wit", include_str!("module_templates/module.wit.template")),
    ("tailcoat.kdl", include_str!("module_templates/javascript/tailcoat.kdl.template")),
];

const PYTHON: &[TemplateFile] = &[
    ("app.py", include_str!("module_templates/python/app.py.template")),
    ("README.md", include_str!("module_templates/python/README.md.template")),
    ("wit/module.wit", include_str!("module_templates/module.wit.template")),
    ("tailcoat.kdl", include_str!("module_templates/python/tailcoat.kdl.template")),
];

impl ModuleCommand {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        match self {
            Self::Check { file } => check(&file),
            Self::Compile { config, files } => compile(config.or(of_top), files),
            Self::New(new) => new.run(),
        }
    }
}

fn check(file: &Path) -> ExitCode {
    match inspect(file) {
        Ok(found) => {
            let printed = print(&describe(file, &found));
            if found.problem.is_some() { ExitCode::from(EXIT_FAILURE) } else { printed }
        }
        Err(error) => fail(format_args!("{}: {error}", file.display())),
    }
}

/// Compiles these files, or those of the configuration.
fn compile(config: Option<PathBuf>, files: Vec<PathBuf>) -> ExitCode {
    let config = match (config, files.is_empty()) {
        (None, false) => Config::default(),
        (file, _) => {
            let file = file.unwrap_or_else(|| config::DEFAULT_PATH.into());
            match configuration::load_valid(&file) {
                Ok(config) => config,
                Err(code) => return code,
            }
        }
    };
    let of_config = || config.module_routes().map(|module| module.file.clone()).collect::<BTreeSet<_>>();
    let files: BTreeSet<PathBuf> = if files.is_empty() { of_config() } else { files.into_iter().collect() };
    let compile = || {
        precompile(&config.modules, files.iter().map(PathBuf::as_path), |file, time| {
            // If the receiver is gone, the modules are compiled all the same.
            let _ = print(&format!("{}: compiled in {} ms\n", file.display(), time.as_millis()));
        })
    };
    let compiled = match confinement::wanted_user(config.server.user) {
        Ok(Some(user)) if geteuid().is_root() && user.user_id != 0 => match confinement::as_user(user, compile) {
            Ok(compiled) => compiled,
            Err(error) => {
                return fail(format_args!("cannot become user {}: {error}", confinement::user_name(user)));
            }
        },
        _ => compile(),
    };
    match compiled {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn describe(file: &Path, found: &Inspection) -> String {
    let mut text = format!(
        "{}: a {} of {}, compiled in {} ms to {}\n",
        file.display(),
        if found.is_component { "component" } else { "core module" },
        size(found.file_bytes),
        found.compile_time.as_millis(),
        size(found.compiled_bytes as u64)
    );
    let memory = found.memory_bytes.map_or("none".to_owned(), size);
    let elements = found.table_elements.unwrap_or(0);
    // Writing to a string does not fail.
    let _ = writeln!(text, "begins with {memory} of memory and a table of {elements} elements");
    let _ = writeln!(text, "exports\n{}", lines(found.exports.iter().map(|name| format!("  {name}\n"))));
    let width = found.imports.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let imports = found.imports.iter().map(|(name, access)| format!("  {name:width$}  {}\n", meaning(*access)));
    let _ = writeln!(text, "imports\n{}", lines(imports));
    match &found.problem {
        None => text.push_str("It can answer requests.\n"),
        Some(problem) => {
            let _ = writeln!(text, "It can't answer requests: {problem}");
        }
    }
    text
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    let joined: String = lines.collect();
    if joined.is_empty() { "  nothing".to_owned() } else { joined.trim_end().to_owned() }
}

fn meaning(access: ImportAccess) -> String {
    match access {
        ImportAccess::Always => "always there".to_owned(),
        ImportAccess::Granted(option) => format!("reaches what `{option}` grants, by default nothing"),
        ImportAccess::Never => "denied always".to_owned(),
        ImportAccess::Unknown => "not there".to_owned(),
    }
}

/// A size for a person.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / (1024 * 1024)),
    }
}

impl NewModule {
    fn run(self) -> ExitCode {
        let name = name_of(&self.directory);
        let files = match self.language {
            Language::Rust => RUST,
            Language::Javascript => JAVASCRIPT,
            Language::Python => PYTHON,
        };
        match write_files(&self.directory, files, &name) {
            Ok(()) => print(&format!(
                "{0} is a module that says hello. Its README.md tells how to build and run it.\n",
                self.directory.display()
            )),
            Err(message) => fail(message),
        }
    }
}

/// The directory must not be there, so that nothing is overwritten.
fn write_files(directory: &Path, files: &[TemplateFile], name: &str) -> Result<(), String> {
    let tell = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| format!("cannot make {}: {error}", path.display())
    };
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(format!("{} is there already; give the module a directory of its own", directory.display()));
        }
        made => made.map_err(tell(directory))?,
    }
    for (file, text) in files {
        let path = directory.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(tell(parent))?;
        }
        fs::write(&path, text.replace("@NAME@", name).replace("@FILE@", &name.replace('-', "_")))
            .map_err(tell(&path))?;
    }
    Ok(())
}

fn name_of(directory: &Path) -> String {
    directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Package managers take names of lower case letters, digits and hyphens.
fn parse_directory(text: &str) -> Result<PathBuf, String> {
    let directory = PathBuf::from(text);
    let name = name_of(&directory);
    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match is_name {
        true => Ok(directory),
        false => Err("its last part has to be lower case letters, digits and hyphens".to_owned()),
    }
}
