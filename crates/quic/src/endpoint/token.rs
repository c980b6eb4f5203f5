//! Tokens by which clients prove their addresses (RFC 9000, section 8.1).
//!
//! A token depends on the token key only, so that any process with the key can verify it.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, rand};

use crate::codec::Reader;
use crate::id::ConnectionId;

/// First byte of Retry tokens.
const RETRY: u8 = 1;

/// First byte of tokens of NEW_TOKEN frames.
const NEW_TOKEN: u8 = 2;

/// Bytes of a secret.
const KEY_BYTES: usize = 32;

/// Bits of a filter's generation, 32 KiB.
const FILTER_BITS: usize = 1 << 18;

/// Bits that each used token sets.
const FILTER_PROBES: usize = 3;

/// Tokens of a generation. If both are full, 1 in 30 unused tokens is taken for a used one.
const FILTER_TOKENS_MAX: u32 = 26_000;

/// Length of the filter's words, in bytes.
const WORD_BYTES: usize = size_of::<u64>();

/// Keys and lifetimes of tokens.
pub(super) struct Tokens {
    /// Cipher whose nonces may be random, because the key outlives many of them.
    key: Option<LessSafeKey>,
    retry_lifetime: Duration,
    token_lifetime: Duration,
    used: UsedTokens,
}

/// Result of the check of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// The token proves nothing. The client is treated as one without a token.
    Unknown,
    /// The token comes from a Retry packet of this server, but not to this client, or it is too old.
    BadRetry,
    /// The client has answered a Retry packet to the Initial packet with this destination ID.
    Retry { original_dcid: ConnectionId },
    /// The client had a connection from this address.
    Known,
}

/// Tokens that were used of late. A token that is missing here may be used twice, which is harmless: its client still
/// receives packets at the address.
#[derive(Default)]
struct UsedTokens {
    /// Generations of bits: the present one, and the one before. Empty before the first use.
    generations: [Vec<u64>; 2],
    /// Tokens of the present generation.
    count: u32,
    /// Time of the first token in the present generation, in seconds since 1970.
    since: u64,
}

impl Tokens {
    pub(super) fn new(secret: &[u8; KEY_BYTES], retry_lifetime: Duration, token_lifetime: Duration) -> Self {
        let pseudorandom = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(secret);
        let mut key = [0; KEY_BYTES];
        let derived = pseudorandom
            .expand(&[b"tailcoat quic tokens"], hkdf::HKDF_SHA256)
            .and_then(|material| material.fill(&mut key))
            .and_then(|()| UnboundKey::new(&AES_256_GCM_SIV, &key));
        // Without a key, no token is made, and none is accepted.
        let key = derived.ok().map(LessSafeKey::new);
        Self { key, retry_lifetime, token_lifetime, used: UsedTokens::default() }
    }

    /// Makes the token of a Retry packet; `None` without random numbers.
    pub(super) fn retry_token(
        &self,
        remote: SocketAddr,
        original_dcid: &ConnectionId,
        retry_scid: &ConnectionId,
    ) -> Option<Vec<u8>> {
        self.retry_token_at(remote, original_dcid, retry_scid, unix_seconds())
    }

    /// Makes the token of a NEW_TOKEN frame; `None` without random numbers.
    pub(super) fn new_token(&self, remote: IpAddr) -> Option<Vec<u8>> {
        self.new_token_at(remote, unix_seconds())
    }

    /// Checks the token of an Initial packet with the destination ID `dcid`.
    pub(super) fn check(&mut self, token: &[u8], remote: SocketAddr, dcid: &ConnectionId) -> Checked {
        if token.is_empty() { Checked::Unknown } else { self.check_at(token, remote, dcid, unix_seconds()) }
    }

    fn retry_token_at(
        &self,
        remote: SocketAddr,
        original_dcid: &ConnectionId,
        retry_scid: &ConnectionId,
        now: u64,
    ) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(96);
        text.extend_from_slice(&now.to_be_bytes());
        text.extend_from_slice(&ip_bytes(remote.ip()));
        text.extend_from_slice(&remote.port().to_be_bytes());
        for id in [original_dcid, retry_scid] {
            text.push(id.len() as u8);
            text.extend_from_slice(id);
        }
        self.seal(RETRY, &text)
    }

    fn new_token_at(&self, remote: IpAddr, now: u64) -> Option<Vec<u8>> {
        let mut text = [0; 24];
        text[..8].copy_from_slice(&now.to_be_bytes());
        text[8..].copy_from_slice(&ip_bytes(remote));
        self.seal(NEW_TOKEN, &text)
    }

    fn check_at(&mut self, token: &[u8], remote: SocketAddr, dcid: &ConnectionId, now: u64) -> Checked {
        let Some((kind, nonce, text)) = self.open(token) else { return Checked::Unknown };
        let checked = match kind {
            RETRY => {
                let original_dcid = self.check_retry(&text, remote, dcid, now);
                Some(original_dcid.map_or(Checked::BadRetry, |original_dcid| Checked::Retry { original_dcid }))
            }
            _ => self.check_new_token(&text, remote.ip(), nonce, now),
        };
        checked.unwrap_or(Checked::Unknown)
    }

    /// Original destination ID in a Retry token, if it is valid.
    fn check_retry(&self, text: &[u8], remote: SocketAddr, dcid: &ConnectionId, now: u64) -> Option<ConnectionId> {
        let mut reader = Reader::new(text);
        let issued = u64::from_be_bytes(reader.array()?);
        let is_of_remote =
            reader.array()? == ip_bytes(remote.ip()) && u16::from_be_bytes(reader.array()?) == remote.port();
        let mut next_id = || {
            let bytes = reader.u8()?;
            ConnectionId::new(reader.bytes(bytes.into())?)
        };
        let (original_dcid, retry_scid) = (next_id()?, next_id()?);
        let is_valid = is_of_remote && retry_scid == *dcid && is_fresh(issued, now, self.retry_lifetime);
        is_valid.then_some(original_dcid)
    }

    fn check_new_token(&mut self, text: &[u8], remote: IpAddr, nonce: [u8; NONCE_LEN], now: u64) -> Option<Checked> {
        let mut reader = Reader::new(text);
        let issued = u64::from_be_bytes(reader.array()?);
        let is_valid = reader.array()? == ip_bytes(remote) && is_fresh(issued, now, self.token_lifetime);
        let is_first_use = is_valid && self.used.insert(nonce, now, self.token_lifetime);
        is_first_use.then_some(Checked::Known)
    }

    fn seal(&self, kind: u8, text: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let key = self.key.as_ref()?;
        let mut token = Vec::with_capacity(1 + NONCE_LEN + text.len() + key.algorithm().tag_len());
        token.push(kind);
        token.extend_from_slice(&nonce);
        token.extend_from_slice(text);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([kind]), &mut token[1 + NONCE_LEN..]).ok()?;
        token.extend_from_slice(tag.as_ref());
        Some(token)
    }

    /// Kind, nonce and content of a token of this server.
    fn open(&self, token: &[u8]) -> Option<(u8, [u8; NONCE_LEN], Vec<u8>)> {
        let mut reader = Reader::new(token);
        let (kind, nonce) = (reader.u8()?, reader.array::<NONCE_LEN>()?);
        if ![RETRY, NEW_TOKEN].contains(&kind) {
            return None;
        }
        let mut text = reader.rest().to_vec();
        let opened =
            self.key.as_ref()?.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from([kind]), &mut text);
        let text_bytes = opened.ok()?.len();
        text.truncate(text_bytes);
        Some((kind, nonce, text))
    }
}

impl UsedTokens {
    /// Inserts the random nonce of a token. Returns false if it may be here already.
    fn insert(&mut self, nonce: [u8; NONCE_LEN], now: u64, lifetime: Duration) -> bool {
        let is_over = now.saturating_sub(self.since) > lifetime.as_secs() || self.count >= FILTER_TOKENS_MAX;
        if self.generations[0].is_empty() || is_over {
            self.generations.swap(0, 1);
            let bits = &mut self.generations[0];
            bits.clear();
            bits.resize(FILTER_BITS / (8 * WORD_BYTES), 0);
            (self.count, self.since) = (0, now);
        }
        let mut was_here = [true; 2];
        for probe in nonce.chunks_exact(NONCE_LEN / FILTER_PROBES) {
            let number = probe.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)) % FILTER_BITS;
            let (word, bit) = (number / (8 * WORD_BYTES), 1 << (number % (8 * WORD_BYTES)));
            for (generation, was_here) in self.generations.iter().zip(&mut was_here) {
                *was_here &= generation.get(word).is_some_and(|bits| bits & bit != 0);
            }
            self.generations[0][word] |= bit;
        }
        self.count += 1;
        was_here == [false; 2]
    }
}

/// Address in the form in which tokens hold it.
fn ip_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .octets()
}

/// True within the lifetime. Clocks of servers that share keys may differ, so a token may come from the near future.
fn is_fresh(issued: u64, now: u64, lifetime: Duration) -> bool {
    issued.abs_diff(now) <= lifetime.as_secs()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; KEY_BYTES] = [7; KEY_BYTES];
    const RETRY_LIFETIME: Duration = Duration::from_secs(15);
    const TOKEN_LIFETIME: Duration = Duration::from_secs(86_400);
    const NOW: u64 = 1_800_000_000;

    fn tokens() -> Tokens {
        Tokens::new(&SECRET, RETRY_LIFETIME, TOKEN_LIFETIME)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ids() -> [ConnectionId; 2] {
        [&[1; 20][..], &[2; 8]].map(|bytes| ConnectionId::new(bytes).unwrap())
    }

    #[test]
    fn retry_tokens_are_for_one_client_and_attempt() {
        let [original_dcid, scid] = ids();
        let remote = address("192.0.2.7:4000");
        let token = tokens().retry_token_at(remote, &original_dcid, &scid, NOW).unwrap();
        // Another process with the same key.
        let mut tokens = tokens();
        let mut check = |remote: &str, dcid: &ConnectionId, now| tokens.check_at(&token, address(remote), dcid, now);
        for now in [NOW, NOW + 15] {
            assert_eq!(check("192.0.2.7:4000", &scid, now), Checked::Retry { original_dcid });
        }
        assert_eq!(check("[::ffff:192.0.2.7]:4000", &scid, NOW), Checked::Retry { original_dcid });
        assert_eq!(check("192.0.2.7:4001", &scid, NOW), Checked::BadRetry, "another port");
        assert_eq!(check("192.0.2.8:4000", &scid, NOW), Checked::BadRetry, "another address");
        assert_eq!(check("192.0.2.7:4000", &original_dcid, NOW), Checked::BadRetry, "another ID");
        assert_eq!(check("192.0.2.7:4000", &scid, NOW + 16), Checked::BadRetry, "too old");
        assert_eq!(check("192.0.2.7:4000", &scid, NOW - 16), Checked::BadRetry, "too far in the future");
    }

    #[test]
    fn new_tokens_are_for_an_address_and_one_use() {
        let token = tokens().new_token_at("2001:db8::1".parse().unwrap(), NOW).unwrap();
        let mut tokens = tokens();
        let dcid = ConnectionId::EMPTY;
        let mut check = |remote: &str, now| tokens.check_at(&token, address(remote), &dcid, now);
        assert_eq!(check("[2001:db8::2]:1", NOW), Checked::Unknown, "another address");
        assert_eq!(check("[2001:db8::1]:1", NOW + 86_401), Checked::Unknown, "too old");
        assert_eq!(check("[2001:db8::1]:65000", NOW + 86_400), Checked::Known, "any port");
        assert_eq!(check("[2001:db8::1]:1", NOW + 86_400), Checked::Unknown, "used");
    }

    #[test]
    fn forged_tokens_prove_nothing() {
        let [original_dcid, scid] = ids();
        let remote = address("192.0.2.7:4000");
        let mut tokens = tokens();
        let made = [
            tokens.retry_token(remote, &original_dcid, &scid).unwrap(),
            tokens.new_token(remote.ip()).unwrap(),
            Tokens::new(&[8; KEY_BYTES], RETRY_LIFETIME, TOKEN_LIFETIME).new_token(remote.ip()).unwrap(),
        ];
        for token in &made {
            for at in 0..token.len() {
                let mut forged = token.clone();
                // Makes one kind of the other at the first byte.
                forged[at] ^= 3;
                assert_eq!(tokens.check(&forged, remote, &scid), Checked::Unknown, "byte {at}");
                assert_eq!(tokens.check(&token[..at], remote, &scid), Checked::Unknown, "{at} bytes");
            }
        }
        assert_eq!(tokens.check(&made[2], remote, &scid), Checked::Unknown, "another key");
        assert_eq!(tokens.check(&made[1], remote, &scid), Checked::Known);
        assert_eq!(tokens.check(&made[0], remote, &scid), Checked::Retry { original_dcid });
        assert_ne!(tokens.new_token(remote.ip()), tokens.new_token(remote.ip()), "tokens cannot be linked");
    }

    /// Distinct numbers as nonces, mixed so that they look random.
    fn nonce(number: u64) -> [u8; NONCE_LEN] {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &number.to_be_bytes());
        std::array::from_fn(|index| digest.as_ref()[index])
    }

    #[test]
    fn used_tokens_are_known_for_a_generation_or_more() {
        let mut used = UsedTokens::default();
        assert!(used.generations.iter().all(|bits| bits.capacity() == 0), "nothing before the first use");
        let mut insert = |number, now| used.insert(nonce(number), now, TOKEN_LIFETIME);
        let mistaken = (0..2 * u64::from(FILTER_TOKENS_MAX)).filter(|&number| !insert(number, NOW)).count();
        assert!(mistaken < FILTER_TOKENS_MAX as usize / 20, "{mistaken}");
        for number in [u64::from(FILTER_TOKENS_MAX) + 5, 2 * u64::from(FILTER_TOKENS_MAX) - 1] {
            assert!(!insert(number, NOW), "in the generation before");
        }
        // Tokens of two lifetimes ago have expired.
        assert!(insert(1 << 40, NOW + 86_401) && !insert(1 << 40, NOW + 2 * 86_400));
        assert!(insert(1 << 41, NOW + 3 * 86_400) && insert(1 << 42, NOW + 5 * 86_400));
        assert!(insert(1 << 40, NOW + 5 * 86_400));
        let bytes: usize = used.generations.iter().map(|bits| bits.capacity() * WORD_BYTES).sum();
        assert_eq!(bytes, FILTER_BITS / 4);
    }
}
