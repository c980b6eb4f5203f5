//! `cargo xtask modules`: modules in several languages, built with the tools of each and asked through the built server.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cargo::{self, LIKE_TESTS, succeeds};
use crate::skips;

/// Directory of the built modules.
const DIRECTORY: &str = "target/modules";

/// Longest wait for a response. Not a measure of speed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A module: what it takes to build it, and what it must answer.
struct ModuleExample {
    name: &'static str,
    /// Programs that have to be installed.
    needs: &'static [&'static str],
    source: ModuleTestSource,
    /// Shell commands that build `module.wasm`, in the directory of the source's copy.
    build: &'static [&'static str],
    /// Grants in the configuration; `@DIR@` stands for the module's directory.
    grants: &'static str,
    /// Configuration after the module in the site.
    after: &'static str,
    verify: Verify,
}

/// Requirements of a module.
enum Verify {
    /// Responds to `GET /a?b` with this text.
    Answer(&'static str),
    /// Responds to `GET /a?b` with this text, echoes content of `/echo` as a stream, with trailers, and fails at `/fail`
    /// without effect on other requests.
    Echo(&'static str),
    /// Answer one path, rewrite another for the next handler, and mark what that answers.
    Filter,
    /// The operations of web99, as `tailor` judges them: one by one, and under load.
    Web99,
}

enum ModuleTestSource {
    /// `tailcoat module new` makes it, in this language.
    Template(&'static str),
    /// A directory of the repository.
    Directory(&'static str),
}

/// The definition of the world `wasi:http/proxy`, for those that bring none.
const PROXY_WORLD: &str = "cp ../../../examples/modules/c/module.wit .";

/// Build commands for components that npm packages make.
const NPM_ECHO: &[&str] =
    &[PROXY_WORLD, "npm install --silent --no-fund --no-audit", "npm run --silent build", "cp echo.wasm module.wasm"];

const EXAMPLES: [ModuleExample; 10] = [
    ModuleExample {
        name: "rust",
        needs: &["cargo"],
        source: ModuleTestSource::Template("rust"),
        build: &[
            "cargo build --quiet --release --target wasm32-wasip2 --target-dir target",
            "cp target/wasm32-wasip2/release/rust.wasm module.wasm",
        ],
        grants: "",
        after: "",
        verify: Verify::Answer("Hello from rust! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "javascript",
        needs: &["npm", "node"],
        source: ModuleTestSource::Template("javascript"),
        build: &[
            "npm install --silent --no-fund --no-audit",
            "npm run --silent build",
            "cp javascript.wasm module.wasm",
        ],
        grants: "",
        after: "",
        verify: Verify::Answer("Hello from javascript! You asked for /a\n"),
    },
    ModuleExample {
        name: "python",
        needs: &["python3"],
        source: ModuleTestSource::Template("python"),
        build: &[
            "python3 -m venv venv",
            "venv/bin/pip install --quiet componentize-py",
            "venv/bin/componentize-py -q -d wit -w module componentize app -o module.wasm",
        ],
        grants: "",
        after: "",
        verify: Verify::Answer("Hello from python! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "c",
        needs: &["clang", "wasm-ld", "npm", "node"],
        source: ModuleTestSource::Directory("examples/modules/c"),
        build: &["npm install --silent --no-fund --no-audit", "npm run --silent build", "cp hello.wasm module.wasm"],
        grants: "",
        after: "",
        verify: Verify::Echo("Hello from C! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "echo-javascript",
        needs: &["npm", "node"],
        source: ModuleTestSource::Directory("examples/modules/javascript"),
        build: NPM_ECHO,
        grants: "",
        after: "",
        verify: Verify::Echo("Hello from JavaScript! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "echo-python",
        needs: &["python3"],
        source: ModuleTestSource::Directory("examples/modules/python"),
        build: &[
            PROXY_WORLD,
            "python3 -m venv venv",
            "venv/bin/pip install --quiet componentize-py",
            "venv/bin/componentize-py -q -d module.wit -w module componentize echo -o module.wasm",
        ],
        grants: "",
        after: "",
        verify: Verify::Echo("Hello from Python! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "echo-go",
        needs: &["go", "npm", "node"],
        source: ModuleTestSource::Directory("examples/modules/go-component"),
        build: NPM_ECHO,
        grants: "",
        after: "",
        verify: Verify::Echo("Hello from Go! You asked for /a?b\n"),
    },
    ModuleExample {
        name: "go",
        needs: &["go"],
        source: ModuleTestSource::Directory("examples/modules/go"),
        build: &["GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o module.wasm ."],
        grants: "reset none",
        after: "respond \"/new/*\" 200 \"what is new\"",
        verify: Verify::Filter,
    },
    ModuleExample {
        name: "web99",
        needs: &["cargo"],
        source: ModuleTestSource::Directory("examples/modules/web99"),
        build: &[
            "cargo build --quiet --release --target wasm32-wasip2 --target-dir target",
            "cp target/wasm32-wasip2/release/web99.wasm module.wasm",
            "mkdir -p data",
            "test -d web99 || ../../debug/tailor web99 init web99 -c 1 >init.log",
        ],
        grants: "directory \"/site\" \"@DIR@/web99/site\"; directory \"/data\" \"@DIR@/data\" write=on",
        after: "",
        verify: Verify::Web99,
    },
    ModuleExample {
        name: "web99-filter",
        needs: &["cargo"],
        source: ModuleTestSource::Directory("examples/modules/web99-filter"),
        build: &[
            "cargo build --quiet --release --target wasm32-wasip1 --target-dir target",
            "cp target/wasm32-wasip1/release/web99-filter.wasm module.wasm",
            "test -e ../web99/module.wasm -a -d ../web99/web99",
            "mkdir -p data",
        ],
        grants: "reset none",
        after: "module \"/web99\" \"@DIR@/../web99/module.wasm\" { directory \"/site\" \"@DIR@/../web99/web99/site\"; \
                 directory \"/data\" \"@DIR@/data\" write=on }; root \"@DIR@/../web99/web99/site\"",
        verify: Verify::Web99,
    },
];

/// The name of http-wasm's own test suite for hosts.
const SUITE: &str = "http-wasm-tck";

/// Runs the command, for the examples that are named, or for all: 0 if each answered as it must or can't be built here,
/// which is said. The last is http-wasm's own test suite for hosts.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let names: Vec<String> = arguments.collect();
    let known: Vec<_> = EXAMPLES.iter().map(|example| example.name).chain([SUITE]).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        eprintln!("there is no module {unknown:?}, but {}", known.join(", "));
        return ExitCode::from(2);
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    if pass(&names) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// True if the named modules, or all, respond correctly or cannot be built here.
pub(crate) fn pass(names: &[&str]) -> bool {
    if !succeeds(cargo::command(&["build", "--quiet"]).args(LIKE_TESTS)) {
        return false;
    }
    let is_wanted = |name: &str| names.is_empty() || names.contains(&name);
    let failed = EXAMPLES.iter().filter(|example| is_wanted(example.name) && !is_right(example)).count();
    let passes_suite = !is_wanted(SUITE) || passes_suite();
    failed == 0 && passes_suite
}

/// Runs http-wasm's suite, which is in Go and comes with a guest of its own.
fn passes_suite() -> bool {
    if !is_installed("go") {
        return skips::passes_without(SUITE, "go");
    }
    let mut suite = Command::new("go");
    suite.args(["test", "-count=1", "."]).current_dir("conformance/http_wasm");
    let passed = tailcoat().is_ok_and(|program| suite.env("TAILCOAT", program).status().is_ok_and(|it| it.success()));
    println!("{} {SUITE}", if passed { "ok" } else { "FAILED" });
    passed
}

fn is_right(example: &ModuleExample) -> bool {
    if let Some(missing) = example.needs.iter().find(|program| !is_installed(program)) {
        return skips::passes_without(example.name, missing);
    }
    match try_example(example) {
        Ok(()) => {
            println!("ok {}", example.name);
            true
        }
        Err(error) => {
            println!("FAILED {}: {error}", example.name);
            false
        }
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn try_example(example: &ModuleExample) -> Result<(), Box<dyn Error>> {
    let directory = std::path::absolute(DIRECTORY)?.join(example.name);
    make_source(&example.source, &directory)?;
    for command in example.build {
        let status = Command::new("sh").args(["-c", command]).current_dir(&directory).status()?;
        if !status.success() {
            return Err(format!("`{command}` failed").into());
        }
    }
    let module = directory.join("module.wasm");
    let checked = Command::new(tailcoat()?).args(["module", "check"]).arg(&module).output()?;
    if !checked.status.success() {
        return Err(String::from_utf8_lossy(&checked.stdout).into_owned().into());
    }
    let server = ModuleServer::start(&module, &directory, example)?;
    verify(&example.verify, &server)?;
    server.end()
}

fn verify(verify: &Verify, server: &ModuleServer) -> Result<(), Box<dyn Error>> {
    match verify {
        Verify::Answer(expect) => server.expect("/a?b", expect),
        Verify::Echo(expect) => {
            server.expect("/a?b", expect)?;
            verify_echo(server)?;
            server.expect("/fail", "HTTP/1.1 500 ")?;
            server.expect("/a?b", expect)
        }
        Verify::Filter => {
            let (own, passed) = (server.ask("/hello?b")?, server.ask("/old/a")?);
            let is_passed_on = passed.contains("x-filter: go\r\n") && passed.ends_with("what is new");
            let is_right = own.contains("You asked for /hello?b") && is_passed_on;
            if is_right { Ok(()) } else { Err(format!("it answered {own:?} and {passed:?}").into()) }
        }
        Verify::Web99 => verify_web99(&server.address),
    }
}

/// Sends pieces, each when the one before has come back.
fn verify_echo(server: &ModuleServer) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(&server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    for piece in ["first", "second", "third"] {
        write!(stream, "{:x}\r\n{piece}\r\n", piece.len())?;
        read_until(&mut stream, piece)?;
    }
    // More than a module's stream, or a buffer of ours, takes at once.
    let large = "x".repeat(200_000);
    write!(stream, "{:x}\r\n{large}\r\n0\r\nX-Sum: 7\r\n\r\n", large.len())?;
    let rest = read_until(&mut stream, "0\r\nx-sum: 7\r\n\r\n")?;
    let count = rest.bytes().filter(|byte| *byte == b'x').count();
    // One is that of the trailer's name.
    if count == large.len() + 1 { Ok(()) } else { Err(format!("{count} bytes of {} came back", large.len()).into()) }
}

fn read_until(stream: &mut TcpStream, end: &str) -> Result<String, Box<dyn Error>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while !bytes.windows(end.len()).any(|window| window == end.as_bytes()) {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(format!("it ended before {end:?}: {:?}", String::from_utf8_lossy(&bytes)).into());
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn verify_web99(address: &str) -> Result<(), Box<dyn Error>> {
    let url = format!("http://{address}");
    let tailor = |arguments: &[&str]| {
        let mut command = Command::new("target/debug/tailor");
        command.arg("web99").args(arguments).args(["--script", "/web99", "--directories", "1"]).output()
    };
    let checked = tailor(&["check", &url, "--mix", "0,60,25,15,0"])?;
    if !checked.status.success() {
        return Err(String::from_utf8_lossy(&checked.stdout).into_owned().into());
    }
    let load = ["run", &url, "-c", "50", "--mix", "0,20,20,60,0", "--no-check", "-q"];
    let ran = tailor(&[&load[..], &["--ramp-up", "1s", "--warm-up", "1s", "-d", "5s"]].concat())?;
    let reported = String::from_utf8_lossy(&ran.stdout);
    // How quick it is, is not judged here.
    if reported.contains("; 0 lost, 0 doubled, 0 wrong") { Ok(()) } else { Err(reported.into_owned().into()) }
}

/// Puts the source where it is built. What was fetched or built there before stays.
fn make_source(source: &ModuleTestSource, directory: &Path) -> Result<(), Box<dyn Error>> {
    match source {
        ModuleTestSource::Template(language) => {
            let fresh = directory.with_file_name("new").join(directory.file_name().unwrap_or_default());
            let _ = fs::remove_dir_all(&fresh);
            fs::create_dir_all(fresh.parent().unwrap_or(Path::new(".")))?;
            let mut new = Command::new(tailcoat()?);
            let status =
                new.args(["module", "new", "--language", language]).arg(&fresh).stdout(Stdio::null()).status()?;
            if !status.success() {
                return Err("`tailcoat module new` failed".into());
            }
            copy(&fresh, directory)
        }
        ModuleTestSource::Directory(source) => copy(Path::new(source), directory),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn tailcoat() -> Result<PathBuf, Box<dyn Error>> {
    Ok(std::path::absolute("target/debug/tailcoat")?)
}

/// A server with one module, until it is dropped.
struct ModuleServer {
    child: Child,
    address: String,
    /// Number of its panics, when it has ended.
    panics: Option<JoinHandle<usize>>,
}

impl ModuleServer {
    fn start(module: &Path, directory: &Path, example: &ModuleExample) -> Result<Self, Box<dyn Error>> {
        let config = directory.join("test.kdl");
        let compiled = directory.join("compiled");
        let in_place = |text: &str| text.replace("@DIR@", &directory.display().to_string());
        fs::write(
            &config,
            format!(
                "server {{ workers 2; pin-workers off }}\nmodules {{ compile-wait \"5m\"; compiled \"{}\" }}\n\
                 site {{\n    listen \"127.0.0.1:0\"\n    module \"*\" \"{}\" {{ {} }}\n    {}\n}}\n",
                compiled.display(),
                module.display(),
                in_place(example.grants),
                in_place(example.after)
            ),
        )?;
        let mut command = Command::new(tailcoat()?);
        let mut child = command.arg("run").arg("-c").arg(config).stderr(Stdio::piped()).spawn()?;
        // Local invariant: it was just piped.
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("listening on ").map(|(_, address)| address.to_owned()));
        let panics = std::thread::spawn(move || {
            lines
                .inspect(|line| eprintln!("{line}"))
                .filter(|line| line.starts_with("thread '"))
                .filter(|line| line.contains("panicked at"))
                .count()
        });
        Ok(Self { child, address: address.ok_or("the server did not start")?, panics: Some(panics) })
    }

    /// Ends it; an error if it has panicked, which costs a request at most, but is a fault.
    fn end(mut self) -> Result<(), Box<dyn Error>> {
        self.child.kill()?;
        match self.panics.take().map(JoinHandle::join) {
            Some(Ok(0)) => Ok(()),
            _ => Err("the server panicked".into()),
        }
    }

    /// Sends a request, and expects this text in the response.
    fn expect(&self, target: &str, expect: &str) -> Result<(), Box<dyn Error>> {
        let answer = self.ask(target)?;
        if answer.contains(expect) { Ok(()) } else { Err(format!("it answered {target} with {answer:?}").into()) }
    }

    /// The whole response to a GET.
    fn ask(&self, target: &str) -> Result<String, Box<dyn Error>> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for ModuleServer {
    fn drop(&mut self) {
        // The process keeps nothing that matters.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
