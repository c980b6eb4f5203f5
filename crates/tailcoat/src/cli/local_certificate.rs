//! `serve --tls`: a certificate for this machine, signed by the user's own CA, which the user imports in browsers.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::time::ASN1Time;

use crate::config::{CertificateFiles, Listen, state_directory};
use crate::tls::{PUBLIC_FILE, create_private_directory, write_private, write_public};

/// Long, because users must trust the CA once.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Each start makes a new certificate. Some clients reject longer validity.
const VALIDITY: Duration = Duration::from_secs(397 * 86_400);

/// Tolerance for clocks that are slow.
const SLACK: Duration = Duration::from_secs(86_400);

/// A certificate for this machine.
pub(super) struct LocalCertificate {
    /// Files of the certificate.
    pub(super) files: CertificateFiles,
    /// Certificate of the CA.
    authority: PathBuf,
}

impl LocalCertificate {
    /// Makes a certificate for these addresses in the state directory, and a CA if there is none yet.
    ///
    /// # Errors
    ///
    /// A message for people if a file cannot be written or read.
    pub(super) fn make(listen: &[Listen]) -> Result<Self, String> {
        let directory = state_directory()
            .ok_or("there is no place for a certificate: HOME is not set; give one with --tls-cert")?;
        create_private_directory(&directory).map_err(|error| error.to_string())?;
        let path = |name: &str| directory.join(name);
        // Two that start at once make one authority. Closing the file unlocks it.
        let lock = File::create(path("local.lock")).and_then(|file| file.lock().map(|()| file));
        let _lock = lock.map_err(|error| format!("{}: {error}", path("local.lock").display()))?;
        let issuer = authority(&path("local-ca.pem"), &path("local-ca.key"))?;
        let failed = |error: rcgen::Error| format!("cannot make a certificate: {error}");
        let mut params = CertificateParams::new(names(listen)).map_err(failed)?;
        set_validity(&mut params, VALIDITY);
        params.distinguished_name = name("Tailcoat on this machine");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        // Both are in one file: a reader gets a pair, even if another process replaces it now.
        let pair = [certificate.pem(), key.serialize_pem()].concat();
        write_private(&path("local.pem"), &pair).map_err(|error| error.to_string())?;
        let files = CertificateFiles { certificate: path("local.pem"), key: path("local.pem"), ocsp: None };
        Ok(Self { files, authority: path("local-ca.pem") })
    }

    /// Instructions to trust the CA.
    pub(super) fn advice(&self) -> String {
        let authority = self.authority.display();
        format!(
            "The certificate is signed by your own CA: {authority}\n\
             Import it in browsers (settings, certificates). For programs on Debian, run:\n  \
             sudo cp {authority} /usr/local/share/ca-certificates/tailcoat-local.crt && sudo update-ca-certificates\n\
             or use it in one program:\n  \
             curl --cacert {authority} URL"
        )
    }
}

/// Existing CA, or a new one.
fn authority(certificate_path: &Path, key_path: &Path) -> Result<Issuer<'static, KeyPair>, String> {
    let params = authority_params();
    if certificate_path.exists() {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", key_path.display());
        let pem = fs::read_to_string(key_path).map_err(|error| at(&error))?;
        let key = KeyPair::from_pem(&pem).map_err(|error| at(&error))?;
        // Versions before this one kept it to its owner; that it stays so is no reason not to serve.
        let _ = fs::set_permissions(certificate_path, fs::Permissions::from_mode(PUBLIC_FILE));
        return Ok(Issuer::new(params, key));
    }
    let failed = |error: rcgen::Error| format!("cannot make a CA: {error}");
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    // The key comes first: a CA exists when its certificate does.
    write_private(key_path, &key.serialize_pem()).map_err(|error| error.to_string())?;
    write_public(certificate_path, &certificate.pem()).map_err(|error| error.to_string())?;
    Ok(Issuer::new(params, key))
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    set_validity(&mut params, AUTHORITY_VALIDITY);
    params.distinguished_name = name("Tailcoat local authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn set_validity(params: &mut CertificateParams, validity: Duration) {
    let now = ASN1Time::now().to_datetime();
    params.not_before = now - SLACK;
    params.not_after = now + validity;
}

/// The names by which a browser on this machine, or another that knows its address, may ask for it.
fn names(listen: &[Listen]) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let addresses = listen.iter().filter_map(|listen| match listen {
        Listen::Tcp(address) if !address.ip().is_unspecified() => Some(SocketAddr::ip(address).to_string()),
        _ => None,
    });
    for name in [host].into_iter().chain(addresses) {
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte));
        if is_name && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
