//! Directives that no request reaches: after the `return` of a server, and locations of paths that nginx has changed
//! before it looks for them.

use super::matching::LocationMatch;
use super::rewrite::redirect;
use super::syntax::NginxDirective;
use crate::notes::Notes;

/// All directives, without those that no request reaches.
pub(super) fn removed(block: &[NginxDirective], notes: &mut Notes) -> Vec<NginxDirective> {
    let merges = !block.iter().any(keeps_slashes);
    let mut block = block.to_vec();
    remove(&mut block, merges, notes);
    block
}

fn keeps_slashes(directive: &NginxDirective) -> bool {
    (directive.name == "merge_slashes" && directive.first() == "off") || directive.children().iter().any(keeps_slashes)
}

fn remove(block: &mut Vec<NginxDirective>, merges: bool, notes: &mut Notes) {
    for directive in block.iter_mut() {
        let is_server = directive.name == "server";
        let Some(inner) = &mut directive.block else { continue };
        if is_server {
            after_return(inner, notes);
        }
        remove(inner, merges, notes);
    }
    block.retain(|directive| {
        let has_slashes = merges && LocationMatch::is_path_with_slashes(directive);
        if has_slashes {
            notes.needless(directive, "nginx merges several slashes of a path before it looks for its location");
        }
        !has_slashes
    });
}

/// Removes the directives after a redirect of all requests to a server: nginx runs the rewrites of a server first, in their
/// order, then checks access and looks for a location.
fn after_return(block: &mut Vec<NginxDirective>, notes: &mut Notes) {
    let is_in_order =
        |directive: &NginxDirective| matches!(directive.name.as_str(), "if" | "rewrite" | "break" | "return");
    let Some(at) = block.iter().position(|directive| directive.name == "return") else { return };
    let is_first = !block[..at].iter().any(is_in_order) && redirect(&block[at], "*").is_some();
    let mut index = 0;
    block.retain(|directive| {
        index += 1;
        let is_later = index > at + 1 && is_in_order(directive);
        let is_content = matches!(
            directive.name.as_str(),
            "location"
                | "allow"
                | "deny"
                | "auth_basic"
                | "auth_basic_user_file"
                | "auth_request"
                | "satisfy"
                | "try_files"
        );
        let is_unreachable = is_later || (is_first && is_content);
        if is_unreachable {
            notes.needless(directive, "the `return` of the server comes first, for all requests");
        }
        !is_unreachable
    });
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::{site, translated};

    /// Issue 23: guards that nginx never checks rejected requests which it redirects.
    #[test]
    fn nothing_follows_the_return_of_a_server() {
        let (text, remarks) = translated(
            "server { listen 80; deny all; return 301 https://a.b$request_uri; if ($uri ~ x) { return 403; } \
             location = /auth { internal; proxy_pass http://c:1; } }",
        );
        assert_eq!(
            text,
            "// n:1\nsite {\n    listen 80\n    redirect \"*\" \"https://a.b{path}{query}\" status=301\n}\n"
        );
        assert!(remarks.iter().all(|remark| remark.contains("comes first")) && remarks.len() == 3, "{remarks:?}");
        // An `if` before it may lead to a location.
        let (lines, _) = site("if ($uri ~ x) { return 204; } return 301 https://a.b; location /a/ { deny all; }");
        assert!(lines.contains("deny all path=\"/a/*\""), "{lines}");
    }

    /// Issue 23: such locations made the translation invalid.
    #[test]
    fn paths_have_single_slashes() {
        let (lines, remarks) = site("location //a/ { deny all; } location = /b//c { deny all; }");
        assert_eq!(lines, "root \"/srv\"");
        assert!(remarks.iter().all(|remark| remark.contains("merges several slashes")), "{remarks:?}");
        let (lines, remarks) = site("merge_slashes off; location //a/ { deny all; }");
        assert!(lines.contains("deny all path=\"/a/*\""), "{lines}");
        assert!(remarks.iter().any(|remark| remark.contains("its paths are rejected")), "{remarks:?}");
    }
}
