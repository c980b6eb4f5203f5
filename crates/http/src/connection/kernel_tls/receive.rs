//! Decryption of records from a client after the rustls session has ended.

use std::io;

use rustls::crypto::cipher::{InboundOpaqueMessage, InboundPlainMessage, MessageDecrypter};
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite};

/// Length of a record's header: type, version and length (RFC 8446, section 5.1).
const HEADER_BYTES: usize = 5;

/// Maximum number of consecutive records without content: empty ones, warnings, new keys. Each costs the server more
/// than the client.
const FRUITLESS_RECORDS_MAX: u32 = 32;

pub(super) struct RecordOpener {
    suite: SupportedCipherSuite,
    decrypter: Box<dyn MessageDecrypter>,
    /// Number of records decrypted with the key.
    sequence: u64,
    fruitless_records: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::connection) enum TlsRecordContent<'a> {
    /// Application data.
    Data(&'a [u8]),
    /// The client uses a new key from here on. `is_wanted_here` is true if the client requests that the server does the
    /// same.
    NewKey { is_wanted_here: bool },
    /// The client sends no more.
    End,
    /// The record has no effect.
    Nothing,
}

/// Reason that a record has no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsRecordError {
    /// The record is invalid; this alert must be sent to the client.
    Wrong(AlertDescription),
    /// The client reports an error by this alert.
    Failed(AlertDescription),
}

impl RecordOpener {
    /// Continues with these secrets after `sequence` records have been received.
    ///
    /// # Errors
    /// The cipher of the secrets is not supported.
    pub(super) fn new(
        suite: SupportedCipherSuite,
        secrets: ConnectionTrafficSecrets,
        sequence: u64,
    ) -> io::Result<Self> {
        Ok(Self { suite, decrypter: decrypter(suite, secrets)?, sequence, fruitless_records: 0 })
    }

    /// Continues with the client's new key.
    ///
    /// # Errors
    /// The cipher of the key is not supported.
    pub(super) fn take_key(&mut self, secrets: ConnectionTrafficSecrets) -> io::Result<()> {
        (self.decrypter, self.sequence) = (decrypter(self.suite, secrets)?, 0);
        Ok(())
    }

    /// Decrypts the first record of the input; returns its length and its content. `None` if the record is incomplete.
    ///
    /// # Errors
    /// The record is invalid, or the client reports an error. No later record can be decrypted.
    pub(super) fn open<'a>(
        &mut self,
        incoming: &'a mut [u8],
    ) -> Result<Option<(usize, TlsRecordContent<'a>)>, TlsRecordError> {
        let Some(&[kind, major, minor, high, low]) = incoming.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let is_tls13 = self.suite.tls13().is_some();
        // Maximum lengths: RFC 8446, section 5.2; RFC 5246, section 6.2.3.
        if length > (16 << 10) + if is_tls13 { 256 } else { 2048 } {
            return Err(TlsRecordError::Wrong(AlertDescription::RecordOverflow));
        }
        let kind = ContentType::from(kind);
        // RFC 8446, section 5.2: the real type is encrypted.
        if is_tls13 && kind != ContentType::ApplicationData {
            return Err(TlsRecordError::Wrong(AlertDescription::UnexpectedMessage));
        }
        let Some(payload) = incoming.get_mut(HEADER_BYTES..HEADER_BYTES + length) else { return Ok(None) };
        let version = ProtocolVersion::from(u16::from_be_bytes([major, minor]));
        let record = InboundOpaqueMessage::new(kind, version, payload);
        let record = self.decrypter.decrypt(record, self.sequence).map_err(|error| match error {
            Error::PeerSentOversizedRecord => TlsRecordError::Wrong(AlertDescription::RecordOverflow),
            Error::PeerMisbehaved(_) => TlsRecordError::Wrong(AlertDescription::UnexpectedMessage),
            _ => TlsRecordError::Wrong(AlertDescription::BadRecordMac),
        })?;
        self.sequence += 1;
        let content = read(&record, is_tls13)?;
        if matches!(content, TlsRecordContent::Data(_)) {
            self.fruitless_records = 0;
        } else {
            self.fruitless_records += 1;
            if self.fruitless_records > FRUITLESS_RECORDS_MAX {
                return Err(TlsRecordError::Wrong(AlertDescription::UnexpectedMessage));
            }
        }
        Ok(Some((HEADER_BYTES + length, content)))
    }
}

fn decrypter(suite: SupportedCipherSuite, secrets: ConnectionTrafficSecrets) -> io::Result<Box<dyn MessageDecrypter>> {
    let (key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    Ok(match suite {
        SupportedCipherSuite::Tls13(suite) => suite.aead_alg.decrypter(key, iv),
        SupportedCipherSuite::Tls12(suite) => {
            // The rest of the nonce is sent with each record.
            let fixed_bytes = suite.aead_alg.key_block_shape().fixed_iv_len;
            suite.aead_alg.decrypter(key, &iv.as_ref()[..fixed_bytes])
        }
    })
}

/// Interprets a record. Of handshake messages, only KeyUpdate is allowed (RFC 8446, section 4.6). No certificate was
/// requested, and renegotiation is not supported.
fn read<'a>(record: &InboundPlainMessage<'a>, is_tls13: bool) -> Result<TlsRecordContent<'a>, TlsRecordError> {
    const WARNING: u8 = 1;
    match (record.typ, record.payload) {
        (ContentType::ApplicationData, []) => Ok(TlsRecordContent::Nothing),
        (ContentType::ApplicationData, data) => Ok(TlsRecordContent::Data(data)),
        (ContentType::Alert, &[level, description]) => match AlertDescription::from(description) {
            AlertDescription::CloseNotify => Ok(TlsRecordContent::End),
            // RFC 8446, section 6: all other alerts are fatal, at any level.
            AlertDescription::UserCanceled => Ok(TlsRecordContent::Nothing),
            _ if level == WARNING && !is_tls13 => Ok(TlsRecordContent::Nothing),
            alert => Err(TlsRecordError::Failed(alert)),
        },
        // The message must be the last of its record (section 5.1).
        (ContentType::Handshake, &[24, 0, 0, 1, wanted @ (0 | 1)]) if is_tls13 => {
            Ok(TlsRecordContent::NewKey { is_wanted_here: wanted == 1 })
        }
        (ContentType::Alert, _) => Err(TlsRecordError::Wrong(AlertDescription::DecodeError)),
        _ => Err(TlsRecordError::Wrong(AlertDescription::UnexpectedMessage)),
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
    };
    use rustls::crypto::cipher::{AeadKey, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage};

    use super::*;

    /// Suites with distinct key lengths; keys of other lengths cannot be made here.
    const SUITES: [SupportedCipherSuite; 4] = [
        TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];

    fn iv() -> Iv {
        Iv::new([3; 12])
    }

    fn key() -> AeadKey {
        AeadKey::from([5; 32])
    }

    fn secrets(suite: SupportedCipherSuite) -> ConnectionTrafficSecrets {
        match format!("{:?}", suite.suite()).contains("CHACHA") {
            true => ConnectionTrafficSecrets::Chacha20Poly1305 { key: key(), iv: iv() },
            false => ConnectionTrafficSecrets::Aes256Gcm { key: key(), iv: iv() },
        }
    }

    fn encrypter(suite: SupportedCipherSuite) -> Box<dyn MessageEncrypter> {
        match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key(), iv()),
            SupportedCipherSuite::Tls12(suite) => {
                let fixed_bytes = suite.aead_alg.key_block_shape().fixed_iv_len;
                suite.aead_alg.encrypter(key(), &[3; 12][..fixed_bytes], &[3; 8])
            }
        }
    }

    fn seal(encrypter: &mut dyn MessageEncrypter, typ: ContentType, content: &[u8], sequence: u64) -> Vec<u8> {
        let payload = OutboundChunks::Single(content);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        encrypter.encrypt(message, sequence).expect("it can be encrypted").encode()
    }

    #[test]
    fn what_records_say() {
        use ContentType::{Alert, ApplicationData, ChangeCipherSpec, Handshake};
        use TlsRecordContent::{Data, End, NewKey, Nothing};
        let wrong = |alert| Err(TlsRecordError::Wrong(alert));
        let failed = |alert| Err(TlsRecordError::Failed(alert));
        let unexpected = || wrong(AlertDescription::UnexpectedMessage);
        for suite in SUITES {
            let is_tls13 = suite.tls13().is_some();
            let of_13 = |expect| if is_tls13 { expect } else { unexpected() };
            for (kind, content, expect) in [
                (ApplicationData, &b"data"[..], Ok(Data(b"data"))),
                (ApplicationData, b"", Ok(Nothing)),
                (Alert, &[1, 0], Ok(End)),
                (Alert, &[2, 0], Ok(End)),
                (Alert, &[1, 90], Ok(Nothing)),
                (Alert, &[2, 20], failed(AlertDescription::BadRecordMac)),
                (Alert, &[1, 100], if is_tls13 { failed(AlertDescription::NoRenegotiation) } else { Ok(Nothing) }),
                (Alert, &[2], wrong(AlertDescription::DecodeError)),
                (Alert, &[1, 0, 1, 0], wrong(AlertDescription::DecodeError)),
                (Handshake, &[24, 0, 0, 1, 0], of_13(Ok(NewKey { is_wanted_here: false }))),
                (Handshake, &[24, 0, 0, 1, 1], of_13(Ok(NewKey { is_wanted_here: true }))),
                (Handshake, &[24, 0, 0, 1, 2], unexpected()),
                (Handshake, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], unexpected()),
                (Handshake, &[1, 0, 0, 0], unexpected()),
                (ChangeCipherSpec, &[1], unexpected()),
            ] {
                let mut opener = RecordOpener::new(suite, secrets(suite), 7).unwrap();
                let mut sealed = seal(&mut *encrypter(suite), kind, content, 7);
                let length = sealed.len();
                sealed.extend_from_slice(b"more");
                let opened = opener.open(&mut sealed).map(|opened| opened.expect("it is whole"));
                let expect = expect.map(|content| (length, content));
                assert_eq!(opened, expect, "{:?} {kind:?} {content:?}", suite.suite());
            }
        }
    }

    #[test]
    fn only_whole_records_in_their_order_are_taken() {
        for suite in SUITES {
            let mut encrypter = encrypter(suite);
            let mut opener = RecordOpener::new(suite, secrets(suite), 0).unwrap();
            let mut seal =
                |sequence: u64, content: &[u8]| seal(&mut *encrypter, ContentType::ApplicationData, content, sequence);
            let (sealed, mut second, mut third) = (seal(0, b"first"), seal(1, b"second"), seal(2, b"third"));
            for length in 0..sealed.len() {
                assert_eq!(opener.open(&mut sealed[..length].to_vec()), Ok(None), "{length}");
            }
            assert_eq!(opener.open(&mut sealed.clone()), Ok(Some((sealed.len(), TlsRecordContent::Data(b"first")))));
            // A record repeated, a later record too early, and a changed record.
            assert_eq!(opener.open(&mut sealed.clone()), Err(TlsRecordError::Wrong(AlertDescription::BadRecordMac)));
            assert_eq!(opener.open(&mut third), Err(TlsRecordError::Wrong(AlertDescription::BadRecordMac)));
            *second.last_mut().unwrap() ^= 1;
            assert_eq!(opener.open(&mut second), Err(TlsRecordError::Wrong(AlertDescription::BadRecordMac)));
            // A record that is too long is rejected before it is complete.
            let long = &mut [23, 3, 3, 0x48, 1];
            assert_eq!(opener.open(long), Err(TlsRecordError::Wrong(AlertDescription::RecordOverflow)));
        }
    }

    #[test]
    fn a_new_key_counts_from_the_beginning() {
        let suite = TLS13_AES_256_GCM_SHA384;
        let mut opener = RecordOpener::new(suite, secrets(suite), 9).unwrap();
        opener.take_key(secrets(suite)).unwrap();
        let mut sealed = seal(&mut *encrypter(suite), ContentType::ApplicationData, b"new", 0);
        assert_eq!(opener.open(&mut sealed).map(|opened| opened.unwrap().1), Ok(TlsRecordContent::Data(b"new")));
    }

    #[test]
    fn records_that_bring_nothing_have_a_limit() {
        let suite = TLS13_CHACHA20_POLY1305_SHA256;
        let mut encrypter = encrypter(suite);
        let mut opener = RecordOpener::new(suite, secrets(suite), 0).unwrap();
        let mut open = |sequence: u32, content: &[u8]| {
            let mut sealed = seal(&mut *encrypter, ContentType::ApplicationData, content, sequence.into());
            opener.open(&mut sealed).map(|_| ())
        };
        for sequence in 0..FRUITLESS_RECORDS_MAX {
            assert_eq!(open(sequence, b""), Ok(()));
        }
        assert_eq!(open(FRUITLESS_RECORDS_MAX, b"data"), Ok(()));
        for sequence in 1..=FRUITLESS_RECORDS_MAX {
            assert_eq!(open(FRUITLESS_RECORDS_MAX + sequence, b""), Ok(()));
        }
        let rejected = Err(TlsRecordError::Wrong(AlertDescription::UnexpectedMessage));
        assert_eq!(open(2 * FRUITLESS_RECORDS_MAX + 1, b""), rejected);
    }
}
