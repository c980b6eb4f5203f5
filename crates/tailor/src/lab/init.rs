//! `tailor web99 init`: the site and the server configurations of the lab `web99`, for servers that you start by hand.

use std::path::{Path, PathBuf};

use super::server::ServerPlacement;
use super::{lab_text, model, peers};
use crate::end::ProgramEnd;
use crate::site::SiteKind;
use crate::units::parse_count;

/// Options of `tailor web99 init`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InitOptions {
    /// Directory to write to
    pub directory: PathBuf,
    /// Number of connections that the file set must suffice for
    #[arg(short = 'c', long, value_name = "N", default_value = "100", value_parser = parse_count)]
    pub connections: u64,
    /// Port in the server configurations
    #[arg(long, default_value = "8099")]
    pub port: u16,
}

/// Writes the site to DIRECTORY/site and each server's configuration to DIRECTORY/NAME, and prints the start commands.
///
/// # Errors
/// A file could not be written.
pub(crate) fn init_web99(options: &InitOptions) -> Result<ProgramEnd, String> {
    let InitOptions { directory, connections, port } = options;
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let directory = std::fs::canonicalize(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let root = directory.join("site");
    SiteKind::Web99(*connections).write(&root)?;
    for server in model::parse(&lab_text("web99")?, &peers()?)?.servers {
        println!("{}:", server.name);
        for command in write_server(&server, &directory, &root, *port)? {
            println!("    {command}");
        }
    }
    println!("then: tailor web99 check http://127.0.0.1:{port} -c {connections}");
    Ok(ProgramEnd::Passed)
}

/// Writes a server's files. Returns its start commands in order.
fn write_server(server: &model::LabServer, directory: &Path, root: &Path, port: u16) -> Result<Vec<String>, String> {
    let place = ServerPlacement {
        port,
        backend_port: port + 1,
        tls_port: port + 2,
        root: root.to_owned(),
        run: directory.join(&server.name),
    };
    place.prepare(server).map_err(|error| format!("{}: {error}", place.run.display()))?;
    let commands = server.backends.iter().chain(&server.helpers).chain([&server.command]);
    let line =
        |words: &Vec<String>| place.fill_command(words).iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    Ok(commands.map(line).collect())
}

/// Quotes a word for a shell, if needed.
fn quote(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@,%+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        for (word, expect) in [("-c", "-c"), ("a b", "'a b'"), ("", "''"), ("it's", r"'it'\''s'"), ("a;b", "'a;b'")] {
            assert_eq!(quote(word), expect);
        }
    }
}
