use std::time::Duration;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, any, one, property};

/// A time limit from a millisecond to a day.
const TIMEOUT: ValueKind = ValueKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

const COUNT: ValueKind = ValueKind::Count { min: 0, max: 1_000_000 };

/// Options of `fastcgi` and `cgi`.
pub(super) static SCRIPTS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "index",
        parameters: &[any("file", ValueKind::FileName)],
        doc: "Scripts tried in order for a path that ends with a slash; without a name, none. Scripts whose own paths \
              belong to other handlers are left to these. A directory requested without the slash is redirected to it. \
              It defaults to `index.php` in `fastcgi`, and to none in `cgi`.",
        example: r#"index "index.php" "index.cgi""#,
        known_as: KnownAs {
            nginx: &["fastcgi_index", "index"],
            apache: &["DirectoryIndex"],
            caddy: &["index"],
            others: &["index-file.names"],
        },
        set: OptionSetter::Gateway(|gateway, values| gateway.index = values.texts("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "fallback",
        parameters: &[one("script", ValueKind::SitePath)],
        doc: "Script that answers paths with neither script nor file (front controller), and methods that files do \
              not support. The script finds the requested path in REQUEST_URI.",
        example: r#"fallback "/index.php""#,
        known_as: KnownAs {
            nginx: &["try_files"],
            apache: &["FallbackResource"],
            caddy: &["try_files"],
            others: &["try-files"],
        },
        set: OptionSetter::Gateway(|gateway, values| gateway.fallback = values.text("script")),
        ..OPTION
    },
    OptionDefinition {
        name: "path-info",
        parameters: FLAG,
        default: "path-info on",
        doc: "Runs a script also for paths that continue after its name, with the rest as PATH_INFO. With `off`, only the \
              path that names the script runs it: `/a.php/b` is no path of `/a.php`.",
        example: "path-info off",
        known_as: KnownAs::NONE.nginx(&["fastcgi_split_path_info"]).apache(&["AcceptPathInfo"]).caddy(&["split"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.has_path_info = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "strip-prefix",
        parameters: &[one("prefix", ValueKind::PathPrefix)],
        doc: "Prefix removed from a path before its script is looked up below the root. With `\"/cgi-bin\"`, the \
              path `/cgi-bin/a` is the file `a`.",
        example: r#"strip-prefix "/cgi-bin""#,
        known_as: KnownAs::NONE.nginx(&["alias"]).apache(&["ScriptAlias"]).caddy(&["handle_path"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.strip_prefix = values.text("prefix").unwrap_or_default()),
        ..OPTION
    },
];

/// Options of `cgi`.
pub(super) static PROGRAMS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "interpreter",
        parameters: &[one("program", ValueKind::File)],
        doc: "Program that runs the scripts, with the script as its only argument. Scripts then need not be \
              executable. By default, the script itself is run.",
        example: r#"interpreter "/usr/bin/php-cgi""#,
        known_as: KnownAs::NONE.apache(&["Action", "ScriptInterpreterSource"]).others(&["cgi.assign"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.interpreter = values.file("program")),
        ..OPTION
    },
    OptionDefinition {
        name: "user",
        parameters: &[one("name", ValueKind::ProgramUser), property("group", ValueKind::ProgramGroup)],
        doc: "User, and `group`, that programs run as. The group defaults to the user's own; supplementary groups \
              are dropped. This needs a server that runs as root. By default, programs run as the server's user.",
        example: r#"user "www-data""#,
        known_as: KnownAs::NONE.apache(&["SuexecUserGroup", "Suexec", "AssignUserID"]),
        set: OptionSetter::Gateway(|gateway, values| {
            gateway.programs.user = values.program_user("name");
            if let (Some(user), Some(group_id)) = (&mut gateway.programs.user, values.number("group")) {
                user.group_id = group_id as u32;
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "processes-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 100_000 })],
        default: "processes-max 64",
        doc: "Maximum number of programs that run at once, over all workers. Further requests wait. One client may \
              run at most four times as many programs as there are free places; alone, it gets about four fifths of \
              all. While it runs a program, it never gets the last free place.",
        example: "processes-max 8",
        known_as: KnownAs::NONE.apache(&["RLimitNPROC", "FcgidMaxProcesses"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.processes_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-max",
        parameters: &[one("count", COUNT)],
        default: "queue-max 1000",
        doc: "Maximum number of requests that wait for a program to end. Further requests get 503. Requests leave in \
              order of arrival, except that a client with many waiting requests lets others go first. When the queue \
              is half full, one client may hold an eighth of it.",
        example: "queue-max 50",
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.queue_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"queue-timeout "10s""#,
        doc: "Maximum time that a request waits for a program to end. After it, the client gets 503.",
        example: r#"queue-timeout "2s""#,
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.queue_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "run-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"run-time-max "1h""#,
        doc: "Maximum run time of a program, including time spent waiting for its client or running on after its \
              response. After it, Tailcoat ends the program's whole process group.",
        example: r#"run-time-max "1m""#,
        known_as: KnownAs::NONE.apache(&["RLimitCPU", "FcgidBusyTimeout"]).others(&["cgi.limits"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.run_time_max = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "end-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"end-timeout "5s""#,
        doc: "Time that a program has to exit after SIGTERM. Tailcoat sends SIGTERM when the run time is over or the \
              client has disconnected, and SIGKILL after this time.",
        example: r#"end-timeout "1s""#,
        known_as: KnownAs::NONE.apache(&["FcgidZombieScanInterval"]).others(&["cgi.limits"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.end_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "output-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 50 })],
        default: r#"output-bytes-max "0B""#,
        doc: "Maximum size of a program's output, head included; 0 means no limit. A program that writes more is \
              ended, and its response is cut off.",
        example: r#"output-bytes-max "100MiB""#,
        known_as: KnownAs::NONE.apache(&["FcgidOutputBufferSize"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.programs.output_bytes_max = values.integer("size")),
        ..OPTION
    },
];

/// Options of `fastcgi`, `scgi` and `uwsgi`.
pub(super) static SERVERS: &[OptionDefinition] = &[OptionDefinition {
    name: "application",
    parameters: &[one("prefix", ValueKind::PathPrefix)],
    doc: "Treats the server as one application, not as a directory of scripts. No file is looked up; SCRIPT_NAME \
          is this prefix of the path and PATH_INFO is the rest. `scgi` and `uwsgi` always work this way, by \
          default with the whole path as PATH_INFO. `fastcgi` does if it has no root, or this option.",
    example: r#"application "/app""#,
    known_as: KnownAs {
        nginx: &["uwsgi_param", "scgi_param", "fastcgi_split_path_info"],
        apache: &["ProxyFCGIBackendType"],
        others: &["check-local"],
        ..KnownAs::NONE
    },
    set: OptionSetter::Gateway(|gateway, values| {
        gateway.application = values.text("prefix").unwrap_or_default();
        gateway.root = None;
    }),
    ..OPTION
}];

/// Options of `fastcgi` alone.
pub(super) static FASTCGI: &[OptionDefinition] = &[
    OptionDefinition {
        name: "server-root",
        parameters: &[one("directory", ValueKind::Text)],
        doc: "Path of the root as the FastCGI server sees it, for example in its container. It is used in \
              DOCUMENT_ROOT and SCRIPT_FILENAME. The scripts must also exist below the root on this machine.",
        example: r#"server-root "/var/www/html""#,
        known_as: KnownAs {
            nginx: &["SCRIPT_FILENAME", "fastcgi_param"],
            apache: &["ProxyFCGISetEnvIf"],
            caddy: &["root", "resolve_root_symlink"],
            others: &["docroot"],
        },
        set: OptionSetter::Gateway(|gateway, values| {
            gateway.server_root = values.text("directory").map(|root| root.trim_end_matches('/').to_owned());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "keep-connections",
        parameters: FLAG,
        default: "keep-connections off",
        doc: "Keeps FastCGI connections open for further requests, as `idle-max` and `idle-timeout` of the \
              `upstream` say. PHP-FPM uses a process for each connection, so an idle connection takes one away. Give \
              it more processes than can be kept (workers × `idle-max`).",
        example: "keep-connections",
        known_as: KnownAs::NONE.nginx(&["fastcgi_keep_conn"]).apache(&["enablereuse"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.keeps_connections = values.on()),
        ..OPTION
    },
];

/// Options of `fastcgi`, `cgi`, `scgi` and `uwsgi`.
pub(super) static ALL: &[OptionDefinition] = &[
    OptionDefinition {
        name: "variable",
        parameters: &[one("name", ValueKind::VariableName), one("value", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Adds or replaces a variable that scripts get; an empty value removes it.",
        example: r#"variable "APP_ENV" "production""#,
        known_as: KnownAs {
            nginx: &["fastcgi_param", "scgi_param", "uwsgi_param", "env"],
            apache: &["SetEnv", "PassEnv", "FcgidInitialEnv"],
            caddy: &["env"],
            others: &["setenv.add-environment", "param"],
        },
        set: OptionSetter::Gateway(|gateway, values| {
            if let (Some(name), Some(value)) = (values.text("name"), values.text("value")) {
                gateway.variables.push((name, value));
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "local-redirects-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 100 })],
        default: "local-redirects-max 10",
        doc: "Maximum number of local redirects that a script may make for one request (RFC 3875, section 6.2.2). \
              After it, the client gets 500. 0 passes such responses to clients as redirects.",
        example: "local-redirects-max 1",
        known_as: KnownAs::NONE.apache(&["LimitInternalRecursion"]),
        set: OptionSetter::Gateway(|gateway, values| gateway.local_redirects_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "error-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })],
        default: r#"error-bytes-max "64KiB""#,
        doc: "Maximum size of a script's standard error that the server log records for a request. The rest is \
              dropped.",
        example: r#"error-bytes-max "1MiB""#,
        known_as: KnownAs {
            nginx: &["fastcgi_catch_stderr"],
            apache: &["ScriptLog", "ScriptLogLength", "ScriptLogBuffer"],
            caddy: &["capture_stderr"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Gateway(|gateway, values| gateway.error_bytes_max = values.integer("size")),
        ..OPTION
    },
];
