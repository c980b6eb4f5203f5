//! State directory: an account, certificates with their keys, and times of retries.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Validity;
use super::order::Issued;
use crate::config::{AutomaticCertificates, Certificate, CertificateFiles, read_regular, state_directory};
use crate::log::{ServerLog, event};
use crate::tls::{create_private_directory, write_private};

/// Bytes of a name in a file name, at most.
const NAME_BYTES_MAX: usize = 100;

/// Directory of one CA.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// Stored certificate.
pub(super) struct StoredCertificate {
    /// Certificate without those of the CA.
    pub(super) certificate: CertificateDer<'static>,
    pub(super) validity: Validity,
}

/// Result of the latest orders for a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempts {
    /// Consecutive failures.
    pub(super) failures: u32,
    /// Time of the next attempt, in seconds since 1970.
    pub(super) retry_unix_seconds: i64,
}

impl Store {
    /// Store of the CA in these settings.
    ///
    /// # Errors
    /// The environment names no state directory.
    pub(super) fn of(settings: &AutomaticCertificates) -> io::Result<Self> {
        let state = state_directory().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no directory for certificates: set STATE_DIRECTORY or HOME")
        })?;
        let url = settings.directory.as_str();
        let host = url.split("://").nth(1).unwrap_or_default().split('/').next().unwrap_or_default();
        Ok(Self { directory: state.join("acme").join(file_name(host, url)) })
    }

    /// Creates the directories, readable only for their owner.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub(super) fn create(&self) -> io::Result<()> {
        create_private_directory(&self.directory)?;
        create_private_directory(&self.certificates())
    }

    /// Takes the lock of the directory, which ends with the process; `None` while another process holds it.
    ///
    /// # Errors
    /// The file cannot be locked.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let path = self.directory.join("lock");
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(at)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(at(error)),
        }
    }

    /// Path of the certificate for these names with its key. Sites with a profile of their own have certificates of their
    /// own.
    pub(super) fn certificate_path(&self, names: &[String], profile: Option<&str>) -> PathBuf {
        let first = names.first().map_or("", String::as_str);
        // No name of a host has the sign of the profile.
        let profile = profile.map_or_else(String::new, |profile| format!(" profile={profile}"));
        let whole = names.join(" ") + &profile;
        let name = file_name(&first.replace('*', "any"), &whole);
        self.certificates().join(name).with_added_extension("pem")
    }

    /// Certificate at this path, if it is usable.
    pub(super) fn certificate(&self, path: &Path) -> Option<StoredCertificate> {
        CertificateFiles { certificate: path.to_owned(), key: path.to_owned(), ocsp: None }.load().ok()?;
        let certificate = CertificateDer::from_pem_slice(&read_regular(path).ok()?).ok()?;
        let validity = validity_of(&certificate)?;
        Some(StoredCertificate { certificate, validity })
    }

    /// Saves a certificate with its key.
    ///
    /// # Errors
    /// Fails if the file cannot be written; the old file stays.
    pub(super) fn save_certificate(&self, path: &Path, issued: &Issued) -> io::Result<()> {
        self.save_text(path, &issued.text())
    }

    /// Saves the text of a certificate with its key.
    ///
    /// # Errors
    /// Fails if the file cannot be written; the old file stays.
    pub(super) fn save_text(&self, path: &Path, text: &str) -> io::Result<()> {
        write_private(path, text)
    }

    /// True if this text is a usable certificate with its key that expires later than the one at this path.
    pub(super) fn is_better(&self, path: &Path, text: &str) -> bool {
        if Certificate::from_pem(text.as_bytes(), text.as_bytes()).is_err() {
            return false;
        }
        let Ok(certificate) = CertificateDer::from_pem_slice(text.as_bytes()) else { return false };
        let Some(validity) = validity_of(&certificate) else { return false };
        self.certificate(path).is_none_or(|known| known.validity.not_after < validity.not_after)
    }

    /// Name of the CA's directory.
    pub(super) fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Result of the latest orders; none if it cannot be read.
    pub(super) fn attempts(&self, certificate: &Path) -> Attempts {
        let text = fs::read(attempts_path(certificate)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Saves the result for a restart.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn save_attempts(&self, certificate: &Path, attempts: Attempts) -> io::Result<()> {
        let text = serde_json::to_string(&attempts).map_err(io::Error::other)?;
        write_private(&attempts_path(certificate), &text)
    }

    /// Account, if there is one. A broken file is renamed, because its key may still be useful.
    pub(super) fn account(&self, log: &ServerLog) -> Option<AccountCredentials> {
        let path = self.account_path();
        let text = fs::read(&path).ok()?;
        serde_json::from_slice(&text)
            .inspect_err(|error| {
                let aside = path.with_extension("broken");
                log.warn(
                    event("reading ACME account failed", &[("file", &path.display()), ("error", error)]),
                    &format!("the server creates a new account and keeps the old file as {}", aside.display()),
                );
                // If renaming fails, the file is overwritten.
                let _ = fs::rename(&path, aside);
            })
            .ok()
    }

    /// Saves an account.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn save_account(&self, account: &AccountCredentials) -> io::Result<()> {
        write_private(&self.account_path(), &serde_json::to_string(account).map_err(io::Error::other)?)
    }

    /// Renames an account that the CA no longer knows.
    pub(super) fn forget_account(&self) {
        // If renaming fails, the next order fails like this one.
        let _ = fs::rename(self.account_path(), self.account_path().with_extension("unknown"));
    }

    fn account_path(&self) -> PathBuf {
        self.directory.join("account.json")
    }

    fn certificates(&self) -> PathBuf {
        self.directory.join("certificates")
    }
}

impl StoredCertificate {
    /// Number from 0 to 1, specific to this certificate, so that not all are renewed at the same time.
    pub(super) fn fraction(&self) -> f64 {
        let digest = Sha256::digest(&self.certificate);
        f64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])) / f64::from(u32::MAX)
    }
}

fn validity_of(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let validity = parsed.validity();
    Some(Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
}

fn attempts_path(certificate: &Path) -> PathBuf {
    certificate.with_extension("json")
}

/// File name that is readable, and unique for `whole`.
fn file_name(start: &str, whole: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ".-".contains(*letter);
    let start: String = start.chars().filter(is_plain).take(NAME_BYTES_MAX).collect();
    let digest = Sha256::digest(whole);
    let tail: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{tail}", start.trim_start_matches('.'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store { directory: directory.path().join("acme/ca") };
        store.create().unwrap();
        (directory, store)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn certificates_come_back() {
        let (_directory, store) = store();
        let path = store.certificate_path(&names(&["*.example.com", "example.com"]), None);
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("any.example.com-"), "{path:?}");
        assert_ne!(path, store.certificate_path(&names(&["*.example.com"]), None));
        assert_ne!(path, store.certificate_path(&names(&["*.example.com", "example.com"]), Some("short")));
        let of_profile = store.certificate_path(&names(&["a.example"]), Some("b.example"));
        assert_ne!(of_profile, store.certificate_path(&names(&["a.example", "b.example"]), None));
        assert!(store.certificate(&path).is_none());
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(names(&["example.com"])).unwrap().self_signed(&key).unwrap();
        let issued = Issued { key_pem: key.serialize_pem(), chain_pem: certificate.pem() };
        store.save_certificate(&path, &issued).unwrap();
        let stored = store.certificate(&path).unwrap();
        assert_eq!(stored.certificate, *certificate.der());
        assert!((0.0..=1.0).contains(&stored.fraction()));
        for (path, mode) in [(path.as_path(), 0o600), (&store.directory, 0o700), (&store.certificates(), 0o700)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{path:?}");
        }
        // The key of another certificate or half a file is not usable.
        let other =
            Issued { key_pem: rcgen::KeyPair::generate().unwrap().serialize_pem(), chain_pem: issued.chain_pem };
        store.save_certificate(&path, &other).unwrap();
        assert!(store.certificate(&path).is_none());
        fs::write(&path, &issued.key_pem).unwrap();
        assert!(store.certificate(&path).is_none());
    }

    #[test]
    fn attempts_outlive_a_restart() {
        let (_directory, store) = store();
        let path = store.certificate_path(&names(&["a.example"]), None);
        assert_eq!(store.attempts(&path), Attempts::default());
        let attempts = Attempts { failures: 3, retry_unix_seconds: 1_700_000_000 };
        store.save_attempts(&path, attempts).unwrap();
        assert_eq!(store.attempts(&path), attempts);
        fs::write(attempts_path(&path), "{").unwrap();
        assert_eq!(store.attempts(&path), Attempts::default());
    }

    #[test]
    fn one_process_at_a_time() {
        let (_directory, store) = store();
        let lock = store.lock().unwrap();
        assert!(lock.is_some());
        assert!(store.lock().unwrap().is_none());
        drop(lock);
        assert!(store.lock().unwrap().is_some());
    }

    #[test]
    fn files_are_named_after_what_they_are_for() {
        for (start, whole, expect) in [
            ("ca.example:14000", "https://ca.example:14000/dir", "ca.example14000-"),
            ("../../etc", "x", "etc-"),
            ("", "", "-"),
        ] {
            let name = file_name(start, whole);
            assert!(name.strip_prefix(expect).is_some_and(|tail| tail.len() == 12), "{name}");
        }
        assert_ne!(file_name("a", "x"), file_name("a", "y"));
    }
}
