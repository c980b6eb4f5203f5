use std::time::Duration;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, any, many, one, property};
use crate::model::automatic::*;

/// Introduction to these options in the reference.
pub(super) const DOC: &str = "\
    Automatic HTTPS: certificates that Tailcoat obtains and renews itself (ACME, RFC 8555). Sites turn it on or \
    off with `automatic-certificate`. Use these options in `automatic-certificates`, for all sites. The account, \
    keys and certificates are stored in `acme` in the state directory (`STATE_DIRECTORY`, otherwise \
    `XDG_STATE_HOME/tailcoat`, otherwise `~/.local/state/tailcoat`). Several processes may share it. A certificate \
    is renewed when the certificate authority (CA) suggests it (ARI, RFC 9773), otherwise after two thirds of its \
    lifetime. By using automatic certificates you agree to the CA's terms of service.";

const MINUTE: Duration = Duration::from_secs(60);

/// Options of `automatic-certificates`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "directory",
        parameters: &[one("url", ValueKind::Text), property("ca-file", ValueKind::File)],
        default: r#"directory "https://acme-v02.api.letsencrypt.org/directory""#,
        doc: "ACME directory URL of the certificate authority (CA); by default that of Let's Encrypt. The CA \
              server's own certificate must be signed by a CA that this machine trusts, or by one in the file \
              `ca-file` (PEM). For tests, use `https://acme-staging-v02.api.letsencrypt.org/directory`; browsers \
              do not trust its certificates.",
        example: r#"directory "https://ca.internal/acme/directory" ca-file="/etc/ssl/internal-ca.pem""#,
        known_as: KnownAs {
            nginx: &["uri"],
            apache: &["MDCertificateAuthority", "MDCACertificateFile"],
            caddy: &["acme_ca", "acme_ca_root", "ca", "ca_root", "dir", "trusted_roots"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.directory = values.text("url").unwrap_or_default();
            automatic.authority = values.file("ca-file");
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "contact",
        parameters: &[many("url", ValueKind::Text)],
        doc: "Contact URL for the CA, such as a `mailto:` URL.",
        example: r#"contact "mailto:admin@example.com""#,
        known_as: KnownAs::NONE.nginx(&["contact"]).apache(&["MDContactEmail"]).caddy(&["email"]),
        set: OptionSetter::Automatic(|automatic, values| automatic.contacts = values.texts("url")),
        ..OPTION
    },
    OptionDefinition {
        name: "challenges",
        parameters: &[many("kind", ValueKind::Choice(ChallengeKind::NAMES))],
        doc: "Methods that prove to the CA that you control a name. `http-01` is a response on port 80, \
              `tls-alpn-01` a handshake on port 443, and `dns-01` a DNS record, which needs a `dns-hook`. \
              `dns-persist-01` is a DNS record that you set once and that stays; the log says which. The default is \
              `dns-01` if there is a `dns-hook`, otherwise `http-01` and `tls-alpn-01`. After a failure, the next \
              attempt uses the next method. Names with `*` always use DNS, addresses never.",
        example: r#"challenges "tls-alpn-01""#,
        known_as: KnownAs {
            nginx: &["challenge"],
            apache: &["MDCAChallenges"],
            caddy: &["disable_http_challenge", "disable_tlsalpn_challenge", "alt_http_port", "alt_tlsalpn_port"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.challenges =
                values.texts("kind").iter().filter_map(|name| ChallengeKind::from_name(name)).collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "dns-hook",
        parameters: &[
            one("program", ValueKind::File),
            any("argument", ValueKind::Text),
            property("timeout", ValueKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3_600) }),
        ],
        doc: "Program that adds and removes DNS records. It gets your arguments, then `add` or `remove`, the name \
              (`_acme-challenge.example.com`), and the value of the TXT record. A name can have several records at \
              once. When the program exits after `add`, the name servers must already serve the record. It is killed \
              after `timeout` (default 2 minutes).",
        example: r#"dns-hook "/usr/local/bin/dns-record" "--zone" "example.com" timeout="5m""#,
        known_as: KnownAs::NONE.apache(&["MDChallengeDns01"]).caddy(&["acme_dns", "dns", "propagation_delay"]),
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.dns_hook = values.file("program").map(|program| DnsHook {
                program,
                arguments: values.texts("argument"),
                timeout: values.duration("timeout").unwrap_or(2 * MINUTE),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "external-account",
        parameters: &[one("key-id", ValueKind::Text), property("key-file", ValueKind::File)],
        doc: "Account that you have with the CA, if the CA requires one (external account binding). `key-file` holds \
              the HMAC key in base64url, as the CA gives it.",
        example: r#"external-account "kid-1" key-file="/etc/tailcoat/eab.key""#,
        known_as: KnownAs {
            nginx: &["external_account_key"],
            apache: &["MDExternalAccountBinding"],
            caddy: &["acme_eab", "eab"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.external_account = Some(ExternalAccount {
                key_id: values.text("key-id").unwrap_or_default(),
                key_file: values.file("key-file").unwrap_or_default(),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "profile",
        parameters: &[one("name", ValueKind::Text)],
        doc: "Certificate profile requested from the CA, for sites whose `automatic-certificate` names none.",
        example: r#"profile "shortlived""#,
        known_as: KnownAs::NONE.nginx(&["profile"]).apache(&["MDProfile"]).caddy(&["profile"]),
        set: OptionSetter::Automatic(|automatic, values| automatic.profile = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "retry-interval",
        parameters: &[one("time", ValueKind::Duration { min: Duration::from_secs(1), max: RETRY_INTERVAL_MAX })],
        default: r#"retry-interval "1m""#,
        doc: "Time to wait after a failure before the next attempt. It doubles with each further failure, up to a \
              day, and is longer if the CA asks for it.",
        example: r#"retry-interval "10m""#,
        known_as: KnownAs::NONE.apache(&["MDRetryDelay", "MDRetryFailover"]),
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.retry_interval = values.duration("time").unwrap_or(MINUTE);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "order-timeout",
        parameters: &[one(
            "time",
            ValueKind::Duration { min: Duration::from_secs(10), max: Duration::from_secs(86_400) },
        )],
        default: r#"order-timeout "10m""#,
        doc: "Maximum time of a certificate order, the CA's and the hook's time included. After it, the order fails.",
        example: r#"order-timeout "30m""#,
        known_as: KnownAs::NONE.caddy(&["propagation_timeout"]),
        set: OptionSetter::Automatic(|automatic, values| {
            automatic.order_timeout = values.duration("time").unwrap_or(10 * MINUTE);
        }),
        ..OPTION
    },
];
