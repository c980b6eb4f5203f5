//! Keys in the form for the kernel.

use std::io;

use nix::sys::socket::sockopt::TlsCryptoInfo;
use rustls::{CipherSuite, ConnectionTrafficSecrets, ProtocolVersion};

/// Length in bytes of the part of a nonce that comes from the handshake, in AES-GCM of TLS 1.2. The rest is sent with
/// each record (RFC 5288, section 3). The kernel splits nonces of TLS 1.3 in the same way.
const SALT_BYTES: usize = 4;

/// Cipher of a record. The other parts of a cipher suite matter only in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl Cipher {
    /// Returns the cipher of a suite; `None` if it is not supported.
    pub(super) fn of(suite: CipherSuite) -> Option<Self> {
        Some(match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Self::Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Self::Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Self::Chacha20Poly1305,
            _ => return None,
        })
    }

    /// Length of the keys, in bytes.
    pub(super) fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::Chacha20Poly1305 => 32,
        }
    }
}

/// Converts the key of a session that has sent `sequence` records with it.
///
/// # Errors
/// The kernel does not support the cipher.
pub(super) fn send_key_of(
    version: ProtocolVersion,
    secrets: &ConnectionTrafficSecrets,
    sequence: u64,
) -> io::Result<TlsCryptoInfo> {
    let (cipher, key, nonce) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::Chacha20Poly1305, key, iv),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    send_key(version, cipher, key.as_ref(), nonce.as_ref(), sequence)
}

/// Makes a key with its nonce, after `sequence` records have been sent with it.
///
/// # Errors
/// The kernel does not support the version, or the key or nonce has another length than the cipher requires.
pub(super) fn send_key(
    version: ProtocolVersion,
    cipher: Cipher,
    key: &[u8],
    nonce: &[u8],
    sequence: u64,
) -> io::Result<TlsCryptoInfo> {
    let version = match version {
        ProtocolVersion::TLSv1_3 => libc::TLS_1_3_VERSION,
        ProtocolVersion::TLSv1_2 => libc::TLS_1_2_VERSION,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let info = |cipher_type| libc::tls_crypto_info { version, cipher_type };
    let rec_seq = sequence.to_be_bytes();
    Ok(match cipher {
        Cipher::Aes128Gcm => {
            let (info, key, (salt, iv)) = (info(libc::TLS_CIPHER_AES_GCM_128), array(key)?, divide(version, nonce)?);
            TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 { info, iv, key, salt, rec_seq })
        }
        Cipher::Aes256Gcm => {
            let (info, key, (salt, iv)) = (info(libc::TLS_CIPHER_AES_GCM_256), array(key)?, divide(version, nonce)?);
            TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 { info, iv, key, salt, rec_seq })
        }
        Cipher::Chacha20Poly1305 => {
            let (info, key, iv) = (info(libc::TLS_CIPHER_CHACHA20_POLY1305), array(key)?, array(nonce)?);
            let salt = [];
            TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 { info, iv, key, salt, rec_seq })
        }
    })
}

/// Splits a nonce of AES-GCM into salt and the part that the kernel counts from.
///
/// In TLS 1.3 the nonce stays as it is, because both sides add the record number (RFC 8446, section 5.3). In TLS 1.2
/// the sender chooses the second part. rustls adds the record number to it, while the kernel counts up from its initial
/// value. From the same start, the kernel would reuse nonces of rustls, which breaks the cipher (NIST SP 800-38D,
/// appendix A). The kernel therefore starts half the range away, which neither count reaches.
fn divide(version: u16, nonce: &[u8]) -> io::Result<([u8; SALT_BYTES], [u8; 8])> {
    let (salt, rest) = nonce.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    let mut rest: [u8; 8] = array(rest)?;
    if version == libc::TLS_1_2_VERSION {
        rest[0] ^= 0x80;
    }
    Ok((*salt, rest))
}

fn array<const N: usize>(bytes: &[u8]) -> io::Result<[u8; N]> {
    bytes.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{Iv, Nonce};

    use super::*;
    use crate::config::CIPHER_SUITES;

    const NONCE: [u8; 12] = [1, 2, 3, 4, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0];

    fn aes(version: ProtocolVersion, sequence: u64) -> libc::tls12_crypto_info_aes_gcm_128 {
        match send_key(version, Cipher::Aes128Gcm, &[7; 16], &NONCE, sequence).unwrap() {
            TlsCryptoInfo::Aes128Gcm(taken) => taken,
            _ => panic!("another cipher"),
        }
    }

    #[test]
    fn in_tls_1_3_the_kernel_goes_on_with_the_next_nonce() {
        let taken = aes(ProtocolVersion::TLSv1_3, 258);
        assert_eq!([&taken.salt[..], &taken.iv].concat(), NONCE);
        assert_eq!((taken.rec_seq, taken.key), ([0, 0, 0, 0, 0, 0, 1, 2], [7; 16]));
        assert_eq!((taken.info.version, taken.info.cipher_type), (0x0304, 51));
    }

    #[test]
    fn in_tls_1_2_no_nonce_is_used_twice() {
        const RECORDS: u64 = 5_000;
        let taken = aes(ProtocolVersion::TLSv1_2, RECORDS);
        assert_eq!((taken.salt, taken.rec_seq), ([1, 2, 3, 4], RECORDS.to_be_bytes()));
        let first = u64::from_be_bytes(taken.iv);
        let mut nonces: Vec<[u8; 12]> = (0..RECORDS).map(|sequence| Nonce::new(&Iv::new(NONCE), sequence).0).collect();
        nonces.extend((0..RECORDS).map(|count| {
            let mut nonce = NONCE;
            nonce[SALT_BYTES..].copy_from_slice(&first.wrapping_add(count).to_be_bytes());
            nonce
        }));
        nonces.sort_unstable();
        nonces.dedup();
        assert_eq!(nonces.len() as u64, 2 * RECORDS);
    }

    #[test]
    fn lengths_are_those_of_the_cipher() {
        let version = ProtocolVersion::TLSv1_3;
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::Chacha20Poly1305] {
            for (key_bytes, nonce_bytes, expect) in [(0, 0, true), (1, 0, false), (0, 1, false)] {
                let (key, nonce) = (vec![0; cipher.key_bytes() + key_bytes], vec![0; 12 + nonce_bytes]);
                assert_eq!(send_key(version, cipher, &key, &nonce, 0).is_ok(), expect, "{cipher:?}");
            }
            assert!(send_key(ProtocolVersion::TLSv1_1, cipher, &vec![0; cipher.key_bytes()], &[0; 12], 0).is_err());
        }
    }

    #[test]
    fn all_suites_that_can_be_configured_are_known() {
        for suite in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES {
            assert!(Cipher::of(suite.suite()).is_some(), "{:?}", suite.suite());
        }
        assert_eq!(rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES.len(), CIPHER_SUITES.len());
    }
}
