//! Alerts where rustls sends none, or another than RFC 8446 asks for.

use rustls::server::AcceptedAlert;
use rustls::{AlertDescription, Error, PeerIncompatible};

/// A fatal alert before there are keys (RFC 8446, section 6).
pub fn plain(description: AlertDescription) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, FATAL, u8::from(description)]
}

/// Content type of an alert's record.
const ALERT: u8 = 21;

/// Level of an alert that ends the connection.
const FATAL: u8 = 2;

/// The alert for a client's first message: rustls's, or one of ours where it has none.
pub fn of_first_message(error: &Error, mut alert: AcceptedAlert) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Memory takes all of it.
    let _ = alert.write_all(&mut bytes);
    if bytes.is_empty() {
        bytes.extend_from_slice(&plain(missing_of(error)));
    }
    bytes
}

/// The alert for an error that rustls only returns.
fn missing_of(error: &Error) -> AlertDescription {
    match error {
        // Messages that are not expected, and records between the fragments of one (section 5.1).
        Error::PeerMisbehaved(_) | Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            AlertDescription::UnexpectedMessage
        }
        _ => AlertDescription::DecodeError,
    }
}

/// Corrects the alert for this error, which is the last of what is to be sent: rustls says handshake_failure where a
/// ClientHello of TLS 1.3 has no key_share (section 9.2). There are no keys yet, so that the alert is plain.
pub fn correct(error: &Error, unsent: &mut [u8]) {
    if let Error::PeerIncompatible(PeerIncompatible::KeyShareExtensionRequired) = error
        && let [.., ALERT, 3, _, 0, 2, FATAL, description] = unsent
    {
        *description = u8::from(AlertDescription::MissingExtension);
    }
}

/// True if a record to be sent is an alert, plain or encrypted: those of TLS 1.3 say that they are application data, but only
/// an alert has two bytes, besides its type and an authentication tag of 16 bytes.
pub fn is_alert(record: &[u8]) -> bool {
    matches!(record, [ALERT, ..] | [APPLICATION_DATA, _, _, 0, 19, ..])
}

/// Content type of a record of application data.
const APPLICATION_DATA: u8 = 23;

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{InvalidMessage, PeerMisbehaved};

    #[test]
    fn errors_without_an_alert_get_one() {
        let check = |error: Error, expect: AlertDescription| assert_eq!(missing_of(&error), expect, "{error:?}");
        check(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into(), AlertDescription::UnexpectedMessage);
        check(PeerMisbehaved::TooManyEmptyFragments.into(), AlertDescription::UnexpectedMessage);
        check(InvalidMessage::HandshakePayloadTooLarge.into(), AlertDescription::DecodeError);
    }

    #[test]
    fn only_the_alert_for_a_missing_extension_is_corrected() {
        let failure = plain(AlertDescription::HandshakeFailure);
        let corrected = |error: PeerIncompatible, mut unsent: Vec<u8>| {
            correct(&error.into(), &mut unsent);
            unsent
        };
        let missing = plain(AlertDescription::MissingExtension);
        assert_eq!(corrected(PeerIncompatible::KeyShareExtensionRequired, failure.to_vec()), missing);
        assert_eq!(corrected(PeerIncompatible::NoCipherSuitesInCommon, failure.to_vec()), failure);
        // An encrypted record, and nothing.
        let encrypted = vec![23, 3, 3, 0, 2, 2, 40];
        assert_eq!(corrected(PeerIncompatible::KeyShareExtensionRequired, encrypted.clone()), encrypted);
        assert!(corrected(PeerIncompatible::KeyShareExtensionRequired, Vec::new()).is_empty());
    }
}
