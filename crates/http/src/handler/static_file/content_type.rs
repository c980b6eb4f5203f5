use crate::config::FilesConfig;
pub(super) use crate::config::is_compressible;

/// Types that the table of [`mime_guess`] lacks or that have changed since.
const TYPES: [(&str, &str); 12] = [
    ("js", "text/javascript"), // RFC 9239
    ("mjs", "text/javascript"),
    ("md", "text/markdown"),
    ("avif", "image/avif"),
    ("jxl", "image/jxl"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("map", "application/json"),
    ("zst", "application/zstd"),
    ("br", "application/octet-stream"),
    ("xml", "application/xml"), // RFC 7303
    ("opus", "audio/ogg"),
];

/// Content type of a file, by its name, with a charset for texts.
pub(super) fn content_type(files: &FilesConfig, name: &[u8]) -> String {
    let media_type = media_type(files, name);
    // XML and JSON declare their charset themselves (RFC 7303, RFC 8259). A configured type keeps its parameters.
    let is_text = media_type.starts_with("text/");
    if is_text && !files.charset.is_empty() && !media_type.contains(';') {
        format!("{media_type}; charset={}", files.charset)
    } else {
        media_type.to_owned()
    }
}

fn media_type<'a>(files: &'a FilesConfig, name: &[u8]) -> &'a str {
    let Some(extension) = extension(name) else { return &files.default_type };
    if let Some(configured) = files.types.get(&extension) {
        return configured;
    }
    let own = TYPES.iter().find(|(known, _)| *known == extension).map(|(_, own)| *own);
    own.or_else(|| mime_guess::from_ext(&extension).first_raw()).unwrap_or(&files.default_type)
}

/// Extension after the last dot of the name, in lower case; `None` for `.profile`.
fn extension(name: &[u8]) -> Option<String> {
    let file = name.rsplit(|byte| *byte == b'/').next()?;
    let dot = file.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    std::str::from_utf8(&file[dot + 1..]).ok().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::content_type;
    use crate::config::{FilesConfig, is_compressible};

    #[test]
    fn types_by_name() {
        let mut files = FilesConfig::below("/");
        let types = [("foo", "text/x-foo"), ("txt", "text/plain; charset=latin1")];
        files.types = Arc::new(types.map(|(extension, kind)| (extension.into(), kind.into())).into());
        let check = |name: &str, expect: &str, compressible: bool| {
            let found = content_type(&files, name.as_bytes());
            assert_eq!((found.as_str(), is_compressible(&found)), (expect, compressible), "{name}");
        };
        check("a.html", "text/html; charset=utf-8", true);
        check("A.HTML", "text/html; charset=utf-8", true);
        check("a/b.tar.gz", "application/gzip", false);
        check("a.foo", "text/x-foo; charset=utf-8", true);
        check("a.txt", "text/plain; charset=latin1", true);
        check("a.js", "text/javascript; charset=utf-8", true);
        check("a.json", "application/json", true);
        check("a.svg", "image/svg+xml", true);
        check("a.wasm", "application/wasm", true);
        check("a.png", "image/png", false);
        check("a.woff2", "font/woff2", false);
        check("a.ttf", "font/ttf", true);
        check("a.mp4", "video/mp4", false);
        check("README", "application/octet-stream", false);
        check("a.b/README", "application/octet-stream", false);
        check(".html", "application/octet-stream", false);
        check("a.", "application/octet-stream", false);
        check("a.unheard-of", "application/octet-stream", false);
        assert_eq!(content_type(&files, b"a.\xff"), "application/octet-stream");
    }
}
