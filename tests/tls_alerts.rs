//! Alerts for wrong handshakes and records (RFC 8446, section 6), and the limit of a first message.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage, OutboundPlainMessage,
    Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::version::TLS13;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, SupportedCipherSuite, Tls13CipherSuite};
use tempfile::TempDir;

use crate::support::tls::{TestCa, ask, connect, handshake};
use crate::support::{PATIENCE, TestServer};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// Server with a TLS site, its CA, and its directory.
fn serve() -> (TestServer, TestCa, TempDir) {
    let authority = TestCa::new();
    let directory = tempfile::tempdir().unwrap();
    authority.sign(&["a.example"]).write(directory.path(), "a");
    let path = directory.path().display();
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\nlimits {{ linger-timeout \"20s\" }}\nsite \"a.example\" {{\n listen \"127.0.0.1:0\" tls=on\n \
         certificate \"{path}/a.pem\" key=\"{path}/a.key\"\n respond \"/\" 200 \"a.example\"\n}}\n"
    ));
    (server, authority, directory)
}

/// ClientHello in one record.
fn client_hello(authority: &TestCa) -> Vec<u8> {
    let name = "a.example".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(authority.client(None)), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

/// Splits a message into records of at most this many content bytes.
fn records(message: &[u8], content_bytes_max: usize) -> Vec<u8> {
    let record = |content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        [&[22, 3, 1, high, low], content].concat()
    };
    message.chunks(content_bytes_max).flat_map(record).collect()
}

/// Position of a ClientHello's cipher suites (RFC 8446, section 4.1.2).
fn cipher_suites(hello: &[u8]) -> Range<usize> {
    // Skips record and message headers, version, random bytes; then the session id with its length.
    let at = 5 + 4 + 2 + 32;
    let at = at + 1 + usize::from(hello[at]);
    at + 2..at + 2 + number(&hello[at..])
}

/// Position of an extension's type.
fn extension(hello: &[u8], wanted: u16) -> usize {
    let at = cipher_suites(hello).end;
    // Skips the compression methods and the length of all extensions.
    let mut at = at + 1 + usize::from(hello[at]) + 2;
    while number(&hello[at..]) != usize::from(wanted) {
        at += 4 + number(&hello[at + 2..]);
    }
    at
}

fn number(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Reads until the server ends the connection. A reset fails the test, because it can destroy earlier data.
fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the connection is closed, and not reset");
    answer
}

/// Fatal alert in plain text.
fn alert(description: AlertDescription) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, u8::from(description)]
}

#[test]
fn a_first_message_may_have_60_kib() {
    let (server, authority, _directory) = serve();
    let mut client = authority.client(None);
    for protocols in [80, 235] {
        client.alpn_protocols =
            (0..protocols).map(|number| [&[number as u8], [b'x'; 254].as_slice()].concat()).collect();
        client.alpn_protocols.push(b"http/1.1".to_vec());
        let mut stream = connect(&server, &Arc::new(client.clone()), "a.example").expect("the handshake succeeds");
        assert!(ask(&mut stream, GET).unwrap().ends_with("a.example"), "{protocols} protocols");
    }
}

/// Data after the oversized message does not reset the connection before the client has read the alert.
#[test]
fn a_first_message_beyond_64_kib_gets_an_alert() {
    let (server, ..) = serve();
    let mut message = b"\x01\x03\x00\x00".to_vec();
    message.resize(200_000, 0);
    for content_bytes_max in [16 << 10, 1000] {
        let mut stream = server.connect();
        stream.write_all(&records(&message, content_bytes_max)).expect("the server reads on");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = read_to_end(&mut stream);
        assert_eq!(answer, alert(AlertDescription::DecodeError), "records of {content_bytes_max} bytes");
    }
}

#[test]
fn alerts_say_what_is_wrong_with_a_first_message() {
    let (server, authority, _directory) = serve();
    let hello = client_hello(&authority);
    let reported = |input: &[u8]| -> Vec<u8> {
        let mut stream = server.connect();
        stream.write_all(input).expect("the server reads");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        read_to_end(&mut stream)
    };
    let changed = |at: Range<usize>, bytes: &[u8]| {
        let mut hello = hello.clone();
        for (index, place) in at.enumerate() {
            hello[place] = bytes[index % bytes.len()];
        }
        hello
    };
    // Reserved values (RFC 8701).
    let no_common_suite = changed(cipher_suites(&hello), &[0x0a, 0x0a]);
    assert_eq!(reported(&no_common_suite), alert(AlertDescription::HandshakeFailure), "no common cipher suite");
    let key_share = extension(&hello, 51);
    let no_key_share = changed(key_share..key_share + 2, &[0xfa, 0xfa]);
    assert_eq!(reported(&no_key_share), alert(AlertDescription::MissingExtension), "no key_share");
    let schemes = extension(&hello, 13);
    let no_common_scheme = changed(schemes + 6..schemes + 4 + number(&hello[schemes + 2..]), &[0x0a, 0x0a]);
    // Detected only after the ServerHello, so the alert is encrypted.
    let answer = reported(&no_common_scheme);
    let [.., 23, 3, 3, 0, 19, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = answer.as_slice() else {
        panic!("no common signature scheme: {answer:?}");
    };
    let (first, second) = hello[5..].split_at(100);
    for between in [&[23, 3, 3, 0, 1, 0][..], &[21, 3, 3, 0, 2, 1, 0]] {
        let interleaved = [&records(first, 100), between, &records(second, 4000)].concat();
        assert_eq!(reported(&interleaved), alert(AlertDescription::UnexpectedMessage), "{between:?} between fragments");
    }
    assert_eq!(reported(&records(&[0, 0, 0, 0], 4)), alert(AlertDescription::UnexpectedMessage), "a HelloRequest");
    // Split in any way, it is one message.
    let mut stream = server.connect();
    stream.write_all(&records(&hello[5..], 1)).unwrap();
    let mut begin = [0; 6];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!((begin[0], begin[5]), (22, 2), "a ServerHello");
}

/// Cipher suite whose client sends forbidden records in place of certain words.
fn hostile_suite() -> SupportedCipherSuite {
    let SupportedCipherSuite::Tls13(suite) = cipher_suite::TLS13_AES_128_GCM_SHA256 else { unreachable!("TLS 1.3") };
    let Tls13CipherSuite { ref common, hkdf_provider, aead_alg, quic } = *suite;
    let suite = Tls13CipherSuite {
        common: CipherSuiteCommon { ..*common },
        hkdf_provider,
        aead_alg: Box::leak(Box::new(Hostile(aead_alg))),
        quic,
    };
    SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))
}

struct Hostile<T>(T);

impl Tls13AeadAlgorithm for Hostile<&'static dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Hostile(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }
}

impl MessageEncrypter for Hostile<Box<dyn MessageEncrypter>> {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, sequence: u64) -> Result<OutboundOpaqueMessage, Error> {
        let (typ, content): (_, &[u8]) = match &*message.payload.to_vec() {
            b"only zeros" => (ContentType::Unknown(0), &[0; 64]),
            b"empty handshake" => (ContentType::Handshake, &[]),
            b"empty alert" => (ContentType::Alert, &[]),
            // A KeyUpdate without its last byte.
            b"fragment" => (ContentType::Handshake, &[24, 0, 0, 1]),
            _ => return self.0.encrypt(message, sequence),
        };
        let payload = OutboundChunks::Single(content);
        self.0.encrypt(OutboundPlainMessage { typ, payload, ..message }, sequence)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.0.encrypted_payload_len(payload_len)
    }
}

#[test]
fn forbidden_records_of_tls_1_3_get_an_alert() {
    let (server, authority, _directory) = serve();
    let provider = CryptoProvider { cipher_suites: vec![hostile_suite()], ..default_provider() };
    let client = Arc::new(authority.client_with(provider, &[&TLS13], None));
    for sent in [&["only zeros"][..], &["empty handshake"], &["empty alert"], &["fragment", "GET / HTTP/1.1\r\n"]] {
        let mut stream = handshake(server.connect(), &client, "a.example").expect("the handshake succeeds");
        for piece in sent {
            stream.write_all(piece.as_bytes()).unwrap();
            stream.flush().unwrap();
        }
        stream.sock.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = stream.read(&mut [0; 64]).expect_err("an alert comes");
        let error = error.downcast::<Error>().expect("it is of TLS");
        assert_eq!(error, Error::AlertReceived(AlertDescription::UnexpectedMessage), "{sent:?}");
    }
}
