use std::time::Duration;

use super::{BODY_BYTES, FLAG, Kind, OPTION, OptionDefinition, Set, many, one, property};
use crate::config::model::ClientFields;
use crate::config::module::{GrantedDirectory, Reset};
use crate::config::value::Value;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A time limit from a millisecond to a day.
const TIMEOUT: Kind = Kind::Duration { min: MILLISECOND, max: DAY };

const GIB: u64 = 1 << 30;

/// What stands in `modules`.
pub(super) static SHARED: &[OptionDefinition] = &[
    OptionDefinition {
        name: "instances-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "instances-max 1000",
        doc: "Instances of all modules at a time. Room for each is set aside in the address space (4 GiB, which costs no \
              memory): where that is limited, fewer are possible. A request for which there is none is answered with 503.",
        example: "instances-max 100",
        set: Set::Modules(|modules, values| {
            modules.instances_max = values.number("count").unwrap_or_default() as u32;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", Kind::Size { min: 1 << 20, max: 1 << 50 })],
        default: r#"memory-bytes-max "4GiB""#,
        doc: "Memory of all instances together. One that wants more than is left does not get it.",
        example: r#"memory-bytes-max "1GiB""#,
        set: Set::Modules(|modules, values| modules.memory_bytes_max = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "threads",
        parameters: &[one("count", Kind::CountOrAuto { min: 1, max: 1024 })],
        default: "threads auto",
        doc: "Threads for modules that compute for more than some milliseconds. Until then a module runs on the worker that \
              has its request; these threads give way to the workers. `auto` is one for each core that the process may use.",
        example: "threads 2",
        set: Set::Modules(|modules, values| {
            modules.threads = values.number_or_auto("count").map(|count| count as usize);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "compiled",
        parameters: &[one("directory", Kind::CompiledDirectory)],
        default: "compiled auto",
        doc: "Where the machine code of modules is kept, so that the next start does not compile again. `auto` is `modules` \
              below the state directory (`STATE_DIRECTORY` as systemd sets it, else `XDG_STATE_HOME/tailcoat` or \
              `~/.local/state/tailcoat`); `off` keeps none. A directory that others can write in is not used, for \
              what is read from there is run.",
        example: r#"compiled "/var/lib/tailcoat/modules""#,
        set: Set::Modules(|modules, values| {
            modules.compiled_directory = values.compiled_directory("directory").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "check-interval",
        parameters: &[one("time", Kind::Duration { min: Duration::from_millis(100), max: DAY })],
        default: r#"check-interval "1s""#,
        doc: "How often the files of modules are looked at. One that has changed is compiled, and takes the place of the \
              old one for the requests that begin then; if it can't be used, the old one stays.",
        example: r#"check-interval "1m""#,
        set: Set::Modules(|modules, values| modules.check_interval = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "compile-wait",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"compile-wait "1s""#,
        doc: "How long a start waits for modules to be compiled before the server listens. Until a module that takes longer is \
              ready, its paths get 503 with `Retry-After`, also where it is a filter. A module that can't be used keeps the \
              server from starting if that is known in time; later it is an error in the log, and its paths get 503 until its \
              file is replaced. Modules that were compiled before are there at once (`compiled`, `tailcoat module compile`). A \
              reload and an upgrade always wait until all modules are ready.",
        example: r#"compile-wait "2m""#,
        set: Set::Modules(|modules, values| modules.compile_wait = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
];

/// What stands in `module`.
pub(super) static MODULE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "environment",
        parameters: &[one("name", Kind::EnvironmentName), one("value", Kind::Text)],
        repeatable: true,
        doc: "A variable of the module's environment. It has no others.",
        example: r#"environment "SHOP_NAME" "Fish & Co""#,
        known_as: &["env", "setenv", "SetEnv", "fastcgi_param"],
        set: Set::Module(|module, values| {
            let variable = (values.text("name").unwrap_or_default(), values.text("value").unwrap_or_default());
            module.grants.environment.push(variable);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "directory",
        parameters: &[one("name", Kind::SitePath), one("directory", Kind::File), property("write", Kind::Flag)],
        repeatable: true,
        doc: "A directory that the module may read, and what the module calls it. With `write=on` it may also change what \
              is in it. Without, it sees no file.",
        example: r#"directory "/data" "/srv/shop" write=on"#,
        known_as: &["dir", "preopen", "mapdir", "volumes"],
        set: Set::Module(|module, values| {
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
        doc: "Whether what is in the module's directories may have to be waited for: then it runs on threads of its own, so \
              that it holds up nobody. `off` is quicker, for files that are in memory (in tmpfs, or few and often used): the \
              module runs where others do, and if a disk does have to be waited for, so does all that the worker serves.",
        example: "waits-for-disk off",
        set: Set::Module(|module, values| module.waits_for_disk = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "outgoing",
        parameters: &[many("host", Kind::OutgoingHost)],
        repeatable: true,
        doc: "Hosts that the module may send requests to: `\"api.example.com\"`, `\"*.example.com\"` for all names below \
              it, `\"127.0.0.1:8080\"` at another port than the scheme's own. It is the name that counts, wherever it \
              leads. Without, it may ask nobody.",
        example: r#"outgoing "api.example.com" "*.cdn.example""#,
        known_as: &["allowed_outbound_hosts", "allow-host", "allowed_hosts"],
        set: Set::Module(|module, values| {
            for (value, _) in values.all("host") {
                let Value::OutgoingHost(host) = value else { unreachable!("a host is {value:?}") };
                module.grants.hosts.push(host.clone());
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "key-value",
        parameters: FLAG,
        default: "key-value off",
        doc: "Whether the module has a key-value store (`wasi:keyvalue`): in memory, shared by its instances, by no other \
              module, and gone when the server ends.",
        example: "key-value",
        known_as: &["key_value_stores", "kv"],
        set: Set::Module(|module, values| module.grants.key_value = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "client-fields",
        parameters: &[one("which", Kind::Choice(&["x-forwarded", "forwarded", "both", "none", "keep"]))],
        default: "client-fields x-forwarded",
        doc: "How the module is told who the client is: by fields of the request, as with `forward`; see there.",
        example: "client-fields both",
        set: Set::Module(|module, values| {
            module.client_fields = ClientFields::from_name(&values.text("which").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Size of a request's content that the module gets, instead of what the site or `limits` says; see there.",
        example: r#"body-bytes-max "100MiB""#,
        known_as: &["client_max_body_size", "LimitRequestBody", "request_body", "max_size"],
        set: Set::Module(|module, values| module.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "instances-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "instances-max 1000",
        doc: "Instances of this module at a time: each answers one request at a time.",
        example: "instances-max 50",
        set: Set::Module(|module, values| {
            module.limits.instances_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "reset",
        parameters: &[one("how", Kind::Choice(&Reset::NAMES))],
        default: "reset fresh",
        doc: "What becomes of an instance between two requests. `fresh`: the next request has one of its own, so that none \
              ever sees another's data. `memory`: it is used again, and its memory becomes what it was when it had started \
              (its global variables, which languages keep but a stack pointer in, stay); that is for http-wasm modules, and \
              components have a fresh one. `none`: it is used again as it is, which is fastest; what it keeps of a request \
              is its own affair.",
        example: "reset none",
        set: Set::Module(|module, values| {
            module.reset = Reset::from_name(&values.text("how").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-instances-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 10_000 })],
        default: "idle-instances-max 16",
        doc: "Instances that each worker keeps for requests to come, with `reset memory` or `reset none`. They count for \
              `instances-max` and `memory-bytes-max` of `modules`.",
        example: "idle-instances-max 4",
        set: Set::Module(|module, values| {
            module.limits.idle_instances_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "settings",
        parameters: &[one("text", Kind::Text)],
        doc: "What an http-wasm module gets when it asks for its configuration (`get_config`): text in whatever form it \
              expects, as JSON. Components have `environment`.",
        example: r##"settings #"{"prefix": "/shop"}"#"##,
        set: Set::Module(|module, values| module.settings = values.text("text").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: GIB })],
        default: r#"buffered-bytes-max "4MiB""#,
        doc: "Content that is kept in memory for an http-wasm module, of a request and of a response each: what it writes, \
              and what it wants to read before or after the next handler. Of a request that has more the client gets 413; \
              of a response, 500.",
        example: r#"buffered-bytes-max "256KiB""#,
        set: Set::Module(|module, values| {
            module.limits.buffered_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"queue-timeout "1s""#,
        doc: "How long a request waits when `instances-max` are at work; then the client gets 503.",
        example: r#"queue-timeout "10s""#,
        set: Set::Module(|module, values| module.limits.queue_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", Kind::Size { min: 64 << 10, max: 4 * GIB })],
        default: r#"memory-bytes-max "128MiB""#,
        doc: "Memory of an instance. If it wants more, it does not get it, which most languages answer with a panic: the \
              client gets 500.",
        example: r#"memory-bytes-max "512MiB""#,
        set: Set::Module(|module, values| {
            module.limits.memory_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "table-elements-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 10_000_000 })],
        default: "table-elements-max 100000",
        doc: "Elements of all tables of an instance: mostly references to its functions.",
        example: "table-elements-max 10000",
        set: Set::Module(|module, values| {
            module.limits.table_elements_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "processor-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"processor-time-max "5s""#,
        doc: "How long an instance may compute for a request, not counting what it waits for; then the client gets 504, or, \
              in the middle of an answer, its connection is closed.",
        example: r#"processor-time-max "100ms""#,
        known_as: &["RLimitCPU"],
        set: Set::Module(|module, values| {
            module.limits.processor_time_max = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "first-byte-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"first-byte-timeout "30s""#,
        doc: "How long the module may take to begin its answer, not counting the time that it waits for the client's \
              content; then the client gets 504.",
        example: r#"first-byte-timeout "5s""#,
        known_as: &["proxy_read_timeout", "response_header_timeout", "ProxyTimeout"],
        set: Set::Module(|module, values| {
            module.limits.first_byte_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "between-bytes-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"between-bytes-timeout "30s""#,
        doc: "How long the module may be silent in the middle of an answer; then the client's connection is closed. Also \
              how long it may go on to work when its answer is complete.",
        example: r#"between-bytes-timeout "10m""#,
        known_as: &["proxy_read_timeout", "read_timeout"],
        set: Set::Module(|module, values| {
            module.limits.between_bytes_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "response-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 50 })],
        default: r#"response-bytes-max "1GiB""#,
        doc: "Bytes of an answer's content; if there are more, the client's connection is closed.",
        example: r#"response-bytes-max "10MiB""#,
        set: Set::Module(|module, values| {
            module.limits.response_bytes_max = values.number("size").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "log-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 30 })],
        default: r#"log-bytes-max "16KiB""#,
        doc: "Bytes that the module may write to its standard output and error for a request. They are lines in the \
              server's own log, with the module's name; the rest is dropped, and a line says so.",
        example: r#"log-bytes-max "0B""#,
        set: Set::Module(|module, values| {
            module.limits.log_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "handles-max",
        parameters: &[one("count", Kind::Count { min: 16, max: 1_000_000 })],
        default: "handles-max 1000",
        doc: "Things of the server that an instance may hold at a time: streams, open files, sets of fields, requests of \
              its own. One that wants more fails. Pollables of one stream count once, because some languages never drop \
              them: their further handles count as memory (`memory-bytes-max`).",
        example: "handles-max 100",
        set: Set::Module(|module, values| {
            module.limits.handles_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "key-value-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 40 })],
        default: r#"key-value-bytes-max "16MiB""#,
        doc: "Bytes of all keys and values in the module's store. What would be more is an error for the module.",
        example: r#"key-value-bytes-max "1GiB""#,
        set: Set::Module(|module, values| {
            module.limits.key_value_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
];
