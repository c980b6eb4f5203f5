//! Signed agents: HTTP Message Signatures (RFC 9421) as Web Bot Auth uses them, with Ed25519.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use serde::Deserialize;

/// Tag of signatures that name an agent (draft-meunier-web-bot-auth-architecture).
const TAG: &str = "web-bot-auth";

/// Longest time for which a signature may be valid, in seconds. Within it, a signature can be sent again.
pub const VALIDITY_SECONDS_MAX: u64 = 86_400;

/// Difference of clocks that is tolerated, in seconds.
const CLOCK_SECONDS: u64 = 60;

/// Most bytes of `Signature-Input` that are read.
const INPUT_BYTES_MAX: usize = 4 << 10;

/// Most components of a signature.
const COMPONENTS_MAX: usize = 32;

/// Signatures of agents that are tried; further ones are not looked at.
const SIGNATURES_MAX: usize = 4;

/// Maximum size of a directory of keys, in bytes.
pub const DIRECTORY_BYTES_MAX: usize = 1 << 20;

/// Public keys of agents, by the thumbprint of the key (RFC 7638).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentKeys {
    by_thumbprint: HashMap<String, AgentKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AgentKey {
    agent: String,
    public: [u8; 32],
    /// Seconds since 1970 between which the key may be used.
    not_before_s: u64,
    not_after_s: u64,
}

/// Reason for which a directory of keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryError(pub String);

#[derive(Deserialize)]
struct Directory {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    x: Option<String>,
    nbf: Option<u64>,
    exp: Option<u64>,
}

/// Parts of a request that a signature may cover.
pub trait SignedRequest {
    /// Value of a derived component (RFC 9421, section 2.2), such as `@authority`; `None` if it is unknown.
    fn derived(&self, name: &str) -> Option<Vec<u8>>;

    /// Lines of a field, in order.
    fn field_lines(&self, name: &str) -> Vec<Vec<u8>>;
}

/// Reason for which a signature does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureFault {
    /// The request has no signature of an agent.
    None,
    /// The fields cannot be parsed, or the signature leaves out what it must have.
    Malformed,
    /// No directory has the key.
    UnknownKey,
    /// The signature or the key is not valid yet or any more.
    Expired,
    /// The key has not signed this request.
    Wrong,
}

impl AgentKeys {
    /// Adds the keys of an agent from a directory: a JSON Web Key Set (RFC 7517). Keys of other kinds are left out.
    ///
    /// # Errors
    /// The text is no key set, or has no key of Ed25519.
    pub fn add(&mut self, agent: &str, directory: &[u8]) -> Result<(), DirectoryError> {
        if directory.len() > DIRECTORY_BYTES_MAX {
            return Err(DirectoryError(format!("the file is longer than {} KiB", DIRECTORY_BYTES_MAX >> 10)));
        }
        let directory: Directory =
            serde_json::from_slice(directory).map_err(|error| DirectoryError(error.to_string()))?;
        let before = self.by_thumbprint.len();
        for key in directory.keys {
            let Jwk { kty, crv: Some(crv), x: Some(x), nbf, exp } = key else { continue };
            let public = Base64UrlUnpadded::decode_vec(&x).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let Some(public) = public.filter(|_| kty == "OKP" && crv == "Ed25519") else { continue };
            // The time of the format of keys is in seconds, and some directories have milliseconds.
            let seconds = |time: u64| if time > 100_000_000_000 { time / 1_000 } else { time };
            let key = AgentKey {
                agent: agent.to_owned(),
                public,
                not_before_s: nbf.map_or(0, seconds),
                not_after_s: exp.map_or(u64::MAX, seconds),
            };
            self.by_thumbprint.insert(thumbprint(&public), key);
        }
        match self.by_thumbprint.len() > before {
            true => Ok(()),
            false => {
                Err(DirectoryError("the file has no new key of Ed25519 (`\"kty\":\"OKP\",\"crv\":\"Ed25519\"`)".into()))
            }
        }
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.by_thumbprint.is_empty()
    }

    /// Verifies the signature of a request. Returns the name of the agent.
    ///
    /// # Errors
    /// The request has no valid signature of a known agent.
    pub fn verify(&self, request: &impl SignedRequest, now_s: u64) -> Result<&str, SignatureFault> {
        let input = joined(&request.field_lines("signature-input"));
        let signatures = joined(&request.field_lines("signature"));
        if input.is_empty() || signatures.is_empty() {
            return Err(SignatureFault::None);
        }
        let input = std::str::from_utf8(&input).map_err(|_| SignatureFault::Malformed)?;
        let signatures = std::str::from_utf8(&signatures).map_err(|_| SignatureFault::Malformed)?;
        if input.len() > INPUT_BYTES_MAX || signatures.len() > INPUT_BYTES_MAX {
            return Err(SignatureFault::Malformed);
        }
        // Proxies may add signatures of their own, and old ones may be left over: one that is valid is enough.
        let of_agents = members(input).filter_map(|(label, text)| {
            let parameters = SignatureInput::parse(text)?;
            (parameters.text("tag") == Some(TAG)).then_some((label, text, parameters))
        });
        let mut fault = SignatureFault::None;
        for (label, text, parsed) in of_agents.take(SIGNATURES_MAX) {
            let signature = members(signatures).find(|(other, _)| *other == label).map(|(_, value)| value);
            match self.verify_one(request, text, &parsed, signature, now_s) {
                Ok(agent) => return Ok(agent),
                // The first fault counts, unless it says less than another.
                Err(found) if matches!(fault, SignatureFault::None | SignatureFault::UnknownKey) => fault = found,
                Err(_) => {}
            }
        }
        Err(fault)
    }

    /// Verifies a signature with its input.
    fn verify_one(
        &self,
        request: &impl SignedRequest,
        input: &str,
        parsed: &SignatureInput<'_>,
        signature: Option<&str>,
        now_s: u64,
    ) -> Result<&str, SignatureFault> {
        let key = parsed.text("keyid").and_then(|id| self.by_thumbprint.get(id)).ok_or(SignatureFault::UnknownKey)?;
        if parsed.text("alg").is_some_and(|algorithm| algorithm != "ed25519") {
            return Err(SignatureFault::Malformed);
        }
        let times = parsed.number("created").zip(parsed.number("expires"));
        let (created_s, expires_s) = times.ok_or(SignatureFault::Malformed)?;
        let is_valid = created_s <= now_s + CLOCK_SECONDS
            && now_s < expires_s
            && expires_s.saturating_sub(created_s) <= VALIDITY_SECONDS_MAX
            && (key.not_before_s..key.not_after_s).contains(&now_s);
        if !is_valid {
            return Err(SignatureFault::Expired);
        }
        // A signature for another host is for another server.
        if !parsed.components.iter().any(|component| matches!(component.name, "@authority" | "@target-uri")) {
            return Err(SignatureFault::Malformed);
        }
        let base = parsed.base(input, request).ok_or(SignatureFault::Malformed)?;
        let signature = signature.and_then(bytes_of).ok_or(SignatureFault::Malformed)?;
        let public = UnparsedPublicKey::new(&ED25519, key.public);
        public.verify(&base, &signature).map_err(|_| SignatureFault::Wrong)?;
        Ok(&key.agent)
    }
}

/// Thumbprint of a key of Ed25519 (RFC 7638, RFC 8037, appendix A.3).
fn thumbprint(public: &[u8; 32]) -> String {
    let x = Base64UrlUnpadded::encode_string(public);
    let text = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    Base64UrlUnpadded::encode_string(digest(&SHA256, text.as_bytes()).as_ref())
}

/// Lines of a field as one value (RFC 9421, section 2.1).
fn joined(lines: &[Vec<u8>]) -> Vec<u8> {
    lines.iter().map(|line| line.trim_ascii()).collect::<Vec<_>>().join(&b", "[..])
}

/// Members of a dictionary (RFC 9651, section 3.2), with their values as text.
fn members(text: &str) -> impl Iterator<Item = (&str, &str)> {
    split_outside(text, ',').filter_map(|member| {
        let (label, value) = member.split_once('=')?;
        Some((label.trim(), value.trim()))
    })
}

/// Splits at a separator that is in no string and no inner list.
fn split_outside(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_string, mut is_escaped, mut depth) = (false, false, 0_u32);
    text.split(move |character| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match character {
            _ if was_escaped => false,
            '\\' if is_string => {
                is_escaped = true;
                false
            }
            '"' => {
                is_string = !is_string;
                false
            }
            _ if is_string => false,
            '(' => {
                depth += 1;
                false
            }
            ')' => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0 && character == separator,
        }
    })
}

/// Bytes of a byte sequence (RFC 9651, section 3.3.5).
fn bytes_of(value: &str) -> Option<Vec<u8>> {
    let value = value.split(';').next()?.trim();
    Base64::decode_vec(value.strip_prefix(':')?.strip_suffix(':')?).ok()
}

/// Text of a string without escapes.
fn string_of(value: &str) -> Option<&str> {
    let inner = value.trim().strip_prefix('"')?.strip_suffix('"')?;
    (!inner.contains(['"', '\\'])).then_some(inner)
}

/// A covered component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Component<'a> {
    /// As it is written, with parameters.
    text: &'a str,
    name: &'a str,
    /// Member of a dictionary (RFC 9421, section 2.1.2).
    key: Option<&'a str>,
}

/// Member of `Signature-Input`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SignatureInput<'a> {
    components: Vec<Component<'a>>,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> SignatureInput<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (list, rest) = text.strip_prefix('(')?.split_once(')')?;
        let mut components: Vec<Component<'a>> = Vec::new();
        for item in split_outside(list, ' ').filter(|item| !item.is_empty()) {
            let mut parts = item.split(';');
            let name = string_of(parts.next()?)?;
            let mut key = None;
            for parameter in parts {
                // Other parameters change the value in ways that are not supported.
                key = Some(string_of(parameter.strip_prefix("key=")?)?);
            }
            let component = Component { text: item, name, key };
            if components.contains(&component) || components.len() == COMPONENTS_MAX {
                return None;
            }
            components.push(component);
        }
        let parameters = split_outside(rest, ';').skip(1).filter_map(|parameter| parameter.trim().split_once('='));
        Some(Self { components, parameters: parameters.collect() })
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        // Of a parameter that is given twice, the last counts (RFC 9651, section 4.2.3.2).
        self.parameters.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        string_of(self.parameter(name)?)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.parameter(name)?.parse().ok()
    }

    /// Signature base (RFC 9421, section 2.5); `None` if a component is missing or unknown.
    fn base(&self, text: &str, request: &impl SignedRequest) -> Option<Vec<u8>> {
        let mut base = Vec::with_capacity(512);
        for Component { text, name, key } in &self.components {
            let value = match key {
                _ if name.starts_with('@') => request.derived(name)?,
                None => {
                    let lines = request.field_lines(name);
                    (!lines.is_empty()).then(|| joined(&lines))?
                }
                Some(key) => {
                    let value = String::from_utf8(joined(&request.field_lines(name))).ok()?;
                    members(&value).find(|(known, _)| known == key)?.1.as_bytes().to_vec()
                }
            };
            if value.contains(&b'\n') {
                return None;
            }
            base.extend_from_slice(text.as_bytes());
            base.extend_from_slice(b": ");
            base.extend_from_slice(&value);
            base.push(b'\n');
        }
        base.extend_from_slice(b"\"@signature-params\": ");
        base.extend_from_slice(text.as_bytes());
        Some(base)
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use proptest::prelude::*;

    use super::*;

    /// Key of RFC 9421, appendix B.1.4, which the drafts of Web Bot Auth use, too.
    const DIRECTORY: &str =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"}]}"#;
    const SECRET: &str = "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU";
    const KEY_ID: &str = "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";
    const NOW_S: u64 = 1_735_689_600;

    struct Request(Vec<(&'static str, String)>);

    impl SignedRequest for Request {
        fn derived(&self, name: &str) -> Option<Vec<u8>> {
            Some(match name {
                "@authority" => b"example.com".to_vec(),
                "@method" => b"POST".to_vec(),
                "@path" => b"/foo".to_vec(),
                _ => return None,
            })
        }

        fn field_lines(&self, name: &str) -> Vec<Vec<u8>> {
            let lines = self.0.iter().filter(|(known, _)| *known == name);
            lines.map(|(_, value)| value.as_bytes().to_vec()).collect()
        }
    }

    fn keys() -> AgentKeys {
        let mut keys = AgentKeys::default();
        keys.add("test agent", DIRECTORY.as_bytes()).unwrap();
        keys
    }

    /// Request with a signature of these components and parameters.
    fn signed(input: &str) -> Request {
        let secret = Base64UrlUnpadded::decode_vec(SECRET).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&secret).unwrap();
        let agent = ("signature-agent", "\"https://agent.example\"".to_owned());
        let mut request = Request(vec![agent]);
        let base = SignatureInput::parse(input).and_then(|parsed| parsed.base(input, &request)).unwrap_or_default();
        let signature = Base64::encode_string(pair.sign(&base).as_ref());
        request.0.push(("signature-input", format!("other=(\"@method\");tag=\"x\", sig1={input}")));
        request.0.push(("signature", format!("other=:AAAA:, sig1=:{signature}:")));
        request
    }

    fn input(parameters: &str) -> String {
        format!(r#"("@authority" "signature-agent");{parameters};keyid="{KEY_ID}";alg="ed25519";tag="web-bot-auth""#)
    }

    #[test]
    fn thumbprints() {
        let secret = Base64UrlUnpadded::decode_vec(SECRET).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&secret).unwrap();
        assert_eq!(thumbprint(pair.public_key().as_ref().try_into().unwrap()), KEY_ID);
        assert!(keys().by_thumbprint.contains_key(KEY_ID));
    }

    /// RFC 9421, appendix B.2.6.
    #[test]
    fn example_of_the_rfc() {
        let text = r#"("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519""#;
        let request = Request(vec![
            ("date", "Tue, 20 Apr 2021 02:07:55 GMT".into()),
            ("content-type", "application/json".into()),
            ("content-length", "18".into()),
        ]);
        let base = SignatureInput::parse(text).unwrap().base(text, &request).unwrap();
        let signature = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==";
        let signature = Base64::decode_vec(signature).unwrap();
        UnparsedPublicKey::new(&ED25519, keys().by_thumbprint[KEY_ID].public).verify(&base, &signature).unwrap();
    }

    #[test]
    fn signatures() {
        let keys = keys();
        let check = |request: &Request, expect: Result<&str, SignatureFault>| {
            assert_eq!(keys.verify(request, NOW_S), expect, "{:?}", request.0);
        };
        let valid = input(&format!("created={};expires={}", NOW_S - 10, NOW_S + 60));
        check(&signed(&valid), Ok("test agent"));
        let by_key = valid.replace("\"signature-agent\"", "\"@method\"");
        check(&signed(&by_key), Ok("test agent"));
        for (parameters, expect) in [
            (format!("created={};expires={}", NOW_S - 100, NOW_S), SignatureFault::Expired),
            (format!("created={};expires={}", NOW_S + 100, NOW_S + 200), SignatureFault::Expired),
            (format!("created={};expires={}", NOW_S - 100, NOW_S + VALIDITY_SECONDS_MAX), SignatureFault::Expired),
            (format!("created={NOW_S}"), SignatureFault::Malformed),
            ("created=x;expires=y".into(), SignatureFault::Malformed),
        ] {
            check(&signed(&input(&parameters)), Err(expect));
        }
        check(&signed(&valid.replace("web-bot-auth", "other")), Err(SignatureFault::None));
        check(&signed(&valid.replace(KEY_ID, "other")), Err(SignatureFault::UnknownKey));
        check(&signed(&valid.replace("ed25519", "rsa-v1_5-sha256")), Err(SignatureFault::Malformed));
        check(&signed(&valid.replace("\"@authority\" ", "")), Err(SignatureFault::Malformed));
        check(&signed(&valid.replace("\"@authority\"", "\"@authority\";req")), Err(SignatureFault::None));
        check(&Request(Vec::new()), Err(SignatureFault::None));
        // The signature of another request.
        let mut other = signed(&valid);
        other.0[0].1 = "\"https://other.example\"".into();
        check(&other, Err(SignatureFault::Wrong));
        let mut missing = signed(&valid);
        missing.0.remove(0);
        check(&missing, Err(SignatureFault::Malformed));
    }

    #[test]
    fn one_valid_signature_is_enough() {
        let keys = keys();
        let valid = input(&format!("created={};expires={}", NOW_S - 10, NOW_S + 60));
        let of = |before: &[String]| {
            let mut request = signed(&valid);
            let labelled = before.iter().enumerate().map(|(index, input)| format!("old{index}={input}, "));
            let labels = (0..before.len()).map(|index| format!("old{index}=:AAAA:, "));
            let (inputs, signatures) = (labelled.collect::<String>(), labels.collect::<String>());
            for (name, value) in &mut request.0 {
                match *name {
                    "signature-input" => value.insert_str(0, &inputs),
                    "signature" => value.insert_str(0, &signatures),
                    _ => {}
                }
            }
            keys.verify(&request, NOW_S).map(str::to_owned)
        };
        let (unknown, expired) = (valid.replace(KEY_ID, "other"), valid.replace("expires=", "expires=1;old="));
        let good = Ok("test agent".to_owned());
        assert_eq!(of(std::slice::from_ref(&valid)), good, "a signature of something else comes first");
        assert_eq!(of(&[unknown.clone(), expired, valid.replace("ed25519", "rsa-v1_5-sha256")]), good);
        assert_eq!(of(&vec![unknown; SIGNATURES_MAX]), Err(SignatureFault::UnknownKey));
        assert_eq!(of(&vec![valid.clone(); SIGNATURES_MAX]), Err(SignatureFault::Wrong));
    }

    #[test]
    fn directories() {
        let check = |text: &str, expect: bool| {
            assert_eq!(AgentKeys::default().add("a", text.as_bytes()).is_ok(), expect, "{text}");
        };
        check(DIRECTORY, true);
        check(r#"{"keys":[]}"#, false);
        check(r#"{"keys":[{"kty":"RSA","n":"x","e":"AQAB"}]}"#, false);
        check(r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA"}]}"#, false);
        check("", false);
        let mut keys = AgentKeys::default();
        let expired = DIRECTORY.replace(r#""kty""#, r#""nbf":1000,"exp":2000,"kty""#);
        keys.add("a", expired.as_bytes()).unwrap();
        let request = signed(&input(&format!("created={};expires={}", NOW_S - 10, NOW_S + 60)));
        assert_eq!(keys.verify(&request, NOW_S), Err(SignatureFault::Expired));
    }

    proptest! {
        #[test]
        fn random_fields(signature_input: String, signature: String) {
            let request = Request(vec![
                ("signature-input", format!("a={signature_input}")),
                ("signature", format!("a=:{signature}:")),
            ]);
            prop_assert!(keys().verify(&request, NOW_S).is_err());
        }
    }
}
