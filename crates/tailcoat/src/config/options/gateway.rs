use std::time::Duration;

use super::{FLAG, Kind, OPTION, OptionDefinition, Set, many, one, property};
use crate::config::value::Value;

/// A time limit from a millisecond to a day.
const TIMEOUT: Kind = Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

const COUNT: Kind = Kind::Count { min: 0, max: 1_000_000 };

/// What stands in `fastcgi` and `cgi`.
pub(super) static SCRIPTS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "index",
        parameters: &[many("file", Kind::FileName)],
        doc: "Scripts tried in turn for a path that ends with a slash. Their directories are redirected to with the slash \
              where it lacks. By default `index.php` in `fastcgi`, and none in `cgi`.",
        example: r#"index "index.php" "index.cgi""#,
        known_as: &["DirectoryIndex", "fastcgi_index", "index-file.names"],
        set: Set::Gateway(|gateway, values| {
            let names = values.all("file").filter_map(|(value, _)| match value {
                Value::Text(name) => Some(name.clone()),
                _ => None,
            });
            gateway.index = names.collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "fallback",
        parameters: &[one("script", Kind::SitePath)],
        doc: "The script that answers paths for which there is neither a script nor a file (a front controller), and methods \
              that files don't have. The path that was asked for is in REQUEST_URI.",
        example: r#"fallback "/index.php""#,
        known_as: &["try_files", "FallbackResource", "try-files"],
        set: Set::Gateway(|gateway, values| gateway.fallback = values.text("script")),
        ..OPTION
    },
    OptionDefinition {
        name: "strip-prefix",
        parameters: &[one("prefix", Kind::PathPrefix)],
        doc: "Taken from the front of paths before scripts are looked for below the root: with `\"/cgi-bin\"`, the path \
              `/cgi-bin/a` is the file `a`.",
        example: r#"strip-prefix "/cgi-bin""#,
        known_as: &["ScriptAlias", "alias"],
        set: Set::Gateway(|gateway, values| gateway.strip_prefix = values.text("prefix").unwrap_or_default()),
        ..OPTION
    },
];

/// What stands in `cgi`.
pub(super) static PROGRAMS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "interpreter",
        parameters: &[one("program", Kind::File)],
        doc: "The program that is run, with the script as its only argument, so that scripts need not be executable. By \
              default the script itself is run.",
        example: r#"interpreter "/usr/bin/php-cgi""#,
        known_as: &["cgi.assign", "Action"],
        set: Set::Gateway(|gateway, values| gateway.programs.interpreter = values.file("program")),
        ..OPTION
    },
    OptionDefinition {
        name: "user",
        parameters: &[one("name", Kind::ProgramUser), property("group", Kind::ProgramGroup)],
        doc: "The user that programs run as, and the `group`, by default the user's own; without further groups. Only root can \
              do that. By default they run as the server does.",
        example: r#"user "nobody""#,
        known_as: &["SuexecUserGroup", "suexec"],
        set: Set::Gateway(|gateway, values| {
            gateway.programs.user = values.program_user("name");
            if let (Some(user), Some(group_id)) = (&mut gateway.programs.user, values.number("group")) {
                user.group_id = group_id as u32;
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "processes-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 100_000 })],
        default: "processes-max 64",
        doc: "Programs that run at the same time, for all workers together. When there are as many, requests wait. A \
              client may run at most four times as many programs as places are free: alone, about four fifths of all.",
        example: "processes-max 8",
        known_as: &["ScriptLimit", "RLimitNPROC"],
        set: Set::Gateway(|gateway, values| {
            gateway.programs.processes_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-max",
        parameters: &[one("count", COUNT)],
        default: "queue-max 1000",
        doc: "Requests that may wait for a program to end, in the order in which they came; more are answered 503. A \
              client with many waiting requests lets others go first; in a queue that is half full it may have an \
              eighth.",
        example: "queue-max 50",
        set: Set::Gateway(|gateway, values| {
            gateway.programs.queue_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"queue-timeout "10s""#,
        doc: "How long a request may wait so; then it is answered 503.",
        example: r#"queue-timeout "2s""#,
        set: Set::Gateway(|gateway, values| {
            gateway.programs.queue_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "run-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"run-time-max "1h""#,
        doc: "How long a program may run, whether it answers, waits for its client, or lives on behind its answer. Then it is \
              ended, with all of its process group.",
        example: r#"run-time-max "1m""#,
        known_as: &["RLimitCPU", "cgi.limits"],
        set: Set::Gateway(|gateway, values| {
            gateway.programs.run_time_max = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "end-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"end-timeout "5s""#,
        doc: "How long a program may take to end that was told to (SIGTERM), because its time is up or its client has gone. \
              Then it is killed (SIGKILL).",
        example: r#"end-timeout "1s""#,
        known_as: &["cgi.limits"],
        set: Set::Gateway(|gateway, values| {
            gateway.programs.end_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "output-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 50 })],
        default: r#"output-bytes-max "0B""#,
        doc: "Bytes that a program may answer with, head included; 0 is no limit. A program that writes more is ended, and its \
              answer broken off.",
        example: r#"output-bytes-max "100MiB""#,
        set: Set::Gateway(|gateway, values| {
            gateway.programs.output_bytes_max = values.number("size").unwrap_or_default();
        }),
        ..OPTION
    },
];

/// What stands in `fastcgi`, `scgi` and `uwsgi`.
pub(super) static SERVERS: &[OptionDefinition] = &[OptionDefinition {
    name: "application",
    parameters: &[one("prefix", Kind::PathPrefix)],
    doc: "The server is one application instead of a directory of scripts: no file is looked for, SCRIPT_NAME is this front \
              of the path, and PATH_INFO is the rest. With `scgi` and `uwsgi`, that is always so, by default with the whole \
              path as PATH_INFO; with `fastcgi`, where there is no root, or this option.",
    example: r#"application "/app""#,
    known_as: &["uwsgi_param", "scgi_param", "check-local"],
    set: Set::Gateway(|gateway, values| {
        gateway.application = values.text("prefix").unwrap_or_default();
        gateway.root = None;
    }),
    ..OPTION
}];

/// What stands in `fastcgi` alone.
pub(super) static FASTCGI: &[OptionDefinition] = &[
    OptionDefinition {
        name: "server-root",
        parameters: &[one("directory", Kind::Text)],
        doc: "What the server that runs the scripts calls the root, if it sees the files elsewhere, as in a container of its \
              own: stands in DOCUMENT_ROOT and SCRIPT_FILENAME. Scripts must be below the root here all the same.",
        example: r#"server-root "/var/www/html""#,
        known_as: &["docroot", "resolve_root_symlink"],
        set: Set::Gateway(|gateway, values| {
            gateway.server_root = values.text("directory").map(|root| root.trim_end_matches('/').to_owned());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "keep-connections",
        parameters: FLAG,
        default: "keep-connections off",
        doc: "Whether connections by FastCGI are kept open for further requests, as `idle-max` and `idle-timeout` of the \
              `upstream` say. For servers with a process for each connection, as php-fpm is, each that is kept takes one \
              away from other workers and programs: give it more processes than can be kept (workers × `idle-max`).",
        example: "keep-connections",
        known_as: &["fastcgi_keep_conn", "enablereuse"],
        set: Set::Gateway(|gateway, values| gateway.keeps_connections = values.on()),
        ..OPTION
    },
];

/// What stands in `fastcgi`, `cgi`, `scgi` and `uwsgi`.
pub(super) static ALL: &[OptionDefinition] = &[
    OptionDefinition {
        name: "variable",
        parameters: &[one("name", Kind::VariableName), one("value", Kind::FieldValue)],
        repeatable: true,
        doc: "A further variable that scripts are given, or another value of one; an empty value takes it away.",
        example: r#"variable "APP_ENV" "production""#,
        known_as: &["fastcgi_param", "SetEnv", "env", "setenv.add-environment", "param"],
        set: Set::Gateway(|gateway, values| {
            if let (Some(name), Some(value)) = (values.text("name"), values.text("value")) {
                gateway.variables.push((name, value));
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "local-redirects-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 100 })],
        default: "local-redirects-max 10",
        doc: "How often a script may send a request on to another path of the site (RFC 3875, section 6.2.2); beyond that it is \
              answered 500. 0 leaves such answers to clients, as redirects.",
        example: "local-redirects-max 1",
        known_as: &["LimitInternalRecursion"],
        set: Set::Gateway(|gateway, values| {
            gateway.local_redirects_max = values.number("count").unwrap_or_default() as u32;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "error-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 30 })],
        default: r#"error-bytes-max "64KiB""#,
        doc: "Bytes of a script's standard error that are logged for a request, in the server's own log; the rest is dropped.",
        example: r#"error-bytes-max "1MiB""#,
        known_as: &["ScriptLog", "ScriptLogLength", "fastcgi_catch_stderr"],
        set: Set::Gateway(|gateway, values| {
            gateway.error_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
];
