//! SCGI and uwsgi: other application protocols with the same responses.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{TestServer, ask};

/// Application that reads until `is_whole`, responds, and ends the connection; returns its address and input.
fn application(answer: &'static str, is_whole: fn(&[u8]) -> bool) -> (String, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
        while !is_whole(&input) {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => input.extend_from_slice(&buffer[..count]),
            }
        }
        stream.write_all(answer.as_bytes()).unwrap();
        input
    });
    (address, thread)
}

fn front(protocol: &str, address: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n {protocol} \"/app/*\" \"{address}\" {{ application \"/app\" }}\n }}\n"
    ))
}

const POST: &str = "POST /app/a?b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

#[test]
fn scgi() {
    let (address, application) = application("Status: 201 Made\r\nA: b\r\n\r\ndone", |input| input.ends_with(b",abc"));
    let answered = ask(&front("scgi", &address), POST);
    assert!(answered.starts_with("HTTP/1.1 201 Made\r\n") && answered.contains("done"), "{answered}");
    let input = String::from_utf8(application.join().unwrap()).unwrap();
    let (length, rest) = input.split_once(':').unwrap();
    assert_eq!(rest.len(), length.parse::<usize>().unwrap() + ",abc".len());
    assert!(rest.starts_with("CONTENT_LENGTH\x003\0") && rest.ends_with("SCGI\x001\0,abc"));
    assert!(rest.contains("\0SCRIPT_NAME\0/app\0PATH_INFO\0/a\0") && rest.contains("\0QUERY_STRING\0b\0"), "{rest:?}");
    assert_eq!(rest.matches("CONTENT_LENGTH").count(), 1);
}

#[test]
fn uwsgi() {
    let (address, application) =
        application("HTTP/1.1 404 Not There\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nnone", |input| {
            input.ends_with(b"abc")
        });
    let answered = ask(&front("uwsgi", &address), POST);
    assert!(answered.starts_with("HTTP/1.1 404 ") && answered.ends_with("\r\n\r\nnone"), "{answered}");
    let input = application.join().unwrap();
    assert_eq!((input[0], input[3]), (0, 0), "modifiers");
    assert_eq!(input.len(), 4 + usize::from(u16::from_le_bytes([input[1], input[2]])) + 3);
    let text = String::from_utf8_lossy(&input);
    assert!(text.contains("\x0e\0REQUEST_METHOD\x04\0POST") && text.contains("\x09\0PATH_INFO\x02\0/a"), "{text:?}");
}
