//! `serve --tls`: a certificate for this machine, by an authority of the user's own, which browsers trust once told so.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::time::ASN1Time;

use crate::config::{CertificateFiles, Listen};

/// The authority is to be trusted once.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A certificate is made anew at each start. Some clients take none that is good for longer than this.
const VALIDITY: Duration = Duration::from_secs(397 * 86_400);

/// For clocks that are behind.
const SLACK: Duration = Duration::from_secs(86_400);

/// A certificate for this machine.
pub(super) struct LocalCertificate {
    /// Its files.
    pub(super) files: CertificateFiles,
    /// The certificate of the authority.
    authority: PathBuf,
}

impl LocalCertificate {
    /// Makes a certificate for these addresses in the state directory, and the authority if there is none yet.
    ///
    /// # Errors
    /// What could not be written or read, for a person.
    pub(super) fn make(listen: &[Listen]) -> Result<Self, String> {
        let directory = state_directory()?;
        let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| at(&directory, error))?;
        let path = |name: &str| directory.join(name);
        let issuer = authority(&path("local-ca.pem"), &path("local-ca.key"))?;
        let failed = |error: rcgen::Error| format!("cannot make a certificate: {error}");
        let mut params = CertificateParams::new(names(listen)).map_err(failed)?;
        set_validity(&mut params, VALIDITY);
        params.distinguished_name = name("Tailcoat on this machine");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        write(&path("local.key"), &key.serialize_pem(), PRIVATE)?;
        write(&path("local.pem"), &certificate.pem(), PUBLIC)?;
        let files = CertificateFiles { certificate: path("local.pem"), key: path("local.key"), ocsp: None };
        Ok(Self { files, authority: path("local-ca.pem") })
    }

    /// How to have it trusted.
    pub(super) fn advice(&self) -> String {
        let authority = self.authority.display();
        format!(
            "The certificate is by an authority of your own, {authority}\n\
             Browsers trust it once that is imported (settings, certificates, authorities); programs on Debian after\n  \
             sudo cp {authority} /usr/local/share/ca-certificates/tailcoat-local.crt && sudo update-ca-certificates\n\
             or, one by one, such as\n  \
             curl --cacert {authority} https://localhost:…/"
        )
    }
}

/// The authority that is there, or a new one.
fn authority(certificate_path: &Path, key_path: &Path) -> Result<Issuer<'static, KeyPair>, String> {
    let params = authority_params();
    if certificate_path.exists() {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", key_path.display());
        let pem = fs::read_to_string(key_path).map_err(|error| at(&error))?;
        let key = KeyPair::from_pem(&pem).map_err(|error| at(&error))?;
        // Versions before this one kept it to its owner; that it stays so is no reason not to serve.
        let _ = fs::set_permissions(certificate_path, fs::Permissions::from_mode(PUBLIC));
        return Ok(Issuer::new(params, key));
    }
    let failed = |error: rcgen::Error| format!("cannot make an authority: {error}");
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    // The key first: an authority is there when its certificate is.
    write(key_path, &key.serialize_pem(), PRIVATE)?;
    write(certificate_path, &certificate.pem(), PUBLIC)?;
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

/// Where a program keeps what has to outlive it: what systemd says, else as the XDG base directory specification has it.
fn state_directory() -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("STATE_DIRECTORY")
        .or_else(|| variable("XDG_STATE_HOME").map(|home| home.join("tailcoat")))
        .or_else(|| variable("HOME").map(|home| home.join(".local/state/tailcoat")))
        .ok_or_else(|| "there is no place for a certificate: HOME is not set; give one with --tls-cert".to_owned())
}

/// Permissions of keys.
const PRIVATE: u32 = 0o600;

/// Permissions of certificates: a copy keeps them, and all programs must be able to read who is trusted.
const PUBLIC: u32 = 0o644;

/// Writes a file with these permissions, whole or not at all.
fn write(path: &Path, text: &str, permissions: u32) -> Result<(), String> {
    let write_new = || {
        let mut new = path.to_owned();
        new.as_mut_os_string().push(".new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(permissions).open(&new)?;
        // The umask is for what the user makes, and one of before may have other permissions.
        file.set_permissions(fs::Permissions::from_mode(permissions))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write_new().map_err(|error: io::Error| format!("{}: {error}", path.display()))
}
