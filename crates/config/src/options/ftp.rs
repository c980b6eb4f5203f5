use std::time::Duration;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one};
use crate::FtpWriters;

pub(super) const DOC: &str = "\
    FTP from the same files, read-only unless `write` is set. Without `users`, clients log in as `anonymous` or `ftp`, with any password. They use \
    passive mode (EPSV or PASV), or active mode with `active-mode on`. Hidden files and the `permission-rule` \
    apply as for HTTP. If the site has a `certificate`, clients can use TLS. Use these options in `ftp`.";

const HOUR: Duration = Duration::from_secs(3600);
const TIME: ValueKind = ValueKind::Duration { min: Duration::from_secs(1), max: HOUR };
const RATE: ValueKind = ValueKind::Size { min: 1 << 10, max: 1 << 40 };
const PORT: ValueKind = ValueKind::Count { min: 1, max: 65_535 };

/// Options of `ftp`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "users",
        parameters: &[one("file", ValueKind::PasswordFile)],
        doc: "File of users and password hashes, in the form of `basic-auth`; `tailcoat hash-password --user` writes \
              a line. The file is read again when it changes. Use `require-tls` too: without TLS, passwords can be \
              read on the way.",
        example: r#"users "/etc/tailcoat/ftp.users""#,
        known_as: KnownAs::NONE.others(&["local_enable", "PureDB", "user_config_dir"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.users = values.password_file("file").flatten()),
        ..OPTION
    },
    OptionDefinition {
        name: "anonymous",
        parameters: FLAG,
        doc: "Lets clients log in as `anonymous` or `ftp` without a password. By default, this is on without `users`, \
              and off with them.",
        example: "anonymous on",
        known_as: KnownAs::NONE.others(&["anonymous_enable", "NoAnonymous", "AnonymousOnly"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.anonymous = Some(values.on())),
        ..OPTION
    },
    OptionDefinition {
        name: "user-homes",
        parameters: FLAG,
        default: "user-homes off",
        doc: "Shows each user only the directory of that name below the root. An anonymous client sees the directory \
              `anonymous`.",
        example: "user-homes on",
        known_as: KnownAs::NONE.others(&["chroot_local_user", "DefaultRoot", "ChrootEveryone", "local_root"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.has_homes = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "write",
        parameters: &[one("who", ValueKind::Choice(&["off", "users", "all"]))],
        default: r#"write "off""#,
        doc: "Clients that may upload, delete and rename files, and make directories: no client, `users` with a \
              password, or all, anonymous ones too. The server's user needs write permission below the root. An \
              upload replaces a file only when it is complete.",
        example: r#"write "users""#,
        known_as: KnownAs::NONE.others(&["write_enable", "anon_upload_enable", "anon_mkdir_write_enable"]),
        set: OptionSetter::Ftp(|ftp, values| {
            ftp.writers = match values.text("who").as_deref() {
                Some("users") => FtpWriters::Users,
                Some("all") => FtpWriters::All,
                _ => FtpWriters::Off,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "stored-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 50 })],
        default: r#"stored-bytes-max "1GiB""#,
        doc: "Maximum length of a stored file.",
        example: r#"stored-bytes-max "100MiB""#,
        known_as: KnownAs::NONE.others(&["MaxStoreFileSize"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.upload_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "keep-partial",
        parameters: FLAG,
        default: "keep-partial off",
        doc: "Keeps the received part of an incomplete upload in a hidden file, so that the same user can resume it: \
              SIZE tells its length, and REST with STOR, or APPE, goes on. The file gets its name only when it is \
              complete. Delete old parts with `find ROOT -name '.tailcoat-partial-*' -mtime +7 -delete`.",
        example: "keep-partial on",
        known_as: KnownAs::NONE.others(&[
            "DeleteAbortedStores",
            "HiddenStores",
            "AllowStoreRestart",
            "delete_failed_uploads",
        ]),
        set: OptionSetter::Ftp(|ftp, values| ftp.keeps_partial = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "session-rate-max",
        parameters: &[one("bytes", RATE)],
        default: "",
        doc: "Maximum rate of a session, in bytes a second, in each direction. By default, there is none. For a minimum \
              rate, see `rate-bytes-per-second-min`.",
        example: r#"session-rate-max "1MiB""#,
        known_as: KnownAs::NONE.others(&[
            "anon_max_rate",
            "local_max_rate",
            "TransferRate",
            "AnonymousBandwidth",
            "UserBandwidth",
        ]),
        set: OptionSetter::Ftp(|ftp, values| ftp.session_rate_max = Some(values.integer("bytes"))),
        ..OPTION
    },
    OptionDefinition {
        name: "site-rate-max",
        parameters: &[one("bytes", RATE)],
        default: "",
        doc: "Maximum rate of all sessions of the site together, in bytes a second, uploads included. By default, there is \
              none.",
        example: r#"site-rate-max "10MiB""#,
        known_as: KnownAs::NONE,
        set: OptionSetter::Ftp(|ftp, values| ftp.site_rate_max = Some(values.integer("bytes"))),
        ..OPTION
    },
    OptionDefinition {
        name: "implicit-tls",
        parameters: &[many("address", ValueKind::Listen)],
        doc: "Further addresses, on which connections begin with TLS (FTPS, port 990). On the addresses of `ftp` itself, \
              a client begins TLS with AUTH (explicit TLS), if the site has a `certificate`.",
        example: "implicit-tls 990",
        known_as: KnownAs::NONE.others(&["implicit_ssl", "UseImplicitSSL"]),
        set: OptionSetter::Ftp(|ftp, values| {
            let addresses = values.listens("address");
            ftp.listen.extend_from_slice(&addresses);
            ftp.implicit_listen.extend(addresses);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "require-tls",
        parameters: FLAG,
        default: "require-tls off",
        doc: "Rejects logins without TLS, and transfers without `PROT P`. The site needs a `certificate`.",
        example: "require-tls on",
        known_as: KnownAs::NONE.others(&["force_local_logins_ssl", "force_local_data_ssl", "TLSRequired"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.needs_tls = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "require-session-reuse",
        parameters: FLAG,
        default: "require-session-reuse on",
        doc: "Rejects data connections with TLS that do not resume the session of their control connection. Without \
              this proof, another client could take a transfer. Turn it off only for clients that cannot resume \
              sessions, such as Python's `ftplib`.",
        example: "require-session-reuse off",
        known_as: KnownAs::NONE.others(&["require_ssl_reuse", "NoSessionReuseRequired"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.needs_session_reuse = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "passive-ports",
        parameters: &[one("first", PORT), one("last", PORT)],
        doc: "Range of ports for data connections, for a firewall. Each transfer needs one of them at a time. By \
              default, a random port from 32768 to 60999.",
        example: "passive-ports 50000 50999",
        known_as: KnownAs::NONE.others(&["pasv_min_port", "pasv_max_port", "PassivePorts", "PassivePortRange"]),
        set: OptionSetter::Ftp(|ftp, values| {
            ftp.passive_ports = Some(values.integer("first")..=values.integer("last"));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "passive-address",
        parameters: &[one("address", ValueKind::Ipv4Address)],
        doc: "Public IPv4 address in replies to PASV, for a server in a private network (NAT). By default, it is the \
              address that the client connected to. EPSV needs no address.",
        example: r#"passive-address "203.0.113.7""#,
        known_as: KnownAs::NONE.others(&["pasv_address", "MasqueradeAddress", "ForcePassiveIP"]),
        set: OptionSetter::Ftp(|ftp, values| {
            ftp.passive_address = values.text("address").and_then(|text| text.parse().ok())
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "active-mode",
        parameters: FLAG,
        default: "active-mode off",
        doc: "Lets clients use active mode (PORT and EPRT): the server opens the data connection, to the client's own \
              address and a port from 1024 on. Only old clients need it. Firewalls of most clients block it.",
        example: "active-mode on",
        known_as: KnownAs::NONE.others(&["port_enable", "AllowForeignAddress", "port_promiscuous"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.has_active_mode = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "session-idle-timeout",
        parameters: &[one("time", TIME)],
        default: r#"session-idle-timeout "5m""#,
        doc: "Maximum time of a control connection without a command or a transfer.",
        example: r#"session-idle-timeout "1m""#,
        known_as: KnownAs::NONE.others(&["idle_session_timeout", "TimeoutIdle", "MaxIdleTime"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.idle_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "data-timeout",
        parameters: &[one("time", TIME)],
        default: r#"data-timeout "30s""#,
        doc: "Maximum time until a client opens the data connection of a transfer. The `write-timeout` in `limits` \
              applies after that.",
        example: r#"data-timeout "10s""#,
        known_as: KnownAs::NONE.others(&["accept_timeout", "data_connection_timeout", "TimeoutStalled"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.data_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "list-entries-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1 << 20 })],
        default: "list-entries-max 10000",
        doc: "Maximum number of entries in a listing. Further entries are left out.",
        example: "list-entries-max 2000",
        known_as: KnownAs::NONE.others(&["ListOptions", "LimitRecursion"]),
        set: OptionSetter::Ftp(|ftp, values| ftp.entries_max = values.integer("count")),
        ..OPTION
    },
];
