/// Returns `true` if content of this type is worth compressing.
pub fn is_compressible(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim_end();
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || media_type.ends_with("+text")
        || matches!(
            media_type,
            "application/javascript"
                | "application/json"
                | "application/xml"
                | "application/wasm"
                | "application/rtf"
                | "application/x-sh"
                | "application/sql"
                | "application/vnd.ms-fontobject"
                | "font/ttf"
                | "font/otf"
                | "font/collection"
                | "image/bmp"
                | "image/x-icon"
                | "image/vnd.microsoft.icon"
        )
}
