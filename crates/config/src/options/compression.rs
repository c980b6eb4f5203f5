use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, Parameter, ValueKind, Values, one};
use crate::model::compression::CompressionLevel;

const SIZE: &[Parameter] = &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })];
const LEVEL: &[Parameter] = &[one("level", ValueKind::Choice(&CompressionLevel::NAMES))];

/// Options of `forward`, `fastcgi`, `cgi`, `scgi` and `uwsgi`.
pub(super) static FORWARD: &[OptionDefinition] = &options(
    OptionSetter::Forward(|forward, values| forward.compression.is_on = Some(values.on())),
    OptionSetter::Forward(|forward, values| forward.compression.bytes_min = Some(values.integer("size"))),
    OptionSetter::Forward(|forward, values| forward.compression.level = Some(level(values))),
);

/// Options of `module`.
pub(super) static MODULE: &[OptionDefinition] = &options(
    OptionSetter::Module(|module, values| module.compression.is_on = Some(values.on())),
    OptionSetter::Module(|module, values| module.compression.bytes_min = Some(values.integer("size"))),
    OptionSetter::Module(|module, values| module.compression.level = Some(level(values))),
);

fn level(values: &Values) -> CompressionLevel {
    CompressionLevel::from_name(&values.text("level").unwrap_or_default())
}

/// The options, which the setters apply to the block that has them.
const fn options(is_on: OptionSetter, bytes_min: OptionSetter, level: OptionSetter) -> [OptionDefinition; 3] {
    [
        OptionDefinition {
            name: "compress",
            parameters: FLAG,
            default: "compress on",
            doc: "Compresses responses of compressible types for clients that accept Zstandard, Brotli or gzip. Without \
              this option, `compress` of the site applies. Responses that are compressed already, event streams \
              (`text/event-stream`), partial content and responses with `Cache-Control: no-transform` pass unchanged.",
            example: "compress off",
            known_as: KnownAs { caddy: &["encode"], nginx: &["gzip", "brotli", "zstd"], ..KnownAs::NONE },
            set: is_on,
            ..OPTION
        },
        OptionDefinition {
            name: "compress-bytes-min",
            parameters: SIZE,
            default: r#"compress-bytes-min "1KiB""#,
            doc: "Minimum size of responses that are compressed. Responses of unknown length are compressed, too. Without \
              this option, `compress-bytes-min` of the site applies.",
            example: r#"compress-bytes-min "512B""#,
            known_as: KnownAs::NONE.nginx(&["gzip_min_length", "brotli_min_length", "zstd_min_length"]),
            set: bytes_min,
            ..OPTION
        },
        OptionDefinition {
            name: "compress-level",
            parameters: LEVEL,
            default: "compress-level balanced",
            doc: "Time that compression takes for smaller content. Without this option, `compress-level` of the site \
              applies.",
            example: "compress-level fast",
            known_as: KnownAs::NONE.nginx(&["gzip_comp_level", "brotli_comp_level", "zstd_comp_level"]),
            set: level,
            ..OPTION
        },
    ]
}
