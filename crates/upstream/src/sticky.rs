//! Sticky sessions: a cookie, or another header field, that keeps a client with a server.
//!
//! Its value is a keyed hash of the names of upstream and server. So it reveals no address, and a client cannot make up
//! values. All machines with the same key and configuration agree on it.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use base64ct::{Base64UrlUnpadded, Encoding};

use crate::config::{CertificateError, StickyCookie, UpstreamConfig, state_directory};
use crate::log::{ServerLog, event};
use tailcoat_tls::{create_private_directory, write_private};

/// File of the machine's key in the state directory.
const KEY_FILE: &str = "sticky.key";

/// Bytes of a key of this machine.
const KEY_BYTES: usize = 32;

/// Least bytes of a key that an operator has made.
const KEY_BYTES_MIN: usize = 16;

/// Most bytes of a file of a key.
const KEY_FILE_BYTES_MAX: u64 = 4 << 10;

/// Bytes of the hash in a cookie: too many to guess.
const HASH_BYTES: usize = 16;

/// Purpose of the hash, so that the key proves nothing elsewhere.
const PURPOSE: &[u8] = b"tailcoat sticky 1";

/// Signer of an upstream's cookies.
#[derive(Clone)]
pub(super) struct StickySigner {
    secret: Vec<u8>,
    key: hmac::Key,
}

impl StickySigner {
    /// Signer with the key of the configuration, else with that of this machine, which is made if there is none. If the
    /// state directory cannot be used, `reused` or a new key holds until the process ends.
    ///
    /// # Errors
    /// The configured file cannot be read, or is too short.
    pub(super) fn load(
        config: &UpstreamConfig,
        log: &ServerLog,
        reused: Option<&Self>,
    ) -> Result<Option<Self>, CertificateError> {
        let Some(sticky) = &config.sticky else { return Ok(None) };
        if let Some(path) = &sticky.key_file {
            return read_key_file(path).map(|secret| Some(Self::new(secret)));
        }
        let secret = match machine_key() {
            Ok(secret) => secret,
            Err(error) => {
                let help = "set `key-file`, or make the state directory writable; a restart makes a new key";
                log.warn(event("sticky sessions do not survive a restart", &[("reason", &error)]), help);
                match reused {
                    Some(reused) => reused.secret.clone(),
                    None => new_key().map_err(|error| CertificateError::at(Path::new(KEY_FILE), error))?,
                }
            }
        };
        Ok(Some(Self::new(secret)))
    }

    /// True if the key is another one now, or cannot be read any more.
    pub(super) fn is_outdated(&self, sticky: &StickyCookie) -> bool {
        sticky.key_file.as_ref().is_some_and(|path| read_key_file(path).ok().as_ref() != Some(&self.secret))
    }

    fn new(secret: Vec<u8>) -> Self {
        Self { key: hmac::Key::new(HMAC_SHA256, &secret), secret }
    }

    /// Value of the cookie for a server.
    pub(super) fn value(&self, upstream: &str, server: &str) -> Box<str> {
        let text = [PURPOSE, upstream.as_bytes(), server.as_bytes()].join(&0);
        Base64UrlUnpadded::encode_string(&hmac::sign(&self.key, &text).as_ref()[..HASH_BYTES]).into()
    }
}

/// True if a client's cookie has this value. Takes the same time for each other value.
pub(super) fn is_value(value: &str, sent: &[u8]) -> bool {
    verify_slices_are_equal(value.as_bytes(), sent).is_ok()
}

/// Header field of a response that keeps the client with a server.
#[derive(Debug)]
pub struct StickyField {
    /// Name.
    pub name: Cow<'static, [u8]>,
    /// Value.
    pub value: Vec<u8>,
}

impl StickyField {
    /// Field that gives a client this value.
    pub(super) fn new(sticky: &StickyCookie, value: &str, is_secure: bool) -> Self {
        if sticky.is_header {
            return Self { name: Cow::Owned(sticky.name.clone().into_bytes()), value: value.into() };
        }
        Self { name: Cow::Borrowed(b"Set-Cookie"), value: set_cookie(sticky, value, is_secure) }
    }
}

/// Value of Set-Cookie that gives a client this value.
fn set_cookie(sticky: &StickyCookie, value: &str, is_secure: bool) -> Vec<u8> {
    let StickyCookie { name, age_max, path, domain, is_http_only, same_site, .. } = sticky;
    let mut text = format!("{name}={value}; Path={path}");
    if let Some(domain) = domain {
        text.push_str("; Domain=");
        text.push_str(domain);
    }
    if let Some(age_max) = age_max {
        text.push_str(&format!("; Max-Age={}", age_max.as_secs()));
    }
    if sticky.is_secure.unwrap_or(is_secure) {
        text.push_str("; Secure");
    }
    if *is_http_only {
        text.push_str("; HttpOnly");
    }
    text.push_str("; SameSite=");
    text.push_str(same_site);
    text.into_bytes()
}

fn read_key_file(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let read = || {
        let mut secret = Vec::new();
        File::open(path)?.take(KEY_FILE_BYTES_MAX).read_to_end(&mut secret)?;
        io::Result::Ok(secret)
    };
    let secret = read().map_err(|error| CertificateError::at(path, error))?.trim_ascii().to_vec();
    match secret.len() {
        KEY_BYTES_MIN.. => Ok(secret),
        length => Err(CertificateError::at(
            path,
            format!("a key of {length} bytes is too short; make one with `openssl rand -hex 32`"),
        )),
    }
}

/// Key in the state directory.
fn machine_key() -> io::Result<Vec<u8>> {
    let directory = state_directory().ok_or_else(|| io::Error::other("the environment names no state directory"))?;
    let path = directory.join(KEY_FILE);
    let read = || io::Result::Ok(fs::read_to_string(&path)?.trim().to_owned().into_bytes());
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(secret) if secret.len() < KEY_BYTES_MIN => {}
        known => return known,
    }
    create_private_directory(&directory)?;
    write_private(&path, &Base64UrlUnpadded::encode_string(&new_key()?))?;
    // Another process may have written its own meanwhile.
    read()
}

fn new_key() -> io::Result<Vec<u8>> {
    let mut secret = vec![0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| io::Error::other("there are no random numbers"))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_depend_on_key_upstream_and_server() {
        let (one, other) = (StickySigner::new(vec![1; 32]), StickySigner::new(vec![2; 32]));
        let value = one.value("app", "http://10.0.0.1:80");
        assert_eq!(value, StickySigner::new(vec![1; 32]).value("app", "http://10.0.0.1:80"));
        assert!(value.len() == 22 && !value.contains("10"), "{value}");
        for different in [
            one.value("app", "http://10.0.0.1:81"),
            one.value("apphttp", "://10.0.0.1:80"),
            other.value("app", "http://10.0.0.1:80"),
        ] {
            assert_ne!(value, different);
        }
        assert!(is_value(&value, value.as_bytes()) && !is_value(&value, &value.as_bytes()[1..]));
    }

    #[test]
    fn attributes() {
        let plain = StickyCookie {
            is_header: false,
            name: "srv".into(),
            key_file: None,
            age_max: None,
            path: "/".into(),
            domain: None,
            is_secure: None,
            is_http_only: true,
            same_site: "Lax",
        };
        let check = |sticky: &StickyCookie, is_secure, expect: &str| {
            assert_eq!(String::from_utf8(set_cookie(sticky, "v", is_secure)).unwrap(), expect);
        };
        check(&plain, false, "srv=v; Path=/; HttpOnly; SameSite=Lax");
        check(&plain, true, "srv=v; Path=/; Secure; HttpOnly; SameSite=Lax");
        let other = StickyCookie {
            age_max: Some(Duration::from_secs(60)),
            domain: Some("a.test".into()),
            is_secure: Some(false),
            is_http_only: false,
            same_site: "None",
            ..plain
        };
        check(&other, true, "srv=v; Path=/; Domain=a.test; Max-Age=60; SameSite=None");
    }
}
