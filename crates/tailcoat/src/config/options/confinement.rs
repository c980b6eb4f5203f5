use super::{FLAG, Kind, OPTION, OptionDefinition, Set, many, one};
use crate::config::confinement::SystemCalls;
use crate::config::value::Value;

pub(super) const DOC: &str = "What the server takes from itself when it has started, so that whoever finds a hole in it has \
    little: files that the configuration does not name, programs, system calls. It can't be given back to a running process: \
    a reload that needs more becomes an upgrade ([docs/confinement.md](confinement.md)). They stand in `confinement`.";

pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "files",
        parameters: FLAG,
        default: "files on",
        doc: "Whether the server can only read and write what the configuration names: roots, certificates, logs, state \
              (Landlock). Kernels without Landlock (before 5.13) leave it as it is, and the log says so.",
        example: "files off",
        known_as: &["landlock", "chroot", "ProtectSystem"],
        set: Set::Confinement(|confinement, values| confinement.files = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "connections",
        parameters: FLAG,
        default: "connections on",
        doc: "Whether the server can connect to others by TCP only if the configuration has something that does: servers that \
              requests are forwarded to, automatic certificates, modules with `outgoing`, programs of `cgi` (Landlock, since \
              Linux 6.7).",
        example: "connections off",
        known_as: &["RestrictAddressFamilies"],
        set: Set::Confinement(|confinement, values| confinement.connections = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "system-calls",
        parameters: &[one("which", Kind::Choice(&["refuse", "log", "allow"]))],
        default: "system-calls refuse",
        doc: "What becomes of system calls that the server has no use for, such as those that start programs, change users or \
              load code into the kernel (seccomp): they fail, are done and logged by the kernel (`dmesg`, the audit log), or are \
              done.",
        example: "system-calls log",
        known_as: &["seccomp", "SystemCallFilter"],
        set: Set::Confinement(|confinement, values| {
            confinement.system_calls = match values.text("which").as_deref() {
                Some("log") => SystemCalls::Logged,
                Some("allow") => SystemCalls::Allowed,
                _ => SystemCalls::Refused,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "read",
        parameters: &[many("path", Kind::File)],
        doc: "Further files and directories that the server may read. With a directory in which sites come and go, reloads need \
              no upgrade.",
        example: r#"read "/srv""#,
        known_as: &["ReadOnlyPaths", "BindReadOnlyPaths"],
        set: Set::Confinement(|confinement, values| confinement.read = files(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "write",
        parameters: &[many("path", Kind::File)],
        doc: "Further files and directories that the server, and programs of `cgi`, may read and change.",
        example: r#"write "/var/lib/forum""#,
        known_as: &["ReadWritePaths", "BindPaths"],
        set: Set::Confinement(|confinement, values| confinement.write = files(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "execute",
        parameters: &[many("path", Kind::File)],
        doc: "Further files and directories whose programs may be run by programs of `cgi`, and by `dns-hook`, and read. Those of \
              the system (`/usr`, `/bin`, `/sbin`, `/lib`) may be if there are any such.",
        example: r#"execute "/opt/perl""#,
        known_as: &["ExecPaths"],
        set: Set::Confinement(|confinement, values| confinement.execute = files(values)),
        ..OPTION
    },
];

fn files(values: &crate::config::value::Values) -> Vec<std::path::PathBuf> {
    values
        .all("path")
        .map(|(value, _)| match value {
            Value::File(file) => file.clone(),
            other => unreachable!("a path is {other:?}"),
        })
        .collect()
}
