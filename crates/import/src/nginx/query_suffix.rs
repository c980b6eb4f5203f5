//! A suffix of `proxy_pass` that one path has, as the documentation of Laravel Octane writes it.
//!
//! `set $s ""; if ($uri = /index.php) { set $s ?$query_string; } proxy_pass http://a$s;` sends all requests unchanged,
//! except for those of that path, which nginx sends to `/` with their query. Here they keep their path: it is that of the
//! directory's index, for which an application responds alike.

use super::condition;
use super::syntax::NginxDirective;

/// Removes such suffixes in all servers.
pub(super) fn removed(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let of = |directive: &NginxDirective| match (directive.name.as_str(), &directive.block) {
        ("http" | "server", Some(inner)) => Some(removed(inner)),
        ("location", Some(inner)) => without_suffix(inner),
        _ => None,
    };
    let with = |directive: &NginxDirective| match of(directive) {
        Some(block) => NginxDirective { block: Some(block), ..directive.clone() },
        None => directive.clone(),
    };
    block.iter().map(with).collect()
}

/// The block without its suffix.
fn without_suffix(block: &[NginxDirective]) -> Option<Vec<NginxDirective>> {
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
    Some(inner.collect())
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::site;

    /// Issue 23: the server of Laravel Octane was rejected.
    #[test]
    fn a_suffix_of_one_path_is_left_out() {
        let (lines, remarks) = site(
            "index index.php; location / { try_files $uri $uri/ @app; } location @app { set $tail \"\"; \
             if ($uri = /index.php) { set $tail ?$query_string; } proxy_set_header Host $http_host; \
             proxy_pass http://127.0.0.1:8000$tail; }",
        );
        assert_eq!(remarks, Vec::<String>::new());
        assert!(lines.contains("forward \"http://127.0.0.1:8000\""), "{lines}");
    }
}
