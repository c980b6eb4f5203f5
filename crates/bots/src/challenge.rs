//! Challenges: tokens that clients return with a proof of work, or after a wait, and the cookies that remember it.
//!
//! Both are signed, and neither needs a table: a token holds its time and difficulty, a cookie the end of its validity.
//! The signature also covers the client's network, its `User-Agent` and the host, so that nothing of it works elsewhere.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::{digest, hmac};
use base64ct::{Base64UrlUnpadded, Encoding};
use serde::{Deserialize, Serialize};

/// Name of the cookie.
pub const COOKIE_NAME: &str = "tailcoat-pass";

/// Time for which a token can be returned, in seconds. The page of a patient visitor may stay open for a while.
pub const TOKEN_SECONDS: u64 = 1_800;

/// Bytes of a secret key.
pub const KEY_BYTES: usize = 32;

/// Most bits of work that a token may ask for.
pub const WORK_BITS_MAX: u8 = 32;

/// Bytes of a signature. Half of SHA-256 is enough, because guesses need a request each.
const MAC_BYTES: usize = 16;

/// Bytes of a token or cookie before the signature.
const BODY_BYTES: usize = 11;

const SEALED_BYTES: usize = BODY_BYTES + MAC_BYTES;

/// Longest solution.
const NONCE_BYTES_MAX: usize = 20;

/// Client that a token or cookie is for.
#[derive(Clone, Copy, Debug)]
pub struct ChallengedClient<'a> {
    /// Address; `None` over a unix socket.
    pub address: Option<IpAddr>,
    /// `User-Agent`.
    pub user_agent: &'a [u8],
    /// Host of the request.
    pub host: &'a [u8],
}

/// Terms of a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Time of issue, in seconds since 1970.
    pub issued_s: u64,
    /// Leading zero bits of a proof of work.
    pub work_bits: u8,
    /// Seconds that clients without JavaScript wait.
    pub wait_s: u16,
}

/// Way in which a client has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedBy {
    /// By a proof of work.
    Work,
    /// By waiting.
    Wait,
}

/// Reason for which a token or its solution is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeFault {
    /// This server has not issued the token, or not for this client.
    Invalid,
    /// The token is too old.
    Expired,
    /// The client has not waited long enough, or the proof is wrong.
    Unsolved,
}

/// Key that signs tokens and cookies.
#[derive(Debug)]
pub struct ChallengeKey(hmac::Key);

/// Secret from which a key is made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChallengeSecret([u8; KEY_BYTES]);

impl fmt::Debug for ChallengeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the secret.
        f.write_str("ChallengeSecret")
    }
}

impl ChallengeSecret {
    /// Makes a random secret.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn generate() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut secret = [0; KEY_BYTES];
        aws_lc_rs::rand::fill(&mut secret)?;
        Ok(Self(secret))
    }

    /// Derives the secret that all instances with this secret derive. The other one has more uses, so it signs nothing itself.
    pub fn derived(secret: &[u8]) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"tailcoat challenges");
        let mut derived = [0; KEY_BYTES];
        derived.copy_from_slice(tag.as_ref());
        Self(derived)
    }

    /// Makes the key.
    pub fn key(&self) -> ChallengeKey {
        ChallengeKey::new(&self.0)
    }
}

/// Use of a signature, so that a token is no cookie.
#[derive(Clone, Copy)]
enum Purpose {
    Token = 1,
    Cookie = 2,
}

impl ChallengeKey {
    /// Makes the key of a secret.
    pub fn new(secret: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Issues a token.
    pub fn issue(&self, client: &ChallengedClient<'_>, terms: Terms) -> String {
        let wait = terms.wait_s.to_le_bytes();
        self.seal(Purpose::Token, terms.issued_s, [terms.work_bits, wait[0], wait[1]], client)
    }

    /// Checks a token, and the client's solution. Without one, the client must have waited.
    ///
    /// # Errors
    /// The token or its solution is not accepted.
    pub fn check(
        &self,
        client: &ChallengedClient<'_>,
        token: &[u8],
        nonce: Option<&[u8]>,
        now_s: u64,
    ) -> Result<PassedBy, ChallengeFault> {
        let (issued_s, [work_bits, low, high]) =
            self.open(Purpose::Token, token, client).ok_or(ChallengeFault::Invalid)?;
        let age_s = now_s.checked_sub(issued_s).ok_or(ChallengeFault::Invalid)?;
        if age_s > TOKEN_SECONDS {
            return Err(ChallengeFault::Expired);
        }
        match nonce {
            Some(nonce) if is_solved(token, nonce, work_bits) => Ok(PassedBy::Work),
            None if age_s >= u64::from(u16::from_le_bytes([low, high])) => Ok(PassedBy::Wait),
            _ => Err(ChallengeFault::Unsolved),
        }
    }

    /// Value of the cookie of a client that has passed, valid until `until_s`.
    pub fn pass(&self, client: &ChallengedClient<'_>, until_s: u64, passed_by: PassedBy) -> String {
        let by = match passed_by {
            PassedBy::Work => 1,
            PassedBy::Wait => 2,
        };
        self.seal(Purpose::Cookie, until_s, [by, 0, 0], client)
    }

    /// Time until which a cookie is valid; `None` if it is not.
    pub fn valid_until(&self, client: &ChallengedClient<'_>, cookie: &[u8], now_s: u64) -> Option<u64> {
        let (until_s, _) = self.open(Purpose::Cookie, cookie, client)?;
        (now_s < until_s).then_some(until_s)
    }

    fn seal(&self, purpose: Purpose, time_s: u64, more: [u8; 3], client: &ChallengedClient<'_>) -> String {
        let mut sealed = [0; SEALED_BYTES];
        sealed[..8].copy_from_slice(&time_s.to_le_bytes());
        sealed[8..BODY_BYTES].copy_from_slice(&more);
        let tag = self.sign(purpose, &sealed[..BODY_BYTES], client);
        sealed[BODY_BYTES..].copy_from_slice(&tag.as_ref()[..MAC_BYTES]);
        Base64UrlUnpadded::encode_string(&sealed)
    }

    fn open(&self, purpose: Purpose, text: &[u8], client: &ChallengedClient<'_>) -> Option<(u64, [u8; 3])> {
        let mut sealed = [0; SEALED_BYTES];
        if Base64UrlUnpadded::decode(text, &mut sealed).ok()?.len() != SEALED_BYTES {
            return None;
        }
        let (body, mac) = sealed.split_at(BODY_BYTES);
        let tag = self.sign(purpose, body, client);
        aws_lc_rs::constant_time::verify_slices_are_equal(&tag.as_ref()[..MAC_BYTES], mac).ok()?;
        let (time, more) = body.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*time), more.try_into().ok()?))
    }

    fn sign(&self, purpose: Purpose, body: &[u8], client: &ChallengedClient<'_>) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[purpose as u8]);
        context.update(body);
        context.update(&network_bytes(client.address));
        for text in [client.host, client.user_agent] {
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text);
        }
        context.sign()
    }
}

/// Network of a client: 24 bits of IPv4, 48 of IPv6. Mobile clients change their address often, and rarely their
/// network.
fn network_bytes(address: Option<IpAddr>) -> [u8; 8] {
    let mut bytes = [0; 8];
    match address.map(expression::unmapped) {
        None => {}
        Some(IpAddr::V4(v4)) => {
            bytes[0] = 4;
            bytes[1..4].copy_from_slice(&v4.octets()[..3]);
        }
        Some(IpAddr::V6(v6)) => {
            bytes[0] = 6;
            bytes[1..7].copy_from_slice(&v6.octets()[..6]);
        }
    }
    bytes
}

/// Returns true if the SHA-256 of token, a colon and nonce begins with so many zero bits.
pub fn is_solved(token: &[u8], nonce: &[u8], work_bits: u8) -> bool {
    if nonce.is_empty() || nonce.len() > NONCE_BYTES_MAX || !nonce.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(token);
    context.update(b":");
    context.update(nonce);
    let digest = context.finish();
    let first = digest.as_ref().first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
    work_bits <= WORK_BITS_MAX && first.leading_zeros() >= u32::from(work_bits)
}

/// The target that a client is sent to after a challenge: a path of the same host, or `/` for anything else.
pub fn safe_return_target(target: &[u8]) -> &[u8] {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>');
    let begins_path = target.first() == Some(&b'/') && !matches!(target.get(1), Some(b'/' | b'\\'));
    if begins_path && target.iter().all(is_plain) { target } else { b"/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn client<'a>(address: &str, user_agent: &'a str, host: &'a str) -> ChallengedClient<'a> {
        let address = (!address.is_empty()).then(|| address.parse().unwrap());
        ChallengedClient { address, user_agent: user_agent.as_bytes(), host: host.as_bytes() }
    }

    fn solution(token: &str, work_bits: u8) -> String {
        (0_u64..)
            .map(|nonce| nonce.to_string())
            .find(|nonce| is_solved(token.as_bytes(), nonce.as_bytes(), work_bits))
            .unwrap()
    }

    #[test]
    fn tokens() {
        let key = ChallengeKey::new(&[7; KEY_BYTES]);
        let me = client("192.0.2.1", "ua", "h");
        let token = key.issue(&me, Terms { issued_s: NOW_S, work_bits: 8, wait_s: 10 });
        let nonce = solution(&token, 8);
        let wrong = (0_u64..)
            .map(|nonce| nonce.to_string())
            .find(|nonce| !is_solved(token.as_bytes(), nonce.as_bytes(), 8))
            .unwrap();
        let check = |client: &ChallengedClient<'_>, token: &str, nonce: Option<&str>, after_s: i64| {
            key.check(client, token.as_bytes(), nonce.map(str::as_bytes), NOW_S.saturating_add_signed(after_s))
        };
        assert_eq!(check(&me, &token, Some(&nonce), 0), Ok(PassedBy::Work));
        assert_eq!(check(&me, &token, Some(&wrong), 100), Err(ChallengeFault::Unsolved));
        assert_eq!(check(&me, &token, Some(""), 100), Err(ChallengeFault::Unsolved));
        assert_eq!(check(&me, &token, None, 9), Err(ChallengeFault::Unsolved));
        assert_eq!(check(&me, &token, None, 10), Ok(PassedBy::Wait));
        assert_eq!(check(&me, &token, Some(&nonce), TOKEN_SECONDS as i64 + 1), Err(ChallengeFault::Expired));
        assert_eq!(check(&me, &token, Some(&nonce), -1), Err(ChallengeFault::Invalid));
        for other in [
            client("198.51.100.1", "ua", "h"),
            client("192.0.2.1", "other", "h"),
            client("192.0.2.1", "ua", "other"),
            // The boundary between host and User-Agent.
            client("192.0.2.1", "", "hua"),
            client("", "ua", "h"),
        ] {
            assert_eq!(check(&other, &token, Some(&nonce), 0), Err(ChallengeFault::Invalid), "{other:?}");
        }
        assert!(check(&client("192.0.2.200", "ua", "h"), &token, Some(&nonce), 0).is_ok(), "the same network");
        for token in ["", "A", "é", &token[1..], &format!("{token}A"), &"A".repeat(36)] {
            assert_eq!(check(&me, token, Some(&nonce), 0), Err(ChallengeFault::Invalid), "{token}");
        }
        let other_key = ChallengeKey::new(&[8; KEY_BYTES]);
        assert_eq!(other_key.check(&me, token.as_bytes(), None, NOW_S + 20), Err(ChallengeFault::Invalid));
    }

    #[test]
    fn cookies() {
        let key = ChallengeKey::new(&[7; KEY_BYTES]);
        let me = client("2001:db8:1:2::1", "ua", "h");
        let cookie = key.pass(&me, NOW_S + 60, PassedBy::Work);
        let until =
            |client: &ChallengedClient<'_>, cookie: &str, now_s: u64| key.valid_until(client, cookie.as_bytes(), now_s);
        assert_eq!(until(&me, &cookie, NOW_S), Some(NOW_S + 60));
        assert_eq!(until(&client("2001:db8:1:ffff::2", "ua", "h"), &cookie, NOW_S), Some(NOW_S + 60));
        assert_eq!(until(&client("2001:db8:2::1", "ua", "h"), &cookie, NOW_S), None);
        assert_eq!(until(&me, &cookie, NOW_S + 60), None);
        let token = key.issue(&me, Terms { issued_s: NOW_S + 60, work_bits: 1, wait_s: 0 });
        assert_eq!(until(&me, &token, NOW_S), None, "a token is no cookie");
        // Each bit counts; the last character has unused ones.
        let bytes = Base64UrlUnpadded::decode_vec(&cookie).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(until(&me, &Base64UrlUnpadded::encode_string(&changed), NOW_S), None, "{index}");
        }
    }

    #[test]
    fn secrets() {
        let me = client("192.0.2.1", "ua", "h");
        let keys = [b"one".as_slice(), b"one", b"two"].map(|secret| ChallengeSecret::derived(secret).key());
        let cookie = keys[0].pass(&me, NOW_S + 60, PassedBy::Work);
        let accepts = |key: &ChallengeKey| key.valid_until(&me, cookie.as_bytes(), NOW_S).is_some();
        assert_eq!(keys.each_ref().map(accepts), [true, true, false]);
        let [one, other] = [(); 2].map(|()| ChallengeSecret::generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(format!("{one:?}"), "ChallengeSecret");
    }

    #[test]
    fn work() {
        let token = "token";
        for work_bits in [0, 1, 8, 12] {
            assert!(is_solved(token.as_bytes(), solution(token, work_bits).as_bytes(), work_bits));
        }
        assert!(!is_solved(b"token", b"1", WORK_BITS_MAX + 1));
        for nonce in ["", "-1", "1a", "123456789012345678901"] {
            assert!(!is_solved(b"token", nonce.as_bytes(), 0), "{nonce}");
        }
    }

    #[test]
    fn return_targets() {
        for (target, expect) in [
            ("/a/b?c=d&e=%20", "/a/b?c=d&e=%20"),
            ("/", "/"),
            ("", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example/", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("/a b", "/"),
            ("javascript:alert(1)", "/"),
        ] {
            assert_eq!(safe_return_target(target.as_bytes()), expect.as_bytes(), "{target}");
        }
    }
}
