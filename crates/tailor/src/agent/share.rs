//! Parts of a load: options and files for each agent.

use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};

use super::message::SentRun;
use crate::bench::LoadOptions;

/// Maximum size of all files of a run.
const FILES_BYTES_MAX: usize = 128 << 20;

/// Parser of the arguments that a controller sends.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Arguments {
    #[command(flatten)]
    options: LoadOptions,
}

/// Arguments of this process after the name of its command.
pub(super) fn own_arguments() -> Vec<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("bench") => arguments[1..].to_vec(),
        // A URL alone means `bench`.
        _ => arguments,
    }
}

/// Paths of the files that options name.
fn paths(options: &mut LoadOptions) -> Vec<&mut PathBuf> {
    let paths = [
        &mut options.urls,
        &mut options.scenario,
        &mut options.replay,
        &mut options.targets,
        &mut options.cacert,
        &mut options.expect_body,
    ];
    paths.into_iter().flatten().collect()
}

/// Texts that may be `@FILE`.
fn texts(options: &mut LoadOptions) -> impl Iterator<Item = &mut String> {
    options.body.iter_mut().chain(&mut options.message).filter(|text| text.starts_with('@'))
}

/// Reads the files that options name.
pub(super) fn files(options: &LoadOptions) -> Result<Vec<(String, String)>, String> {
    let mut options = options.clone();
    let mut names: Vec<PathBuf> = paths(&mut options).into_iter().map(|path| path.clone()).collect();
    names.extend(texts(&mut options).map(|text| PathBuf::from(&text[1..])));
    if let Some(scenario) = &options.scenario {
        names.extend(data_of(scenario)?);
    }
    let (mut files, mut sum) = (Vec::new(), 0);
    for path in names {
        if path.as_os_str() == "-" {
            return Err("agents cannot read standard input; use a file".to_owned());
        }
        let content = crate::input::read(&path, FILES_BYTES_MAX as u64)?;
        sum += content.len();
        if sum > FILES_BYTES_MAX {
            return Err(format!("the files for agents have more than {FILES_BYTES_MAX} bytes"));
        }
        let name = path.to_str().ok_or_else(|| format!("{}: the path is not UTF-8", path.display()))?;
        files.push((name.to_owned(), Base64::encode_string(&content)));
    }
    Ok(files)
}

/// Data files of a scenario. They must be beside it, because agents keep all files in one directory.
fn data_of(scenario: &Path) -> Result<Vec<PathBuf>, String> {
    let text = crate::input::read_text(scenario)?;
    let document = crate::nodes::parse(&text).map_err(|error| format!("{}: {error}", scenario.display()))?;
    let data = document.nodes().iter().filter(|node| node.name().value() == "data");
    data.map(|node| {
        let name = crate::nodes::argument(node)?;
        match name.contains('/') {
            true => Err(format!("data `{name}`: with agents the file must be in the directory of the scenario")),
            false => Ok(scenario.parent().unwrap_or(Path::new("")).join(name)),
        }
    })
    .collect()
}

/// Options of a part of a run, whose files are written to a directory.
pub(super) fn options_of_part(run: &SentRun, directory: &Path) -> Result<LoadOptions, String> {
    let parsed = <Arguments as clap::Parser>::try_parse_from(&run.arguments);
    let mut options = parsed.map_err(|error| error.render().to_string())?.options;
    if run.parts == 0 || run.part >= run.parts {
        return Err(format!("part {} of {}", run.part, run.parts));
    }
    let mut written = Vec::new();
    for (name, content) in &run.files {
        let content = Base64::decode_vec(content).map_err(|_| format!("{name}: not base64"))?;
        // Only the last component is used, and it stays within the directory.
        let file_name = Path::new(name).file_name().ok_or_else(|| format!("`{name}` names no file"))?;
        let path = directory.join(file_name);
        if written.iter().any(|(other, other_path): &(String, PathBuf)| other != name && *other_path == path) {
            return Err(format!("two files have the name {}", file_name.display()));
        }
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
        written.push((name.clone(), path));
    }
    let place = |path: &Path| {
        let found = written.iter().find(|(name, _)| Path::new(name) == path);
        // An agent opens no file that was not sent.
        found.map(|(_, path)| path.clone()).ok_or_else(|| format!("{} was not sent", path.display()))
    };
    for path in paths(&mut options) {
        *path = place(path)?;
    }
    for text in texts(&mut options) {
        *text = format!("@{}", place(Path::new(&text[1..]))?.display());
    }
    if options.unix_socket.is_some() {
        return Err("agents load no Unix domain socket".to_owned());
    }
    // Reports are the controller's.
    options.json = None;
    options.html = None;
    options.hdr_log = None;
    options.intervals = None;
    options.watch = None;
    options.watch_group = Vec::new();
    options.metrics = None;
    options.live = false;
    options.quiet = true;
    options.require = Vec::new();
    options.agents = Vec::new();
    options.seed = Some(run.seed.wrapping_add(run.part as u32));
    share(&mut options, run.part, run.parts)?;
    Ok(options)
}

/// One of several equal parts of a number; the first parts have the rest.
fn share_of(whole: u64, part: u64, parts: u64) -> u64 {
    whole / parts + u64::from(part < whole % parts)
}

/// Reduces a load to one of several equal parts.
fn share(options: &mut LoadOptions, part: u64, parts: u64) -> Result<(), String> {
    options.connections = share_of(options.connections, part, parts);
    options.requests = options.requests.map(|requests| share_of(requests, part, parts));
    if options.connections == 0 || options.requests == Some(0) {
        return Err("each agent needs at least one connection and one request".to_owned());
    }
    options.rate = options.rate.map(|rate| rate / parts as f64);
    options.profile = options.profile.as_ref().map(|profile| profile.scaled(1.0 / parts as f64));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str], files: &[(&str, &str)], part: u64) -> Result<LoadOptions, String> {
        let directory = tempfile::tempdir().unwrap();
        let run = SentRun {
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            files: files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), Base64::encode_string(text.as_bytes())))
                .collect(),
            part,
            parts: 3,
            seed: 5,
        };
        options_of_part(&run, directory.path())
    }

    #[test]
    fn parts_add_up() {
        let part = |part| {
            let options =
                run(&["http://a/", "-c", "10", "-n", "100", "--json", "x", "--html", "y"], &[], part).unwrap();
            assert!(options.json.is_none() && options.html.is_none() && options.quiet);
            (options.connections, options.requests.unwrap(), options.seed.unwrap())
        };
        assert_eq!([part(0), part(1), part(2)], [(4, 34, 5), (3, 33, 6), (3, 33, 7)]);
        assert_eq!(run(&["http://a/", "-R", "300"], &[], 1).unwrap().rate, Some(100.0));
        let whole = run(&["http://a/", "--profile", "300:1s,0-30:1s"], &[], 1).unwrap().profile.unwrap();
        assert_eq!(whole.scaled(3.0), crate::bench::parse_profile("300:1s,0-30:1s").unwrap());
    }

    #[test]
    fn agents_open_only_files_that_were_sent() {
        for (arguments, files, expect) in [
            (&["http://a/", "--urls", "/etc/passwd"][..], &[][..], "/etc/passwd was not sent"),
            (&["http://a/", "--body", "@/etc/passwd"], &[], "/etc/passwd was not sent"),
            (&["http://a/", "--urls", "x"], &[("y", "")], "x was not sent"),
            (&["http://a/", "--unix-socket", "/run/x"], &[], "no Unix domain socket"),
            (&["http://a/", "-c", "2"], &[], "each agent needs"),
            (&["http://a/", "--urls", "a/x", "--expect-body", "b/x"], &[("a/x", ""), ("b/x", "")], "two files"),
            (&["http://a/", "--urls", ".."], &[("..", "")], "names no file"),
            (&["--nonsense"], &[], "--nonsense"),
        ] {
            let error = run(arguments, files, 2).err().unwrap_or_default();
            assert!(error.contains(expect), "{arguments:?}: {error}");
        }
        let options = run(&["http://a/", "--urls", "../../x"], &[("../../x", "/y")], 0).unwrap();
        assert!(options.urls.unwrap().ends_with("x"));
    }
}
