//! Subject of a certificate as text (RFC 4514): `CN=anna,O=Example`, the most specific part first, as in nginx's
//! `$ssl_client_s_dn`. The owner of a certificate chooses its names. So every character that is special in this form,
//! in a header field or in a log is escaped.

use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::ToDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// Subject of a certificate in printable ASCII; `None` if it cannot be parsed.
pub(super) fn subject_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    // RFC 4514, section 2.1: starts with the last one.
    let mut names: Vec<_> = certificate.subject().iter_rdn().collect();
    names.reverse();
    let mut text = String::new();
    for (index, name) in names.into_iter().enumerate() {
        for (part, attribute) in name.iter().enumerate() {
            match (index, part) {
                (0, 0) => {}
                (_, 0) => text.push(','),
                _ => text.push('+'),
            }
            push_attribute(&mut text, attribute)?;
        }
    }
    Some(text)
}

/// Registered short names of attributes (RFC 4514, section 3; RFC 4519).
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "sn"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.42", "givenName"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    // Not registered for this use, but written by OpenSSL and most others.
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// `None` if the value cannot be encoded; a parsed value always can.
fn push_attribute(text: &mut String, attribute: &AttributeTypeAndValue<'_>) -> Option<()> {
    let oid = attribute.attr_type().to_id_string();
    let name = SHORT_NAMES.iter().find(|(known, _)| *known == oid).map(|(_, name)| *name);
    text.push_str(name.unwrap_or(&oid));
    text.push('=');
    match attribute.as_str() {
        Ok(value) if name.is_some() => push_value(text, value),
        // Section 2.4: a value of unknown syntax is written in its encoding.
        _ => {
            text.push('#');
            let encoding = attribute.attr_value().to_der_vec().ok()?;
            encoding.iter().for_each(|byte| push_hex(text, *byte));
        }
    }
    Some(())
}

fn push_value(text: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'=' | b'>' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'#' if at == 0 => text.push_str("\\#"),
            b' ' if at == 0 || at == last => text.push_str("\\ "),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                text.push('\\');
                push_hex(text, byte);
            }
        }
    }
}

fn push_hex(text: &mut String, byte: u8) {
    // Writing to a string does not fail.
    let _ = write!(text, "{byte:02X}");
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn subject(attributes: &[(DnType, &str)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*value).into()));
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        subject_of(certificate.der()).unwrap()
    }

    #[test]
    fn subjects() {
        let check = |attributes: &[(DnType, &str)], expect: &str| assert_eq!(subject(attributes), expect);
        check(&[], "");
        check(
            &[(DnType::CountryName, "AT"), (DnType::OrganizationName, "Example"), (DnType::CommonName, "Anna Berger")],
            "CN=Anna Berger,O=Example,C=AT",
        );
        // Text that looks like another attribute, ends a line, or reorders text on a terminal.
        let hostile = [
            ("a,O=Admins", "CN=a\\,O\\=Admins"),
            ("a+O=b;c<d>\"e\\", "CN=a\\+O\\=b\\;c\\<d\\>\\\"e\\\\"),
            ("#00", "CN=\\#00"),
            (" a b ", "CN=\\ a b\\ "),
            (" ", "CN=\\ "),
            ("a\r\nX: y\0", "CN=a\\0D\\0AX: y\\00"),
            ("ä\u{202e}", "CN=\\C3\\A4\\E2\\80\\AE"),
        ];
        for (value, expect) in hostile {
            check(&[(DnType::CommonName, value)], expect);
        }
        check(&[(DnType::CustomDnType(vec![1, 2, 3, 4]), "ab")], "1.2.3.4=#0C026162");
        check(&[(DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), "a@b")], "emailAddress=a@b");
    }

    #[test]
    fn what_is_no_certificate_has_none() {
        assert_eq!(subject_of(&CertificateDer::from(&b"\x30\x03abc"[..])), None);
    }
}
