//! Alerts that rustls does not send, or sends with another code than RFC 8446 requires.

use rustls::server::AcceptedAlert;
use rustls::{AlertDescription, Error, PeerIncompatible};

/// Fatal alert before there are keys (RFC 8446, section 6).
pub fn plain(description: AlertDescription) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, FATAL, u8::from(description)]
}

/// Content type of an alert's record.
const ALERT: u8 = 21;

/// Level of an alert that ends the connection.
const FATAL: u8 = 2;

/// Alert for a client's first message: that of rustls, or one of this module if it has none.
pub fn of_first_message(error: &Error, mut alert: AcceptedAlert) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = alert.write_all(&mut bytes);
    if bytes.is_empty() {
        bytes.extend_from_slice(&plain(missing_of(error)));
    }
    bytes
}

/// Alert for an error that rustls only returns.
fn missing_of(error: &Error) -> AlertDescription {
    match error {
        // Unexpected messages, and records between the fragments of a message (section 5.1).
        Error::PeerMisbehaved(_) | Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            AlertDescription::UnexpectedMessage
        }
        _ => AlertDescription::DecodeError,
    }
}

/// Corrects the alert for this error, which is the last unsent record: rustls sends handshake_failure if a ClientHello
/// of TLS 1.3 has no key_share (section 9.2). There are no keys yet, so the alert is plain.
pub fn correct(error: &Error, unsent: &mut [u8]) {
    if let Error::PeerIncompatible(PeerIncompatible::KeyShareExtensionRequired) = error
        && let [.., ALERT, 3, _, 0, 2, FATAL, description] = unsent
    {
        *description = u8::from(AlertDescription::MissingExtension);
    }
}

/// True if an unsent record is an alert, plain or encrypted. TLS 1.3 labels encrypted alerts as application data. Only
/// an alert has two bytes in addition to its type and an authentication tag of 16 bytes.
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
        // An encrypted record, and an empty one.
        let encrypted = vec![23, 3, 3, 0, 2, 2, 40];
        assert_eq!(corrected(PeerIncompatible::KeyShareExtensionRequired, encrypted.clone()), encrypted);
        assert!(corrected(PeerIncompatible::KeyShareExtensionRequired, Vec::new()).is_empty());
    }
}
