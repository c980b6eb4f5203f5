//! `auth_request`: the location that it asks is the server of a `forward-auth`.

use super::http::HttpBlock;
use super::precedence::{ServerLocation, chosen};
use super::syntax::NginxDirective;
use super::upstream::ProxyScheme;
use super::values::{self, Within};
use super::{Chain, Notes, forward, leading};
use crate::kdl::KdlNode;

/// A `forward-auth` without its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuthServer {
    to: String,
    properties: Vec<(&'static str, String)>,
}

impl AuthServer {
    /// The option for the paths of a pattern.
    pub(super) fn node(&self, pattern: &str) -> KdlNode {
        let node = KdlNode::with("forward-auth", pattern).text(&self.to);
        let with = |node: KdlNode, (name, value): &(&'static str, String)| match value.as_str() {
            "on" => node.word_property(name, "on"),
            value => node.property(name, value),
        };
        self.properties.iter().fold(node, with)
    }
}

/// Server and locations that an `auth_request` may refer to.
#[derive(Clone, Copy)]
pub(super) struct AuthScene<'f, 'a> {
    pub(super) locations: &'f [ServerLocation<'a>],
    pub(super) server: Chain<'a>,
    pub(super) shared: &'f HttpBlock,
}

/// The `auth_request` that applies; `None` if it is off.
pub(super) fn asked<'a>(chain: Chain<'a>) -> Option<&'a NginxDirective> {
    chain.last("auth_request").filter(|directive| directive.first() != "off")
}

/// Returns `true` if a location is only asked by an `auth_request` of the server, and needs no handler.
pub(super) fn is_asked_only(path: Option<&str>, block: &[NginxDirective], server: &[NginxDirective]) -> bool {
    path.is_some_and(|path| block.iter().any(|child| child.name == "internal") && is_asked(path, server))
}

/// Returns `true` if an `auth_request` in a block names this path.
pub(super) fn is_asked(path: &str, block: &[NginxDirective]) -> bool {
    block.iter().any(|directive| {
        (directive.name == "auth_request" && directive.first() == path) || is_asked(path, directive.children())
    })
}

impl<'a> AuthScene<'_, 'a> {
    /// Translates an `auth_request`, which applies in the blocks of a chain.
    ///
    /// # Errors
    ///
    /// The reason why the request cannot be translated.
    pub(super) fn translate(self, chain: Chain<'a>, notes: &mut Notes) -> Result<Option<AuthServer>, String> {
        let Some(directive) = asked(chain) else { return Ok(None) };
        if chain.last("satisfy").is_some_and(|satisfy| satisfy.first() == "any") {
            return Err("`satisfy any` includes passwords and addresses only".to_owned());
        }
        let location = chosen(self.server.blocks[1], directive.first()).ok().flatten();
        let found = self.locations.iter().find(|found| location.is_some_and(|one| std::ptr::eq(found.directive, one)));
        let found = found.ok_or("its location is not known")?;
        if leading::changes(self.server.blocks[1], directive.first()) {
            return Err("rules of the server also apply to the request that it makes".to_owned());
        }
        let inner = self.server.with_all(found.blocks());
        let (to, target) = self.server_of(directive, found)?;
        let mut properties = Vec::new();
        if target != "/" {
            properties.push(("uri", target));
        }
        let variables = variables(chain);
        let copies = copies(chain, &variables);
        if !copies.is_empty() {
            properties.push(("copy-headers", copies.join(" ")));
        }
        let pages = chain.all("error_page");
        if pages.iter().any(|page| is_of_location(page, &variables)) {
            properties.push(("follow-location", "on".to_owned()));
        } else if let Some(login) = pages.iter().find_map(|page| login_of(page, self.server.blocks[1])) {
            properties.push(("login", login));
        }
        if passes_cookies(chain, &variables) {
            properties.push(("pass-cookies", "on".to_owned()));
        }
        properties.extend(host(inner).map(|host| ("host", host)));
        if let Some(timeout) = inner.last("proxy_read_timeout").and_then(|timeout| values::time(timeout.first())) {
            properties.push(("timeout", timeout));
        }
        tell_fields(inner, notes);
        Ok(Some(AuthServer { to, properties }))
    }

    /// Server of an `auth_request` in a location, and the target that it gets.
    fn server_of(self, directive: &NginxDirective, found: &ServerLocation<'_>) -> Result<(String, String), String> {
        let block = found.directive.children();
        let pass = forward::pass(block).filter(|pass| pass.name == "proxy_pass");
        let pass = pass.ok_or("its location has no `proxy_pass`")?;
        let (url, is_variable) = (forward::url_of(pass), pass.had_variables);
        if url.contains('$') || !url.starts_with("http") {
            return Err("the server of `forward-auth` has a fixed address".to_owned());
        }
        if block.iter().any(|child| matches!(child.name.as_str(), "rewrite" | "if" | "return")) {
            return Err("its location changes the request".to_owned());
        }
        let (authority, path) = forward::target_of(url);
        let scheme = if url.starts_with("https:") { ProxyScheme::Https } else { ProxyScheme::Http };
        let to = if self.shared.upstreams.contains(&authority) { authority } else { scheme.address(&authority) };
        let uri = directive.first();
        let target = match (path.as_str(), found.location.prefix()) {
            ("", _) => uri.to_owned(),
            (path, _) if is_variable => path.to_owned(),
            (path, Some(prefix)) => format!("{path}{}", uri.strip_prefix(prefix).unwrap_or_default()),
            (_, None) => return Err("its location is an expression".to_owned()),
        };
        Ok((to, target))
    }
}

/// Variables of `auth_request_set`, with the fields of the server's response that they have: `$user`, `Remote-User`.
fn variables(chain: Chain<'_>) -> Vec<(String, String)> {
    let sets = chain.all("auth_request_set");
    let field = |set: &&NginxDirective| {
        let name = set.argument(1).strip_prefix("$upstream_http_")?;
        Some((set.first().to_owned(), values::field_name(name)))
    };
    sets.iter().filter_map(field).collect()
}

/// Returns `true` if a value is a variable of `auth_request_set`, which `forward-auth` copies.
pub(super) fn is_copied(chain: Chain<'_>, value: &str) -> bool {
    asked(chain).is_some() && variables(chain).iter().any(|(variable, _)| variable == value)
}

/// Fields that requests get of the server's response.
fn copies(chain: Chain<'_>, variables: &[(String, String)]) -> Vec<String> {
    let fields = ["proxy_set_header", "grpc_set_header"].into_iter().flat_map(|name| chain.all(name));
    let fields = fields.map(|field| (field.first().to_owned(), field.argument(1)));
    let of_scripts = ["fastcgi_param", "uwsgi_param", "scgi_param"].into_iter().flat_map(|name| chain.all(name));
    let of_scripts = of_scripts.filter_map(|param| {
        let name = param.first().strip_prefix("HTTP_")?.to_ascii_lowercase();
        Some((values::field_name(&name), param.argument(1)))
    });
    let copy = |(name, value): (String, &str)| {
        let (_, from) = variables.iter().find(|(variable, _)| *variable == value)?;
        Some(if from.eq_ignore_ascii_case(&name) { name } else { format!("{from}>{name}") })
    };
    fields.chain(of_scripts).filter_map(copy).collect()
}

fn passes_cookies(chain: Chain<'_>, variables: &[(String, String)]) -> bool {
    let is_cookie = |name: &str| variables.iter().any(|(variable, from)| variable == name && from == "Set-Cookie");
    let adds =
        |field: &&NginxDirective| field.first().eq_ignore_ascii_case("set-cookie") && is_cookie(field.argument(1));
    chain.all("add_header").iter().any(adds)
}

/// Returns `true` if a directive is translated with the `auth_request` that applies beside it: the page for clients
/// without a session, or a cookie of the server.
pub(super) fn is_part(chain: Chain<'_>, directive: &NginxDirective, server: &[NginxDirective]) -> bool {
    let is_it = || match directive.name.as_str() {
        "error_page" => login_of(directive, server).is_some() || is_of_location(directive, &variables(chain)),
        "add_header" => directive.first().eq_ignore_ascii_case("set-cookie") && is_copied(chain, directive.argument(1)),
        "auth_request_set" => directive.argument(1).starts_with("$upstream_http_"),
        _ => false,
    };
    asked(chain).is_some() && is_it()
}

/// Returns `true` if clients without a session go where the server says: `error_page 401 =302 $location`.
fn is_of_location(directive: &NginxDirective, variables: &[(String, String)]) -> bool {
    let [of, status, page] = directive.arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return false;
    };
    let is_location = |(variable, from): &(String, String)| variable == page && from == "Location";
    of == "401" && matches!(status, "=302" | "=") && variables.iter().any(is_location)
}

/// Page for clients without a session: `error_page 401 = @login`.
fn login_of(directive: &NginxDirective, server: &[NginxDirective]) -> Option<String> {
    let (page, statuses) = directive.arguments.split_last()?;
    if statuses.first().is_none_or(|status| status != "401") || statuses.len() > 2 {
        return None;
    }
    let is_redirect = match statuses.get(1).map(String::as_str) {
        None => page.starts_with("http"),
        Some("=") => page.starts_with('@') || page.starts_with("http"),
        Some(status) => status == "=302" && page.starts_with("http"),
    };
    let mut named = server.iter().filter(|child| child.name == "location" && child.first() == page);
    let url = match named.next() {
        Some(location) => {
            let block = location.children();
            let answer = block.iter().find(|child| child.name == "return")?;
            let is_alone =
                block.iter().all(|child| matches!(child.name.as_str(), "return" | "add_header" | "internal"));
            (is_alone && answer.first() == "302").then(|| answer.argument(1))?
        }
        None => page,
    };
    values::text(url, Within::Target).ok().filter(|url| is_redirect && url.starts_with(['/', 'h', '{']))
}

/// `Host` for the server, if it is not the client's.
fn host(inner: Chain<'_>) -> Option<String> {
    let fields = inner.all("proxy_set_header");
    match fields.iter().rfind(|field| field.first().eq_ignore_ascii_case("host")).map(|field| field.argument(1)) {
        None | Some("$proxy_host") => Some("upstream".to_owned()),
        Some(value) if value.contains('$') || value.is_empty() => None,
        Some(value) => Some(value.to_owned()),
    }
}

/// Notes fields for the server that it does not get here.
fn tell_fields(inner: Chain<'_>, notes: &mut Notes) {
    for field in inner.all("proxy_set_header") {
        let (name, value) = (field.first().to_ascii_lowercase(), field.argument(1));
        let is_known = match name.as_str() {
            "host" => matches!(value, "$host" | "$http_host" | "$proxy_host") || !value.contains('$'),
            "content-length" | "connection" | "upgrade" | "content-type" => true,
            "x-original-url" => value.ends_with("$request_uri"),
            "x-original-uri" | "x-forwarded-uri" => value == "$request_uri",
            "x-original-method" | "x-forwarded-method" => value == "$request_method",
            "x-forwarded-proto" => value == "$scheme",
            "x-forwarded-host" => matches!(value, "$host" | "$http_host"),
            "x-forwarded-for" => matches!(value, "$remote_addr" | "$proxy_add_x_forwarded_for"),
            name => value == format!("$http_{}", name.replace('-', "_")),
        };
        if !is_known {
            notes.left(field, "the authentication server gets the client's fields, `X-Forwarded-*` and `X-Original-*`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::site;

    /// Issue 23: nginx rejected the request of `auth_request` itself, because the server has no file at its path.
    #[test]
    fn rules_of_the_server_apply_to_the_request() {
        let check = |rule: &str, expect: bool| {
            let auth = "auth_request /auth; location = /auth { internal; proxy_pass http://b:1; }";
            let (lines, remarks) = site(&format!("{auth} {rule}"));
            assert_eq!(lines.contains("forward-auth"), expect, "{rule}: {lines}");
            assert_eq!(remarks.iter().any(|remark| remark.contains("request that it makes")), !expect, "{remarks:?}");
        };
        check("if (!-f $request_filename) { return 403; }", false);
        check("if ($uri ~ ^/a) { return 403; }", false);
        check("rewrite ^/au /b;", false);
        check("rewrite ^/b /c;", true);
        check("if ($http_user_agent ~ bot) { return 403; }", true);
    }

    #[test]
    fn requests_are_authorized_by_the_same_server() {
        let check = |inside: &str, expect: &str, remarks_expect: usize| {
            let (lines, remarks) = site(inside);
            assert_eq!((lines.as_str(), remarks.len()), (expect, remarks_expect), "{inside}: {remarks:?}");
        };
        // As oauth2-proxy documents it.
        check(
            "location /oauth2/ { proxy_pass http://127.0.0.1:4180; proxy_set_header Host $host; }\n\
             location = /oauth2/auth { proxy_pass http://127.0.0.1:4180; proxy_set_header Host $host; \
             proxy_set_header X-Forwarded-Uri $request_uri; proxy_set_header Content-Length \"\"; \
             proxy_pass_request_body off; }\n\
             location / { auth_request /oauth2/auth; error_page 401 = @oauth2_signin; \
             auth_request_set $user $upstream_http_x_auth_request_user; proxy_set_header X-User $user; \
             auth_request_set $auth_cookie $upstream_http_set_cookie; add_header Set-Cookie $auth_cookie; \
             proxy_pass http://b:1; proxy_set_header Host $host; }\n\
             location @oauth2_signin { return 302 /oauth2/sign_in?rd=$scheme://$host$request_uri; }",
            "forward-auth \"/oauth2/auth\" off\n\
             forward-auth \"~^/oauth2/\" off\n\
             forward-auth \"*\" \"http://127.0.0.1:4180\" uri=\"/oauth2/auth\" copy-headers=\"X-Auth-Request-User>X-User\" \
             login=\"/oauth2/sign_in?rd={scheme}://{host}{path}{query}\" pass-cookies=on\n\
             request-header \"/oauth2/auth\" \"X-Forwarded-Uri\" \"{path}{query}\"\n\
             forward \"http://127.0.0.1:4180\" path=\"/oauth2/auth\"\n\
             forward \"http://127.0.0.1:4180\" path=\"/oauth2/*\"\nforward \"http://b:1\"",
            0,
        );
        // As Authelia documents it, with an address in a variable.
        check(
            "auth_request /internal/authelia/authz; location /internal/authelia/authz { internal; \
             set $upstream_authelia http://authelia:9091/api/authz/auth-request; proxy_pass $upstream_authelia; \
             proxy_set_header X-Original-Method $request_method; proxy_set_header X-Secret $secret; \
             proxy_set_header X-Original-URL $scheme://$http_host$request_uri; proxy_read_timeout 240; } \
             auth_request_set $to $upstream_http_location; error_page 401 =302 $to; \
             location /open/ { auth_request off; }",
            "root \"/srv\"\ndeny all path=\"~^/internal/authelia/authz\" status=404 internal=on\n\
             forward-auth \"~^/open/\" off\n\
             forward-auth \"*\" \"http://authelia:9091\" uri=\"/api/authz/auth-request\" follow-location=on host=\"upstream\" timeout=\"4m\"",
            1,
        );
    }
}
