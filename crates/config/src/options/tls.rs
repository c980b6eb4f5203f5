use std::time::Duration;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one, optional, property};
use crate::model::tls::*;

/// Introduction to the options of TLS in the reference.
pub(super) const DOC: &str = "\
    TLS of a site. Use these options in `site`. A site with a certificate, its own or an automatic one, and \
    without `listen` listens on port 443 with TLS. It also listens on port 80 and redirects to `https`. The name \
    that a client requests (SNI) selects the certificate and these settings, like the host selects the site. \
    Changed files are read again. If a new file is invalid, the log says so and the old one stays in use.";

/// The TLS of a site.
pub(super) static TLS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "certificate",
        parameters: &[
            one("file", ValueKind::File),
            property("key", ValueKind::File),
            property("ocsp", ValueKind::File),
        ],
        repeatable: true,
        doc: "Certificate chain and its private `key`, as PEM files. Without `key`, both are in one file. `ocsp` is \
              a file with an OCSP response (DER) to send along. If there are several, Tailcoat uses the first one \
              that is valid for the requested name (SNI) and whose type the client supports. ECDSA comes before RSA.",
        example: r#"certificate "/etc/ssl/example.com.pem" key="/etc/ssl/example.com.key""#,
        known_as: KnownAs {
            nginx: &["ssl_certificate", "ssl_certificate_key", "ssl_stapling", "ssl_stapling_file", "ssl"],
            apache: &[
                "SSLCertificateFile",
                "SSLCertificateKeyFile",
                "SSLCertificateChainFile",
                "SSLUseStapling",
                "SSLEngine",
                "mod_ssl",
            ],
            caddy: &["tls", "load", "key_type"],
            others: &["ssl.pemfile", "certificate-file", "crt"],
        },
        set: OptionSetter::Site(|site, values| {
            // The table gives each its file.
            let Some(certificate) = values.file("file") else { return };
            let key = values.file("key").unwrap_or_else(|| certificate.clone());
            site.tls.certificates.push(CertificateFiles { certificate, key, ocsp: values.file("ocsp") });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "automatic-certificate",
        parameters: &[optional("on", ValueKind::Flag), property("profile", ValueKind::Text)],
        doc: "Obtains and renews the site's certificate automatically (ACME), as `automatic-certificates` says. It \
              is on by default for a site with public names only, no `certificate`, and no `listen` or one with TLS. \
              Names with `*` need a challenge by DNS. Turn it on for other names if your own CA issues their \
              certificates, and for addresses if the CA issues certificates for addresses. `profile` is the \
              certificate profile requested from the CA, instead of that of `automatic-certificates`.",
        example: "automatic-certificate off",
        known_as: KnownAs {
            nginx: &["acme_certificate"],
            apache: &["MDomain", "MDMembers", "MDCertificateAgreement"],
            caddy: &["auto_https", "tls", "issuer"],
            others: &["acme"],
        },
        set: OptionSetter::Site(|site, values| {
            site.tls.automatic = Some(values.on());
            site.tls.profile = values.text("profile");
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-version-min",
        parameters: &[one("version", ValueKind::Choice(&["1.2", "1.3"]))],
        default: r#"tls-version-min "1.2""#,
        doc: "Oldest TLS version that clients may use.",
        example: r#"tls-version-min "1.3""#,
        known_as: KnownAs {
            nginx: &["ssl_protocols"],
            apache: &["SSLProtocol"],
            caddy: &["protocols"],
            others: &["minimum-version", "ssl-min-ver"],
        },
        set: OptionSetter::Site(|site, values| {
            let is_13 = values.text("version").as_deref() == Some("1.3");
            site.tls.version_min = if is_13 { TlsVersion::Tls13 } else { TlsVersion::Tls12 };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-cipher-suites",
        parameters: &[many("suite", ValueKind::Choice(CIPHER_SUITES))],
        doc: "Cipher suites that clients may use. By default, all suites listed here, none of which is weak. The \
              client's order of preference applies. A site without a suite of TLS 1.3 has no HTTP/3.",
        example: r#"tls-cipher-suites "TLS13_AES_128_GCM_SHA256" "TLS13_CHACHA20_POLY1305_SHA256""#,
        known_as: KnownAs {
            nginx: &["ssl_ciphers", "ssl_prefer_server_ciphers"],
            apache: &["SSLCipherSuite", "SSLHonorCipherOrder"],
            caddy: &["ciphers"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Site(|site, values| site.tls.cipher_suites = values.texts("suite")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-tickets",
        parameters: FLAG,
        default: "tls-tickets on",
        doc: "Lets clients resume TLS sessions with tickets, without a full handshake. A ticket is valid for at most \
              12 hours. All workers share the keys, which change every six hours. Sites with `client-certificate` \
              use no tickets, so clients show their certificate on every connection.",
        example: "tls-tickets off",
        known_as: KnownAs {
            nginx: &["ssl_session_tickets", "ssl_session_ticket_key", "ssl_session_cache", "ssl_session_timeout"],
            apache: &["SSLSessionTickets", "SSLSessionTicketKeyFile", "SSLSessionCache", "SSLSessionCacheTimeout"],
            caddy: &["session_tickets"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Site(|site, values| site.tls.has_no_tickets = !values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "early-data",
        parameters: FLAG,
        default: "early-data off",
        doc: "Accepts requests that a returning client of HTTP/3 sends before the handshake is complete (0-RTT). It \
              saves a round trip. An attacker on the network can make the server receive such a request twice, from a \
              copy and from the client. So only safe methods (such as `GET`) are served; others get 425 (Too Early), and \
              clients repeat them after the handshake. Upstreams and scripts get `Early-Data: 1` and may answer 425 \
              (RFC 8470). Each ticket works once: the server keeps up to 16,384 sessions for six hours. After an \
              upgrade, clients need a full handshake.",
        example: "early-data on",
        known_as: KnownAs { nginx: &["ssl_early_data"], others: &["0rtt", "0-rtt", "allow-0rtt"], ..KnownAs::NONE },
        set: OptionSetter::Site(|site, values| site.tls.has_early_data = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "client-certificate",
        parameters: &[one("mode", ValueKind::Choice(&["required", "optional"])), property("ca-file", ValueKind::File)],
        doc: "Requests a client certificate signed by a CA in `ca-file` (PEM), which is mutual TLS. With \
              `required`, clients without a valid certificate are rejected. A request that arrives on another site's \
              connection gets 421.",
        example: r#"client-certificate "required" ca-file="/etc/ssl/clients.pem""#,
        known_as: KnownAs {
            nginx: &[
                "ssl_verify_client",
                "ssl_client_certificate",
                "ssl_trusted_certificate",
                "ssl_verify_depth",
                "ssl_crl",
            ],
            apache: &[
                "SSLVerifyClient",
                "SSLCACertificateFile",
                "SSLCACertificatePath",
                "SSLVerifyDepth",
                "SSLCADNRequestFile",
            ],
            caddy: &["client_auth", "trust_pool", "trusted_ca_cert_file"],
            others: &["mtls"],
        },
        set: OptionSetter::Site(|site, values| {
            site.tls.client_certificates = Some(ClientCertificates {
                authorities: values.file("ca-file").unwrap_or_default(),
                accepts: match values.text("mode").as_deref() {
                    Some("required") => AcceptedClients::Verified,
                    _ => AcceptedClients::VerifiedOrBare,
                },
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
            optional("time", ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(10 * YEAR_SECONDS) }),
            property("subdomains", ValueKind::Flag),
            property("preload", ValueKind::Flag),
        ],
        doc: "Tells browsers to use HTTPS only, for this time (default: a year). It adds `Strict-Transport-Security` \
              to responses over TLS (RFC 6797).",
        example: r#"hsts "180d" subdomains=on"#,
        known_as: KnownAs::NONE.apache(&["MDRequireHttps"]).others(&["Strict-Transport-Security"]),
        set: OptionSetter::Rules(|rules, values| {
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
        doc: "Redirects requests without TLS to the same URL with `https` (status 308). It is on by default for a \
              site with a `certificate` and no `listen`.",
        example: "redirect-to-https",
        known_as: KnownAs {
            nginx: &["return"],
            apache: &["SSLRequireSSL", "MDRequireHttps"],
            caddy: &["auto_https"],
            others: &["force_ssl", "https-only"],
        },
        set: OptionSetter::Rules(|rules, values| rules.redirects_to_https = Some(values.on())),
        ..OPTION
    },
];

const YEAR_SECONDS: u64 = 365 * 86_400;
