//! `tailor import`: translates recordings and scripts of other tools to scenario files.

mod har;
mod k6;
mod script;
mod values;
mod write;
mod wrk;

use std::path::{Path, PathBuf};

use crate::bench::target::Url;
use crate::end::ProgramEnd;

/// Maximum size of a file to import.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of scenarios that random choices of a script expand to.
const CHOICES_MAX: usize = 1000;

/// Options of `tailor import`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ImportOptions {
    /// HAR file of a browser, Lua script of wrk, or JavaScript of k6
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Format of the file [default: by its extension]
    #[arg(long, value_enum)]
    pub from: Option<ImportFormat>,
    /// Server whose requests to import from a HAR file: HOST or HOST:PORT [default: that of the first request]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Write the scenario to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Format of an imported file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ImportFormat {
    /// HTTP archive (HAR), as browsers save it
    Har,
    /// Lua script of wrk or wrk2
    Wrk,
    /// JavaScript of k6
    K6,
}

/// Result of a translation.
#[derive(Clone, Debug, Default)]
struct Imported {
    scenarios: Vec<ImportedScenario>,
    /// Options of `tailor bench` with the same meaning as those in the file.
    arguments: Vec<String>,
    /// Scheme, host and port of the requests, if the file names them.
    server: Option<String>,
    /// Parts of the file that the scenario lacks.
    untranslated: Vec<Untranslated>,
}

/// Part of a file that has no translation.
#[derive(Clone, Debug, PartialEq)]
struct Untranslated {
    /// Line of a script.
    line: Option<usize>,
    text: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct ImportedScenario {
    name: String,
    steps: Vec<ImportedStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum ImportedStep {
    /// Pause in seconds, between a minimum and a maximum.
    Think(f64, f64),
    Request(ImportedRequest),
}

/// Request. Its texts are templates of scenario files.
#[derive(Clone, Debug, Default, PartialEq)]
struct ImportedRequest {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Option<String>,
    statuses: Vec<u16>,
    length: Option<u64>,
    header: Option<String>,
    contains: Vec<String>,
    /// Names of values with their places in the response.
    captures: Vec<(String, ImportedCapture)>,
}

/// Place of a value in a response.
#[derive(Clone, Debug, PartialEq)]
enum ImportedCapture {
    /// JSON pointer.
    Json(String),
    Header(String),
}

impl Imported {
    fn skip(&mut self, line: Option<usize>, text: impl Into<String>) {
        let untranslated = Untranslated { line, text: text.into() };
        if !self.untranslated.contains(&untranslated) {
            self.untranslated.push(untranslated);
        }
    }

    /// Returns the path of a URL, whose server must be that of all others. A URL without a server is a path already.
    fn target(&mut self, url: &str) -> Result<String, String> {
        if url.starts_with('/') {
            return Ok(write::encode_target(url));
        }
        // Variables have no place in the name of a server, and their braces none in a URL.
        let parsed = Url::parse(&write::encode_target(url))?;
        let scheme = if parsed.is_tls { "https" } else { "http" };
        let server = format!("{scheme}://{}", parsed.authority());
        if server.contains("${") {
            return Err("its server depends on a variable".to_owned());
        }
        match self.server.get_or_insert_with(|| server.clone()) {
            known if *known == server => Ok(parsed.target),
            known => Err(format!("its server is not {known}")),
        }
    }
}

/// Imports a file, and writes the scenario.
///
/// # Errors
/// The file cannot be read or has no request that can be translated.
pub(crate) fn run(options: &ImportOptions) -> Result<ProgramEnd, String> {
    let text = translate(options)?;
    match &options.output {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?,
        None => crate::output::print(&text)?,
    }
    Ok(ProgramEnd::Passed)
}

/// Translates the file. Prints what has no translation to standard error.
fn translate(options: &ImportOptions) -> Result<String, String> {
    let path = &options.file;
    let error = |error: String| format!("{}: {error}", path.display());
    let format = options
        .from
        .or_else(|| format_of(path))
        .ok_or_else(|| error("unknown extension; --from har, --from wrk or --from k6 names the format".to_owned()))?;
    let size = std::fs::metadata(path).map_err(|reason| error(reason.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(error(format!(
            "{size} bytes are more than {FILE_BYTES_MAX}; record fewer requests, or save the HAR file without content"
        )));
    }
    // A device has no size, and perhaps no end.
    let text = crate::input::read(path, FILE_BYTES_MAX)?;
    let text = String::from_utf8(text).map_err(|reason| error(reason.to_string()))?;
    let name = path.file_stem().map_or_else(|| "imported".to_owned(), |name| name.to_string_lossy().into_owned());
    let mut imported = match format {
        ImportFormat::Har => har::import(&text, &name, options.host.as_deref()),
        ImportFormat::Wrk => wrk::import(&text, &name),
        ImportFormat::K6 => k6::import(&text),
    }
    .map_err(error)?;
    imported.scenarios.retain(|scenario| scenario.steps.iter().any(|step| matches!(step, ImportedStep::Request(_))));
    let place = |it: &Untranslated| match it.line {
        Some(line) => format!("{}: line {line}: not translated: {}", path.display(), it.text),
        None => format!("{}: not translated: {}", path.display(), it.text),
    };
    imported.untranslated.iter().for_each(|it| eprintln!("tailor: {}", place(it)));
    if imported.scenarios.is_empty() {
        return Err(error("has no request that can be translated".to_owned()));
    }
    Ok(write::to_kdl(&imported, &path.display().to_string()))
}

fn format_of(path: &Path) -> Option<ImportFormat> {
    match path.extension()?.to_str()? {
        "har" | "json" => Some(ImportFormat::Har),
        "lua" => Some(ImportFormat::Wrk),
        "js" | "ts" | "mjs" => Some(ImportFormat::K6),
        _ => None,
    }
}
