//! Checks of TLS. Certificates are read, so that a valid configuration can be served.

use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::diagnostic::{Diagnostics, Severity};
use crate::model::HostPattern;
use crate::model::automatic::{AutomaticCertificates, ChallengeKind, certificate_name, is_public};
use crate::model::tls::{Certificate, TlsVersion};
use crate::parts::OptionalPart;
use crate::read::ConfigFinding;
use crate::read::draft::{SiteDraft, note};
use crate::regular_file::{is_denied, open_regular};

/// A site that speaks TLS has what that takes.
pub(crate) fn check_site(site: &SiteDraft, settings: &AutomaticCertificates, diagnostics: &mut Diagnostics) {
    let (tls, listens) = (&site.site.tls, !site.site.tls_listen.is_empty());
    if listens && tls.certificates.is_empty() && !tls.is_automatic {
        let finding = ConfigFinding::new(site.listen_span.clone(), "this site has no certificate", "`tls` here").help(
            "add, for example, `certificate \"/etc/ssl/example.com.pem\" key=\"/etc/ssl/example.com.key\"`, or \
                 `automatic-certificate on`"
                .to_owned(),
        );
        note(site, Severity::Error, finding, diagnostics);
    }
    let has_certificates = !tls.certificates.is_empty() && site.ftp.is_none();
    if !listens && (has_certificates || tls.automatic == Some(true)) {
        let finding = ConfigFinding::new(site.listen_span.clone(), "no address of this site has TLS", "here")
            .help("write, for example, `listen 443 tls=on`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    let is_of_13 = |suite: &String| suite.starts_with("TLS13_");
    if tls.version_min == TlsVersion::Tls13 && !tls.cipher_suites.is_empty() && !tls.cipher_suites.iter().any(is_of_13)
    {
        let finding = ConfigFinding::new(site.span.clone(), "`tls-cipher-suites` has no suite of TLS 1.3", "in here")
            .help("add, for example, `\"TLS13_AES_128_GCM_SHA256\"`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    if let Some(asked) = &tls.client_certificates {
        let fault = match asked.authorities.as_os_str().is_empty() {
            true => Some(("`client-certificate` has no `ca-file`".to_owned(), false)),
            false => asked.load().err().map(|error| (error.to_string(), error.is_denied)),
        };
        if let Some((message, is_denied)) = fault {
            let finding = ConfigFinding::new(site.span.clone(), message, "in here").denied(is_denied);
            note(site, Severity::Error, finding, diagnostics);
        }
    }
    if tls.has_early_data && (tls.has_no_tickets || tls.client_certificates.is_some()) {
        let other = if tls.has_no_tickets { "`tls-tickets off`" } else { "`client-certificate`" };
        let message = format!("`early-data` needs session tickets, which {other} turns off");
        let finding = ConfigFinding::new(site.span.clone(), message, "in here").help("remove one of them".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    if tls.automatic == Some(true) && !tls.certificates.is_empty() {
        let finding = ConfigFinding::new(
            site.certificate_spans[0].clone(),
            "this site has an automatic certificate and its own",
            "given here",
        )
        .help("remove one of them".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    if tls.is_automatic && !OptionalPart::Acme.is_built() {
        let finding =
            ConfigFinding::new(site.span.clone(), OptionalPart::Acme.absence_message(), "this site needs one").help(
                format!(
                    "add a `certificate`, write `automatic-certificate off`, or {}",
                    OptionalPart::Acme.absence_help()
                ),
            );
        note(site, Severity::Error, finding, diagnostics);
    }
    if tls.is_automatic {
        check_names(site, settings, diagnostics);
    }
    let is_silent =
        tls.automatic.is_none() && tls.certificates.is_empty() && !tls.is_automatic && site.has_default_listen;
    if is_silent && !site.site.names.is_empty() && site.site.names.iter().all(is_public) {
        // A name with a `*`, for want of a hook.
        let finding = ConfigFinding::new(
            site.span.clone(),
            "this site has no TLS, because an automatic certificate for `*` needs DNS",
            "here",
        )
        .help(
            "set a `dns-hook` in `automatic-certificates`, add a `certificate`, or write `automatic-certificate off`"
                .to_owned(),
        );
        note(site, Severity::Warning, finding, diagnostics);
    }
    check_certificates(site, diagnostics);
}

/// A CA issues certificates only for names over which control can be proven.
fn check_names(site: &SiteDraft, settings: &AutomaticCertificates, diagnostics: &mut Diagnostics) {
    if site.site.names.is_empty() {
        let finding =
            ConfigFinding::new(site.span.clone(), "an automatic certificate needs names", "this site has none");
        note(site, Severity::Error, finding, diagnostics);
    }
    for (name, span) in site.site.names.iter().zip(&site.name_spans) {
        if matches!(name, HostPattern::Prefix(_)) {
            let message = format!("no certificate can have the name `{}`", certificate_name(name));
            let finding = ConfigFinding::new(span.clone(), message, "this name")
                .help("add a `certificate`, name each host, or write `automatic-certificate off`".to_owned());
            note(site, Severity::Error, finding, diagnostics);
        }
        if matches!(name, HostPattern::Suffix(_)) && settings.dns_hook.is_none() {
            let message = format!("a certificate for `{}` needs a DNS challenge", certificate_name(name));
            let finding = ConfigFinding::new(span.clone(), message, "this name").help(
                "set a `dns-hook` in `automatic-certificates`, add a `certificate`, or write `automatic-certificate off`"
                    .to_owned(),
            );
            note(site, Severity::Error, finding, diagnostics);
        }
    }
}

/// Reports contradictions in the block `automatic-certificates`.
pub(crate) fn check_automatic(settings: &AutomaticCertificates, span: &Range<usize>) -> Vec<ConfigFinding> {
    let mut findings = Vec::new();
    let mut add = |message: String, help: Option<&str>, is_denied: bool| {
        let finding = ConfigFinding::new(span.clone(), message, "in here").denied(is_denied);
        findings.push(match help {
            Some(help) => finding.help(help.to_owned()),
            None => finding,
        });
    };
    if !settings.directory.starts_with("https://") {
        add(
            format!("`{}` is not the URL of an ACME directory", settings.directory),
            Some("write a URL that begins with `https://`"),
            false,
        );
    }
    if settings.challenges.contains(&ChallengeKind::Dns01) && settings.dns_hook.is_none() {
        add("`dns-01` needs a `dns-hook`".to_owned(), Some("name the program that adds records to DNS"), false);
    }
    if let Some(error) = settings.authority.as_deref().and_then(|path| crate::model::tls::load_authority(path).err()) {
        add(error.to_string(), None, error.is_denied);
    }
    if let Some(account) = &settings.external_account
        && let Err(message) = account.load_key()
    {
        let is_denied = open_regular(&account.key_file).is_err_and(|error| is_denied(&error));
        add(message, None, is_denied);
    }
    if let Some(hook) = &settings.dns_hook
        && !is_program(&hook.program)
    {
        add(format!("{}: there is no such program", hook.program.display()), None, false);
    }
    findings
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The certificates of a site can be used; those that can are returned.
pub(crate) fn check_certificate_files(site: &SiteDraft, diagnostics: &mut Diagnostics) -> Vec<Certificate> {
    let mut certificates = Vec::new();
    for (files, span) in site.site.tls.certificates.iter().zip(&site.certificate_spans) {
        match files.load() {
            Ok(certificate) => {
                if is_expired(&certificate) {
                    let finding = ConfigFinding::new(span.clone(), "this certificate has expired", "here");
                    note(site, Severity::Warning, finding, diagnostics);
                }
                certificates.push(certificate);
            }
            Err(error) => {
                let finding = ConfigFinding::new(span.clone(), error.to_string(), "here").denied(error.is_denied);
                note(site, Severity::Error, finding, diagnostics);
            }
        }
    }
    certificates
}

fn check_certificates(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let certificates = check_certificate_files(site, diagnostics);
    if certificates.is_empty() || certificates.len() < site.site.tls.certificates.len() {
        return;
    }
    for (name, span) in site.site.names.iter().zip(&site.name_spans) {
        let example = certificate_name(name);
        if !certificates.iter().any(|certificate| certificate.is_for(&example)) {
            let message = format!("no certificate of this site is valid for `{example}`");
            note(site, Severity::Warning, ConfigFinding::new(span.clone(), message, "this name"), diagnostics);
        }
    }
}

fn is_expired(certificate: &Certificate) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    certificate.not_after_unix_seconds < now as i64
}
