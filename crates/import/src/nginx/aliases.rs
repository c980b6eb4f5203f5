//! `alias` that says the same as a `root`: `location /a/ { alias /srv/a/; }` has the files of `root /srv`.

use super::syntax::NginxDirective;

/// Replaces such aliases in all locations.
pub(super) fn as_roots(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let of = |directive: &NginxDirective| {
        let inner = as_roots(directive.block.as_deref()?);
        let prefix = match (directive.name.as_str(), directive.arguments.as_slice()) {
            ("location", [modifier, path]) if modifier == "^~" || modifier == "=" => Some(path),
            ("location", [path]) if path.starts_with('/') => Some(path),
            _ => None,
        };
        let inner = inner.into_iter().map(|child| match prefix {
            Some(prefix) => as_root(child, prefix),
            None => child,
        });
        Some(inner.collect())
    };
    block.iter().map(|directive| NginxDirective { block: of(directive), ..directive.clone() }).collect()
}

fn as_root(child: NginxDirective, prefix: &str) -> NginxDirective {
    let root = child.first().strip_suffix(prefix).filter(|root| root.starts_with('/') && child.name == "alias");
    match root.map(str::to_owned) {
        Some(root) => NginxDirective { name: "root".to_owned(), arguments: vec![root], ..child },
        None => child,
    }
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::site;

    /// Issue 23: Zabbix's scripts below an `alias` were rejected.
    #[test]
    fn an_alias_may_be_a_root() {
        let (lines, remarks) = site(
            "location /a/ { alias /data/a/; } location /b/ { alias /data/a/; } \
             location /c { alias /data/c; location ~ \\.php$ { fastcgi_pass unix:/p; \
             fastcgi_param SCRIPT_FILENAME $request_filename; } }",
        );
        assert!(lines.contains("files \"/a/*\" root=\"/data\"\n"), "{lines}");
        assert!(lines.contains("files \"/b/*\" root=\"/data/a\" {\n    strip-prefix \"/b\"\n}"), "{lines}");
        assert!(lines.contains("\"unix:/p\" root=\"/data\""), "{lines}");
        assert_eq!(remarks, Vec::<String>::new());
    }
}
