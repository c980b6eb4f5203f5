use std::time::Duration;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one};
use crate::model::store::{LimitsWithoutStore, SharedState};

pub(super) const DOC: &str = "\
    Several instances that act as one. They share certificates, keys of TLS session tickets, rate limits, purges, \
    bans and other orders through a store: a directory, Valkey or Redis, S3, Consul or Kubernetes. No request waits \
    for the store. Without the block, an instance knows no others. Use these options in `store`.";

const STATES: ValueKind = ValueKind::Choice(&["certificates", "tickets", "orders", "limits", "rollouts", "responses"]);

const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Options of `store`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "url",
        parameters: &[one("address", ValueKind::Store)],
        doc: "Engine and address of the store. A directory may be on NFS. `valkey://HOST` is Valkey or Redis, \
              `valkey-sentinel://HOST,HOST/PRIMARY` with Sentinel, `valkey-cluster://HOST,HOST` a cluster; a number at \
              the end is the database. `s3://BUCKET/PREFIX` stores objects, `consul://HOST/PREFIX` keys of Consul, \
              `kubernetes://NAMESPACE/PREFIX` Secrets and Leases. `valkeys`, `valkeys-sentinel`, `valkeys-cluster` and \
              `consuls` use TLS.",
        example: r#"url "valkey://10.0.0.5""#,
        known_as: KnownAs::NONE.nginx(&["zone_sync_server"]).caddy(&["storage"]).others(&["peer", "redis"]),
        set: OptionSetter::Store(|store, values| store.place = values.store("address")),
        ..OPTION
    },
    OptionDefinition {
        name: "instance",
        parameters: &[one("name", ValueKind::Text)],
        doc: "Name of this instance in `tailcoat status`, in `tailcoat rollout status` and in the metric \
              `tailcoat_store_instance_info`. By default, the name of the machine.",
        example: r#"instance "edge-1""#,
        known_as: KnownAs::NONE.others(&["localpeer"]),
        set: OptionSetter::Store(|store, values| store.instance = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "username",
        parameters: &[one("name", ValueKind::Text)],
        doc: "User of Valkey (ACL), or access key ID of S3.",
        example: r#"username "tailcoat""#,
        set: OptionSetter::Store(|store, values| store.username = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "password-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "File of the password of Valkey, the secret access key of S3, or the token of Consul or Kubernetes. In a \
              pod of Kubernetes, the token of its service account is the default.",
        example: r#"password-file "/etc/tailcoat/store.password""#,
        set: OptionSetter::Store(|store, values| store.password_file = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-ca-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "CA certificates (PEM) that must have signed the certificate of the engine. By default, Tailcoat trusts \
              the system's CAs; in a pod of Kubernetes, that of its service account.",
        example: r#"tls-ca-file "/etc/ssl/internal-ca.pem""#,
        known_as: KnownAs::NONE.nginx(&["zone_sync_ssl_trusted_certificate"]),
        set: OptionSetter::Store(|store, values| store.authorities = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "key-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "File of a secret of at least 32 bytes that all instances have. All values are encrypted with it \
              (AES-256-GCM), so that the engine and its other users can neither read private keys nor forge purges. \
              Make one with `openssl rand -base64 32`.",
        example: r#"key-file "/etc/tailcoat/store.key""#,
        set: OptionSetter::Store(|store, values| store.key_file = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "endpoint",
        parameters: &[one("url", ValueKind::StoreEndpoint)],
        doc: "URL of a server with the interface of S3, or of the API server of Kubernetes. By default, that of Amazon \
              in the `region`, or that of the cluster the pod runs in.",
        example: r#"endpoint "https://minio.internal:9000""#,
        set: OptionSetter::Store(|store, values| store.endpoint = values.store_endpoint("url")),
        ..OPTION
    },
    OptionDefinition {
        name: "region",
        parameters: &[one("name", ValueKind::Text)],
        default: r#"region "us-east-1""#,
        doc: "Region of the bucket of S3.",
        example: r#"region "eu-central-1""#,
        set: OptionSetter::Store(|store, values| store.region = values.text("name").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "share",
        parameters: &[many("state", STATES)],
        doc: "State that is shared: automatic certificates, keys of session tickets, orders of operators (purges, \
              bans, drains and `tailcoat set`), rate limits, configurations of `tailcoat rollout`, cached responses. By \
              default, all that the engine can hold, without `rollouts` and `responses`. Rate limits need Valkey or \
              Redis, and a `key-file`, which rollouts and responses need as well. Responses need Valkey, Redis or S3, \
              and `orders`. Each instance decides about rates by its own counts and adds those of others ten times a \
              second.",
        example: r#"share "certificates" "tickets""#,
        known_as: KnownAs::NONE.nginx(&["sync"]),
        set: OptionSetter::Store(|store, values| {
            store.shares = Some(values.texts("state").iter().filter_map(|name| SharedState::of_name(name)).collect());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "timeout",
        parameters: &[one("time", ValueKind::Duration { min: MILLISECOND, max: HOUR })],
        default: r#"timeout "2s""#,
        doc: "Maximum time of one operation of the store, from connecting to the response. No request waits for it.",
        example: r#"timeout "500ms""#,
        known_as: KnownAs::NONE.nginx(&["zone_sync_timeout"]),
        set: OptionSetter::Store(|store, values| store.timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "poll-interval",
        parameters: &[one("time", ValueKind::DurationOrAuto { min: Duration::from_millis(10), max: HOUR })],
        default: "poll-interval auto",
        doc: "Interval at which each instance reads new orders. It bounds the delay of purges. `auto` is 250 ms for \
              directories and Valkey, 400 ms for Consul, 800 ms for S3 and Kubernetes.",
        example: r#"poll-interval "1s""#,
        known_as: KnownAs::NONE.nginx(&["zone_sync_interval"]),
        set: OptionSetter::Store(|store, values| store.poll_interval = values.duration_or_auto("time")),
        ..OPTION
    },
    OptionDefinition {
        name: "lease-time",
        parameters: &[one("time", ValueKind::Duration { min: Duration::from_millis(100), max: HOUR })],
        default: r#"lease-time "15s""#,
        doc: "Time after which another instance continues the work of one that has stopped, such as an order of a \
              certificate. At least three times `timeout`.",
        example: r#"lease-time "1m""#,
        set: OptionSetter::Store(|store, values| store.lease_time = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "response-timeout",
        parameters: &[one("time", ValueKind::Duration { min: MILLISECOND, max: Duration::from_secs(10) })],
        default: r#"response-timeout "50ms""#,
        doc: "Maximum time that a request waits for a response that another instance has cached (`share \"responses\"`). \
              Then it goes to the upstream. After three such waits in a row, requests do not wait until the store \
              responds again.",
        example: r#"response-timeout "20ms""#,
        set: OptionSetter::Store(|store, values| store.response_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "response-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 1 << 10, max: 8 << 20 })],
        default: r#"response-bytes-max "1MiB""#,
        doc: "Largest cached response that instances share, with its header fields. Larger ones stay with the instance.",
        example: r#"response-bytes-max "256KiB""#,
        set: OptionSetter::Store(|store, values| store.response_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "limits-without-store",
        parameters: &[one("what", ValueKind::Choice(&["local", "closed"]))],
        default: "limits-without-store local",
        doc: "Shared rate limits while the store cannot be reached. `local`: each instance applies the whole limit to \
              its own requests. `closed`: requests that such a limit counts are rejected. So they are before the store \
              has responded for the first time, and with another `key-file` than that of the other instances.",
        example: "limits-without-store closed",
        set: OptionSetter::Store(|store, values| {
            store.limits_without_store = match values.text("what").as_deref() {
                Some("closed") => LimitsWithoutStore::Closed,
                _ => LimitsWithoutStore::Local,
            };
        }),
        ..OPTION
    },
];
