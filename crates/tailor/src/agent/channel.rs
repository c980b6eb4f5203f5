//! Authenticated connection between controller and agent: TLS 1.3 in which both sides prove that they know the secret.
//!
//! The secret is the seed of an Ed25519 key. Each side has a certificate of that key, and accepts no other. So only those
//! who know the secret can be on either side, and later knowledge of it does not decrypt recorded traffic.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig, ServerConnection, SideData, version,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Name in the certificates.
const NAME: &str = "tailor-agent";
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Maximum size of a message. Files of a run are in its first message.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Maximum time for a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Time to wait for input before the other direction gets its turn.
const TURN: Duration = Duration::from_millis(10);
/// Maximum time to send a message.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);

/// Secret that agents and controllers share.
#[derive(Clone)]
pub(super) struct SharedSecret([u8; SECRET_BYTES]);

/// Writes a new random secret to a file that only its owner may read.
pub(super) fn write_new_secret(path: &Path) -> Result<(), String> {
    let error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut bytes = [0; SECRET_BYTES];
    ::aws_lc_rs::rand::fill(&mut bytes).map_err(|e| error(&e))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(|e| error(&e))?;
    file.write_all(format!("{text}\n").as_bytes()).map_err(|e| error(&e))
}

impl SharedSecret {
    /// Reads a secret. Others must not be able to read its file.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let mode = std::fs::metadata(path).map_err(|e| error(&e))?.mode();
        if mode & 0o077 != 0 {
            return Err(error(&"other users can read the secret; run chmod 600"));
        }
        let text = crate::input::read_text(path)?;
        let secret = crate::engine::parse_sha256(text.trim());
        secret.map(Self).ok_or_else(|| error(&"not a secret of 64 hexadecimal digits; --new-secret FILE writes one"))
    }

    /// Key and certificate. The certificate is its own authority.
    fn identity(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), String> {
        let error = |error: &dyn std::fmt::Display| format!("the secret makes no key: {error}");
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.0).map_err(|e| error(&e))?;
        let der = pair.to_pkcs8().map_err(|e| error(&e))?.as_ref().to_vec();
        let key = PrivatePkcs8KeyDer::from(der);
        let pair = KeyPair::try_from(&key).map_err(|e| error(&e))?;
        let parameters = CertificateParams::new([NAME.to_owned()]).map_err(|e| error(&e))?;
        let certificate = parameters.self_signed(&pair).map_err(|e| error(&e))?;
        Ok((certificate.der().clone(), PrivateKeyDer::Pkcs8(key)))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.identity()?.0).map_err(|error| format!("the secret makes no certificate: {error}"))?;
        Ok(Arc::new(roots))
    }
}

/// Settings of both sides.
#[derive(Clone)]
pub(super) struct ChannelConfig {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl ChannelConfig {
    pub(super) fn new(secret: &SharedSecret) -> Result<Self, String> {
        let error = |error: &dyn std::fmt::Display| format!("TLS: {error}");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let versions = &[&version::TLS13][..];
        let (certificate, key) = secret.identity()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(secret.roots()?, Arc::clone(&provider));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|e| error(&e))?
            .with_client_cert_verifier(verifier.build().map_err(|e| error(&e))?)
            .with_single_cert(vec![certificate.clone()], key.clone_key())
            .map_err(|e| error(&e))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(secret.roots()?, Arc::clone(&provider));
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| error(&e))?
            .with_webpki_verifier(verifier.build().map_err(|e| error(&e))?)
            .with_client_auth_cert(vec![certificate], key)
            .map_err(|e| error(&e))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Connects to an agent.
    pub(super) fn connect(&self, address: std::net::SocketAddr) -> Result<Channel, String> {
        let stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIME_MAX).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
        let tls = ClientConnection::new(Arc::clone(&self.client), name).map_err(|error| error.to_string())?;
        Channel::open(stream, Side::Client(Box::new(tls)))
    }

    /// Accepts a controller.
    pub(super) fn accept(&self, stream: TcpStream) -> Result<Channel, String> {
        let tls = ServerConnection::new(Arc::clone(&self.server)).map_err(|error| error.to_string())?;
        Channel::open(stream, Side::Server(Box::new(tls)))
    }
}

enum Side {
    Client(Box<ClientConnection>),
    Server(Box<ServerConnection>),
}

/// Connection that sends and receives messages.
pub(super) struct Channel {
    stream: TcpStream,
    side: Side,
    /// Input of which no whole message has arrived.
    input: Vec<u8>,
}

impl Channel {
    fn open(stream: TcpStream, side: Side) -> Result<Self, String> {
        let mut channel = Self { stream, side, input: Vec::new() };
        let prepare = |channel: &Self| -> std::io::Result<()> {
            channel.stream.set_nodelay(true)?;
            channel.stream.set_read_timeout(Some(TURN))?;
            channel.stream.set_write_timeout(Some(SEND_TIME_MAX))
        };
        prepare(&channel).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + HANDSHAKE_TIME_MAX;
        while channel.is_handshaking() {
            if Instant::now() > deadline {
                return Err("no handshake in time; does the other side listen for agents?".to_owned());
            }
            channel.exchange().map_err(|error| format!("{error}; do both sides have the same secret?"))?;
        }
        Ok(channel)
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(tls) => tls.is_handshaking(),
            Side::Server(tls) => tls.is_handshaking(),
        }
    }

    /// Sends what TLS has to send, and receives what arrives within a turn.
    fn exchange(&mut self) -> Result<(), String> {
        match &mut self.side {
            Side::Client(tls) => exchange(tls, &mut self.stream, &mut self.input),
            Side::Server(tls) => exchange(tls, &mut self.stream, &mut self.input),
        }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), String> {
        let body = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= MESSAGE_BYTES_MAX);
        let length = length.ok_or_else(|| format!("a message of {} bytes is too long", body.len()))?;
        let bytes = [&length.to_be_bytes()[..], &body].concat();
        for piece in bytes.chunks(64 << 10) {
            let written = match &mut self.side {
                Side::Client(tls) => tls.writer().write_all(piece).and_then(|()| drain(tls, &mut self.stream)),
                Side::Server(tls) => tls.writer().write_all(piece).and_then(|()| drain(tls, &mut self.stream)),
            };
            written.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Receives a message; `None` if none is complete within a turn.
    pub(super) fn poll<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        if !self.has_message()? {
            self.exchange()?;
        }
        if !self.has_message()? {
            return Ok(None);
        }
        let length = u32::from_be_bytes([self.input[0], self.input[1], self.input[2], self.input[3]]) as usize;
        let message = serde_json::from_slice(&self.input[4..4 + length]);
        self.input.drain(..4 + length);
        message.map(Some).map_err(|error| format!("a message that this version does not understand: {error}"))
    }

    /// Receives a message within a time.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, time: Duration) -> Result<T, String> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if Instant::now() > deadline {
                return Err(format!("no message within {} s", time.as_secs_f64()));
            }
        }
    }

    fn has_message(&self) -> Result<bool, String> {
        let Some(length) = self.input.first_chunk::<4>() else { return Ok(false) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(format!("a message of {length} bytes is too long"));
        }
        Ok(self.input.len() >= 4 + length)
    }
}

fn drain<S: SideData>(tls: &mut ConnectionCommon<S>, stream: &mut TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(stream)?;
    }
    Ok(())
}

fn exchange<S: SideData>(
    tls: &mut ConnectionCommon<S>,
    stream: &mut TcpStream,
    input: &mut Vec<u8>,
) -> Result<(), String> {
    drain(tls, stream).map_err(|error| error.to_string())?;
    match tls.read_tls(stream) {
        Ok(0) => return Err("the other side closed the connection".to_owned()),
        Ok(_) => {}
        Err(error) => {
            use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
            return match error.kind() {
                WouldBlock | TimedOut | Interrupted => Ok(()),
                _ => Err(error.to_string()),
            };
        }
    }
    let result = tls.process_new_packets();
    // An alert says the other side why.
    let _ = drain(tls, stream);
    result.map_err(|error| error.to_string())?;
    // An error means that there is no more plaintext.
    let mut piece = [0; 16 << 10];
    while let Ok(length @ 1..) = tls.reader().read(&mut piece) {
        input.extend_from_slice(&piece[..length]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Connects with one secret to an agent with another. Returns the results of both sides.
    fn handshake(client: [u8; 32], server: [u8; 32]) -> (Result<String, String>, Result<String, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = ChannelConfig::new(&SharedSecret(server)).unwrap();
        std::thread::scope(|scope| {
            let agent = scope.spawn(move || -> Result<String, String> {
                let mut channel = server.accept(listener.accept().unwrap().0)?;
                channel.send(&"from the agent")?;
                channel.receive(Duration::from_secs(60))
            });
            let controller = || -> Result<String, String> {
                let mut channel = ChannelConfig::new(&SharedSecret(client)).unwrap().connect(address)?;
                channel.send(&"from the controller".repeat(10_000))?;
                channel.receive(Duration::from_secs(60))
            };
            (controller(), agent.join().unwrap())
        })
    }

    #[test]
    fn both_sides_know_the_secret() {
        let (controller, agent) = handshake([7; 32], [7; 32]);
        assert_eq!(controller.as_deref(), Ok("from the agent"));
        assert_eq!(agent.map(|text| text.len()), Ok(190_000));
        let (controller, agent) = handshake([7; 32], [8; 32]);
        assert!(controller.unwrap_err().contains("the same secret?"));
        assert!(agent.unwrap_err().contains("the same secret?"));
    }

    #[test]
    fn secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        write_new_secret(&path).unwrap();
        assert!(write_new_secret(&path).unwrap_err().contains("exists"));
        let secret = SharedSecret::read(&path).unwrap();
        assert_ne!(secret.0, [0; 32]);
        std::fs::write(&path, "short").unwrap();
        assert!(SharedSecret::read(&path).err().unwrap().contains("not a secret"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(SharedSecret::read(&path).err().unwrap().contains("chmod 600"));
    }
}
