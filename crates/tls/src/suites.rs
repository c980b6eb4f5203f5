//! Cipher suites that copy the data they encrypt in small pieces.
//!
//! A copy of a whole record (glibc's memcpy, from about two kilobytes on) uses `rep movsb`. On some CPUs (AMD, Zen 3
//! and 4) that takes thirty times as long if source and destination have similar offsets in their pages, as buffers and
//! the records of rustls do: it was a third of the CPU time of a large response. Small pieces are copied in another
//! way.

use std::sync::LazyLock;

use rustls::crypto::aws_lc_rs::DEFAULT_CIPHER_SUITES;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage, OutboundPlainMessage,
    Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls13CipherSuite};

use super::records::StrictRecords;

/// Bytes of one copy.
const PIECE_BYTES: usize = 1 << 10;

/// Pieces of the largest record (RFC 8446, section 5.1).
const PIECES_MAX: usize = (16 << 10) / PIECE_BYTES;

/// All safe suites, the preferred first.
pub(super) fn cipher_suites() -> &'static [SupportedCipherSuite] {
    // A suite must live as long as the process.
    static SUITES: LazyLock<Vec<SupportedCipherSuite>> =
        LazyLock::new(|| DEFAULT_CIPHER_SUITES.iter().copied().map(in_pieces).collect());
    &SUITES
}

fn in_pieces(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    match suite {
        SupportedCipherSuite::Tls13(suite) => {
            let Tls13CipherSuite { ref common, hkdf_provider, aead_alg, quic } = *suite;
            let common = rustls::crypto::CipherSuiteCommon { ..*common };
            let aead_alg = Box::leak(Box::new(InPieces(aead_alg)));
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite { common, hkdf_provider, aead_alg, quic })))
        }
        // TLS 1.2 is rare, and rarer for large files.
        SupportedCipherSuite::Tls12(_) => suite,
    }
}

/// Wrapper that encrypts in small pieces.
struct InPieces<T>(T);

impl Tls13AeadAlgorithm for InPieces<&'static dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(InPieces(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(StrictRecords::new(self.0.decrypter(key, iv)))
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

impl MessageEncrypter for InPieces<Box<dyn MessageEncrypter>> {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, sequence: u64) -> Result<OutboundOpaqueMessage, Error> {
        match message.payload {
            OutboundChunks::Single(content)
                if (PIECE_BYTES + 1..=PIECES_MAX * PIECE_BYTES).contains(&content.len()) =>
            {
                let mut pieces = [&content[..0]; PIECES_MAX];
                let count = content.len().div_ceil(PIECE_BYTES);
                for (place, piece) in pieces.iter_mut().zip(content.chunks(PIECE_BYTES)) {
                    *place = piece;
                }
                let payload = OutboundChunks::new(&pieces[..count]);
                self.0.encrypt(OutboundPlainMessage { payload, ..message }, sequence)
            }
            _ => self.0.encrypt(message, sequence),
        }
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.0.encrypted_payload_len(payload_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ContentType, ProtocolVersion};

    /// Recorder of the data and its pieces.
    struct PieceRecorder;

    impl MessageEncrypter for PieceRecorder {
        fn encrypt(
            &mut self,
            message: OutboundPlainMessage<'_>,
            sequence: u64,
        ) -> Result<OutboundOpaqueMessage, Error> {
            if let OutboundChunks::Multiple { chunks, .. } = &message.payload {
                assert!(chunks.iter().all(|chunk| (1..=PIECE_BYTES).contains(&chunk.len())), "{sequence}");
            }
            let payload = message.payload.to_vec()[..].into();
            Ok(OutboundOpaqueMessage::new(message.typ, message.version, payload))
        }

        fn encrypted_payload_len(&self, payload_len: usize) -> usize {
            payload_len + 1
        }
    }

    #[test]
    fn encrypted_records_are_the_same() {
        let content: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        let mut encrypter = InPieces(Box::new(PieceRecorder) as Box<dyn MessageEncrypter>);
        for length in [0, 1, 1023, 1024, 1025, 2048, 16_383, 16_384, 16_385] {
            let payload = OutboundChunks::Single(&content[..length]);
            let (typ, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_3);
            let message = encrypter.encrypt(OutboundPlainMessage { typ, version, payload }, length as u64).unwrap();
            assert_eq!((message.typ, message.version), (typ, version));
            assert_eq!(message.payload.as_ref(), &content[..length]);
        }
        assert_eq!(encrypter.encrypted_payload_len(7), 8);
    }

    #[test]
    fn all_safe_suites_are_there() {
        let names =
            |suites: &[SupportedCipherSuite]| suites.iter().map(SupportedCipherSuite::suite).collect::<Vec<_>>();
        assert_eq!(names(cipher_suites()), names(DEFAULT_CIPHER_SUITES));
    }
}
