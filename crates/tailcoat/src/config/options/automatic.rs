use std::time::Duration;

use super::{Kind, OPTION, OptionDefinition, Set, any, many, one, property};
use crate::config::automatic::*;

/// What stands before these options in the reference.
pub(super) const DOC: &str = "\
    How sites get certificates without anybody's doing (ACME, RFC 8555): see `automatic-certificate` of a site. They \
    stand in `automatic-certificates`, for all sites. Account, keys and certificates are kept in the directory `acme` \
    of the state directory (`STATE_DIRECTORY`, else `XDG_STATE_HOME/tailcoat`, else `~/.local/state/tailcoat`), which \
    other processes may share. A certificate is renewed when the authority says so (ARI, RFC 9773), else after two \
    thirds of its time. Who has certificates got agrees to the authority's terms of service.";

const MINUTE: Duration = Duration::from_secs(60);

/// How certificates are got.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "directory",
        parameters: &[one("url", Kind::Text), property("authority", Kind::File)],
        default: r#"directory "https://acme-v02.api.letsencrypt.org/directory""#,
        doc: "The authority: URL of its directory, by default that of Let's Encrypt. Its own certificate must be by one \
              that this machine trusts, or by the `authority` in this file (PEM). To try things out, take \
              `https://acme-staging-v02.api.letsencrypt.org/directory`, which browsers don't trust.",
        example: r#"directory "https://ca.internal/acme/directory" authority="/etc/ssl/internal-ca.pem""#,
        known_as: &["acme_ca", "MDCertificateAuthority", "ca", "acme_ca_root"],
        set: Set::Automatic(|automatic, values| {
            automatic.directory = values.text("url").unwrap_or_default();
            automatic.authority = values.file("authority");
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "contact",
        parameters: &[many("url", Kind::Text)],
        doc: "Where the authority may write to, such as a `mailto:` URL.",
        example: r#"contact "mailto:admin@example.com""#,
        known_as: &["email", "MDContactEmail"],
        set: Set::Automatic(|automatic, values| automatic.contacts = values.texts("url")),
        ..OPTION
    },
    OptionDefinition {
        name: "challenges",
        parameters: &[many("kind", Kind::Choice(ChallengeKind::NAMES))],
        doc: "How it is shown that a name is ours: by a response on port 80 (`http-01`), a handshake on port 443 \
              (`tls-alpn-01`), or a record in DNS (`dns-01`), which needs a `dns-hook`. By default the third where there \
              is one, else the first two. If it fails with one, the next attempt \
              takes the next. Names with a `*` are always shown by DNS.",
        example: r#"challenges "tls-alpn-01""#,
        known_as: &["MDCAChallenges", "disable_http_challenge", "disable_tlsalpn_challenge"],
        set: Set::Automatic(|automatic, values| {
            automatic.challenges =
                values.texts("kind").iter().filter_map(|name| ChallengeKind::from_name(name)).collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "dns-hook",
        parameters: &[
            one("program", Kind::File),
            any("argument", Kind::Text),
            property("timeout", Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3_600) }),
        ],
        doc: "The program that adds records to DNS and removes them. It gets these arguments, then `add` or `remove`, the \
              name (`_acme-challenge.example.com`) and the value of a TXT record. A name can have several at a time. \
              When it ends after `add`, the name servers must know the record. It is ended after this time, by default \
              two minutes.",
        example: r#"dns-hook "/usr/local/bin/dns-record" "--zone" "example.com" timeout="5m""#,
        known_as: &["MDChallengeDns01", "dns", "acme_dns"],
        set: Set::Automatic(|automatic, values| {
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
        parameters: &[one("key-id", Kind::Text), property("key-file", Kind::File)],
        doc: "The account that you have with the authority, where it asks for one (external account binding): the key's \
              identifier, and a file with the HMAC key as the authority gives it, in base64url.",
        example: r#"external-account "kid-1" key-file="/etc/tailcoat/eab.key""#,
        known_as: &["acme_eab", "MDExternalAccountBinding"],
        set: Set::Automatic(|automatic, values| {
            automatic.external_account = Some(ExternalAccount {
                key_id: values.text("key-id").unwrap_or_default(),
                key_file: values.file("key-file").unwrap_or_default(),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "profile",
        parameters: &[one("name", Kind::Text)],
        doc: "The profile of certificates to ask for, of those that the authority has.",
        example: r#"profile "shortlived""#,
        known_as: &["MDProfile"],
        set: Set::Automatic(|automatic, values| automatic.profile = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "retry-interval",
        parameters: &[one("time", Kind::Duration { min: Duration::from_secs(1), max: RETRY_INTERVAL_MAX })],
        default: r#"retry-interval "1m""#,
        doc: "How long to wait after a failure before trying again. It doubles with each further one, up to a day, and is \
              longer if the authority says so.",
        example: r#"retry-interval "10m""#,
        known_as: &["MDRetryDelay"],
        set: Set::Automatic(|automatic, values| {
            automatic.retry_interval = values.duration("time").unwrap_or(MINUTE);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "order-timeout",
        parameters: &[one("time", Kind::Duration { min: Duration::from_secs(10), max: Duration::from_secs(86_400) })],
        default: r#"order-timeout "10m""#,
        doc: "An order fails when it takes longer, what the authority and the hook need included.",
        example: r#"order-timeout "30m""#,
        set: Set::Automatic(|automatic, values| {
            automatic.order_timeout = values.duration("time").unwrap_or(10 * MINUTE);
        }),
        ..OPTION
    },
];
