//! Checks of TLS. Certificates are read, so that a valid configuration can be served.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::finding::{CheckedSite, ModelFinding, ModelPart, SiteSoundness};
use crate::model::automatic::{AutomaticCertificates, CertificateSubject, ChallengeKind, certificate_name, is_public};
use crate::model::tls::{Certificate, TlsVersion};
use crate::model::{Config, HostPattern};
use crate::options::OptionContext;
use crate::parts::OptionalPart;
use crate::regular_file::{is_denied, open_regular};

/// A site that speaks TLS has what that takes. `serves_ftp` says that its certificates are for FTP too.
pub(super) fn check_site(
    site: CheckedSite<'_>,
    serves_ftp: bool,
    config: &Config,
    soundness: SiteSoundness,
    findings: &mut Vec<ModelFinding>,
) {
    let tls = &site.config.tls;
    let listens = !site.config.tls_listen.is_empty() && site.config.ftp.is_none();
    if listens && tls.certificates.is_empty() && !tls.is_automatic {
        findings.push(ModelFinding::error(site.listen(), "this site has no certificate", "`tls` here").help(
            "add, for example, `certificate \"/etc/ssl/example.com.pem\" key=\"/etc/ssl/example.com.key\"`, or \
             `automatic-certificate on`",
        ));
    }
    if !listens && (!tls.certificates.is_empty() && !serves_ftp || tls.automatic == Some(true)) {
        let finding = ModelFinding::error(site.listen(), "no address of this site has TLS", "here");
        findings.push(finding.help("write, for example, `listen 443 tls=on`"));
    }
    if tls.version_min == TlsVersion::Tls13 && !tls.has_tls13() {
        let finding = ModelFinding::error(site.part(), "`tls-cipher-suites` has no suite of TLS 1.3", "in here");
        findings.push(finding.help("add, for example, `\"TLS13_AES_128_GCM_SHA256\"`"));
    }
    if let Some(asked) = &tls.client_certificates {
        let fault = match asked.authorities.as_os_str().is_empty() {
            true => Some(("`client-certificate` has no `ca-file`".to_owned(), false)),
            false => asked.load().err().map(|error| (error.to_string(), error.is_denied)),
        };
        if let Some((message, is_denied)) = fault {
            findings.push(ModelFinding::error(site.part(), message, "in here").denied(is_denied));
        }
    }
    if tls.has_early_data && (tls.has_no_tickets || tls.client_certificates.is_some()) {
        let other = if tls.has_no_tickets { "`tls-tickets off`" } else { "`client-certificate`" };
        let message = format!("`early-data` needs session tickets, which {other} turns off");
        findings.push(ModelFinding::error(site.part(), message, "in here").help("remove one of them"));
    }
    let has_http3 = || site.config.listen.iter().any(|listen| config.has_http3(site.index, listen));
    if tls.has_early_data && !has_http3() {
        let message = "`early-data` has no effect: only HTTP/3 has early data, which no address of this site offers";
        findings.push(
            ModelFinding::warning(site.part(), message, "in here")
                .help("remove it, or see `http-versions` for what HTTP/3 needs"),
        );
    }
    if tls.automatic == Some(true) && !tls.certificates.is_empty() {
        let (part, message) =
            (ModelPart::Certificate(site.index, 0), "this site has an automatic certificate and its own");
        findings.push(ModelFinding::error(part, message, "given here").help("remove one of them"));
    }
    if tls.is_automatic && !OptionalPart::Acme.is_built() {
        let finding = ModelFinding::error(site.part(), OptionalPart::Acme.absence_message(), "this site needs one");
        findings.push(finding.help(format!(
            "add a `certificate`, write `automatic-certificate off`, or {}",
            OptionalPart::Acme.absence_help()
        )));
    }
    if tls.is_automatic {
        check_names(site, &config.automatic_certificates, findings);
    }
    let is_silent =
        tls.automatic.is_none() && tls.certificates.is_empty() && !tls.is_automatic && soundness.has_default_listen;
    if is_silent && !site.config.names.is_empty() && site.config.names.iter().all(is_public) {
        // A name with a `*`, for want of a hook.
        let message = "this site has no TLS, because an automatic certificate for `*` needs DNS";
        findings.push(ModelFinding::warning(site.part(), message, "here").help(
            "set a `dns-hook` in `automatic-certificates`, add a `certificate`, or write `automatic-certificate off`",
        ));
    }
    check_certificates(site, findings);
}

/// A CA issues certificates only for names over which control can be proven.
fn check_names(site: CheckedSite<'_>, settings: &AutomaticCertificates, findings: &mut Vec<ModelFinding>) {
    if site.config.names.is_empty() {
        let message = "an automatic certificate needs names";
        findings.push(ModelFinding::error(site.part(), message, "this site has none"));
    }
    for (index, name) in site.config.names.iter().enumerate() {
        if matches!(name, HostPattern::Prefix(_)) {
            let message = format!("no certificate can have the name `{}`", certificate_name(name));
            let finding = ModelFinding::error(site.name(index), message, "this name");
            findings.push(finding.help("add a `certificate`, name each host, or write `automatic-certificate off`"));
        }
        let subject = CertificateSubject::of(name);
        let is_suffix = matches!(name, HostPattern::Suffix(_));
        if is_suffix && settings.challenges(subject).is_empty() {
            let message = format!("a certificate for `{}` needs a DNS challenge", certificate_name(name));
            findings.push(ModelFinding::error(site.name(index), message, "this name").help(
                "set a `dns-hook` in `automatic-certificates`, add a `certificate`, or write `automatic-certificate off`",
            ));
        }
        if subject == CertificateSubject::Address {
            check_address(site, index, settings, findings);
        }
    }
}

/// A CA connects to an address to validate it (RFC 8738, section 3).
fn check_address(
    site: CheckedSite<'_>,
    index: usize,
    settings: &AutomaticCertificates,
    findings: &mut Vec<ModelFinding>,
) {
    let name = certificate_name(&site.config.names[index]);
    if settings.challenges(CertificateSubject::Address).is_empty() {
        let message = format!("a certificate for `{name}` needs the challenge `http-01` or `tls-alpn-01`");
        let finding = ModelFinding::error(site.name(index), message, "this address");
        findings.push(finding.help("add one to `challenges` in `automatic-certificates`"));
    }
    let profile = site.config.tls.profile.as_deref().or(settings.profile.as_deref());
    if settings.is_lets_encrypt() && profile != Some("shortlived") {
        let message = "Let's Encrypt issues certificates for addresses with the profile `shortlived` only";
        let finding = ModelFinding::warning(site.name(index), message, "this address");
        findings.push(finding.help("write `automatic-certificate profile=\"shortlived\"`"));
    }
}

/// Reports contradictions in the block `automatic-certificates`.
pub(super) fn check_automatic(settings: &AutomaticCertificates, findings: &mut Vec<ModelFinding>) {
    let mut add = |message: String, help: Option<&str>, is_denied: bool| {
        let part = ModelPart::Block(OptionContext::AutomaticCertificates);
        let help = help.map(str::to_owned);
        findings.push(ModelFinding { help, is_denied, ..ModelFinding::error(part, message, "in here") });
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
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The certificates of a site can be used; those that can are returned.
pub(super) fn check_certificate_files(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) -> Vec<Certificate> {
    let mut certificates = Vec::new();
    for (index, files) in site.config.tls.certificates.iter().enumerate() {
        let part = ModelPart::Certificate(site.index, index);
        match files.load() {
            Ok(certificate) => {
                if is_expired(&certificate) {
                    findings.push(ModelFinding::warning(part, "this certificate has expired", "here"));
                }
                certificates.push(certificate);
            }
            Err(error) => {
                findings.push(ModelFinding::error(part, error.to_string(), "here").denied(error.is_denied));
            }
        }
    }
    certificates
}

fn check_certificates(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    let certificates = check_certificate_files(site, findings);
    if certificates.is_empty() || certificates.len() < site.config.tls.certificates.len() {
        return;
    }
    for (index, name) in site.config.names.iter().enumerate() {
        let example = certificate_name(name);
        if !certificates.iter().any(|certificate| certificate.is_for(&example)) {
            let message = format!("no certificate of this site is valid for `{example}`");
            findings.push(ModelFinding::warning(site.name(index), message, "this name"));
        }
    }
}

fn is_expired(certificate: &Certificate) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    certificate.not_after_unix_seconds < now as i64
}
