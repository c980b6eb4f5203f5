use std::time::Duration;

use super::{BODY_BYTES, FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one, property};
use crate::model::ClientFields;
use crate::model::module::{GrantedDirectory, Reset};

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A time limit from a millisecond to a day.
const TIMEOUT: ValueKind = ValueKind::Duration { min: MILLISECOND, max: DAY };

const GIB: u64 = 1 << 30;

/// Options of `modules`.
pub(super) static SHARED: &[OptionDefinition] = &[
    OptionDefinition {
        name: "instances-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "instances-max 1000",
        doc: "Maximum number of instances of all modules. Tailcoat reserves 4 GiB of address space for each; this \
              costs no memory. Where address space is limited, fewer are possible. A request that finds no free \
              instance gets 503.",
        example: "instances-max 100",
        set: OptionSetter::Modules(|modules, values| modules.instances_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 1 << 20, max: 1 << 50 })],
        default: r#"memory-bytes-max "4GiB""#,
        doc: "Maximum memory of all instances together. An instance that asks for more does not get it.",
        example: r#"memory-bytes-max "1GiB""#,
        set: OptionSetter::Modules(|modules, values| modules.memory_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "threads",
        parameters: &[one("count", ValueKind::CountOrAuto { min: 1, max: 1024 })],
        default: "threads auto",
        doc: "Number of threads for modules that compute for more than a few milliseconds. A module starts on the \
              worker that has its request; these threads yield to the workers. `auto` is one for each CPU core that \
              the process may use.",
        example: "threads 2",
        known_as: KnownAs::NONE.nginx(&["thread_pool"]),
        set: OptionSetter::Modules(|modules, values| {
            modules.threads = values.number_or_auto("count").map(|count| count as usize);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "compiled",
        parameters: &[one("directory", ValueKind::CompiledDirectory)],
        default: "compiled auto",
        doc: "Directory for the compiled machine code of modules, so that the next start need not compile. `auto` is \
              `modules` in the state directory (`STATE_DIRECTORY` as set by systemd, otherwise \
              `XDG_STATE_HOME/tailcoat` or `~/.local/state/tailcoat`). `off` stores none. A directory that other \
              users can write to is not used, because its content is executed.",
        example: r#"compiled "/var/lib/tailcoat/modules""#,
        set: OptionSetter::Modules(|modules, values| {
            modules.compiled_directory = values.compiled_directory("directory").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "check-interval",
        parameters: &[one("time", ValueKind::Duration { min: Duration::from_millis(100), max: DAY })],
        default: r#"check-interval "1s""#,
        doc: "Interval at which module files are checked for changes. A changed file is compiled and serves the \
              requests that begin afterwards. If it is invalid, the old one stays in use.",
        example: r#"check-interval "1m""#,
        set: OptionSetter::Modules(|modules, values| modules.check_interval = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "compile-wait",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"compile-wait "1s""#,
        doc: "Maximum time that a start waits for modules to compile before the server listens. Until a slower \
              module is ready, its paths get 503 with `Retry-After`; this also holds for filters. If a module turns \
              out to be invalid within this time, the server does not start. Later it logs an error, and the paths \
              get 503 until you replace the file. Modules that are already compiled are ready at once (`compiled`, \
              `tailcoat module compile`). A reload or upgrade always waits for all modules.",
        example: r#"compile-wait "2m""#,
        set: OptionSetter::Modules(|modules, values| modules.compile_wait = values.time()),
        ..OPTION
    },
];

/// Options of `module`.
pub(super) static MODULE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "environment",
        parameters: &[one("name", ValueKind::EnvironmentName), one("value", ValueKind::Text)],
        repeatable: true,
        doc: "Adds a variable to the module's environment, which is empty by default.",
        example: r#"environment "SHOP_NAME" "Fish & Co""#,
        known_as: KnownAs {
            nginx: &["env", "fastcgi_param"],
            apache: &["SetEnv"],
            caddy: &["env"],
            others: &["setenv"],
        },
        set: OptionSetter::Module(|module, values| {
            let variable = (values.text("name").unwrap_or_default(), values.text("value").unwrap_or_default());
            module.grants.environment.push(variable);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "directory",
        parameters: &[
            one("name", ValueKind::SitePath),
            one("directory", ValueKind::File),
            property("write", ValueKind::Flag),
        ],
        repeatable: true,
        doc: "Directory that the module may read, and its path inside the module. With `write=on`, the module may \
              also change files. By default, a module has no access to files.",
        example: r#"directory "/data" "/srv/shop" write=on"#,
        known_as: KnownAs::NONE.others(&["dir", "preopen", "mapdir", "volumes"]),
        set: OptionSetter::Module(|module, values| {
            module.grants.directories.push(GrantedDirectory {
                name: values.text("name").unwrap_or_default(),
                directory: values.file("directory").unwrap_or_default(),
                is_writable: values.flag("write") == Some(true),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "waits-for-disk",
        parameters: FLAG,
        default: "waits-for-disk on",
        doc: "Runs the module on separate threads, because its directories may be on a slow disk. Turn it off only \
              for files in memory (tmpfs, or a few files in constant use): the module then runs on the workers, \
              which is faster. If a read does wait for a disk, every request of that worker waits too.",
        example: "waits-for-disk off",
        known_as: KnownAs::NONE.nginx(&["aio"]),
        set: OptionSetter::Module(|module, values| module.waits_for_disk = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "outgoing",
        parameters: &[many("host", ValueKind::OutgoingHost)],
        repeatable: true,
        doc: "Hosts to which the module may send requests. `\"api.example.com\"` is a host and `\"*.example.com\"` \
              all names below one; `\"127.0.0.1:8080\"` names a port other than the scheme's default. The name \
              counts, whatever address it resolves to. By default, a module may send none.",
        example: r#"outgoing "api.example.com" "*.cdn.example""#,
        known_as: KnownAs::NONE.others(&["allowed_outbound_hosts", "allow-host", "allowed_hosts"]),
        set: OptionSetter::Module(|module, values| {
            module.grants.hosts.extend(values.outgoing_hosts("host"));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "key-value",
        parameters: FLAG,
        default: "key-value off",
        doc: "Gives the module a key-value store (`wasi:keyvalue`). It is in memory, shared by the module's \
              instances, and lost when the server stops.",
        example: "key-value",
        known_as: KnownAs::NONE.others(&["key_value_stores", "kv"]),
        set: OptionSetter::Module(|module, values| module.grants.key_value = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "forwarded-headers",
        parameters: &[one("which", ValueKind::Choice(&["x-forwarded", "forwarded", "both", "none", "keep"]))],
        default: "forwarded-headers x-forwarded",
        doc: "Header fields that tell the module who the client is. Values and default are those of the same option \
              in `forward`.",
        example: "forwarded-headers both",
        set: OptionSetter::Module(|module, values| {
            module.client_fields = ClientFields::from_name(&values.text("which").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Maximum size of a request body that the module gets. It replaces the value of the site or of `limits`, \
              which describes it.",
        example: r#"body-bytes-max "100MiB""#,
        known_as: KnownAs {
            nginx: &["client_max_body_size"],
            apache: &["LimitRequestBody"],
            caddy: &["request_body", "max_size"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Module(|module, values| module.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "instances-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "instances-max 1000",
        doc: "Maximum number of instances of this module. Each instance handles one request at a time.",
        example: "instances-max 50",
        set: OptionSetter::Module(|module, values| module.limits.instances_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "reset",
        parameters: &[one("how", ValueKind::Choice(&Reset::NAMES))],
        default: "reset fresh",
        doc: "State of an instance between two requests. `fresh` gives each request a new instance, so that none \
              sees another's data. `memory` reuses the instance and restores its memory to the state after start. \
              Global variables stay; languages keep little but a stack pointer in them. `memory` works for http-wasm \
              modules; components get a fresh instance. `none` reuses the instance as it is, which is fastest; the \
              module itself must separate requests.",
        example: "reset none",
        set: OptionSetter::Module(|module, values| {
            module.reset = Reset::from_name(&values.text("how").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-instances-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 10_000 })],
        default: "idle-instances-max 16",
        doc: "Maximum number of idle instances that each worker keeps, with `reset memory` or `reset none`. They \
              count towards `instances-max` and `memory-bytes-max` of `modules`.",
        example: "idle-instances-max 4",
        set: OptionSetter::Module(|module, values| module.limits.idle_instances_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "settings",
        parameters: &[one("text", ValueKind::Text)],
        doc: "Configuration text that an http-wasm module gets from `get_config`, in any form the module expects, \
              such as JSON. Components use `environment`.",
        example: r##"settings #"{"prefix": "/shop"}"#"##,
        set: OptionSetter::Module(|module, values| module.settings = values.text("text").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: GIB })],
        default: r#"buffered-bytes-max "4MiB""#,
        doc: "Maximum memory for a request body, and for a response body, that an http-wasm module writes or reads \
              ahead. If a request has more, the client gets 413; if a response has more, 500.",
        example: r#"buffered-bytes-max "256KiB""#,
        set: OptionSetter::Module(|module, values| module.limits.buffered_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"queue-timeout "1s""#,
        doc: "Maximum time that a request waits while `instances-max` instances are in use. After it, the client \
              gets 503.",
        example: r#"queue-timeout "10s""#,
        set: OptionSetter::Module(|module, values| module.limits.queue_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 64 << 10, max: 4 * GIB })],
        default: r#"memory-bytes-max "128MiB""#,
        doc: "Maximum memory of one instance. A request for more memory fails. Most languages then panic, and the \
              client gets 500.",
        example: r#"memory-bytes-max "512MiB""#,
        known_as: KnownAs::NONE.apache(&["RLimitMEM"]),
        set: OptionSetter::Module(|module, values| module.limits.memory_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "table-elements-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 10_000_000 })],
        default: "table-elements-max 100000",
        doc: "Maximum number of elements in all tables of an instance, mostly references to its functions.",
        example: "table-elements-max 10000",
        set: OptionSetter::Module(|module, values| module.limits.table_elements_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "cpu-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"cpu-time-max "5s""#,
        doc: "Maximum CPU time of an instance for one request. After it, the client gets 504; if the response has \
              begun, its connection is closed.",
        example: r#"cpu-time-max "100ms""#,
        known_as: KnownAs::NONE.apache(&["RLimitCPU"]),
        set: OptionSetter::Module(|module, values| module.limits.processor_time_max = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "first-byte-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"first-byte-timeout "30s""#,
        doc: "Maximum time until the module begins its response, not counting time spent waiting for the client's \
              request body. After it, the client gets 504.",
        example: r#"first-byte-timeout "5s""#,
        known_as: KnownAs {
            nginx: &["proxy_read_timeout"],
            apache: &["ProxyTimeout"],
            caddy: &["response_header_timeout"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Module(|module, values| module.limits.first_byte_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "between-bytes-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"between-bytes-timeout "30s""#,
        doc: "Maximum pause between two parts of the module's response. After it, the client's connection is closed. \
              It also limits how long the module may run on after its response is complete.",
        example: r#"between-bytes-timeout "10m""#,
        known_as: KnownAs::NONE.nginx(&["proxy_read_timeout"]).apache(&["ProxyTimeout"]).caddy(&["read_timeout"]),
        set: OptionSetter::Module(|module, values| module.limits.between_bytes_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "response-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 50 })],
        default: r#"response-bytes-max "1GiB""#,
        doc: "Maximum size of a module's response body. If it is larger, the client's connection is closed.",
        example: r#"response-bytes-max "10MiB""#,
        known_as: KnownAs::NONE.apache(&["LimitXMLRequestBody"]),
        set: OptionSetter::Module(|module, values| module.limits.response_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "log-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })],
        default: r#"log-bytes-max "16KiB""#,
        doc: "Maximum size of a module's standard output and standard error for one request. The server log records \
              them as lines with the module's name. The rest is dropped, and one line says so.",
        example: r#"log-bytes-max "0B""#,
        set: OptionSetter::Module(|module, values| module.limits.log_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "handles-max",
        parameters: &[one("count", ValueKind::Count { min: 16, max: 1_000_000 })],
        default: "handles-max 1000",
        doc: "Maximum number of host resources that an instance holds at once: streams, open files, sets of header \
              fields, outgoing requests. An instance that asks for more fails. All pollables of one stream count \
              once, because some languages never drop them; they count towards `memory-bytes-max`.",
        example: "handles-max 100",
        set: OptionSetter::Module(|module, values| module.limits.handles_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "key-value-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 40 })],
        default: r#"key-value-bytes-max "16MiB""#,
        doc: "Maximum size of all keys and values in the module's store. The module gets an error when it stores \
              more.",
        example: r#"key-value-bytes-max "1GiB""#,
        set: OptionSetter::Module(|module, values| module.limits.key_value_bytes_max = values.integer("size")),
        ..OPTION
    },
];
