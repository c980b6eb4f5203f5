use std::time::Duration;

use super::{FLAG, Kind, OPTION, OptionDefinition, Set, many, one, optional, property};
use crate::config::tls::*;

/// What stands before the options of TLS in the reference.
pub(super) const DOC: &str = "\
    They stand in `site`. A site with a certificate of its own or an automatic one, and no `listen`, listens on port 443 \
    with TLS, and on port 80, where it redirects to `https`. A client's certificate and settings are chosen by the name that it asks for (SNI), as \
    a request's site is by its host. Files are looked at from time to time, and read again when they have changed; one \
    that is broken by then is told in the log, and the old one stays.";

/// The TLS of a site.
pub(super) static TLS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "certificate",
        parameters: &[one("file", Kind::File), property("key", Kind::File), property("ocsp", Kind::File)],
        repeatable: true,
        doc: "A certificate with those that lead from it to an authority's, and its private `key`, as PEM; without \
              `key`, both are in one file. With `ocsp`, this OCSP response (DER) is sent with it. Of several, the first \
              is used that is for the name the client asks for and of a kind that it understands, ECDSA before RSA.",
        example: r#"certificate "/etc/ssl/example.com.pem" key="/etc/ssl/example.com.key""#,
        known_as: &[
            "ssl_certificate",
            "ssl_certificate_key",
            "SSLCertificateFile",
            "tls",
            "ssl.pemfile",
            "certificate-file",
        ],
        set: Set::Site(|site, values| {
            // The table gives each its file.
            let Some(certificate) = values.file("file") else { return };
            let key = values.file("key").unwrap_or_else(|| certificate.clone());
            site.tls.certificates.push(CertificateFiles { certificate, key, ocsp: values.file("ocsp") });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "automatic-certificate",
        parameters: FLAG,
        doc: "Whether a site gets its certificate without anybody's doing, as `automatic-certificates` says. By default \
              one does that has only public names and no `certificate`, if it has no `listen` or one with TLS; names with a \
              `*` need a `dns-hook`. Turn it on \
              for other names too, if an authority of your own has certificates for them.",
        example: "automatic-certificate off",
        known_as: &["auto_https", "MDomain", "acme"],
        set: Set::Site(|site, values| site.tls.automatic = Some(values.on())),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-version-min",
        parameters: &[one("version", Kind::Choice(&["1.2", "1.3"]))],
        default: r#"tls-version-min "1.2""#,
        doc: "The oldest version of TLS that is spoken.",
        example: r#"tls-version-min "1.3""#,
        known_as: &["ssl_protocols", "SSLProtocol", "minimum-version"],
        set: Set::Site(|site, values| {
            let is_13 = values.text("version").as_deref() == Some("1.3");
            site.tls.version_min = if is_13 { TlsVersion::Tls13 } else { TlsVersion::Tls12 };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-cipher-suites",
        parameters: &[many("suite", Kind::Choice(CIPHER_SUITES))],
        doc: "The cipher suites that may be used; by default all that the reference lists here, of which none is weak. \
              The client's order counts.",
        example: r#"tls-cipher-suites "TLS13_AES_128_GCM_SHA256" "TLS13_CHACHA20_POLY1305_SHA256""#,
        known_as: &["ssl_ciphers", "SSLCipherSuite", "ciphers"],
        set: Set::Site(|site, values| site.tls.cipher_suites = values.texts("suite")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-tickets",
        parameters: FLAG,
        default: "tls-tickets on",
        doc: "Whether clients may resume a session without a full handshake, with a ticket that holds for at most twelve \
              hours. The keys are shared by the workers, and changed every six hours. Sites with `client-certificate` \
              give and take no tickets: who comes again shows the certificate again.",
        example: "tls-tickets off",
        known_as: &["ssl_session_tickets", "SSLSessionTickets"],
        set: Set::Site(|site, values| site.tls.has_no_tickets = !values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "client-certificate",
        parameters: &[one("mode", Kind::Choice(&["required", "optional"])), property("authorities", Kind::File)],
        doc: "Asks clients for a certificate of one of these `authorities` (PEM). Without one, or with one of others, a \
              client is refused if it is `required`. A request that came over a connection to another site gets 421.",
        example: r#"client-certificate "required" authorities="/etc/ssl/clients.pem""#,
        known_as: &["ssl_verify_client", "SSLVerifyClient", "ssl_client_certificate", "client_auth", "mtls"],
        set: Set::Site(|site, values| {
            site.tls.client_certificates = Some(ClientCertificates {
                authorities: values.file("authorities").unwrap_or_default(),
                is_required: values.text("mode").as_deref() == Some("required"),
            });
        }),
        ..OPTION
    },
];

/// Rules that have to do with whether TLS is spoken.
pub(super) static HTTPS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "hsts",
        parameters: &[
            optional("time", Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(10 * YEAR_SECONDS) }),
            property("subdomains", Kind::Flag),
            property("preload", Kind::Flag),
        ],
        doc: "Tells browsers to come with TLS only, for this time, by default a year: the field \
              `Strict-Transport-Security` in responses over TLS (RFC 6797).",
        example: r#"hsts "180d" subdomains=on"#,
        known_as: &["Strict-Transport-Security", "strict-transport-security"],
        set: Set::Rules(|rules, values| {
            let seconds = values.duration("time").map_or(YEAR_SECONDS, |time| time.as_secs());
            let mut value = format!("max-age={seconds}");
            for (flag, directive) in [("subdomains", "; includeSubDomains"), ("preload", "; preload")] {
                if values.flag(flag) == Some(true) {
                    value.push_str(directive);
                }
            }
            rules.strict_transport_security = Some(value);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "redirect-to-https",
        parameters: FLAG,
        doc: "Sends clients that come without TLS to the same URL with it (308). A site with a `certificate` and no `listen` \
              does so unless this is off.",
        example: "redirect-to-https",
        known_as: &["SSLRequireSSL", "force_ssl", "https-only", "auto_https"],
        set: Set::Rules(|rules, values| rules.redirects_to_https = Some(values.on())),
        ..OPTION
    },
];

const YEAR_SECONDS: u64 = 365 * 86_400;
