//! README.md and SECURITY.md: the first command starts a server, the configuration is valid, and figures and limits are
//! true.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::support::TestServer;

const README: &str = include_str!("../README.md");
const SECURITY: &str = include_str!("../SECURITY.md");
const CONFORMANCE: &str = include_str!("../conformance/README.md");

/// Numbers in a text, with or without commas between thousands.
fn numbers(text: &str) -> Vec<u32> {
    let is_part = |character: char| character.is_ascii_digit() || character == ',';
    text.split(|character| !is_part(character)).filter_map(|word| word.replace(',', "").parse().ok()).collect()
}

/// Block of the README in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("\n```{language}\n")).expect("the README has such a block");
    rest.split_once("```").expect("the block ends").0
}

fn tailcoat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tailcoat"))
}

#[test]
fn the_first_command_serves() {
    let line = block("sh").lines().next().expect("the first command");
    let command = line.split(" # ").next().expect("the part before the comment");
    let arguments = command.split_once(" -- serve . ").expect("it serves this directory").1;
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let server = TestServer::serve(Path::new(env!("CARGO_MANIFEST_DIR")), &arguments);
    let mut connection = TcpStream::connect(server.address).expect("it listens");
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it reads");
    let mut response = String::new();
    connection.read_to_string(&mut response).expect("it answers in UTF-8");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.contains("Cargo.toml"), "{response}");
}

#[test]
fn the_configuration_is_right() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tailcoat.kdl");
    // The log directory must exist before the server starts.
    let text = block("kdl").replace("/var/log/tailcoat", directory.path().to_str().expect("UTF-8"));
    let text = text.replace("/srv/www", directory.path().to_str().expect("UTF-8"));
    std::fs::write(&file, text).expect("it can be written");
    let output = tailcoat().arg("check").arg("-c").arg(&file).output().expect("the built binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_limits_are_those_of_the_configuration() {
    let output = tailcoat().arg("default-config").output().expect("the built binary starts");
    let config = String::from_utf8(output.stdout).expect("UTF-8");
    let limits = config.split_once("\nlimits {\n").and_then(|(_, rest)| rest.split_once("\n}")).expect("limits").0;
    let options: Vec<_> = limits.lines().map(str::trim).filter_map(|line| line.split_once(' ')).collect();
    let options = options.iter().filter(|(name, _)| *name != "//");
    assert!(options.clone().count() >= 19, "{limits}");
    for (name, value) in options {
        let row = format!("\n| `{name}` | `{value}` ");
        assert!(SECURITY.contains(&row), "SECURITY.md has no row {row:?}");
    }
}

/// Figures of speed appear only in charts and pages generated from measured data. No one types them by hand, and each
/// picture is in the repository.
#[test]
fn figures_of_speed_are_pictures() {
    let is_ratio = |word: &str| word.contains('.') && word.parse::<f64>().is_ok();
    let words = README.split_whitespace().map(|word| word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric()));
    assert_eq!(words.filter(|word| is_ratio(word)).collect::<Vec<_>>(), Vec::<&str>::new());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for attribute in ["src=\"", "srcset=\""] {
        for picture in README.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(root.join(picture).is_file(), "README.md: there is no {picture}");
        }
    }
}

#[test]
fn the_figures_are_those_that_were_found() {
    let found = CONFORMANCE.lines().find_map(|line| line.strip_prefix("| all |")).expect("the sums of the table");
    let paragraph = README.split("\n\n").find(|text| text.contains("raw requests")).expect("the README has figures");
    // A server's name can end with a digit.
    let claimed = numbers(&paragraph.replace("h2o", ""));
    assert_eq!(claimed, numbers(found));
}
