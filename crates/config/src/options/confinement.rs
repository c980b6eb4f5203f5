use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one};
use crate::model::confinement::SystemCalls;

pub(super) const DOC: &str = "\
    Restrictions that the server applies to itself after it has started (sandbox). An attacker who gains control \
    of the process then cannot use files that the configuration does not name, other programs, or unneeded system \
    calls. A running process cannot regain permissions, so a reload that needs more becomes an upgrade \
    ([docs/confinement.md](confinement.md)). Use these options in `confinement`.";

pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "files",
        parameters: FLAG,
        default: "files on",
        doc: "Lets the server read and write only what the configuration names: roots, certificates, logs, state \
              (Landlock). On kernels without Landlock (before 5.13) it has no effect, and the log says so.",
        example: "files off",
        known_as: KnownAs::NONE.apache(&["ChrootDir"]).others(&["landlock", "chroot", "ProtectSystem"]),
        set: OptionSetter::Confinement(|confinement, values| confinement.files = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "connections",
        parameters: FLAG,
        default: "connections on",
        doc: "Lets the server open TCP connections only if the configuration needs them (Landlock, Linux 6.7 or \
              later). Upstreams, automatic certificates, modules with `outgoing`, and programs of `cgi` need them.",
        example: "connections off",
        known_as: KnownAs::NONE.others(&["RestrictAddressFamilies"]),
        set: OptionSetter::Confinement(|confinement, values| confinement.connections = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "system-calls",
        parameters: &[one("which", ValueKind::Choice(&["refuse", "log", "allow"]))],
        // words: allow: name of a value
        default: "system-calls refuse",
        doc: "Handling of system calls that the server does not need, such as starting programs, changing users or \
              loading kernel modules (seccomp). `refuse` makes them fail, `log` allows them and lets the kernel log \
              them (`dmesg`, the audit log), `allow` allows them.",
        example: "system-calls log",
        known_as: KnownAs::NONE.others(&["seccomp", "SystemCallFilter"]),
        set: OptionSetter::Confinement(|confinement, values| {
            confinement.system_calls = match values.text("which").as_deref() {
                Some("log") => SystemCalls::Logged,
                Some("allow") => SystemCalls::Allowed,
                _ => SystemCalls::Rejected,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "read",
        parameters: &[many("path", ValueKind::File)],
        doc: "More files and directories that the server may read. If you list a directory in which sites come and \
              go, reloads need no upgrade.",
        example: r#"read "/srv""#,
        known_as: KnownAs::NONE.others(&["ReadOnlyPaths", "BindReadOnlyPaths"]),
        set: OptionSetter::Confinement(|confinement, values| confinement.read = values.files("path")),
        ..OPTION
    },
    OptionDefinition {
        name: "write",
        parameters: &[many("path", ValueKind::File)],
        doc: "More files and directories that the server and programs of `cgi` may read and change.",
        example: r#"write "/var/lib/forum""#,
        known_as: KnownAs::NONE.others(&["ReadWritePaths", "BindPaths"]),
        set: OptionSetter::Confinement(|confinement, values| confinement.write = values.files("path")),
        ..OPTION
    },
    OptionDefinition {
        name: "execute",
        parameters: &[many("path", ValueKind::File)],
        doc: "More files and directories whose programs `cgi` programs and `dns-hook` may read and run. The system's \
              directories (`/usr`, `/bin`, `/sbin`, `/lib`) are allowed if the configuration has any of these.",
        example: r#"execute "/opt/perl""#,
        known_as: KnownAs::NONE.others(&["ExecPaths"]),
        set: OptionSetter::Confinement(|confinement, values| confinement.execute = values.files("path")),
        ..OPTION
    },
];
