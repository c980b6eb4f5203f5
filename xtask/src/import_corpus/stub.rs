//! Stub upstreams: each says what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::world::run;

/// Answers at all these ports, for ever; says so when it does.
pub(super) fn serve(ports: &str) -> Result<(), Box<dyn Error>> {
    for port in ports.split(',') {
        listen(port.parse()?)?;
    }
    println!("ready");
    loop {
        thread::park();
    }
}

/// Address of all upstreams with a name.
pub(super) const OUTSIDE: &str = "192.0.2.9";

/// Starts stubs in a network of their own, with these addresses: the servers listen at the usual ports of upstreams here.
pub(super) fn outside(ports: &BTreeSet<u16>, addresses: &BTreeSet<Ipv4Addr>) -> Result<(), Box<dyn Error>> {
    let list: Vec<String> = ports.iter().copied().chain([80, 443]).map(|port| port.to_string()).collect();
    let mut command = Command::new("unshare");
    command.arg("-n").arg(std::env::current_exe()?).args(["import-corpus", "--stub", &list.join(",")]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut ready = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut ready)?;
    let pid = child.id().to_string();
    let ip = |arguments: &str| run("ip", &arguments.split(' ').collect::<Vec<_>>());
    ip(&format!("link add out0 type veth peer name in0 netns {pid}"))?;
    ip("link set out0 up")?;
    ip("addr add 192.0.2.1/32 dev out0")?;
    let inside = |arguments: &str| run("nsenter", &["-t", &pid, "-n", "sh", "-c", arguments]);
    inside("ip link set in0 up && ip route add 192.0.2.1/32 dev in0 table local")?;
    for address in addresses.iter().map(Ipv4Addr::to_string).chain([OUTSIDE.to_owned()]) {
        ip(&format!("route add {address}/32 dev out0 src 192.0.2.1 table local"))?;
        inside(&format!("ip addr add {address}/32 dev in0"))?;
    }
    Ok(())
}

/// Answers at a port of all addresses.
pub(super) fn listen(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = answer(stream, &format!("port {port}"));
            });
        }
    });
    Ok(())
}

/// Answers at a Unix socket.
pub(super) fn listen_at(path: &Path) -> io::Result<()> {
    let name = format!("socket {}", path.display());
    let listener = UnixListener::bind(path)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = answer(stream, &name);
            });
        }
    });
    Ok(())
}

/// Answers all questions of DNS at this address with that of the stubs.
pub(super) fn resolve_names(address: Ipv4Addr) -> io::Result<()> {
    // A response from another address of this machine is not accepted.
    let socket = UdpSocket::bind((address, 53))?;
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[..length];
            let Some(end) = question.get(12..).and_then(|name| name.iter().position(|byte| *byte == 0)) else {
                continue;
            };
            let Some(kind) = question.get(12 + end + 1..12 + end + 5) else { continue };
            let is_address = kind[1] == 1;
            let mut response = question[..12 + end + 5].to_vec();
            response[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
            if is_address {
                response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 9]);
            }
            let _ = socket.send_to(&response, from);
        }
    });
    Ok(())
}

fn answer(mut stream: impl Read + Write, name: &str) -> io::Result<()> {
    let mut first = [0; 1];
    stream.read_exact(&mut first)?;
    match first[0] {
        1 => answer_fastcgi(&mut stream, name),
        byte if byte.is_ascii_uppercase() => answer_http(&mut stream, byte, name),
        // TLS, uwsgi and others are not spoken.
        _ => Ok(()),
    }
}

fn answer_http(stream: &mut (impl Read + Write), first: u8, name: &str) -> io::Result<()> {
    let mut bytes = vec![first];
    let mut next = [0; 1];
    loop {
        while !bytes.ends_with(b"\r\n\r\n") {
            if bytes.len() > 64 << 10 || stream.read(&mut next)? == 0 {
                return Ok(());
            }
            bytes.push(next[0]);
        }
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let mut lines = head.lines();
        let request = lines.next().unwrap_or_default().to_owned();
        let fields: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length: usize = fields.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length.min(1 << 20)];
        stream.read_exact(&mut body)?;
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let host = fields.get("host").map_or("", String::as_str);
        let (status, text) = verdict(fields.get("x-stub").map(String::as_str), target);
        let content = format!("STUB {name} {method} {target} host={host}\n{text}");
        let content = if method == "HEAD" { String::new() } else { content };
        let length = content.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nX-Of-Stub: 1\r\n\r\n{content}"
        )?;
        bytes.clear();
        if fields.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            return Ok(());
        }
    }
}

/// Status of a request: a field asks for a rejection.
fn verdict(field: Option<&str>, target: &str) -> (&'static str, String) {
    match field {
        Some("deny") => ("401 Unauthorized\r\nLocation: http://login.example/", format!("DENIED {target}\n")),
        _ => ("200 OK", String::new()),
    }
}

fn answer_fastcgi(stream: &mut (impl Read + Write), name: &str) -> io::Result<()> {
    let mut parameters = Vec::new();
    let mut has_version = true;
    let mut id = [0; 2];
    loop {
        let mut head = [0; 8];
        let from = usize::from(std::mem::take(&mut has_version));
        head[0] = 1;
        stream.read_exact(&mut head[from..])?;
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let mut content = vec![0; length + usize::from(head[6])];
        stream.read_exact(&mut content)?;
        content.truncate(length);
        id.copy_from_slice(&head[2..4]);
        match head[1] {
            4 => parameters.extend(content),
            5 if length == 0 => break,
            _ => {}
        }
    }
    let values = pairs(&parameters);
    let value = |name: &str| values.get(name).map_or("", String::as_str);
    let (script, info) = script(value("SCRIPT_FILENAME"), value("PATH_INFO"));
    let (status, _) = verdict(values.get("HTTP_X_STUB").map(String::as_str), value("REQUEST_URI"));
    let refusal = match Path::new(&script) {
        file if !file.is_file() => Some(("404 Not Found", "File not found.")),
        file if file.extension().is_none_or(|extension| extension != "php") => {
            Some(("403 Forbidden", "Access denied."))
        }
        _ => None,
    };
    // Like PHP-FPM: an error page keeps its status.
    let line = if status == "200 OK" { String::new() } else { format!("Status: {status}\r\n") };
    let said = format!(
        "{line}Content-Type: text/plain\r\n\r\nSTUB {name} {} {} script={} info={} query={} host={} https={}\n",
        value("REQUEST_METHOD"),
        value("REQUEST_URI"),
        script,
        info,
        value("QUERY_STRING"),
        value("HTTP_HOST"),
        value("HTTPS"),
    );
    let text = match refusal {
        Some((status, text)) => format!("Status: {status}\r\nContent-Type: text/html\r\n\r\n{text}\n"),
        None => said,
    };
    let record = |kind: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap_or(0).to_be_bytes();
        [&[1, kind, id[0], id[1], length[0], length[1], 0, 0], content].concat()
    };
    let response = [record(6, text.as_bytes()), record(6, &[]), record(3, &[0; 8])].concat();
    stream.write_all(&response)
}

/// The script and what follows it, as PHP-FPM reads them (`cgi.fix_pathinfo`): without what Apache puts before, and up to
/// the first file of the path.
fn script(file: &str, info: &str) -> (String, String) {
    let file = match file.strip_prefix("proxy:").and_then(|file| file.split_once("fcgi://")) {
        Some((_, rest)) => &rest[rest.find('/').unwrap_or(0)..],
        None => file,
    };
    // Several slashes are one to the file system.
    let file = file.replace("//", "/");
    let mut script = file.as_str();
    while !Path::new(script).is_file() {
        let Some((parent, _)) = script.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) else {
            return (file.clone(), info.to_owned());
        };
        script = parent;
    }
    let rest = &file[script.len()..];
    (script.to_owned(), if rest.is_empty() { info.to_owned() } else { rest.to_owned() })
}

/// Names and values of FastCGI.
fn pairs(mut bytes: &[u8]) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let length = |bytes: &mut &[u8]| -> Option<usize> {
        let first = *bytes.first()?;
        if first < 128 {
            *bytes = &bytes[1..];
            return Some(usize::from(first));
        }
        let four = bytes.get(..4)?;
        let length = u32::from_be_bytes([four[0] & 127, four[1], four[2], four[3]]);
        *bytes = &bytes[4..];
        usize::try_from(length).ok()
    };
    while !bytes.is_empty() {
        let (Some(name), Some(value)) = (length(&mut bytes), length(&mut bytes)) else { break };
        let (Some(name_text), Some(value_text)) = (bytes.get(..name), bytes.get(name..name + value)) else { break };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        values.insert(text(name_text), text(value_text));
        bytes = &bytes[name + value..];
    }
    values
}
