//! TLS features of the running kernel, found by trying them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use nix::sys::socket::{setsockopt, sockopt};
use rustls::{CipherSuite, ProtocolVersion};

use super::send_key::{Cipher, send_key};

/// Versions and ciphers that are tried.
const CIPHERS: [(ProtocolVersion, Cipher); 6] = [
    (ProtocolVersion::TLSv1_3, Cipher::Aes128Gcm),
    (ProtocolVersion::TLSv1_3, Cipher::Aes256Gcm),
    (ProtocolVersion::TLSv1_3, Cipher::Chacha20Poly1305),
    (ProtocolVersion::TLSv1_2, Cipher::Aes128Gcm),
    (ProtocolVersion::TLSv1_2, Cipher::Aes256Gcm),
    (ProtocolVersion::TLSv1_2, Cipher::Chacha20Poly1305),
];

/// TLS features of the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// True for each of [`CIPHERS`] that the kernel supports.
    ciphers: [bool; CIPHERS.len()],
    /// True if the key of a connection can be replaced (since Linux 6.14).
    changes_keys: bool,
}

/// Reason that the kernel cannot encrypt.
#[derive(Debug)]
pub struct Unavailable(io::Error);

impl Abilities {
    /// Tries the features with connections of this process to itself. If run by root, the kernel loads its module if
    /// necessary.
    ///
    /// # Errors
    /// The kernel has no TLS, or the connections failed.
    pub fn find() -> Result<Self, Unavailable> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Unavailable)?;
        let address = listener.local_addr().map_err(Unavailable)?;
        let mut found = Self { ciphers: [false; CIPHERS.len()], changes_keys: false };
        for (can, (version, cipher)) in found.ciphers.iter_mut().zip(CIPHERS) {
            let socket = attached(address).map_err(Unavailable)?;
            *can = takes_key(&socket, version, cipher);
            found.changes_keys |= *can && version == ProtocolVersion::TLSv1_3 && takes_key(&socket, version, cipher);
        }
        match found.ciphers.contains(&true) {
            true => Ok(found),
            false => Err(Unavailable(io::ErrorKind::Unsupported.into())),
        }
    }

    /// True if the kernel supports this cipher suite.
    pub(super) fn has(&self, version: ProtocolVersion, suite: CipherSuite) -> bool {
        let Some(cipher) = Cipher::of(suite) else { return false };
        let index = CIPHERS.iter().position(|known| *known == (version, cipher));
        index.is_some_and(|index| self.ciphers[index])
    }

    /// True if the key of a connection can be replaced.
    pub(super) fn changes_keys(&self) -> bool {
        self.changes_keys
    }
}

impl Unavailable {
    /// Advice for the operator.
    pub const HELP: &str = "load the kernel module (`modprobe tls`; for every boot, a line `tls` in \
                            /etc/modules-load.d/tls.conf) and restart the server, or turn `kernel-tls` off";
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel TLS (kTLS) is not available: {}", self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Makes a connection that the kernel encrypts once it has a key.
fn attached(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    setsockopt(&socket, sockopt::TcpUlp::default(), b"tls")?;
    Ok(socket)
}

fn takes_key(socket: &TcpStream, version: ProtocolVersion, cipher: Cipher) -> bool {
    let key = send_key(version, cipher, &vec![0; cipher.key_bytes()], &[0; 12], 0);
    key.is_ok_and(|key| setsockopt(socket, sockopt::TcpTlsTx, &key).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_abilities_by_version_and_cipher() {
        let ciphers = [true, false, true, false, false, true];
        let abilities = Abilities { ciphers, changes_keys: false };
        for (version, suite, expect) in [
            (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_128_GCM_SHA256, true),
            (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_256_GCM_SHA384, false),
            (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, true),
            (ProtocolVersion::TLSv1_3, CipherSuite::TLS13_AES_128_CCM_SHA256, false),
            (ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, false),
            (ProtocolVersion::TLSv1_2, CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, true),
        ] {
            assert_eq!(abilities.has(version, suite), expect, "{suite:?}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        match Abilities::find() {
            Ok(abilities) => println!("this kernel has {abilities:?}"),
            Err(unavailable) => assert!(unavailable.to_string().starts_with("kernel TLS (kTLS) is not available: ")),
        }
    }
}
