//! Roots that depend on the host: `/srv/$user` in a server whose name is an expression with such a group.
//!
//! A root is a text until the site is complete. It has a mark with the parts of the host that `{host}` lacks.

use crate::kdl::KdlNode;

/// Begin and end of a mark.
const MARKS: [char; 2] = ['\u{1}', '\u{2}'];

/// The host without a leading `www.` and without an ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPart {
    pub(super) strips_www: bool,
    /// Empty, or beginning with a dot.
    pub(super) suffix: String,
}

impl HostPart {
    /// The part in a root.
    pub(super) fn text(&self) -> String {
        let www = if self.strips_www { "www" } else { "" };
        format!("{{host}}{}{www}{}{}", MARKS[0], self.suffix, MARKS[1])
    }

    fn of_mark(mark: &str) -> Self {
        match mark.strip_prefix("www") {
            Some(suffix) => Self { strips_www: true, suffix: suffix.to_owned() },
            None => Self { strips_www: false, suffix: mark.to_owned() },
        }
    }
}

/// A text without its marks, and the part of the first one.
fn unmarked(text: &str) -> (String, Option<HostPart>) {
    let (mut result, mut part, mut rest) = (String::new(), None, text);
    while let Some((front, (mark, after))) =
        rest.split_once(MARKS[0]).and_then(|(front, rest)| Some((front, rest.split_once(MARKS[1])?)))
    {
        result.push_str(front);
        part.get_or_insert(HostPart::of_mark(mark));
        rest = after;
    }
    (result + rest, part)
}

/// The option for a root with a mark.
fn root(text: &str) -> KdlNode {
    let (path, part) = unmarked(text);
    let node = KdlNode::with("root", path);
    let Some(HostPart { strips_www, suffix }) = part else { return node };
    let node = if strips_www { node.word_property("strip-www", "on") } else { node };
    if suffix.is_empty() { node } else { node.property("strip-suffix", suffix) }
}

/// A site whose roots say what they take of the host.
pub(super) fn finish(mut site: KdlNode) -> KdlNode {
    let own = site.children.iter().find(|child| child.name() == "root").map(|root| root.last_value().to_owned());
    let children = std::mem::take(&mut site.children);
    site.children = children.into_iter().map(|child| finished(child, own.as_deref())).collect();
    site
}

fn finished(mut node: KdlNode, of_site: Option<&str>) -> KdlNode {
    let children = std::mem::take(&mut node.children);
    node.children = children.into_iter().map(|child| finished(child, of_site)).collect();
    if node.name() == "root" && node.last_value().contains(MARKS[0]) {
        return root(node.last_value());
    }
    let (mut node, text) = node.without_property("root");
    match text {
        Some(text) if !text.contains(MARKS[0]) => return node.property("root", text),
        // The option of the site holds.
        Some(text) if Some(text.as_str()) == of_site => {}
        Some(text) if node.name() == "files" => node.children.insert(0, root(&text)),
        Some(text) => node = node.property("root", unmarked(&text).0),
        None => {}
    }
    match node.last_value().contains(MARKS[0]) {
        true => node.with_last_value(|text| unmarked(text).0),
        false => node,
    }
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::translated;

    /// Translation of a server with an expression as its name, beside one for other names.
    fn of(name: &str, inside: &str) -> (String, Vec<String>) {
        translated(&format!(
            "server {{ listen 80 default_server; return 403; }} server {{ listen 80; server_name ~{name}; {inside} }}"
        ))
    }

    /// Issue 23: groups of `server_name` were no variables.
    #[test]
    fn groups_of_names_are_parts_of_roots() {
        let check = |name: &str, root: &str, expect: &str| {
            let (text, remarks) = of(name, &format!("root {root};"));
            assert!(text.contains(expect) && remarks.is_empty(), "{name} {root}: {text} {remarks:?}");
        };
        let user = r"^(?<user>.+)\.example\.com$";
        check(user, "/srv/$user/public", "root \"/srv/{host}/public\" strip-suffix=\".example.com\"");
        check(user, "/srv/$1", "root \"/srv/{host}\" strip-suffix=\".example.com\"");
        check(user, "/srv/$host", "root \"/srv/{host}\"\n");
        check(
            r"^www\.(?<domain>.+)$",
            "/srv/${domain}",
            "site \"www.*\" {\n    listen 80\n    root \"/srv/{host}\" strip-www=on",
        );
        let (text, remarks) =
            of(user, r"root /srv/$user; location /a/ { root /d/$user; } location ~ \.php$ { fastcgi_pass unix:/p; }");
        assert!(text.contains("files \"/a/*\" {\n        root \"/d/{host}\" strip-suffix=\".example.com\""), "{text}");
        assert!(text.contains("fastcgi \"*.php\" \"unix:/p\" {") && remarks.is_empty(), "{text} {remarks:?}");
    }

    #[test]
    fn groups_of_names_are_values() {
        let (text, remarks) =
            of(r"^(?<app>[a-z]+)\.b\.c$", "location / { proxy_pass http://d:1; proxy_set_header X-App $app; }");
        assert!(text.contains("case #\"~^(?<app>[a-z]+)\\.b\\.c$\"# \"{match.app}\""), "{text}");
        assert!(text.contains("request-header \"X-App\" \"{map.host-1-app}\""), "{text}");
        // Names that the expression does not match are those of another server.
        assert!(text.contains("site \"*.b.c\""), "{text}");
        assert!(text.contains("deny all status=421 when=#\"not host matches '^(?<app>[a-z]+)"), "{text}");
        assert!(remarks[0].contains("other names of `*.b.c` get 421"), "{remarks:?}");
        let (text, remarks) = of(r"^www\.(?<domain>.+)$", "return 301 $scheme://$domain$request_uri;");
        assert!(
            text.contains("respond \"*\" 502") && remarks[0].contains("with `canonical-host`"),
            "{text} {remarks:?}"
        );
        let (text, _) = of(r"^(?<user>.+)\.b\.c$", "return 301 https://$user.d.e$request_uri;");
        assert!(text.contains("\"https://{map.host-1-user}.d.e{path}{query}\""), "{text}");
        let (text, remarks) = of(r"^(www\.)?(?<domain>.+)$", "root /srv;");
        assert!(
            text.contains("site \"line-1.invalid\"") && remarks[0].contains("another server has all other names"),
            "{text}"
        );
        let (text, remarks) = translated(
            r"server { listen 80; server_name a.b; root /a; } server { listen 80; server_name ~^(www\.)?(?<domain>.+)$; root /srv/$domain; }",
        );
        assert!(text.contains("site {\n    listen 80\n    root \"/srv/{host}\" strip-www=on"), "{text} {remarks:?}");
    }
}
