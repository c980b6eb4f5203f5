//! `alias` in other words: `location /a/ { alias /srv/a/; }` has the files of `root /srv`, and a location of one file is
//! one of a path that ends with the file's name.

use super::forward;
use super::syntax::NginxDirective;

/// Replaces such aliases in all locations.
pub(super) fn as_roots(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let locations = block.iter().flat_map(|directive| match of_file(directive) {
        Some(split) => split,
        None => vec![directive.clone()],
    });
    of_directories(&locations.collect::<Vec<_>>())
}

/// Locations that replace that of one file with another name: `location = /a { alias /srv/b; }` is a rewrite to `/a/b`,
/// which is `b` below `/srv`.
fn of_file(directive: &NginxDirective) -> Option<Vec<NginxDirective>> {
    let (path, is_exact) = match directive.arguments.as_slice() {
        [modifier, path] if modifier == "=" => (path, true),
        [modifier, path] if modifier == "^~" => (path, false),
        [path] => (path, false),
        _ => return None,
    };
    let block = directive.block.as_deref().filter(|_| directive.name == "location" && path.starts_with('/'))?;
    let alias = block.iter().find(|child| child.name == "alias")?.first();
    let (_, name) = alias.rsplit_once('/')?;
    let own = path.rsplit('/').next()?;
    // Without an extension, a path may be a directory.
    let are_files = is_exact || (own.contains('.') && name.contains('.'));
    let is_known = name == own && (is_exact || alias.ends_with(path.as_str()));
    if name.is_empty() || own.is_empty() || is_known || !are_files || alias.contains('$') || leads_on(block) {
        return None;
    }
    let line = |name: &str, arguments: &[&str]| NginxDirective {
        name: name.to_owned(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        block: None,
        ..directive.clone()
    };
    let at = |arguments: &[&str], block: Vec<NginxDirective>| NginxDirective {
        block: Some(block),
        ..line("location", arguments)
    };
    let rest = (!is_exact).then(|| at(&["^~", path], vec![line("return", &["404"])]));
    if name == own {
        return Some([at(&["=", path], block.to_vec())].into_iter().chain(rest).collect());
    }
    let target = format!("{path}/{name}");
    let asked = at(&["=", path], vec![line("rewrite", &["^", &target, "last"])]);
    let inner = [vec![line("internal", &[])], block.to_vec()].concat();
    Some([asked, at(&["=", &target], inner)].into_iter().chain(rest).collect())
}

/// Returns `true` if a block answers requests itself, or leads them elsewhere.
fn leads_on(block: &[NginxDirective]) -> bool {
    let leads = ["return", "rewrite", "if", "try_files", "internal", "location", "error_page"];
    let is_lead = |child: &NginxDirective| leads.contains(&child.name.as_str()) || forward::is_foreign(&child.name);
    forward::pass(block).is_some() || block.iter().any(is_lead)
}

fn of_directories(block: &[NginxDirective]) -> Vec<NginxDirective> {
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

    #[test]
    fn an_alias_may_be_a_file_with_another_name() {
        let (lines, remarks) = site("location = /a.js { alias /etc/app/b.js; expires 1h; } location / { return 404; }");
        assert_eq!(remarks, Vec::<String>::new());
        assert_eq!(
            lines,
            "internal \"/a.js/b.js\"\nrewrite \"/a.js\" \"/a.js/b.js\"\ncache-control \"/a.js/b.js\" \
             \"max-age=3600\"\nfiles \"/a.js/b.js\" root=\"/etc/app\" {\n    strip-prefix \"/a.js\"\n}\nrespond \
             \"/a.js/b.js\" 404\nrespond \"*\" 404"
        );
    }

    /// Issue 23: the icon of Mailman was the root of a site.
    #[test]
    fn an_alias_may_be_a_file_with_the_same_name() {
        let (lines, remarks) = site("location /list/icon.ico { alias /data/img/icon.ico; } location / { return 404; }");
        assert_eq!(remarks, Vec::<String>::new());
        let expect = [
            "files \"/list/icon.ico\" root=\"/data/img\" {",
            "    strip-prefix \"/list\"",
            "}",
            "respond \"/list/icon.ico\" 404",
            "respond #\"~^/list/icon\\.ico\"# 404",
            "respond \"*\" 404",
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expect);
    }

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
