//! A disk that fills up and is freed again under load: requests are answered, and logs have whole lines.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::raw::{PATIENCE, Raw, ask, status};
use crate::support::TestServer;
use crate::support::port::free_port;
use crate::support::scarce::SmallDisk;
use crate::support::waiting::within;
use crate::trial::{Attack, AttackCase, Skipped, Trial, pause};

pub(crate) const ATTACKS: [Attack; 2] =
    [Attack { name: "disks/logs", run: logs }, Attack { name: "disks/buffers", run: buffers }];

/// Size of the disk.
const DISK_KIB: u32 = 1_024;

fn disk() -> Result<SmallDisk, Skipped> {
    SmallDisk::new(DISK_KIB).ok_or_else(|| Skipped("no tmpfs can be mounted here; run it as root".into()))
}

/// Fills the disk up to so many bytes that are left.
fn fill(disk: &Path, left_bytes: usize) {
    let filler = disk.join("filler");
    let _ = fs::remove_file(&filler);
    let Ok(mut file) = fs::File::create(&filler) else { return };
    // Bytes written before the disk was full stay.
    while file.write_all(&[0; 1_024]).is_ok() {}
    let length = file.metadata().map_or(0, |file| file.len());
    let _ = file.set_len(length.saturating_sub(left_bytes as u64));
}

/// Access logs on a full disk.
fn logs(trial: &Trial) -> Result<String, Skipped> {
    let disk = disk()?;
    let (at, root) = (disk.path().display(), tempfile::tempdir().expect("a directory"));
    fs::write(root.path().join("1.html"), "page").expect("it can be written");
    let json_port = free_port();
    let server = TestServer::run(&format!(
        "server {{ workers 2; access-log-flush-interval \"1ms\" }}\naccess-log \"{at}/access.log\"\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{0}\"\n respond \"/fixed\" 200 \"fixed\"\n}}\n\
         site {{\n listen \"127.0.0.1:{json_port}\"\n root \"{0}\"\n access-log \"{at}/access.json\" format=\"json\"\n}}\n",
        root.path().display()
    ));
    let log = disk.path().join("access.log");
    trial.run(1, |case| {
        // Logs are emptied now and then, as an operator would.
        for name in ["access.log", "access.json"] {
            if case.random.u8(0..3) == 0 {
                let _ =
                    fs::OpenOptions::new().write(true).open(disk.path().join(name)).and_then(|file| file.set_len(0));
            }
        }
        if case.random.bool() {
            fill(disk.path(), case.random.usize(0..8_000));
        } else {
            let _ = fs::remove_file(disk.path().join("filler"));
        }
        for number in 0..case.random.usize(1..20) {
            let path = if number % 2 == 0 {
                "/1.html".to_owned()
            } else {
                format!("/{}", "x".repeat(case.random.usize(1..4_000)))
            };
            let address = if number % 3 == 0 { ([127, 0, 0, 1], json_port).into() } else { server.address };
            let answer = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            if status(&answer) != if number % 2 == 0 { 200 } else { 404 } {
                return Err(format!("{path} was answered with {answer:?}"));
            }
        }
        Ok(())
    });
    let _ = fs::remove_file(disk.path().join("filler"));
    for name in ["access.log", "access.json"] {
        let _ = fs::OpenOptions::new().write(true).open(disk.path().join(name)).and_then(|file| file.set_len(0));
    }
    let start = Instant::now();
    within(PATIENCE, || {
        drop(ask(server.address, "GET /back HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        fs::read_to_string(&log).unwrap_or_default().contains("GET /back").then_some(())
    });
    let text = fs::read_to_string(&log).unwrap_or_default();
    trial.expect(text.contains("GET /back"), || "nothing is logged when the disk has room again".into());
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    let torn = whole.trim_start_matches('\0').lines().find(|line| !line.starts_with("127.0.0.1 "));
    trial.expect(torn.is_none(), || format!("a line that is not whole: {torn:?}"));
    trial.expect_healthy(&server, "/fixed");
    Ok(format!("logged again after {:.1?}", start.elapsed()))
}

/// An upstream that says how many bytes it got, or sends as many as it is asked for.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let head_bytes = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_bytes]).into_owned();
    let wanted = head.split(' ').nth(1).and_then(|target| target.strip_prefix("/send/")?.parse::<usize>().ok());
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok()).unwrap_or(0);
    let mut received = bytes.len() - head_bytes;
    while received < length {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => received += count,
        }
    }
    let content = wanted.map_or_else(|| format!("got {received}"), |wanted| "y".repeat(wanted));
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{content}", content.len())
}

/// Uploads and slow readers whose content does not fit on the disk it is buffered on.
fn buffers(trial: &Trial) -> Result<String, Skipped> {
    let disk = disk()?;
    let server = TestServer::run(&format!(
        "server {{ workers 2; buffer-directory \"{}\" }}\nlimits {{ body-bytes-max \"64MiB\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n respond \"/fixed\" 200 \"fixed\"\n forward \"http://{}\" {{\n  \
         request-buffering on\n  response-buffering on\n }}\n}}\n",
        disk.path().display(),
        upstream()
    ));
    trial.run(6, |case| {
        if case.random.u8(0..4) == 0 {
            fill(disk.path(), case.random.usize(0..200_000));
        } else if case.random.bool() {
            let _ = fs::remove_file(disk.path().join("filler"));
        }
        if case.random.bool() { upload(&server, case) } else { slow_reader(&server, case) }
    });
    trial.expect_healthy(&server, "/fixed");
    Ok("uploads and slow readers of up to 3 MiB".into())
}

fn upload(server: &TestServer, case: &mut AttackCase) -> Result<(), String> {
    let length = case.random.usize(1..3 << 20);
    let mut raw = Raw::connect(server.address)?;
    let _ = raw.socket.set_write_timeout(Some(PATIENCE));
    raw.send(
        format!("POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    for piece in vec![b'x'; length].chunks(case.random.usize(10_000..400_000)) {
        raw.send(piece);
    }
    raw.is_closed = false;
    raw.read(PATIENCE, |_| false);
    let answer = String::from_utf8_lossy(&raw.received).into_owned();
    match status(&answer) {
        200 if answer.ends_with(&format!("\r\n\r\ngot {length}")) => Ok(()),
        // There was no room for ten seconds.
        503 => Ok(()),
        _ => Err(format!("an upload of {length} bytes was answered with {answer:?}")),
    }
}

fn slow_reader(server: &TestServer, case: &mut AttackCase) -> Result<(), String> {
    let length = case.random.usize(1..3 << 20);
    let mut raw = Raw::connect(server.address)?;
    let _ = socket2::SockRef::from(&raw.socket).set_recv_buffer_size(32 << 10);
    raw.send(format!("GET /send/{length} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes());
    pause(&mut case.random, Duration::from_millis(300));
    // A small buffer would keep the client slow; a stalled server is one that sends nothing for long.
    let _ = socket2::SockRef::from(&raw.socket).set_recv_buffer_size(4 << 20);
    let mut before = None;
    while !raw.is_closed && before != Some(raw.received.len()) {
        before = Some(raw.received.len());
        raw.read(PATIENCE, |_| false);
    }
    let head_bytes = raw.received.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    let content = &raw.received[head_bytes..];
    let head = String::from_utf8_lossy(&raw.received[..head_bytes]);
    let is_whole = content.len() == length && content.iter().all(|&byte| byte == b'y');
    // Uploads of the same client may fill its share of the disk for ten seconds.
    if is_whole || status(&head) == 503 {
        return Ok(());
    }
    Err(format!("{} of {length} bytes came: {head:?}", content.len()))
}
