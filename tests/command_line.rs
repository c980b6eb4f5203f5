//! Command line: exit codes, messages, pages, and effects on files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::skips::skip;
use crate::support::waiting::eventually;

/// Command of the built binary, in this directory.
fn tailcoat(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailcoat"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).env_remove("NOTIFY_SOCKET");
    command
}

/// Exit code, standard output and standard error of a command.
fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    finish(tailcoat(directory, arguments).output().expect("the binary starts"))
}

/// Result of a command with this standard input.
fn run_with(input: &str, directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = tailcoat(directory, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    finish(child.wait_with_output().unwrap())
}

fn finish(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (output.status.code().expect("not ended by a signal"), text(output.stdout), text(output.stderr))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Directory with one file.
fn directory_with(name: &str, text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(name), text).unwrap();
    directory
}

const VALID: &str = "site {\n    respond \"*\" 200\n}\n";

#[test]
fn exit_codes() {
    let directory = directory_with("good.kdl", VALID);
    fs::write(directory.path().join("bad.kdl"), "sit {}").unwrap();
    fs::write(directory.path().join("ugly.kdl"), "site{respond \"*\" 200}").unwrap();
    fs::write(directory.path().join("a file"), "").unwrap();
    let check = |arguments: &[&str], expect: i32| {
        let (code, stdout, stderr) = run(directory.path(), arguments);
        assert_eq!(code, expect, "{arguments:?}\n{stdout}\n{stderr}");
    };
    check(&["--help"], 0);
    check(&["help", "serve"], 0);
    check(&["-v"], 0);
    check(&["-V"], 0);
    check(&["check", "-c", "good.kdl"], 0);
    check(&["check", "good.kdl"], 0);
    check(&["check", "--json", "-c", "good.kdl"], 0);
    check(&["-t", "-c", "good.kdl"], 0);
    check(&["-c", "good.kdl", "check"], 0);
    check(&["fmt", "--check", "good.kdl"], 0);
    check(&["default-config"], 0);
    check(&["reference"], 0);
    check(&["schema"], 0);
    check(&["man"], 0);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        check(&["completions", shell], 0);
    }
    check(&["fmt", "--check", "good.kdl", "ugly.kdl"], 1);
    check(&["fmt", "none.kdl"], 1);
    check(&["serve", "none"], 1);
    check(&["serve", "a file"], 1);
    check(&["log", "convert", "none"], 1);
    check(&[], 2);
    check(&["severe"], 2);
    check(&["serve", "--listen", "example.com:80"], 2);
    check(&["serve", "--workers", "0"], 2);
    check(&["check", "good.kdl", "-c", "good.kdl"], 2);
    check(&["log", "convert", "--format", "binary"], 2);
    check(&["log", "convert", "--format", "{nothing}"], 2);
    check(&["check", "-c", "bad.kdl"], 3);
    check(&["check", "--json", "-c", "bad.kdl"], 3);
    check(&["-t", "-c", "bad.kdl"], 3);
    check(&["-c", "bad.kdl"], 3);
    check(&["run", "-c", "bad.kdl"], 3);
    check(&["run", "-c", "none.kdl"], 3);
    check(&["fmt", "bad.kdl"], 0);
    fs::write(directory.path().join("worse.kdl"), "site {").unwrap();
    check(&["fmt", "worse.kdl", "good.kdl"], 3);
    assert_eq!(fs::read_to_string(directory.path().join("worse.kdl")).unwrap(), "site {", "left as it was");
}

/// Reports without a terminal. After a deliberate change: `UPDATE_GOLDEN=1 cargo test`.
#[test]
fn reports_are_as_committed() {
    let golden = repository().join("tests/golden");
    let mut cases = 0;
    for entry in fs::read_dir(&golden).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "kdl") {
            continue;
        }
        cases += 1;
        let name = file.file_name().unwrap().to_str().unwrap();
        let (code, stdout, stderr) = run(&golden, &["check", "-c", name]);
        assert_eq!((code, stdout.as_str()), (3, ""), "{name}");
        assert!(!stderr.contains('\u{1b}'), "no colours where there is no terminal");
        let expected = file.with_extension("txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&expected, &stderr).unwrap();
        }
        assert_eq!(stderr, fs::read_to_string(&expected).unwrap_or_default(), "{name}");
    }
    assert!(cases >= 4, "the reports are there");
}

/// Orders report a missing server; `-c` may also precede the last word.
#[test]
fn who_can_not_be_given_orders() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("c.sock");
    let config = format!("server {{ control-socket \"{}\" }}\nsite {{ respond \"*\" 404 }}\n", socket.display());
    std::fs::write(directory.path().join("a.kdl"), config).unwrap();
    for arguments in [
        &["status", "-c", "a.kdl"][..],
        &["set", "-c", "a.kdl", "workers", "4"],
        &["set", "workers", "4", "-c", "a.kdl"],
        &["cache", "-c", "a.kdl", "purge", "--all"],
        &["-c", "a.kdl", "cache", "purge", "--all"],
    ] {
        let (code, _, errors) = run(directory.path(), arguments);
        let expect = format!("tailcoat: no server listens on {}; check that it runs\n", socket.display());
        assert_eq!((code, errors), (1, expect), "{arguments:?}");
    }
    let (code, _, errors) = run(directory.path(), &["status", "-c", "none.kdl"]);
    assert!(code == 1 && errors.contains("none.kdl does not exist") && errors.contains("--socket"), "{code}: {errors}");
}

#[cfg(feature = "modules")]
#[test]
fn files_that_are_no_modules() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("text.wasm"), "no module").unwrap();
    let (code, _, errors) = run(directory.path(), &["module", "check", "text.wasm"]);
    assert!(code != 0 && errors.contains("is not WebAssembly"), "{code}: {errors}");
}

#[test]
fn editors_get_json() {
    let text = "server {\n    grace-perid \"3s\"\n}\nsite { root \"é\"; workers 4 }\n";
    let (code, stdout, stderr) = run_with(text, Path::new("/"), &["check", "--json", "-c", "-"]);
    assert_eq!((code, stderr.as_str()), (3, ""));
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report["errors"].as_u64(), report["warnings"].as_u64()), (Some(2), Some(1)));
    let diagnostics = report["diagnostics"].as_array().unwrap();
    let check = |index: usize, word: &str, line: u64, column: u64, help: &str| {
        let one = &diagnostics[index];
        let at = |name: &str| one["span"][name].as_u64().unwrap() as usize;
        assert_eq!(&text[at("start")..at("end")], word);
        assert_eq!((one["line"].as_u64(), one["column"].as_u64()), (Some(line), Some(column)), "{word}");
        assert_eq!((one["file"].as_str(), one["severity"].as_str()), (Some("<stdin>"), Some("error")), "{word}");
        assert_eq!(one["help"].as_str(), Some(help));
        assert_eq!(one["end_column"].as_u64(), Some(column + word.len() as u64));
    };
    check(0, "grace-perid", 2, 5, "did you mean `grace-period`?");
    // Columns count characters, not bytes. The missing root is reported as well.
    check(2, "workers", 4, 18, "use `workers` in `server`");
}

#[test]
fn examples_are_formatted() {
    let directory = repository().join("examples/configs");
    let mut count = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert_eq!(run(&directory, &["fmt", "--check", &name]), (0, String::new(), String::new()), "{name}");
        count += 1;
    }
    assert!(count >= 5, "the examples are there");
}

#[test]
fn examples_of_applications_are_valid_and_formatted() {
    let directory = repository().join("examples/php");
    let mut count = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".kdl") {
            continue;
        }
        let (code, stdout, _) = run(&directory, &["check", "--json", "-c", &name]);
        // The only finding may be that the application is not installed.
        assert!(matches!(code, 0 | 3), "{name}: {stdout}");
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let mut messages = report["diagnostics"].as_array().unwrap().iter().map(|one| one["message"].to_string());
        assert!(messages.all(|message| message.contains("the root ")), "{name}: {stdout}");
        assert_eq!(run(&directory, &["fmt", "--check", &name]), (0, String::new(), String::new()), "{name}");
        count += 1;
    }
    assert!(count >= 3, "the examples are there");
}

#[test]
fn the_default_configuration_has_no_error_and_is_formatted() {
    let (code, text, _) = run(Path::new("/"), &["default-config"]);
    assert_eq!(code, 0);
    let (code, stdout, _) = run_with(&text, Path::new("/"), &["check", "--json", "-c", "-"]);
    assert_eq!(code, 0, "{stdout}");
    // The only finding may be that its root does not exist.
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let messages = report["diagnostics"].as_array().unwrap().iter().map(|one| one["message"].to_string());
    assert!(messages.clone().all(|message| message.contains("/var/www/html")), "{stdout}");
    assert_eq!(run_with(&text, Path::new("/"), &["fmt"]), (0, text, String::new()));
}

#[test]
fn fmt_formats_in_place_and_from_standard_input() {
    use std::os::unix::fs::PermissionsExt;
    let ugly = "// why\nsite{respond \"*\" 200;browse // because\n}";
    let formatted = "// why\nsite {\n    respond \"*\" 200\n    browse // because\n}\n";
    let directory = directory_with("a.kdl", ugly);
    let file = directory.path().join("a.kdl");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("a.kdl", directory.path().join("link.kdl")).unwrap();
    let none = String::new;
    assert_eq!(run(directory.path(), &["fmt", "--check", "a.kdl"]), (1, "a.kdl\n".into(), none()));
    assert_eq!(run(directory.path(), &["fmt", "link.kdl"]), (0, none(), none()));
    assert_eq!(fs::read_to_string(&file).unwrap(), formatted);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(directory.path().join("link.kdl")).unwrap().is_symlink());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");
    assert_eq!(run(directory.path(), &["fmt", "--check", "a.kdl"]), (0, none(), none()));
    assert_eq!(run_with(ugly, directory.path(), &["fmt"]), (0, formatted.into(), none()));
    assert_eq!(run_with(ugly, directory.path(), &["fmt", "-", "--check"]), (1, "<stdin>\n".into(), none()));
}

#[test]
fn pages() {
    let directory = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(directory.path(), &["man", "--dir", "man"]);
    assert_eq!(code, 0);
    for page in ["tailcoat.1", "tailcoat-serve.1", "tailcoat-log-convert.1", "tailcoat.kdl.5"] {
        assert!(stdout.contains(&format!("man/{page}\n")), "{page}");
        assert!(fs::read_to_string(directory.path().join("man").join(page)).unwrap().contains(".TH"), "{page}");
    }
    let (_, page, _) = run(directory.path(), &["man"]);
    for section in ["EXIT STATUS", "SIGNALS", "FILES"] {
        assert!(page.contains(&format!("\n.SH {section}\n")) || page.contains(&format!("\n.SH \"{section}\"\n")));
    }
    let (_, reference, _) = run(directory.path(), &["reference"]);
    assert!(reference.starts_with("# Configuration of Tailcoat\n"));
    let (_, schema, _) = run(directory.path(), &["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["properties"]["limits"]["properties"]["idle-timeout"]["type"], "string");
    assert_eq!(schema["properties"]["site"]["items"]["properties"]["name"]["type"], "array");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = tailcoat(Path::new("/"), &["reference"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_text_log_is_no_binary_log() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("access.log"), "192.0.2.1 - - \"GET / HTTP/1.1\" 200 5\n".repeat(9)).unwrap();
    let (code, stdout, stderr) = run(directory.path(), &["log", "convert", "access.log"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    let expect =
        "tailcoat: access.log: not a binary access log; only logs with `format=\"binary\"` need to be converted\n";
    assert_eq!(stderr, expect);
}

/// A port alone means all addresses, which the user must know.
#[test]
fn serving_on_all_addresses_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = tailcoat(directory.path(), &["serve", "--listen", "0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("Serving at "));
    let _ = child.kill();
    let _ = child.wait();
    let line = line.unwrap();
    assert!(line.starts_with("Serving at http://localhost:"), "{line}");
    assert!(line.ends_with("/ (on all addresses of this machine)"), "{line}");
}

/// Server that is killed when this is dropped.
struct Serving {
    child: Child,
    /// Output at the start, up to the URL.
    said: Vec<String>,
    port: u16,
}

impl Serving {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut child = tailcoat(directory, arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            said.push(line.unwrap());
            let port = said.last().unwrap().strip_prefix("Serving at http://127.0.0.1:");
            if let Some(port) = port.and_then(|rest| rest.strip_suffix('/')) {
                let port = port.parse().unwrap();
                return Self { child, said, port };
            }
        }
        panic!("no URL in {said:?}, {:?}", child.wait());
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The server may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn serve_serves_a_directory() {
    let directory = directory_with("hello.txt", "hello\n");
    let serving = Serving::start(
        directory.path(),
        &["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--browse", "--access-log", "access.log"],
    );
    assert_eq!(serving.said.len(), 1, "the URL, and no more: {:?}", serving.said);
    let response = serving.get("/hello.txt");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nhello\n"), "{response}");
    assert!(serving.get("/").contains("hello.txt"), "the directory is listed");
    // Records are written with a delay of up to a second.
    let log = directory.path().join("access.log");
    eventually("the request is logged", || {
        fs::read_to_string(&log).unwrap_or_default().contains("\"GET / HTTP/1.1\" 200 ")
    });
}

#[test]
fn serve_takes_the_next_free_port() {
    let directory = directory_with("a.txt", "a\n");
    // From here on 8080 is in use, by this test or another program.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    let serving = Serving::start(directory.path(), &["serve", "--workers", "1"]);
    assert!(serving.port > 8080);
    assert_eq!(
        serving.said[0],
        format!("Port 8080 is taken; the next free one is {} (--listen chooses another).", serving.port)
    );
    assert!(serving.get("/a.txt").ends_with("\r\n\r\na\n"));
}

#[test]
fn an_address_that_was_asked_for_and_is_taken_is_a_failure() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stdout, stderr) = run(Path::new("/"), &["serve", "--listen", &address]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains(&address) && stderr.contains("another program listens there"), "{stderr}");
}

/// Reports all errors at once, also those of a site with other errors.
#[test]
fn one_error_hides_no_other() {
    let text = "site \"a.example\" {\n    listen 20080\n    nonsense 1\n    forward \"nowhere\"\n    \
                certificate \"missing.pem\" key=\"missing.key\"\n    fastcgi \"*.php\" \"php\" root=\"/srv\"\n    forward\n}\n\
                upstream \"app\" {\n    server \"http://127.0.0.1:1\" typo=1\n}\n\
                site \"b.example\" {\n    listen 20080\n    forward \"app\"\n    no-such-option\n}\n";
    let directory = directory_with("tailcoat.kdl", text);
    let (code, _, stderr) = run(directory.path(), &["check", "-c", "tailcoat.kdl"]);
    assert_eq!(code, 3);
    for expect in [
        "nonsense",
        "there is no upstream `nowhere`",
        "missing.pem",
        "there is no upstream `php`",
        "typo",
        "no-such-option",
        "tailcoat.kdl has 7 errors",
    ] {
        assert!(stderr.contains(expect), "{expect}: {stderr}");
    }
}

/// The server switches users before it opens these.
#[test]
fn check_looks_as_the_user_whom_the_server_becomes() {
    if !rustix::process::geteuid().is_root() {
        skip("it takes root");
        return;
    }
    let directory = directory_with("x.log", "");
    let pair = crate::support::tls::TestCa::new().sign(&["a.example"]);
    let (certificate, key) = (directory.path().join("a.pem"), directory.path().join("a.key"));
    fs::write(&certificate, &pair.certificate).unwrap();
    fs::write(&key, &pair.key).unwrap();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(directory.path(), 0o755);
    mode(&key, 0o600);
    let config = format!(
        "server {{\n    user \"65534\"\n}}\naccess-log \"x.log\"\nsite \"a.example\" {{\n    listen 20443 tls=on\n    \
         certificate \"{}\" key=\"{}\"\n    respond \"*\" 200\n}}\n",
        certificate.display(),
        key.display()
    );
    let check = |config: &str| {
        fs::write(directory.path().join("tailcoat.kdl"), config).unwrap();
        run(directory.path(), &["check", "-c", "tailcoat.kdl"])
    };
    let (code, _, stderr) = check(&config);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("x.log: permission denied for `"), "{stderr}");
    assert!(stderr.contains("give that user permission for the file"), "{stderr}");
    let shown = key.file_name().unwrap().to_str().unwrap();
    assert!(stderr.lines().any(|line| line.contains(shown) && line.contains("for `")), "{stderr}");
    assert!(stderr.contains("has 2 errors"), "{stderr}");
    // As the user who starts the server, and where the user has access.
    assert_eq!(check(&config.replace("65534", "0")).0, 0);
    // Root creates the log's directory for that user.
    let (code, _, stderr) = check(&config.replace("x.log", "logs/x.log").replace("65534", "0"));
    assert_eq!((code, stderr.contains("root creates ")), (0, true), "{stderr}");
    let user = Some(rustix::fs::Uid::from_raw(65_534));
    rustix::fs::chown(&key, user, None).unwrap();
    rustix::fs::chown(directory.path().join("x.log"), user, None).unwrap();
    let (code, _, stderr) = check(&config);
    assert_eq!((code, stderr.contains("is valid\n")), (0, true), "{stderr}");
    mode(&directory.path().join("tailcoat.kdl"), 0o600);
    let (_, _, stderr) = run(directory.path(), &["check", "-c", "tailcoat.kdl"]);
    assert!(stderr.contains("it can't be reloaded"), "{stderr}");
}

/// Issue 23: a missing root or password file is an error that says what to write. Roots of hosts may come later.
#[test]
fn content_and_passwords_must_be_there() {
    let directory = {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("www")).unwrap();
        directory
    };
    fs::write(directory.path().join("users"), "").unwrap();
    let check = |site: &str, expect: Option<&str>| {
        let text = format!("site {{\n    listen \"127.0.0.1:0\"\n    {site}\n}}\n");
        fs::write(directory.path().join("tailcoat.kdl"), text).unwrap();
        let commands: [&[&str]; 2] = [&["check", "-c", "tailcoat.kdl"], &["run", "-c", "tailcoat.kdl"]];
        for command in &commands[..if expect.is_some() { 2 } else { 1 }] {
            let (code, _, stderr) = run(directory.path(), command);
            assert_eq!(code, expect.map_or(0, |_| 3), "{site}: {stderr}");
            assert!(expect.is_none_or(|expect| stderr.contains(expect)), "{site}: {stderr}");
        }
    };
    let at = |name: &str| directory.path().join(name).display().to_string();
    check("root \"www\"", None);
    check("root \"wwww\"", Some(&format!("mkdir -p {}", at("wwww"))));
    check("root \"users\"", Some("is not a directory"));
    check("root \"www\"\n    files \"/a/*\" root=\"a\"", Some(&format!("mkdir -p {}", at("a"))));
    check("root \"hosts/{host}\"", None);
    check("root \"www\"\n    basic-auth \"/a/*\" \"none\"", Some(&format!("`htpasswd -B -c {} NAME`", at("none"))));
}

/// Issue 23: `check` names upstreams that do not resolve, and stays usable without network.
#[test]
fn names_of_upstreams_are_looked_up() {
    let directory = tempfile::tempdir().unwrap();
    let check = |forward: &str, options: &[&str]| {
        let text = format!("site {{\n    listen \"127.0.0.1:0\"\n    forward \"{forward}\"\n}}\n");
        fs::write(directory.path().join("tailcoat.kdl"), text).unwrap();
        let (code, _, stderr) = run(directory.path(), &[&["check", "-c", "tailcoat.kdl"], options].concat());
        assert_eq!(code, 0, "{stderr}");
        stderr
    };
    // Without network, no name server responds.
    let said = check("http://name.invalid:3000", &[]);
    let is_named = said.contains("the name `name.invalid` does not resolve: ") && said.contains("tailcoat.kdl:3:");
    assert!(is_named || said.contains("no name server responded for `name.invalid`"), "{said}");
    for (forward, options) in
        [("http://name.invalid:3000", &["--offline"][..]), ("http://127.0.0.1:1", &[]), ("http://[::1]:1", &[])]
    {
        let said = check(forward, options);
        assert!(said.ends_with("tailcoat.kdl is valid\n"), "{forward}: {said}");
    }
}

/// `check` finds in advance what would keep `run` from starting.
#[test]
fn check_looks_for_what_will_be_opened() {
    let directory = directory_with("good.log", "");
    let check = |site: &str, expect: &str| {
        let text = format!("site {{\n    respond \"*\" 200\n    {site}\n}}\n");
        fs::write(directory.path().join("tailcoat.kdl"), text).unwrap();
        let (code, _, stderr) = run(directory.path(), &["check", "-c", "tailcoat.kdl"]);
        assert_eq!((code, stderr.contains(expect)), (i32::from(!expect.is_empty()) * 3, true), "{site}: {stderr}");
        code
    };
    let failed = check("access-log \"nothing/x.log\"", "nothing/x.log: there is no such file or directory");
    assert_ne!(failed, 0);
    check("access-log \".\"", ": is a directory");
    check("listen \"192.0.2.1:80\"", "192.0.2.1:80: ");
    check("listen \"unix:nothing/x.sock\"", "nothing/x.sock: there is no such file or directory");
    check("access-log \"good.log\"", "");
    check("access-log \"new.log\"", "");
    check("listen \"unix:x.sock\"", "");
    assert!(!directory.path().join("new.log").exists() && !directory.path().join("x.sock").exists(), "nothing is made");
}
