//! What can't work of TLS, told where it stands. Certificates are read, so that a configuration that was found good can be
//! served.

use std::time::{SystemTime, UNIX_EPOCH};

use super::build::{SiteDraft, note};
use super::diagnostic::{Diagnostics, Severity};
use super::model::HostPattern;
use super::read::Finding;
use super::tls::{Certificate, TlsVersion};

/// A site that speaks TLS has what that takes.
pub(super) fn check_site(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let (tls, listens) = (&site.site.tls, !site.site.tls_listen.is_empty());
    if listens && tls.certificates.is_empty() {
        let finding = Finding::new(site.listen_span.clone(), "this site has no certificate", "`tls` here")
            .help("add such as `certificate \"/etc/ssl/example.com.pem\" key=\"/etc/ssl/example.com.key\"`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    if !listens && !tls.certificates.is_empty() {
        let finding = Finding::new(site.listen_span.clone(), "no address of this site has TLS", "here")
            .help("write such as `listen 443 tls=on`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    let is_of_13 = |suite: &String| suite.starts_with("TLS13_");
    if tls.version_min == TlsVersion::Tls13 && !tls.cipher_suites.is_empty() && !tls.cipher_suites.iter().any(is_of_13)
    {
        let finding = Finding::new(site.span.clone(), "none of the `tls-cipher-suites` is of TLS 1.3", "in here")
            .help("add such as `\"TLS13_AES_128_GCM_SHA256\"`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    if let Some(asked) = &tls.client_certificates {
        let message = match asked.authorities.as_os_str().is_empty() {
            true => Some("`client-certificate` names no `authorities`".to_owned()),
            false => asked.load().err().map(|error| error.to_string()),
        };
        if let Some(message) = message {
            note(site, Severity::Error, Finding::new(site.span.clone(), message, "in here"), diagnostics);
        }
    }
    check_certificates(site, diagnostics);
}

fn check_certificates(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let mut certificates = Vec::new();
    for (files, span) in site.site.tls.certificates.iter().zip(&site.certificate_spans) {
        match files.load() {
            Ok(certificate) => {
                if is_expired(&certificate) {
                    let finding = Finding::new(span.clone(), "this certificate has expired", "here");
                    note(site, Severity::Warning, finding, diagnostics);
                }
                certificates.push(certificate);
            }
            Err(error) => {
                note(site, Severity::Error, Finding::new(span.clone(), error.to_string(), "here"), diagnostics)
            }
        }
    }
    if certificates.is_empty() || certificates.len() < site.site.tls.certificates.len() {
        return;
    }
    for (name, span) in site.site.names.iter().zip(&site.name_spans) {
        let example = match name {
            HostPattern::Exact(name) => name.clone(),
            HostPattern::Suffix(suffix) => format!("*{suffix}"),
        };
        if !certificates.iter().any(|certificate| certificate.is_for(&example)) {
            let message = format!("no certificate of this site is for `{example}`");
            note(site, Severity::Warning, Finding::new(span.clone(), message, "this name"), diagnostics);
        }
    }
}

fn is_expired(certificate: &Certificate) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    certificate.not_after_unix_seconds < now as i64
}
