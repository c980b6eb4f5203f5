//! A suffix of `proxy_pass` that one path has, as the documentation of Laravel Octane writes it.
//!
//! `set $s ""; if ($uri = /index.php) { set $s ?$query_string; } proxy_pass http://a$s;` sends all requests unchanged,
//! except for those of that path, which nginx sends to `/` with their query. So a location of that path has this as its
//! target. A request for `/` is one of its index, and gets there, too.

use super::condition;
use super::syntax::NginxDirective;

/// Replaces such suffixes in all servers by a location for the path.
pub(super) fn removed(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let of = |directive: &NginxDirective| match (directive.name.as_str(), &directive.block) {
        ("http", Some(inner)) => Some(removed(inner)),
        ("server", Some(inner)) => Some(of_server(inner)),
        _ => None,
    };
    let with = |directive: &NginxDirective| match of(directive) {
        Some(block) => NginxDirective { block: Some(block), ..directive.clone() },
        None => directive.clone(),
    };
    block.iter().map(with).collect()
}

fn of_server(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let mut added: Vec<NginxDirective> = Vec::new();
    let mut rest: Vec<NginxDirective> = Vec::new();
    for directive in block {
        let found = directive.block.as_deref().filter(|_| directive.name == "location").and_then(without_suffix);
        let Some((path, inner)) = found else {
            rest.push(directive.clone());
            continue;
        };
        rest.push(NginxDirective { block: Some(inner.clone()), ..directive.clone() });
        let with_root = |child: NginxDirective| match child.name.as_str() {
            "proxy_pass" => NginxDirective { arguments: vec![format!("{}/", child.first())], ..child },
            _ => child,
        };
        added.push(NginxDirective {
            arguments: vec!["=".to_owned(), path],
            block: Some(inner.into_iter().map(with_root).collect()),
            ..directive.clone()
        });
    }
    let has = |location: &NginxDirective| {
        block.iter().any(|other| other.name == "location" && other.arguments == location.arguments)
    };
    added.retain(|location| !has(location));
    rest.extend(added);
    rest
}

/// The path that has a suffix, and the block without it.
fn without_suffix(block: &[NginxDirective]) -> Option<(String, Vec<NginxDirective>)> {
    let condition = block.iter().find(|child| child.name == "if")?;
    let [setting] = condition.children() else { return None };
    let (variable, value) = (setting.first(), setting.argument(1));
    if setting.name != "set" || !matches!(value, "?$query_string" | "?$args" | "$is_args$args") {
        return None;
    }
    let is_empty = |child: &&NginxDirective| child.name == "set" && child.arguments == [variable, ""];
    let empty = block.iter().find(is_empty)?;
    let [subject, operator, path] = condition::parts(condition);
    if subject != "$uri" || operator != "=" || !path.starts_with('/') || path.contains('$') {
        return None;
    }
    let pass = block.iter().find(|child| child.name == "proxy_pass")?;
    let url = pass.first().strip_suffix(variable)?;
    let is_without_path = url.split_once("://").is_some_and(|(_, authority)| !authority.contains(['/', '$']));
    let is_used_once = block.iter().filter(|child| child.line().contains(variable)).count() == 2;
    if !is_without_path || !is_used_once {
        return None;
    }
    let inner = block.iter().filter(|child| !std::ptr::eq(*child, condition) && !std::ptr::eq(*child, empty));
    let inner = inner.map(|child| match std::ptr::eq(child, pass) {
        true => NginxDirective { arguments: vec![url.to_owned()], ..child.clone() },
        false => child.clone(),
    });
    Some((path, inner.collect()))
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::site;

    /// Issue 23: the server of Laravel Octane was rejected.
    #[test]
    fn a_suffix_of_one_path_is_its_location() {
        let (lines, remarks) = site(
            "index index.php; location /index.php { try_files /not_exists @app; } location / { try_files $uri $uri/ @app; } location @app { set $tail \"\"; \
             if ($uri = /index.php) { set $tail ?$query_string; } proxy_set_header Host $http_host; \
             proxy_pass http://127.0.0.1:8000$tail; }",
        );
        assert_eq!(remarks, Vec::<String>::new());
        assert!(lines.contains("root \"/srv\"\nindex \"index.php\"\n"), "{lines}");
        let forwarded: Vec<&str> =
            lines.lines().filter(|line| line.contains("forward") || line.contains("strip")).collect();
        assert_eq!(
            forwarded,
            [
                "forward \"http://127.0.0.1:8000\" path=\"/index.php\" {",
                "    strip-prefix \"/index.php\"",
                "forward \"http://127.0.0.1:8000\" path=#\"~^/index\\.php\"#",
                "forward \"http://127.0.0.1:8000\"",
            ],
        );
    }
}
