//! Certificate authorities (CAs) that an image without a distribution trusts: Mozilla's list, of the version in Cargo.lock.

use std::fmt::Write as _;

use base64ct::{Base64, Encoding};

/// Letters in a line of PEM (RFC 7468, section 2).
const LINE_LETTERS: usize = 64;

/// All of them, as `ca-certificates.crt` of distributions has them.
pub(super) fn pem() -> String {
    webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|certificate| one(certificate)).collect()
}

fn one(certificate: &[u8]) -> String {
    let text = Base64::encode_string(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(LINE_LETTERS) {
        // Base64 is ASCII, and a String takes whatever is written.
        let _ = writeln!(pem, "{}", String::from_utf8_lossy(line));
    }
    pem + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_and_whole() {
        let pem = one(&[b'x'; 50]);
        let lines: Vec<&str> = pem.lines().collect();
        assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
        assert_eq!(lines[1].len(), LINE_LETTERS);
        assert_eq!(Base64::decode_vec(&lines[1..3].concat()).expect("it is Base64"), [b'x'; 50]);
        assert_eq!(lines[3..], ["-----END CERTIFICATE-----"]);
    }

    #[test]
    fn there_are_authorities() {
        assert!(pem().matches("BEGIN CERTIFICATE").count() > 100);
    }
}
