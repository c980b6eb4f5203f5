//! MD5 crypt: `$1$` of crypt(5), and `$apr1$` of Apache's htpasswd, which differs in this name only.

use md5::{Digest, Md5};

use super::passwords::is_equal;

/// Digits of crypt(5), in the order of their values.
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Rounds after the first digest.
const ROUNDS: usize = 1_000;

/// Bytes of the digest that make four digits, the last first; byte 11 makes two digits alone.
const GROUPS: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// Returns true if the password matches the hash.
pub(super) fn is_md5_crypt(password: &[u8], hash: &str) -> bool {
    let parts: Vec<_> = hash.split('$').collect();
    let ["", name, salt, expect] = parts.as_slice() else { return false };
    is_equal(&digits(password, &format!("${name}$"), salt.as_bytes()), expect.as_bytes())
}

fn digits(password: &[u8], magic: &str, salt: &[u8]) -> Vec<u8> {
    let alternate = md5(&[password, salt, password]);
    let mut first = [password, magic.as_bytes(), salt].concat();
    first.extend(alternate.iter().cycle().take(password.len()));
    // For each bit of the length: a zero, or the first byte of the password.
    let mut length = password.len();
    while length > 0 {
        first.push(if length & 1 == 1 { 0 } else { password[0] });
        length >>= 1;
    }
    let mut digest = md5(&[&first]);
    for round in 0..ROUNDS {
        let (before, after): (&[u8], &[u8]) = if round % 2 == 1 { (password, &digest) } else { (&digest, password) };
        let salt = if round % 3 == 0 { &[] } else { salt };
        let again = if round % 7 == 0 { &[] } else { password };
        digest = md5(&[before, salt, again, after]);
    }
    let mut digits = Vec::with_capacity(22);
    for [high, middle, low] in GROUPS {
        push_digits(
            u32::from(digest[high]) << 16 | u32::from(digest[middle]) << 8 | u32::from(digest[low]),
            4,
            &mut digits,
        );
    }
    push_digits(u32::from(digest[11]), 2, &mut digits);
    digits
}

fn push_digits(mut number: u32, count: usize, digits: &mut Vec<u8>) {
    for _ in 0..count {
        digits.push(DIGITS[number as usize & 63]);
        number >>= 6;
    }
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut digest = Md5::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes by `openssl passwd`.
    #[test]
    fn hashes_of_openssl() {
        for (password, hash) in [
            ("", "$apr1$a$lsAcX0kKaMIVmrCtUuk5b0"),
            ("", "$apr1$saltsalt$a8ml/vK5HEjiZ5oypDWA7/"),
            ("a", "$apr1$a$drFGR/9p/sjZ9/qPTUuIf/"),
            ("a", "$apr1$saltsalt$OEnK0QmmvoDzFw9W2yFYT/"),
            ("secret", "$apr1$a$PtM1vJaZieHDFk40mKMu6/"),
            ("secret", "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0"),
            ("0123456789abcdef", "$apr1$a$khwFEGycQESUBHFR0UD/c."),
            ("0123456789abcdef", "$apr1$saltsalt$noZiBycUL1t9WTQEO7/nr1"),
            ("0123456789abcdefg", "$apr1$a$zNcJqxMW4ckd4C2f.ntE9."),
            ("0123456789abcdefg", "$apr1$saltsalt$zEghXWGhM0psocYwTG.hX1"),
            ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "$apr1$a$zUlTZGctQQfxbUpJ5PF6C/"),
            ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "$apr1$saltsalt$2mFfzhmPOknAGlGo8.2/30"),
            ("", "$1$a$8CfZSfErbeskipdhZHtvu."),
            ("", "$1$saltsalt$5Jhcit4zN9UlGiA0txPkO0"),
            ("a", "$1$a$44cUw6Nm5bX0muHWNIwub0"),
            ("a", "$1$saltsalt$MzDjbImyzEz2m0NTiPzNW/"),
            ("secret", "$1$a$41c8gzdxX5iFFuqkeAdoe0"),
            ("secret", "$1$saltsalt$9xy1btjgzLYfb7hivXtC//"),
            ("0123456789abcdef", "$1$a$UOUvPr.Ilh/vv.poBgMwg1"),
            ("0123456789abcdef", "$1$saltsalt$xXjYoUe111lGDGm6AfLHb1"),
            ("0123456789abcdefg", "$1$a$v93HouCa/nlIdgWEtQ1Ev1"),
            ("0123456789abcdefg", "$1$saltsalt$Tz7GELx6iQQ6ls/oXi2H3/"),
            ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "$1$a$i5M8V/6kem6O00qwN6oAP1"),
            ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "$1$saltsalt$lTT80f5GEB.8cfLv43D0D1"),
        ] {
            assert!(is_md5_crypt(password.as_bytes(), hash), "{password} {hash}");
            assert!(!is_md5_crypt(format!("{password}x").as_bytes(), hash), "{password} {hash}");
        }
        assert!(!is_md5_crypt(b"a", "$apr1$a") && !is_md5_crypt(b"a", ""));
    }
}
