use std::sync::Arc;

use super::{FLAG, Kind, OPTION, OptionDefinition, Set, any, many, one, optional, property};
use crate::config::model::{FieldMatch, FieldRule, Files, PathPattern};

/// Where files are.
pub(super) static ROOT: &[OptionDefinition] = &[OptionDefinition {
    name: "root",
    parameters: &[
        one("directory", Kind::Root),
        property("strip-www", Kind::Flag),
        property("strip-suffix", Kind::HostSuffix),
    ],
    doc: "Directory of the files. `{host}` stands for the host of the request and `{host:1}` for its first letter, so \
          that one site can serve many: `\"/srv/{host:1}/{host:2}/{host}\"`. With `strip-www=on` the host loses a \
          leading `www.`, and with `strip-suffix=\".example.net\"` this ending, before it is filled in. Links that \
          lead out of the directory are not followed.",
    example: r#"root "/srv/{host}" strip-www=on strip-suffix=".example.net""#,
    known_as: &["DocumentRoot", "document-root", "server.document-root", "alias", "file.dir"],
    set: Set::Files(|files, values| {
        files.root.pieces = values.root("directory").unwrap_or_default();
        files.root.strip_www = values.flag("strip-www").unwrap_or(false);
        files.root.strip_suffix = values.text("strip-suffix").unwrap_or_default();
    }),
    ..OPTION
}];

/// What only a part of a site may have.
pub(super) static BLOCK: &[OptionDefinition] = &[OptionDefinition {
    name: "strip-prefix",
    parameters: &[one("prefix", Kind::PathPrefix)],
    doc: "Taken from the front of a path before its file is looked for. Without it, `files \"/downloads/*\"` with the \
          root `/srv/dl` serves `/downloads/a` from `/srv/dl/downloads/a`; with `strip-prefix \"/downloads\"`, from \
          `/srv/dl/a`.",
    example: r#"strip-prefix "/downloads""#,
    known_as: &["handle_path", "alias"],
    set: Set::Files(|files, values| files.strip_prefix = values.text("prefix").unwrap_or_default()),
    ..OPTION
}];

/// How files are served: for all sites, a site, or a part of one.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "index",
        parameters: &[any("file", Kind::FileName)],
        default: r#"index "index.html""#,
        doc: "Files tried, in order, for a directory; without names, none are.",
        example: r#"index "index.html" "index.htm""#,
        known_as: &["DirectoryIndex", "index-file.names", "file.index"],
        set: Set::Files(|files, values| files.index = values.texts("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "browse",
        parameters: FLAG,
        default: "browse off",
        doc: "Whether a directory without an index file is listed: as HTML, or as JSON for clients that ask for it.",
        example: "browse",
        known_as: &["autoindex", "dir-listing.activate", "file.dirlisting", "directory-listing"],
        set: Set::Files(|files, values| files.browse = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "browse-entries-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1_000_000 })],
        default: "browse-entries-max 10000",
        doc: "Entries in the listing of a directory. A longer one says that it is cut off: the page in words, and both \
              page and JSON by the field `Listing-Truncated: ?1`. Each entry takes some 300 bytes while the page is made.",
        example: "browse-entries-max 1000",
        set: Set::Files(|files, values| {
            files.browse_entries_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "hidden",
        parameters: FLAG,
        default: "hidden off",
        doc: "Whether files and directories whose names begin with a dot are served. `.well-known` always is. What is below \
              the root, but not served for that, is not left to a `forward` that follows either: it is answered with 404.",
        example: "hidden",
        known_as: &["hide", "dotfiles"],
        set: Set::Files(|files, values| files.hidden = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "fallback",
        parameters: &[one("path", Kind::SitePath)],
        doc: "A file served, with status 200, for paths without a file: for single-page applications. `off` is for parts of \
              a site that has one.",
        example: r#"fallback "/index.html""#,
        known_as: &["FallbackResource", "try_files"],
        set: Set::Files(|files, values| files.fallback = values.text("path").filter(|path| !path.is_empty())),
        ..OPTION
    },
    OptionDefinition {
        name: "precompressed",
        parameters: FLAG,
        default: "precompressed on",
        doc: "Whether `file.br`, `file.zst` and `file.gz` beside `file` are served, if they are not older, to clients \
              that take them.",
        example: "precompressed off",
        known_as: &["gzip_static", "brotli_static", "file.send-compressed"],
        set: Set::Files(|files, values| files.precompressed = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "compress",
        parameters: FLAG,
        default: "compress on",
        doc: "Whether compressible types are compressed, once, and kept in the cache.",
        example: "compress off",
        known_as: &["gzip", "brotli", "zstd", "encode", "deflate", "mod_deflate"],
        set: Set::Files(|files, values| files.compress = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "compress-bytes-min",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 30 })],
        default: r#"compress-bytes-min "1KiB""#,
        doc: "Smaller files are not compressed.",
        example: r#"compress-bytes-min "512B""#,
        known_as: &["gzip_min_length", "brotli_min_length"],
        set: Set::Files(|files, values| files.compress_bytes_min = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "compress-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 30 })],
        default: r#"compress-bytes-max "1MiB""#,
        doc: "Larger files are not compressed.",
        example: r#"compress-bytes-max "4MiB""#,
        set: Set::Files(|files, values| files.compress_bytes_max = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "permission-rule",
        parameters: FLAG,
        default: "permission-rule off",
        doc: "TUX's rule: only files that everybody may read, and that are neither executable nor sticky, are served. \
              The rest is left to the next handler, or refused with 403.",
        example: "permission-rule",
        known_as: &["mode_allowed", "mode_forbidden"],
        set: Set::Files(|files, values| files.permission_rule = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "exclude-extensions",
        parameters: &[many("extension", Kind::Extension)],
        default: r#"exclude-extensions "php" "php3" "php4" "php5" "php6" "php7" "php8" "phps" "pht" "phtm" "phtml" "phar" "ctp" "inc" "module" "install" "engine" "profile" "theme" "cgi" "fcgi" "fpl" "pl" "pm" "plx" "psgi" "ep" "py" "pyw" "psp" "wsgi" "rb" "rbw" "rhtml" "erb" "asp" "asa" "aspx" "asax" "ascx" "ashx" "asmx" "axd" "svc" "master" "cshtml" "vbhtml" "jsp" "jspa" "jspf" "jspx" "jsv" "jsw" "jhtml" "jws" "cfm" "cfml" "cfc" "shtml" "shtm" "stm" "lua" "lp" "tcl" "rvt" "adp""#,
        doc: "Files with these extensions, in upper or lower case, are programs: PHP and what PHP applications include, CGI, \
              Perl, Python, Ruby, ASP, JSP, ColdFusion, server side includes, Lua and Tcl. In sites with a `forward` they are left \
              to the server behind it, which runs them, and their source is not for clients. One that is the `index` of \
              a directory, or the `fallback`, is asked for by its own path, unless a `forward` that follows has the path \
              that was asked for. Programs that no `forward` takes are answered with 404. In sites without `forward` they \
              are files like others. `off` is none.",
        example: r#"exclude-extensions "php""#,
        known_as: &["static-file.exclude-extensions", "AddHandler", "SetHandler"],
        set: Set::Files(|files, values| {
            files.exclude_extensions =
                values.texts("extension").into_iter().filter(|extension| extension != "off").collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "ignore-query",
        parameters: FLAG,
        default: "ignore-query on",
        doc: "Whether a query (`?a=b`) is ignored. With `off`, requests with one are left to the next handler, if \
              there is one.",
        example: "ignore-query off",
        known_as: &["ignore_query"],
        set: Set::Files(|files, values| files.ignore_query = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "charset",
        parameters: &[one("name", Kind::Text)],
        default: r#"charset "utf-8""#,
        doc: "The `charset` that text types are sent with; `\"\"` for none.",
        example: r#"charset "iso-8859-1""#,
        known_as: &["AddDefaultCharset"],
        set: Set::Files(|files, values| files.charset = values.text("name").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "type",
        parameters: &[one("type", Kind::MediaType), many("extension", Kind::Extension)],
        repeatable: true,
        doc: "Content type of files with these extensions, instead of the built-in one.",
        example: r#"type "text/markdown" "md" "markdown""#,
        known_as: &["types", "AddType", "mimetype.assign", "mime"],
        set: Set::Files(|files, values| {
            let content_type = values.text("type").unwrap_or_default();
            for extension in values.texts("extension") {
                // Rules of a site come after those of all sites, and replace them.
                Arc::make_mut(&mut files.types).insert(extension, content_type.clone());
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "default-type",
        parameters: &[one("type", Kind::MediaType)],
        default: r#"default-type "application/octet-stream""#,
        doc: "Content type of files whose extension is unknown.",
        example: r#"default-type "text/plain""#,
        known_as: &["ForceType", "DefaultType"],
        set: Set::Files(|files, values| files.default_type = values.text("type").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "header",
        parameters: &[
            optional("match", Kind::FieldMatch),
            one("name", Kind::FieldName),
            one("value", Kind::FieldValue),
        ],
        repeatable: true,
        doc: "A field of responses: of all, or of those whose path or content type matches. The path is the one that was \
              asked for: `/` is no `\"*.html\"`, whatever file it is served from, but `\"text/html\"` fits both. A later \
              one replaces an earlier one of the same name; an empty value takes the field away.",
        example: r#"header "*.woff2" "Access-Control-Allow-Origin" "*""#,
        known_as: &["headers", "header.add"],
        set: Set::Files(|files, values| {
            add_field(files, values.field_match("match"), values.text("name"), values.text("value"))
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "cache-control",
        parameters: &[optional("match", Kind::FieldMatch), one("value", Kind::FieldValue)],
        repeatable: true,
        doc: "How long clients and caches may keep responses: short for `header` with `Cache-Control`.",
        example: r#"cache-control "/assets/*" "max-age=31536000, immutable""#,
        known_as: &["expires", "ExpiresByType", "expire.url"],
        set: Set::Files(|files, values| {
            add_field(files, values.field_match("match"), Some("Cache-Control".into()), values.text("value"))
        }),
        ..OPTION
    },
];

fn add_field(files: &mut Files, matches: Option<FieldMatch>, name: Option<String>, value: Option<String>) {
    Arc::make_mut(&mut files.fields).push(FieldRule {
        matches: matches.unwrap_or(FieldMatch::Path(PathPattern::Any)),
        name: name.unwrap_or_default(),
        value: value.unwrap_or_default(),
    });
}
