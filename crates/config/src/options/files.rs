use std::sync::Arc;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, any, many, one, optional, property};
use crate::model::compression::CompressionLevel;
use crate::model::{FieldMatch, FieldRule, FilesConfig, PathPattern, SymlinkRule};

/// Options of `site` and `files`.
pub(super) static ROOT: &[OptionDefinition] = &[OptionDefinition {
    name: "root",
    parameters: &[
        one("directory", ValueKind::Root),
        property("strip-www", ValueKind::Flag),
        property("strip-suffix", ValueKind::HostSuffix),
    ],
    doc: "Directory of the files. `{host}` stands for the request's host and `{host:1}` for its first letter. \
          With them one site serves many hosts: `\"/srv/{host:1}/{host:2}/{host}\"`. `strip-www=on` removes a \
          leading `www.` from the host first; `strip-suffix=\".example.net\"` removes that ending. Symbolic \
          links that lead out of the directory are not followed, unless `symlinks` allows them. The server does not \
          start without the directory, unless its path depends on the host.",
    example: r#"root "/srv/{host}" strip-www=on strip-suffix=".example.net""#,
    known_as: KnownAs {
        nginx: &["alias", "root"],
        apache: &["DocumentRoot", "VirtualDocumentRoot", "Alias"],
        caddy: &["root"],
        others: &["document-root", "server.document-root", "file.dir"],
    },
    set: OptionSetter::Files(|files, values| {
        files.root.pieces = values.root("directory").unwrap_or_default();
        files.root.strip_www = values.flag("strip-www").unwrap_or(false);
        files.root.strip_suffix = values.text("strip-suffix").unwrap_or_default();
    }),
    ..OPTION
}];

/// Options of `files` alone.
pub(super) static BLOCK: &[OptionDefinition] = &[OptionDefinition {
    name: "strip-prefix",
    parameters: &[one("prefix", ValueKind::PathPrefix)],
    doc: "Prefix removed from a path before its file is looked up. With `files \"/downloads/*\"` and the root \
          `/srv/dl`, `/downloads/a` is the file `/srv/dl/downloads/a`. With `strip-prefix \"/downloads\"`, it is \
          `/srv/dl/a`. Letter case does not matter.",
    example: r#"strip-prefix "/downloads""#,
    known_as: KnownAs::NONE.nginx(&["alias"]).apache(&["Alias"]).caddy(&["handle_path", "uri"]),
    set: OptionSetter::Files(|files, values| files.strip_prefix = values.text("prefix").unwrap_or_default()),
    ..OPTION
}];

/// Options of static files: for all sites, a site, or a path.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "index",
        parameters: &[any("file", ValueKind::FileName)],
        default: r#"index "index.html""#,
        doc: "Names of index files, tried in order for a directory. Without names, directories are \
              like missing files, unless `browse` or `require-index` is on.",
        example: r#"index "index.html" "index.htm""#,
        known_as: KnownAs {
            nginx: &["index"],
            apache: &["DirectoryIndex"],
            caddy: &["index"],
            others: &["index-file.names", "file.index"],
        },
        set: OptionSetter::Files(|files, values| files.index = values.texts("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "require-index",
        parameters: FLAG,
        default: "require-index off",
        doc: "Rejects directories that have no index file with status 403, as nginx's `try_files $uri $uri/` does. \
              Otherwise the `fallback`, the next handler or a `rewrite` with `missing` gets their paths. `browse` \
              takes precedence.",
        example: "require-index",
        set: OptionSetter::Files(|files, values| files.require_index = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "forbidden",
        parameters: FLAG,
        default: "forbidden off",
        doc: "Rejects files and directories that exist with status 403, with any method. Only missing paths go on to the \
              next handler, so that an application keeps its URLs while files of the same names stay closed. A path \
              that continues after a file (`/a.php/b`) is rejected, too. Write it in `files` with the paths, before \
              other handlers. To reject paths whether they exist or not, use `deny`.",
        example: r#"forbidden"#,
        known_as: KnownAs::NONE.apache(&["RewriteRule"]),
        set: OptionSetter::Files(|files, values| files.forbidden = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "browse",
        parameters: FLAG,
        default: "browse off",
        doc: "Lists directories that have no index file: as HTML, or as JSON if the client asks for it.",
        example: "browse",
        known_as: KnownAs {
            nginx: &["autoindex"],
            apache: &["Indexes", "mod_autoindex"],
            caddy: &["browse"],
            others: &["dir-listing.activate", "file.dirlisting", "directory-listing"],
        },
        set: OptionSetter::Files(|files, values| files.browse = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "browse-entries-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1_000_000 })],
        default: "browse-entries-max 10000",
        doc: "Maximum number of entries in a directory listing. A longer listing is cut; the page says so, and page \
              and JSON carry `Listing-Truncated: ?1`. An entry needs about 300 bytes of memory while the page is \
              made.",
        example: "browse-entries-max 1000",
        known_as: KnownAs::NONE.caddy(&["file_limit"]),
        set: OptionSetter::Files(|files, values| files.browse_entries_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "hidden",
        parameters: FLAG,
        default: "hidden off",
        doc: "Serves files and directories whose names begin with a dot. `.well-known` is always served. A hidden \
              file below the root gets 404, even if a `forward` follows. Names that begin with `.tailcoat-` belong to \
              incomplete uploads and are always hidden.",
        example: "hidden",
        known_as: KnownAs::NONE.caddy(&["hide"]).others(&["dotfiles"]),
        set: OptionSetter::Files(|files, values| files.hidden = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "fallback",
        parameters: &[one("path", ValueKind::SitePath)],
        doc: "File sent with status 200 for paths that have no file, as single-page applications need. `off` turns \
              it off for a part of a site.",
        example: r#"fallback "/index.html""#,
        known_as: KnownAs::NONE.nginx(&["try_files"]).apache(&["FallbackResource"]).caddy(&["try_files"]),
        set: OptionSetter::Files(|files, values| files.fallback = values.text("path").filter(|path| !path.is_empty())),
        ..OPTION
    },
    OptionDefinition {
        name: "extensions",
        parameters: &[many("extension", ValueKind::Extension)],
        doc: "Extensions that are tried, in this order, for paths that have no file: with `extensions \"html\"`, `/page` \
              is the file `page.html`. Files and directories of the path itself come first, `fallback` and later \
              handlers after them. Access rules for the file's own path hold, too. `off` turns it off for a part of \
              a site.",
        example: r#"extensions "html""#,
        known_as: KnownAs::NONE.nginx(&["try_files"]).apache(&["MultiViews"]).caddy(&["try_files"]),
        set: OptionSetter::Files(|files, values| {
            files.extensions = values.texts("extension").into_iter().filter(|extension| extension != "off").collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "precompressed",
        parameters: FLAG,
        default: "precompressed on",
        doc: "Serves `file.br`, `file.zst` or `file.gz` in place of `file` to clients that accept the encoding. The \
              compressed file must not be older than `file`.",
        example: "precompressed off",
        known_as: KnownAs {
            nginx: &["gzip_static", "brotli_static", "zstd_static"],
            caddy: &["precompressed"],
            others: &["file.send-compressed"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| files.precompressed = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "compress",
        parameters: FLAG,
        default: "compress on",
        doc: "Compresses content of compressible types (Zstandard, Brotli, gzip). Files are compressed once, and the \
              result is kept in the cache. Responses of upstreams, applications, scripts and modules are compressed \
              while they are sent. `compress` in a block such as `forward` takes precedence there.",
        example: "compress off",
        known_as: KnownAs {
            nginx: &["gzip", "brotli", "zstd"],
            apache: &["DEFLATE", "AddOutputFilterByType", "BROTLI_COMPRESS", "mod_deflate", "mod_brotli"],
            caddy: &["encode"],
            others: &["deflate", "mod_deflate", "compression"],
        },
        set: OptionSetter::Files(|files, values| files.compress = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "compress-level",
        parameters: &[one("level", ValueKind::Choice(&CompressionLevel::NAMES))],
        default: "compress-level balanced",
        doc: "Time that compression takes for smaller content. Files are compressed once, so their encoders take more \
              time than those of other responses at the same level.",
        example: "compress-level fast",
        known_as: KnownAs {
            nginx: &["gzip_comp_level", "brotli_comp_level", "zstd_comp_level"],
            apache: &["DeflateCompressionLevel", "BrotliCompressionQuality"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| {
            files.compress_level = CompressionLevel::from_name(&values.text("level").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "compress-bytes-min",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })],
        default: r#"compress-bytes-min "1KiB""#,
        doc: "Minimum size of content that is compressed. Responses of unknown length are compressed, too.",
        example: r#"compress-bytes-min "512B""#,
        known_as: KnownAs {
            nginx: &["gzip_min_length", "brotli_min_length", "zstd_min_length"],
            caddy: &["minimum_length"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| files.compress_bytes_min = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "compress-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })],
        default: r#"compress-bytes-max "1MiB""#,
        doc: "Maximum size of files that are compressed. Larger files are sent as they are.",
        example: r#"compress-bytes-max "4MiB""#,
        known_as: KnownAs::NONE.apache(&["DeflateInflateLimitRequestBody"]),
        set: OptionSetter::Files(|files, values| files.compress_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "permission-rule",
        parameters: FLAG,
        default: "permission-rule off",
        doc: "Serves only files that all users may read and that are neither executable nor sticky (the rule of TUX). \
              Other files are left to the next handler, or get 403.",
        example: "permission-rule",
        known_as: KnownAs::NONE.others(&["mode_allowed", "mode_forbidden"]),
        set: OptionSetter::Files(|files, values| files.permission_rule = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "symlinks",
        parameters: &[
            one("rule", ValueKind::Choice(&["inside", "owner", "below", "all"])),
            any("directory", ValueKind::File),
        ],
        default: r#"symlinks "inside""#,
        doc: "Symbolic links that are followed although they lead out of the root: `inside` (the default) follows none \
              of them. `owner` follows a link if it has the same owner as what it leads to. `below` follows links into \
              the directories that follow. `all` follows all links. Links that stay in the root are always followed. \
              With `all`, each user who may create links in the root decides which files clients get. The server's confinement \
              permits the directories of `below`; for `owner` and `all`, name further ones in `read` of `confinement`.",
        example: r#"symlinks "below" "/srv/shared""#,
        known_as: KnownAs {
            nginx: &["disable_symlinks"],
            apache: &["FollowSymLinks", "SymLinksIfOwnerMatch"],
            others: &["server.follow-symlink"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| {
            files.root.symlinks = match values.text("rule").as_deref() {
                Some("owner") => SymlinkRule::Owner,
                Some("below") => SymlinkRule::Below(values.files("directory")),
                Some("all") => SymlinkRule::All,
                _ => SymlinkRule::Inside,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "exclude-extensions",
        parameters: &[many("extension", ValueKind::Extension)],
        // words: allow: a list, not a sentence
        default: r#"exclude-extensions "php" "php3" "php4" "php5" "php6" "php7" "php8" "phps" "pht" "phtm" "phtml" "phar" "ctp" "inc" "module" "install" "engine" "profile" "theme" "cgi" "fcgi" "fpl" "pl" "pm" "plx" "psgi" "ep" "py" "pyw" "psp" "wsgi" "rb" "rbw" "rhtml" "erb" "asp" "asa" "aspx" "asax" "ascx" "ashx" "asmx" "axd" "svc" "master" "cshtml" "vbhtml" "jsp" "jspa" "jspf" "jspx" "jsv" "jsw" "jhtml" "jws" "cfm" "cfml" "cfc" "shtml" "shtm" "stm" "lua" "lp" "tcl" "rvt" "adp""#,
        doc: "Extensions of programs whose source must not be sent, in upper or lower case. The default covers PHP \
              and its include files, CGI, Perl, Python, Ruby, ASP, JSP, ColdFusion, server-side includes, Lua and \
              Tcl. In a site with `forward`, such files are left to the upstream, which runs them. A program that no \
              `forward` takes gets 404. A directory's `index` or the `fallback` that is a program is requested by \
              its own path, unless a `forward` that follows takes the original path. In sites without `forward`, \
              these files are served like any others. `off` means no extensions.",
        example: r#"exclude-extensions "php""#,
        known_as: KnownAs {
            apache: &["AddHandler", "SetHandler", "Files", "FilesMatch"],
            others: &["static-file.exclude-extensions"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| {
            files.exclude_extensions =
                values.texts("extension").into_iter().filter(|extension| extension != "off").collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "ignore-query",
        parameters: FLAG,
        default: "ignore-query on",
        doc: "Ignores the query (`?a=b`) when serving files. With `off`, requests with a query are left to the next \
              handler, if there is one.",
        example: "ignore-query off",
        known_as: KnownAs::NONE.others(&["ignore_query"]),
        set: OptionSetter::Files(|files, values| files.ignore_query = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "charset",
        parameters: &[one("name", ValueKind::Text)],
        default: r#"charset "utf-8""#,
        doc: "`charset` sent with text types; `\"\"` sends none.",
        example: r#"charset "iso-8859-1""#,
        known_as: KnownAs::NONE.nginx(&["charset", "charset_types"]).apache(&["AddDefaultCharset", "AddCharset"]),
        set: OptionSetter::Files(|files, values| files.charset = values.text("name").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "type",
        parameters: &[one("type", ValueKind::MediaType), many("extension", ValueKind::Extension)],
        repeatable: true,
        doc: "Content type of files with these extensions. It replaces the built-in type.",
        example: r#"type "text/markdown" "md" "markdown""#,
        known_as: KnownAs {
            nginx: &["types"],
            apache: &["AddType", "TypesConfig"],
            caddy: &["mime"],
            others: &["mimetype.assign"],
        },
        set: OptionSetter::Files(|files, values| {
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
        parameters: &[one("type", ValueKind::MediaType)],
        default: r#"default-type "application/octet-stream""#,
        doc: "Content type of files with an unknown extension.",
        example: r#"default-type "text/plain""#,
        known_as: KnownAs::NONE.nginx(&["default_type"]).apache(&["ForceType", "DefaultType"]),
        set: OptionSetter::Files(|files, values| files.default_type = values.text("type").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "header",
        parameters: &[
            optional("match", ValueKind::FieldMatch),
            one("name", ValueKind::FieldName),
            one("value", ValueKind::FieldValue),
        ],
        repeatable: true,
        doc: "Header field added to responses for files. With a first value, it applies only to paths or content \
              types that match. It matches the path the client requested: `/` does not match `\"*.html\"`, but \
              `\"text/html\"` matches both. A later option replaces an earlier one of the same name; an empty value \
              removes the field.",
        example: r#"header "*.woff2" "Access-Control-Allow-Origin" "*""#,
        known_as: KnownAs::NONE.caddy(&["header"]).others(&["headers", "header.add"]),
        set: OptionSetter::Files(|files, values| {
            add_field(files, values.field_match("match"), values.text("name"), values.text("value"))
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "cache-control",
        parameters: &[optional("match", ValueKind::FieldMatch), one("value", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Sets `Cache-Control` on responses for files: how long clients and caches may keep them. It is short \
              for `header` with the name `Cache-Control`.",
        example: r#"cache-control "/assets/*" "max-age=31536000, immutable""#,
        known_as: KnownAs {
            nginx: &["expires"],
            apache: &["ExpiresActive", "ExpiresByType", "ExpiresDefault", "mod_expires"],
            others: &["expire.url"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Files(|files, values| {
            add_field(files, values.field_match("match"), Some("Cache-Control".into()), values.text("value"))
        }),
        ..OPTION
    },
];

fn add_field(files: &mut FilesConfig, matches: Option<FieldMatch>, name: Option<String>, value: Option<String>) {
    Arc::make_mut(&mut files.fields).push(FieldRule {
        matches: matches.unwrap_or(FieldMatch::Path(PathPattern::Any)),
        name: name.unwrap_or_default(),
        value: value.unwrap_or_default(),
    });
}
