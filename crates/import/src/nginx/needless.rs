//! Directives of nginx that need nothing here.

use super::Notes;
use super::syntax::NginxDirective;
use crate::config;

/// Notes the directive if it needs nothing here. Returns `false` for all others.
pub(super) fn add(directive: &NginxDirective, notes: &mut Notes) -> bool {
    if matches!(directive.name.as_str(), "gzip_types" | "brotli_types" | "zstd_types") {
        let others = others(&directive.arguments);
        if !others.is_empty() {
            notes.left(directive, format!("Tailcoat chooses what it compresses: texts and fonts, but not {others}"));
            return true;
        }
    }
    match config::needless_in_nginx(&directive.name) {
        Some(why) => {
            notes.needless(directive, why);
            true
        }
        None => false,
    }
}

/// Lists the content types among these that Tailcoat does not compress.
fn others(types: &[String]) -> String {
    let others: Vec<_> = types.iter().map(String::as_str).filter(|name| !is_covered(name)).collect();
    others.join(", ")
}

/// True if Tailcoat compresses files of this content type, or never sends this type because another name replaced it.
fn is_covered(content_type: &str) -> bool {
    config::is_compressible(content_type)
        || content_type.contains("javascript")
        || content_type.contains("font-")
        || content_type.starts_with("application/xml")
        || matches!(content_type, "font/opentype" | "application/text" | "application/json-rpc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_not_compressed() {
        let check = |types: &str, expect: &str| {
            let types: Vec<_> = types.split(' ').map(str::to_owned).collect();
            assert_eq!(others(&types), expect);
        };
        // Debian's nginx.conf.
        check(
            "text/plain text/css application/json application/javascript text/xml application/xml application/xml+rss \
             text/javascript",
            "",
        );
        check("application/x-javascript application/x-font-ttf font/opentype image/svg+xml image/x-icon", "");
        check("text/css application/pdf image/png", "application/pdf, image/png");
        check("*", "*");
    }
}
