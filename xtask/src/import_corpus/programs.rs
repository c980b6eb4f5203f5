//! Files and CGI programs that aliases of Apache lead to, and files beside a configuration.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::world::{run, words};

/// A CGI program that says what it was asked.
const PROGRAM: &str = "#!/bin/sh\ncat > /dev/null\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\necho \"STUB cgi $REQUEST_METHOD $REQUEST_URI \
                       script=$SCRIPT_FILENAME info=$PATH_INFO query=$QUERY_STRING host=$HTTP_HOST https=$HTTPS\"\n";

/// Extensions of files that aliases lead to.
const EXTENSIONS: [&str; 10] = ["php", "cgi", "pl", "py", "fcgi", "wsgi", "ico", "txt", "html", "xml"];

/// Aliases of Apache: the name of the directive, the path and the place on the disk.
fn aliases(text: &str) -> Vec<(String, String, String)> {
    let lines = text.lines().map(|line| line.split_whitespace().map(|word| word.trim_matches('"')).collect::<Vec<_>>());
    lines
        .filter_map(|line| match line.as_slice() {
            [name, path, place, ..]
                if name.eq_ignore_ascii_case("alias") || name.eq_ignore_ascii_case("scriptalias") =>
            {
                Some((name.to_ascii_lowercase(), (*path).to_owned(), place.trim_end_matches('/').to_owned()))
            }
            _ => None,
        })
        .collect()
}

/// Places of aliases that are files, by their names. A program without an extension has a section of its directory.
pub(super) fn alias_files(text: &str) -> BTreeSet<String> {
    let words = words(text);
    let has_section =
        |place: &str| words.iter().any(|(before, word)| before == "directory" && word.trim_end_matches('/') == place);
    let is_file = |(name, path, place): &(String, String, String)| {
        let file = Path::new(place);
        let has_extension = file.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
        let parent = file.parent().map(|parent| parent.to_string_lossy().into_owned()).unwrap_or_default();
        has_extension || (name == "scriptalias" && !path.ends_with('/') && has_section(&parent) && !has_section(place))
    };
    aliases(text).into_iter().filter(is_file).map(|(_, _, place)| place).collect()
}

/// Files of aliases, and CGI programs in the directories of the others.
pub(super) fn write(text: &str, files: &BTreeSet<String>) -> Result<(), Box<dyn Error>> {
    let put = |path: &Path, is_program: bool| -> Result<(), Box<dyn Error>> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        let file = format!("FILE {}\n", path.display());
        fs::write(path, if is_program { PROGRAM } else { file.as_str() })?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(if is_program { 0o755 } else { 0o644 }))?)
    };
    let lower = text.to_ascii_lowercase();
    if !lower.contains("cgi-script") && !lower.contains("scriptalias") {
        return files.iter().try_for_each(|file| put(Path::new(file), false));
    }
    let indexes = words(text).into_iter().map(|(_, word)| word);
    let names: BTreeSet<String> =
        indexes.filter(|word| word.ends_with(".cgi") && !word.contains('/') && word.len() > 4).collect();
    for (name, _, place) in aliases(text) {
        if files.contains(&place) {
            put(Path::new(&place), name == "scriptalias" || place.ends_with(".cgi"))?;
            continue;
        }
        let has_programs = |section: &str| {
            section.split('>').next().is_some_and(|line| line.contains(place.as_str()))
                && section.contains("cgi-script")
        };
        if name == "alias" && !text.split("<Directory").any(has_programs) {
            continue;
        }
        for name in names.iter().map(String::as_str).chain(["test.cgi"]) {
            put(&Path::new(&place).join(name), true)?;
        }
    }
    Ok(())
}

/// Copies files of the folder beside a configuration to `/`. Returns the texts of all `.htaccess` files among them, for
/// names and paths.
pub(super) fn beside(file: &Path) -> Result<String, Box<dyn Error>> {
    let directory = file.with_file_name(super::ROOT);
    if directory.is_dir() {
        run("cp", &["-a", &format!("{}/.", directory.display()), "/"])?;
    }
    let mut all = String::new();
    let mut waiting = vec![directory];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name == ".htaccess") {
                all = format!("{all}\n{}", fs::read_to_string(&path)?);
            }
            waiting.extend(path.is_dir().then_some(path));
        }
    }
    Ok(all)
}
