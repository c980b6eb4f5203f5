use std::time::Duration;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, one};

pub(super) const DOC: &str = "\
    Anonymous, read-only FTP from the same files. Clients log in as `anonymous` or `ftp`, with any password. They use \
    passive mode (EPSV or PASV); active mode and uploads are not available. Hidden files and the `permission-rule` \
    apply as for HTTP. Use these options in `ftp`.";

const HOUR: Duration = Duration::from_secs(3600);
const TIME: ValueKind = ValueKind::Duration { min: Duration::from_secs(1), max: HOUR };
const PORT: ValueKind = ValueKind::Count { min: 1, max: 65_535 };

/// Options of `ftp`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "passive-ports",
        parameters: &[one("first", PORT), one("last", PORT)],
        doc: "Range of ports for data connections, for a firewall. Each transfer needs one of them at a time. By \
              default, the kernel chooses.",
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
