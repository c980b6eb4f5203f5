//! Numbers and addresses as text, without the overhead of `fmt`.

use std::io::Write;
use std::net::IpAddr;

pub(super) use wire::http::push_decimal;

use super::date::DateTexts;

/// Decimal text of 0 to 255 with a dot after it, and its length.
const OCTETS: [([u8; 4], usize); 256] = {
    let mut octets = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8];
        let length = if octet < 10 {
            1
        } else if octet < 100 {
            2
        } else {
            3
        };
        let mut at = 0;
        while at < length {
            octets[octet].0[at] = digits[3 - length + at];
            at += 1;
        }
        octets[octet].1 = length + 1;
        octet += 1;
    }
    octets
};

/// Appends the lowest N decimal digits of a number.
pub(super) fn push_digits<const N: usize>(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

/// Appends a time in RFC 3339: `2026-11-21T07:41:51.123456Z`.
pub(super) fn push_timestamp(out: &mut Vec<u8>, unix_us: u64, dates: &mut DateTexts) {
    out.extend_from_slice(dates.at(unix_us / 1_000_000).rfc3339());
    out.push(b'.');
    push_digits::<6>(out, unix_us);
    out.push(b'Z');
}

/// Appends an address: IPv6 as in RFC 5952, IPv4-mapped ones as IPv4.
pub fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let mut text = [0; 16];
            let mut length = 0;
            for octet in address.octets() {
                let (digits, digits_length) = OCTETS[usize::from(octet)];
                text[length..length + 4].copy_from_slice(&digits);
                length += digits_length;
            }
            // Copies all four bytes, because a copy of fixed length is a move and one of variable length a call. The
            // last dot is removed.
            let start = out.len();
            out.extend_from_slice(&text);
            out.truncate(start + length - 1);
        }
        // The library finds the longest run of zeros. Writing to a vector does not fail.
        IpAddr::V6(address) => {
            let _ = write!(out, "{address}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{push_address, push_digits};

    #[test]
    fn digits() {
        let check = |number, expect: &str| {
            let mut out = Vec::new();
            push_digits::<6>(&mut out, number);
            assert_eq!(out, expect.as_bytes());
        };
        check(0, "000000");
        check(42, "000042");
        check(123_456, "123456");
        check(9_123_456, "123456");
    }

    #[test]
    fn addresses() {
        for text in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1", "2001:db8::1:0:0:1", "fe80::1"] {
            let mut out = Vec::new();
            push_address(&mut out, text.parse().unwrap());
            assert_eq!(out, text.as_bytes());
        }
        for octet in 0..=255 {
            let address = Ipv4Addr::new(octet, 255 - octet, octet / 2, octet);
            let mut out = b"before ".to_vec();
            push_address(&mut out, address.into());
            assert_eq!(out, format!("before {address}").into_bytes());
        }
        let mut out = Vec::new();
        push_address(&mut out, "::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(out, b"192.0.2.1");
    }
}
