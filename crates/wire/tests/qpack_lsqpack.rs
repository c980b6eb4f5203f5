//! QPACK against ls-qpack, in both directions (`pip install --target /usr/local/lib/lsqpack pylsqpack`): with and without the dynamic table, with
//! instructions that arrive late, and with real lists of fields. It skips itself, with a message, without pylsqpack.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use wire::qpack::{DecoderLimits, QpackDecoder, QpackEncoder};

type Pairs = Vec<(String, String)>;

/// The script that speaks for ls-qpack.
struct LsQpack {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl LsQpack {
    fn start() -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/qpack/lsqpack.py");
        let mut child =
            Command::new("python3").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        let mut output = BufReader::new(output).lines();
        let is_ready = output.next()?.ok()? == "ready";
        is_ready.then_some(Self { child, input, output })
    }

    fn ask(&mut self, message: Value) -> Value {
        writeln!(self.input, "{message}").unwrap();
        let line = self.output.next().expect("ls-qpack has failed").unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for LsQpack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Lists of fields as a browser and a server send them, many of which repeat.
fn lists() -> Vec<Pairs> {
    let mut lists = Vec::new();
    for number in 0..40 {
        let request = [
            (":method", ["GET", "POST"][number % 2].to_owned()),
            (":scheme", "https".to_owned()),
            (":authority", format!("host{}.example.com", number % 3)),
            (":path", format!("/page/{number}?query=\u{e4}&x={}", number * number)),
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0".to_owned()),
            ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8".to_owned()),
            ("accept-encoding", "gzip, deflate, br, zstd".to_owned()),
            ("cookie", format!("session={}; theme=dark-and-rather-long", number / 8)),
            ("x-number", number.to_string()),
            ("authorization", "Basic YTpi".to_owned()),
            ("x-empty", String::new()),
        ];
        let response = [
            (":status", ["200", "304", "404", "599"][number % 4].to_owned()),
            ("content-type", "text/html; charset=utf-8".to_owned()),
            ("server", "tailcoat".to_owned()),
            ("content-length", (number * 1000).to_string()),
            ("etag", format!("\"{number:x}\"")),
            ("vary", "accept-encoding".to_owned()),
            ("strict-transport-security", "max-age=31536000".to_owned()),
            ("x-request-id", format!("{:08x}", number * 0x1234_5677)),
        ];
        let list = if number % 3 == 2 { &response[..] } else { &request[..] };
        lists.push(list.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect());
    }
    lists
}

const TABLES: [(usize, usize); 6] = [(0, 0), (4096, 0), (4096, 16), (300, 4), (100, 1), (65_536, 100)];

#[test]
fn ls_qpack_decodes_what_we_encode() {
    let Some(mut peer) = LsQpack::start() else { return println!("skipped: no python3 with pylsqpack") };
    for (table_bytes_max, blocked_streams_max) in TABLES {
        for delay in [1, 3, 7] {
            peer.ask(
                json!({"kind": "new", "table_bytes_max": table_bytes_max, "blocked_streams_max": blocked_streams_max}),
            );
            let (mut encoder, mut instructions) = (QpackEncoder::new(4096), Vec::new());
            encoder.set_peer_limits(table_bytes_max as u64, blocked_streams_max as u64, &mut instructions);
            let mut blocked = Vec::<(u64, Pairs)>::new();
            for (index, list) in lists().into_iter().enumerate() {
                let (stream, mut section) = (4 * index as u64, Vec::new());
                let fields = list.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
                encoder.encode(stream, fields, &mut section, &mut instructions);
                if delay == 1 {
                    assert_eq!(instruct(&mut peer, &mut instructions), Vec::<u64>::new());
                }
                let reply = peer.ask(json!({"kind": "decode", "stream": stream, "bytes": hex(&section)}));
                match reply.get("blocked") {
                    Some(_) => blocked.push((stream, list)),
                    None => check_decoded(&mut encoder, &reply, &list),
                }
                if delay > 1 && index % delay == delay - 1 {
                    for stream in instruct(&mut peer, &mut instructions) {
                        let index = blocked.iter().position(|(id, _)| *id == stream).expect("it was blocked");
                        let (_, list) = blocked.remove(index);
                        let reply = peer.ask(json!({"kind": "resume", "stream": stream}));
                        check_decoded(&mut encoder, &reply, &list);
                    }
                }
            }
            assert!(blocked.len() < delay, "{table_bytes_max} {blocked_streams_max} {delay}");
        }
    }
}

/// Passes our instructions to ls-qpack. Returns streams that were blocked.
fn instruct(peer: &mut LsQpack, instructions: &mut Vec<u8>) -> Vec<u64> {
    let reply = peer.ask(json!({"kind": "feed decoder", "bytes": hex(instructions)}));
    instructions.clear();
    reply["unblocked"].as_array().unwrap().iter().map(|stream| stream.as_u64().unwrap()).collect()
}

fn check_decoded(encoder: &mut QpackEncoder, reply: &Value, list: &Pairs) {
    let string = |value: &Value| {
        // The script maps bytes to the code points of the same number.
        let bytes: Vec<u8> = value.as_str().unwrap().chars().map(|letter| letter as u8).collect();
        String::from_utf8(bytes).unwrap()
    };
    let decoded: Pairs =
        reply["fields"].as_array().unwrap().iter().map(|pair| (string(&pair[0]), string(&pair[1]))).collect();
    assert_eq!(&decoded, list);
    let back = bytes(&reply["instructions"]);
    assert_eq!(encoder.handle_instructions(&back), Ok(back.len()));
}

#[test]
fn we_decode_what_ls_qpack_encodes() {
    let Some(mut peer) = LsQpack::start() else { return println!("skipped: no python3 with pylsqpack") };
    for (table_bytes_max, blocked_streams_max) in TABLES {
        for delay in [1, 3, 7] {
            let created = peer.ask(
                json!({"kind": "new", "table_bytes_max": table_bytes_max, "blocked_streams_max": blocked_streams_max}),
            );
            let mut decoder = QpackDecoder::new(DecoderLimits { table_bytes_max, blocked_streams_max });
            let (mut arriving, mut back) = (bytes(&created["instructions"]), Vec::new());
            let mut blocked = Vec::<(u64, Vec<u8>, Pairs)>::new();
            for (index, list) in lists().into_iter().enumerate() {
                let stream = 4 * index as u64;
                let fields: Vec<_> = list.iter().map(|(name, value)| [name.clone(), latin1(value)]).collect();
                let encoded = peer.ask(json!({"kind": "encode", "stream": stream, "fields": fields}));
                arriving.extend(bytes(&encoded["instructions"]));
                if delay == 1 {
                    handle(&mut decoder, &mut arriving, &mut back);
                }
                let section = bytes(&encoded["section"]);
                match decode(&mut decoder, stream, &section, &mut back) {
                    Some(decoded) => assert_eq!(decoded, list),
                    None => blocked.push((stream, section, list)),
                }
                if delay > 1 && index % delay == delay - 1 {
                    handle(&mut decoder, &mut arriving, &mut back);
                    while let Some(stream) = decoder.poll_unblocked() {
                        let index = blocked.iter().position(|(id, ..)| *id == stream).expect("it was blocked");
                        let (_, section, list) = blocked.remove(index);
                        assert_eq!(decode(&mut decoder, stream, &section, &mut back), Some(list));
                    }
                }
                peer.ask(json!({"kind": "feed encoder", "bytes": hex(&back)}));
                back.clear();
            }
            assert!(blocked.len() < delay, "{table_bytes_max} {blocked_streams_max} {delay}");
        }
    }
}

/// Each byte as the code point of the same number.
fn latin1(text: &str) -> String {
    text.bytes().map(char::from).collect()
}

fn handle(decoder: &mut QpackDecoder, arriving: &mut Vec<u8>, back: &mut Vec<u8>) {
    assert_eq!(decoder.handle_instructions(arriving, back), Ok(arriving.len()));
    arriving.clear();
}

fn decode(decoder: &mut QpackDecoder, stream: u64, section: &[u8], back: &mut Vec<u8>) -> Option<Pairs> {
    let (mut text, mut pairs) = (Vec::new(), Vec::new());
    let string = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let decoded = decoder.decode(stream, section, 1 << 20, &mut text, back, |text, field| {
        pairs.push((string(field.name.of(text)), string(field.value.of(text))));
    });
    decoded.unwrap().map(|_| pairs)
}
