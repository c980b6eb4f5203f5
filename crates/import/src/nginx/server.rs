//! `server`: a site.

use std::collections::BTreeSet;

use super::auth_request::AuthScene;
use super::error_page::NginxErrorPages;
use super::files::{DirectoryOptions, Tries};
use super::forward;
use super::http::{HttpBlock, body_size};
use super::location::{self, LocationParts};
use super::matching::LocationMatch;
use super::precedence::{self, Conflict, ServerLocation};
use super::rewrite::redirect;
use super::scene::Scene;
use super::settings::{DirectiveContext, DirectiveLevel, ImportedRules};
use super::syntax::NginxDirective;
use super::upstream::{keep_first, set};
use super::{Chain, Notes, added_fields, auth_request, condition, guard, leading, server_names, values};
use crate::kdl::KdlNode;

/// Note on directives of HTTP/3.
const HTTP3: &str = "HTTP/3 is on for all listeners with TLS; `http-versions` of `server` turns it off";

/// The site of a server. An earlier server may have all names that no site has, and some of its names.
pub(super) fn translate(
    directive: &NginxDirective,
    http: Chain<'_>,
    shared: &HttpBlock,
    (is_first, taken): (bool, &[String]),
    notes: &mut Notes,
) -> KdlNode {
    let block = directive.children();
    let chain = http.with(block);
    let mut site = ImportedSite::default();
    let mut rules = ImportedRules::default();
    let rejected = guard::of_reported_addresses(block, chain, &mut rules, notes);
    let context = DirectiveContext { level: &DirectiveLevel::Server, shared };
    for child in block {
        let known = rejected.is_some_and(|rejected| std::ptr::eq(rejected, child))
            || auth_request::is_part(chain, child, block)
            || site.add(child, chain, shared, notes)
            || forward::is_option(child, notes)
            || leading::reject(child, block, block, &DirectiveLevel::Server, &mut rules, notes)
            || rules.add(child, context, notes);
        if !known {
            notes.unknown(child);
        }
    }
    for names in block.iter().filter(|child| child.name == "server_name") {
        let is_taken = |name: &String| taken.contains(name);
        if server_names::of_block(std::slice::from_ref(names)).iter().any(is_taken) {
            site.names.retain(|name| !is_taken(name));
            notes.needless(names, "an earlier server of the same address has the name");
        }
    }
    // nginx only warns of a name that is there twice.
    let mut seen = BTreeSet::new();
    site.names.retain(|name| seen.insert(name.to_ascii_lowercase()));
    if chain.all("listen").is_empty() {
        // The default of nginx; a site with names would get certificates.
        site.options.insert(0, KdlNode::new("listen").word("80"));
    }
    if site.is_for_all {
        site.names.clear();
    }
    if site.names.is_empty() && !is_first && !site.is_default && !site.is_for_all {
        // Without a name, the site would get all requests of other names, which go to an earlier server.
        site.names.push(format!("line-{}.invalid", directive.place.line));
    }
    site.add_tls(chain, shared, &mut rules, notes);
    // A handler for all requests also has those of locations.
    let parts = match site.answer {
        Some(_) => LocationParts::default(),
        None => site.add_locations(block, chain, shared, &mut rules, notes),
    };
    let node = site.into_node(chain, rules, parts, notes);
    let comment = [vec![directive.place.to_string()], notes.unwritten()].concat().join("\n");
    node.comment(comment)
}

#[derive(Default)]
struct ImportedSite {
    names: Vec<String>,
    options: Vec<KdlNode>,
    tls: Vec<KdlNode>,
    has_tls_listener: bool,
    is_default: bool,
    /// True if an expression matches all names.
    is_for_all: bool,
    /// Rejections of names that no expression matches.
    others: Vec<KdlNode>,
    redirects: Vec<KdlNode>,
    /// Fixed response of a server that has nothing else.
    answer: Option<KdlNode>,
    root: Option<String>,
}

impl ImportedSite {
    fn add(&mut self, directive: &NginxDirective, chain: Chain<'_>, shared: &HttpBlock, notes: &mut Notes) -> bool {
        match directive.name.as_str() {
            "server_name" => self.add_names(directive, shared, notes),
            "listen" => {
                // All `listen` directives are translated together, at the first.
                if chain.all("listen").first().is_some_and(|first| std::ptr::eq(*first, directive)) {
                    self.add_listeners(&chain.all("listen"), notes);
                }
            }
            "root" if directive.first().contains('$') => {
                notes.left(directive, "`{host}` is the only variable in `root`");
            }
            "root" => self.root = Some(directive.first().to_owned()),
            "return" => self.add_return(directive, chain, notes),
            "client_max_body_size" => set(&mut self.options, body_size(directive)),
            "http2" | "http2_push_preload" => {
                notes.needless(directive, "clients that offer HTTP/2 get it (`http-versions`)");
            }
            "http3" | "quic_retry" | "http3_hq" => notes.needless(directive, HTTP3),
            "limit_rate" => match values::size(directive.first()) {
                Some(size) => {
                    let after = chain.last("limit_rate_after").and_then(|after| values::size(after.first()));
                    let node = KdlNode::with("connection-rate-max", size);
                    let node = after.into_iter().fold(node, |node, after| node.property("after", after));
                    set(&mut self.options, node);
                }
                None if directive.first() == "0" => notes.needless(directive, "no rate is limited by default"),
                None => notes.left(directive, "write a fixed rate in `connection-rate-max`"),
            },
            "limit_rate_after" => {}
            "keepalive_timeout"
            | "client_header_timeout"
            | "client_body_timeout"
            | "send_timeout"
            | "keepalive_requests"
            | "large_client_header_buffers" => {
                notes.left(directive, "limits apply to the whole server; set it in `limits`");
            }
            "set_real_ip_from" | "real_ip_header" | "real_ip_recursive" => {
                notes.left(directive, "`trusted-proxies` of `server` applies to all sites");
            }
            "server_tokens" => notes.left(directive, "`server-tokens` of `server` applies to all sites"),
            "location" | "try_files" => {}
            name if name.starts_with("ssl") => {}
            _ => return false,
        }
        true
    }

    fn add_names(&mut self, directive: &NginxDirective, shared: &HttpBlock, notes: &mut Notes) {
        for name in &directive.arguments {
            match name.as_str() {
                "_" | "" => {}
                name if name.starts_with('~') => match server_names::of_expression(name) {
                    Some((names, _)) if names == ["*"] && !shared.has_default => self.is_for_all = true,
                    Some((names, _)) if names == ["*"] => {
                        notes.left(directive, "another server has all other names; write the names of this site");
                    }
                    Some((names, true)) => self.names.extend(names),
                    Some((names, false)) => {
                        self.names.extend(names);
                        notes.left(directive, format!("add the longer names that `{name}` stands for"));
                    }
                    None => self.add_label(name, directive, notes),
                },
                name if name.starts_with('$') || name.trim_end_matches(".*").contains('*') && name.ends_with(".*") => {
                    notes.left(directive, format!("`{name}` cannot be the name of a site"));
                }
                name => match name.strip_prefix('.') {
                    Some(domain) => self.names.extend([domain.to_owned(), format!("*.{domain}")]),
                    None => self.names.push(name.to_owned()),
                },
            }
        }
    }

    /// Names of an expression for a label, or a note that the user must write them.
    fn add_label(&mut self, name: &str, directive: &NginxDirective, notes: &mut Notes) {
        let of_block = server_names::of_block(std::slice::from_ref(directive));
        let Some((wildcard, condition)) = server_names::of_label(name, &of_block) else {
            return notes.left(directive, format!("write the names of the site that `{name}` stands for"));
        };
        let deny = KdlNode::new("deny").word("all").word_property("status", 421);
        self.others.push(deny.property("when", condition));
        notes.left(directive, format!("other names of `{wildcard}` get 421, not the response of another site"));
        self.names.push(wildcard);
    }

    fn add_listeners(&mut self, listeners: &[&NginxDirective], notes: &mut Notes) {
        let mut seen = BTreeSet::new();
        for directive in listeners {
            self.is_default |= directive.has("default_server") || directive.has("default");
            if directive.has("quic") {
                notes.needless(directive, HTTP3);
                continue;
            }
            let address = listen_address(directive.first());
            let has_tls = directive.has("ssl");
            self.has_tls_listener |= has_tls;
            // One port of both address families is one address here.
            if !seen.insert((address.clone(), has_tls)) {
                continue;
            }
            let node = KdlNode::new("listen");
            let node = if address.parse::<u16>().is_ok() { node.word(&address) } else { node.text(&address) };
            let node = if has_tls { node.word_property("tls", "on") } else { node };
            let node = if directive.has("proxy_protocol") { node.word_property("proxy-protocol", "on") } else { node };
            self.options.push(node);
        }
    }

    /// The first one counts; nothing after it applies.
    fn add_return(&mut self, directive: &NginxDirective, chain: Chain<'_>, notes: &mut Notes) {
        if self.answer.is_some() {
            return;
        }
        let answer = match redirect(directive, "*") {
            Some(Ok(node)) => return self.redirects.push(node),
            Some(Err(why)) => Err(why),
            None if directive.first() == "444" => {
                notes.left(directive, "translated as 421, because a request always gets a response");
                Ok(KdlNode::with("respond", "*").word(421))
            }
            None => location::respond(directive, "*", chain),
        };
        self.answer = Some(
            answer
                .unwrap_or_else(|why| KdlNode::with("respond", "*").word(502).comment(notes.rejected(directive, why))),
        );
    }

    fn add_tls(&mut self, chain: Chain<'_>, shared: &HttpBlock, rules: &mut ImportedRules, notes: &mut Notes) {
        let is_tls = self.has_tls_listener || chain.last("ssl").is_some_and(|ssl| ssl.first() == "on");
        let all: Vec<&NginxDirective> = chain.blocks.iter().flat_map(|block| block.iter()).collect();
        for directive in all.iter().filter(|directive| directive.name.starts_with("ssl")) {
            tls_remark(directive, notes);
        }
        if !is_tls {
            return;
        }
        let (mut certificates, mut keys) = (chain.all("ssl_certificate"), chain.all("ssl_certificate_key"));
        let is_rejected = |directive: &&NginxDirective| directive.first() == "on";
        if let Some(rejected) = chain.last("ssl_reject_handshake").filter(is_rejected)
            && certificates.is_empty()
        {
            let of_others = |name: &str| shared.certificates.iter().filter(|own| own.name == name).collect();
            (certificates, keys) = (of_others("ssl_certificate"), of_others("ssl_certificate_key"));
            notes.left(rejected, "clients get the certificate of another site, and then this site's response");
        }
        for (index, certificate) in certificates.iter().enumerate() {
            let node = KdlNode::with("certificate", certificate.first());
            self.tls.push(match keys.get(index) {
                Some(key) => node.property("key", key.first()),
                None => node,
            });
        }
        if let Some(versions) = chain.last("ssl_protocols")
            && !versions.has("TLSv1.2")
            && versions.has("TLSv1.3")
        {
            self.tls.push(KdlNode::with("tls-version-min", "1.3"));
        }
        if chain.last("ssl_session_tickets").is_some_and(|tickets| tickets.first() == "off") {
            self.tls.push(KdlNode::new("tls-tickets").word("off"));
        } else if chain.last("ssl_early_data").is_some_and(|early| early.first() == "on")
            && chain.last("ssl_verify_client").is_none_or(|verify| verify.first() == "off")
        {
            self.tls.push(KdlNode::new("early-data").word("on"));
        }
        self.add_client_certificate(chain, rules, notes);
    }

    fn add_client_certificate(&mut self, chain: Chain<'_>, rules: &mut ImportedRules, notes: &mut Notes) {
        let Some(verify) = chain.last("ssl_verify_client").filter(|verify| verify.first() != "off") else { return };
        let mode = match verify.first() {
            "on" => "required",
            "optional" => "optional",
            // An unverified certificate allows no client, except in the user's own conditions.
            _ => return notes.left(verify, "client certificates are verified, or not requested"),
        };
        match chain.last("ssl_client_certificate").or(chain.last("ssl_trusted_certificate")) {
            Some(authorities) => {
                let node = KdlNode::with("client-certificate", mode).property("authorities", authorities.first());
                self.tls.push(node);
            }
            None => rules.close(verify, &DirectiveLevel::Server, "there is no `ssl_client_certificate`", notes),
        }
        if let Some(revoked) = chain.last("ssl_crl") {
            rules.close(revoked, &DirectiveLevel::Server, "lists of revoked certificates are not read", notes);
        }
    }

    fn add_locations(
        &mut self,
        block: &[NginxDirective],
        server: Chain<'_>,
        shared: &HttpBlock,
        rules: &mut ImportedRules,
        notes: &mut Notes,
    ) -> LocationParts {
        let locations = precedence::of_server(block, &mut |directive, around, why| {
            let around = server.with_all(around.iter().map(|location| location.children()));
            guard::unreadable(directive, why, around, rules, notes);
        });
        if let Some(missing) = block.iter().find(|child| condition::rejects_missing(child)) {
            // Files that nginx looks for are those of the server's root.
            for found in locations.iter().filter(|found| responds_without_file(found)) {
                rules.close_paths(missing, found.location.pattern(), location::FORWARDED, notes);
            }
        }
        for conflict in precedence::conflicts(&locations) {
            reject_conflict(conflict, server, rules, notes);
        }
        if let Some(rewrite) = leading::of_index(block).filter(|rewrite| !leading::is_front(rewrite)) {
            let why = "index files are not requested by their own paths, to which it applies";
            rules.close_paths(rewrite, Some("~/$".to_owned()), why, notes);
        }
        rules.closed.extend(guard::of_line_ends(&locations, block));
        let front = LocationMatch::Prefix("/".to_owned());
        let own_front = locations.iter().find(|found| found.location.is_prefix() && found.location.pattern().is_none());
        // Paths without a location are served from the root, by the server's own directives.
        let tries: Vec<NginxDirective> = block.iter().filter(|child| child.name == "try_files").cloned().collect();
        let (front_block, front_chain) = match own_front {
            Some(found) => (found.directive.children(), server.with_all(found.blocks())),
            None => (tries.as_slice(), server),
        };
        let tried = front_block.iter().find(|child| child.name == "try_files");
        let tried = tried.map(|tries| Tries::read(tries, &mut Notes::default())).unwrap_or_default();
        let directories = &DirectoryOptions::of(front_chain, &tried);
        let index = directories.index.iter().map(|name| (*name).to_owned()).collect();
        let mut parts = LocationParts { index, ..LocationParts::default() };
        let scene = Scene {
            location: &front,
            chain: server,
            locations: &locations,
            wider: &[],
            server: block,
            around: server,
            directories,
            shared,
        };
        for (index, ServerLocation { location, directive, .. }) in locations.iter().enumerate() {
            if matches!(location, LocationMatch::Named(_)) {
                continue;
            }
            let chain = server.with_all(locations[index].blocks());
            let scene = Scene { location, chain, wider: &locations[index + 1..], ..scene };
            parts.add(scene, directive.children(), notes);
        }
        if own_front.is_none() && self.redirects.is_empty() {
            parts.add(scene, &tries, notes);
        }
        if !parts.has_files {
            // Other values show which directories locations have.
            directories.options(None).into_iter().for_each(|option| set(&mut parts.rules.files, option));
        }
        let scene = AuthScene { locations: &locations, server, shared };
        guard::of_requests(scene, &mut parts.rules, notes);
        parts.rules.redirects.extend(leading::front_of_directories(block));
        parts.rules.fields.extend(added_fields::of_locations(&locations, server));
        let has_rejections = !(rules.closed.is_empty() && parts.rules.closed.is_empty());
        parts.rules.guards.splice(0..0, guard::of_locations(&locations, server, (scene, has_rejections), notes));
        let own_root = parts.rules.files.iter().find(|node| node.name() == "root").map(KdlNode::last_value);
        let own_root = own_root.or(server.last("root").map(NginxDirective::first)).filter(|_| parts.has_files);
        let own_root = own_root.map(str::to_owned);
        let pages = NginxErrorPages { block, locations: &locations, server, own_root: own_root.as_deref() };
        for lines in [&mut rules.others, &mut parts.rules.others] {
            lines.retain_mut(|node| node.name() != "error-page" || pages.take(node, notes));
        }
        parts
    }

    fn into_node(
        self,
        chain: Chain<'_>,
        mut rules: ImportedRules,
        mut parts: LocationParts,
        notes: &mut Notes,
    ) -> KdlNode {
        let mut node = KdlNode::new("site");
        for name in &self.names {
            node = node.text(name);
        }
        let mut lines = self.options;
        if self.is_default && !self.names.is_empty() {
            lines.push(KdlNode::new("default"));
        }
        lines.extend(self.tls);
        let root = chain.last("root").map(|root| root.first().to_owned());
        let has_own_root = parts.rules.files.iter().any(|node| node.name() == "root");
        let root = self.root.or(root).filter(|root| !root.contains('$'));
        // nginx has its own welcome page there.
        parts.has_files &= root.is_some() || has_own_root;
        if parts.has_files
            && !has_own_root
            && let Some(root) = &root
        {
            lines.push(KdlNode::with("root", root));
        }
        let own_root = parts.rules.files.iter().find(|node| node.name() == "root");
        let own_root = own_root.map(|node| node.last_value().to_owned()).or(root);
        parts.rules.answers.extend(&rules.answers);
        rules.add_inner_access_log(parts.rules.access_log.take(), notes);
        let handlers = parts.take_handlers(own_root.as_deref(), notes);
        let mut files = rules.files;
        for option in std::mem::take(&mut parts.rules.files) {
            set(&mut files, option);
        }
        if parts.has_files || handlers.iter().any(|node| node.name() == "files") {
            lines.extend(files);
        }
        lines.extend(self.others);
        lines.extend(rules.closed);
        lines.extend(parts.rules.closed);
        lines.extend(parts.rules.guards);
        lines.extend(rules.guards);
        lines.extend(rules.fixed);
        lines.extend(parts.rules.fixed);
        let is_redirected = !self.redirects.is_empty() || !rules.redirects.is_empty();
        let mut redirects = [self.redirects, rules.redirects, parts.rules.redirects].concat();
        keep_first(&mut redirects, "redirect-to-https");
        lines.extend(redirects);
        lines.extend(rules.fields);
        lines.extend(parts.rules.fields);
        let has_nothing = handlers.is_empty() && parts.last.is_none() && self.answer.is_none();
        let handlers = with_indexes(handlers, &parts.index);
        lines.extend(with_front_controller(handlers, parts.front_controller, parts.is_front_rewritten));
        if has_nothing && !parts.has_files && !is_redirected {
            // All clients are denied, or nothing exists.
            lines.push(KdlNode::with("respond", "*").word(404));
        }
        lines.extend(self.answer);
        lines.extend(parts.last);
        lines.extend(rules.access_log.map(|log| log.node));
        // Without files there is nothing below the site's root.
        let page_root = own_root.filter(|_| !parts.has_files);
        let others = rules.others.into_iter().chain(parts.rules.others);
        lines.extend(others.map(|node| match &page_root {
            Some(root) if node.name() == "error-page" && node.last_value().starts_with('/') => {
                node.with_last_value(|page| format!("file:{root}{page}"))
            }
            _ => node,
        }));
        node.required_block(lines)
    }
}

/// Returns `true` if a location responds to requests for files that its server lacks: it forwards them, or has others.
fn responds_without_file(found: &ServerLocation<'_>) -> bool {
    let block = found.directive.children();
    let is_of_scripts = found.location.pattern().is_some_and(|pattern| pattern.contains(".php"));
    let forwards = forward::pass(block).is_some_and(|pass| pass.name != "fastcgi_pass" || !is_of_scripts);
    let is_other = |child: &NginxDirective| {
        matches!(child.name.as_str(), "root" | "alias" | "return") || forward::is_foreign(&child.name)
    };
    !matches!(found.location, LocationMatch::Named(_)) && (forwards || block.iter().any(is_other))
}

/// Rejects paths that would go to the wrong one of two locations, unless both say the same.
fn reject_conflict(conflict: Conflict<'_, '_>, server: Chain<'_>, rules: &mut ImportedRules, notes: &mut Notes) {
    let Conflict { prefix, expression } = conflict;
    if guard::mean_the_same(prefix, expression, server) {
        return;
    }
    let is_within = prefix.location.pattern().is_none()
        || prefix.location.prefix().is_some_and(|prefix| expression.location.head().starts_with(prefix));
    let smaller = if is_within { expression } else { prefix };
    let level = DirectiveLevel::Location { pattern: smaller.location.pattern(), is_forwarded: false };
    let why = format!("it is unclear if they belong to this location or to `{}`", prefix.directive.line());
    rules.close(expression.directive, &level, why, notes);
}

/// Scripts answer for directories whose index they are; files that are indexes before them go first.
fn with_indexes(mut handlers: Vec<KdlNode>, index: &[String]) -> Vec<KdlNode> {
    let scripts: Vec<&String> = index.iter().filter(|name| name.ends_with(".php")).collect();
    let is_of_scripts = |node: &KdlNode| node.name() == "fastcgi" && node.has_property("root") && !node.is_for("*");
    for node in handlers.iter_mut().filter(|node| is_of_scripts(node)) {
        if scripts != ["index.php"] {
            node.children.push(KdlNode::new("index").texts(scripts.iter()));
        }
    }
    let earlier: Vec<&String> = index.iter().take_while(|name| !name.ends_with(".php")).collect();
    let Some(first) = handlers.iter().position(is_of_scripts) else { return handlers };
    let is_alone = handlers[first..].iter().all(|node| matches!(node.name(), "fastcgi" | "respond" | "files"));
    if !scripts.is_empty() && !earlier.is_empty() && is_alone {
        let files = handlers[first].copied_property(KdlNode::with("files", "~/$"), "root");
        let names = KdlNode::new("index").texts(earlier.iter());
        handlers.insert(first, files.block(vec![names]));
    }
    handlers
}

/// Scripts answer for what is no file: by themselves, or by a rewrite to the one who does.
fn with_front_controller(mut handlers: Vec<KdlNode>, script: Option<String>, is_rewritten: bool) -> Vec<KdlNode> {
    let Some(script) = script else { return handlers };
    if script.contains('{') || is_rewritten {
        // The script has the path as PATH_INFO, or rewrites of other paths go before.
        handlers.insert(0, KdlNode::with("rewrite", "*").text(script).word_property("missing", "on"));
        return handlers;
    }
    match handlers.iter_mut().rfind(|node| node.name() == "fastcgi") {
        Some(node) => node.children.push(KdlNode::with("fallback", script)),
        None => handlers.insert(0, KdlNode::with("rewrite", "*").text(script).word_property("missing", "on")),
    }
    handlers
}

/// An address to listen on: a port for all addresses of both families.
fn listen_address(text: &str) -> String {
    if text.starts_with("unix:") {
        return text.to_owned();
    }
    let all = ["*:", "[::]:", "0.0.0.0:"].iter().find_map(|all| text.strip_prefix(all));
    match all {
        Some(port) => port.to_owned(),
        None if text.parse::<u16>().is_ok() || text.contains("]:") => text.to_owned(),
        None if text.ends_with(']') || !text.contains(':') => format!("{text}:80"),
        None => text.to_owned(),
    }
}

/// Reports a TLS directive that has no counterpart.
fn tls_remark(directive: &NginxDirective, notes: &mut Notes) {
    match directive.name.as_str() {
        "ssl"
        | "ssl_certificate"
        | "ssl_certificate_key"
        | "ssl_protocols"
        | "ssl_session_tickets"
        | "ssl_early_data"
        | "ssl_verify_client"
        | "ssl_client_certificate"
        | "ssl_crl"
        | "ssl_reject_handshake" => {}
        "ssl_ciphers" | "ssl_prefer_server_ciphers" | "ssl_ecdh_curve" | "ssl_dhparam" | "ssl_conf_command" => {
            notes.needless(directive, "only strong suites and groups are available (`tls-cipher-suites`)");
        }
        "ssl_session_cache" | "ssl_session_timeout" | "ssl_session_ticket_key" | "ssl_buffer_size" => {
            notes.needless(directive, "sessions are stored in tickets, whose keys all workers share and rotate");
        }
        "ssl_stapling" | "ssl_stapling_verify" | "ssl_trusted_certificate" | "ssl_stapling_file" => {
            notes.left(directive, "set the OCSP response as a file: `ocsp` of `certificate`");
        }
        _ => notes.unknown(directive),
    }
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::{site, translated};

    /// Issue 23: a server that listens nowhere has port 80, not a certificate.
    #[test]
    fn servers_without_listen_have_port_80() {
        let (text, _) = translated("server { server_name a.example; root /srv; }");
        assert_eq!(text, "// n:1\nsite \"a.example\" {\n    listen 80\n    root \"/srv\"\n}\n");
    }

    #[test]
    fn names_may_end_with_a_star() {
        let (text, remarks) =
            translated("server { listen 80; server_name plex.* .b.example; server_name B.example; root /srv; }");
        assert!(text.contains("site \"plex.*\" \"b.example\" \"*.b.example\" {"), "{text}");
        assert_eq!(remarks, Vec::<String>::new());
    }

    /// Issue 23: names that are expressions were lost, and the site was a second default site.
    #[test]
    fn sites_have_the_names_of_expressions() {
        let (text, remarks) =
            translated(r"server { listen 80; server_name ~^(www\.)?a\.b$ ~^(.+)\.c\.d$; root /srv; }");
        assert!(text.contains("site \"www.a.b\" \"a.b\" \"*.c.d\" {"), "{text}");
        assert_eq!(remarks, Vec::<String>::new());
        let other = r"server { listen 80; server_name ~^x\d+$; root /srv; }";
        let (text, remarks) = translated(&format!("{other}\n{other}\nserver {{ listen 81; server_name ~y; root /; }}"));
        let sites: Vec<&str> = text.lines().filter(|line| line.starts_with("site")).collect();
        assert_eq!(sites, ["site {", "site \"line-2.invalid\" {", "site {"]);
        assert!(remarks[0].contains("write the names of the site"), "{remarks:?}");
    }

    /// Issue 23: a script that is the index of no directory was run for directories, also before their `index.html`.
    #[test]
    fn directories_have_the_index_that_nginx_requests() {
        let script = r"location ~ \.php$ { fastcgi_pass unix:/run/p.sock; }";
        let check = |inside: &str, expect: &str| {
            let (lines, remarks) = site(&format!("{inside} {script}"));
            assert_eq!((lines.as_str(), remarks.len()), (expect, 0), "{inside}");
        };
        let fastcgi = "fastcgi \"*.php\" \"unix:/run/p.sock\" root=\"/srv\"";
        check("index index.php;", &format!("root \"/srv\"\nindex \"index.php\"\n{fastcgi} {{\n    path-info off\n}}"));
        check(
            "index index.html index.php;",
            &format!(
                "root \"/srv\"\nindex \"index.html\" \"index.php\"\nfiles \"~/$\" root=\"/srv\" {{\n    index \
                 \"index.html\"\n}}\n{fastcgi} {{\n    path-info off\n}}"
            ),
        );
        check("", &format!("root \"/srv\"\n{fastcgi} {{\n    path-info off\n    index\n}}"));
    }

    /// Issue 23: missing files were rejected by the handler of files alone.
    #[test]
    fn missing_files_are_not_forwarded() {
        let rejects = |inside: &str, path: &str| {
            let (lines, _) = site(inside);
            let line = format!("deny all{path}");
            assert!(lines.lines().any(|one| one == line), "{inside}: {lines}");
        };
        let missing = "if (!-e $request_filename) { return 403; }";
        rejects(&format!("{missing} location /a/ {{ proxy_pass http://b:1; }}"), " path=\"/a/*\"");
        rejects(&format!("{missing} location /a/ {{ alias /b/c/; }}"), " path=\"/a/*\"");
        rejects(&format!("location /a/ {{ {missing} proxy_pass http://b:1; }}"), " path=\"/a/*\"");
        let (lines, _) = site(&format!("{missing} location /a/ {{ }} location ~ \\.php$ {{ fastcgi_pass unix:/p; }}"));
        assert!(!lines.contains("deny"), "{lines}");
    }

    /// Issue 23: `satisfy any` of a location turned the `auth_request` of its server off.
    #[test]
    fn inherited_requests_are_made() {
        let (lines, remarks) =
            site("auth_request /auth; location = /auth { proxy_pass http://b:1; } location /a/ { satisfy any; }");
        assert!(lines.lines().any(|line| line == "deny all path=\"/a/*\""), "{lines}");
        assert!(remarks.iter().any(|remark| remark.contains("includes passwords and addresses only")), "{remarks:?}");
    }

    /// Issue 23: upstreams could lead to internal locations where nginx ignores their field.
    #[test]
    fn ignored_fields_lead_nowhere() {
        let check = |family: &str, ignored: &str, expect: bool| {
            let (lines, _) =
                site(&format!("location /i/ {{ internal; }} location /a/ {{ {family}_pass http://b:1; {ignored} }}"));
            assert_eq!(lines.contains("x-accel-redirect"), expect, "{lines}");
        };
        check("proxy", "", true);
        check("proxy", "proxy_ignore_headers Expires X-Accel-Redirect;", false);
        check("proxy", "proxy_ignore_headers Expires;", true);
        check("uwsgi", "uwsgi_ignore_headers x-accel-redirect;", false);
    }

    /// Issue 23: guards that nginx checks in one location only had no remark.
    #[test]
    fn guards_of_other_locations_have_a_remark() {
        let check = |inside: &str, expect: bool| {
            let (_, remarks) = site(inside);
            let is_noted = remarks.iter().any(|remark| remark.contains("it also holds for paths of"));
            assert_eq!(is_noted, expect, "{inside}: {remarks:?}");
        };
        check("location /a/ { internal; } location ~ x$ { }", true);
        check("location /a/ { internal; } location ~ ^/b { }", false);
        check("location ^~ /a/ { internal; } location ~ x$ { }", false);
        check("location /a/ { if ($request_method = POST) { return 403; } location /a/b { } }", true);
        check("location /a/ { limit_except GET { deny all; } location /a/b { deny all; } }", false);
        let (_, remarks) = site("location /a/ { index /b/c.txt; }");
        assert!(remarks[0].contains("one of its directory"), "{remarks:?}");
    }

    /// Issue 23: a redirect to the slash was a loop, because `proxy_pass` has a URL as redirects have.
    #[test]
    fn redirects_of_a_wider_location_stay_there() {
        let (lines, _) =
            site("location /a { return 301 $scheme://$host/a/; } location ^~ /a/ { proxy_pass http://b:1; }");
        let kept = lines.find("rewrite \"/a/*\" \"{path}\"").expect("the path is kept");
        assert!(kept < lines.find("redirect \"~^/a\"").expect("the redirect is there"), "{lines}");
    }

    /// Issue 23: a missing script leads to the front controller that its own `try_files` names.
    #[test]
    fn missing_scripts_lead_to_the_front_controller() {
        let (lines, _) = site(
            r"index index.php; location / { try_files $uri $uri/ /index.php$is_args$args; }
              location ~ \.php$ { try_files $uri /index.php =404; fastcgi_pass unix:/run/p.sock; }",
        );
        assert!(lines.contains("fallback \"/index.php\"") && !lines.contains("404"), "{lines}");
    }

    #[test]
    fn rates_are_those_of_connections() {
        let (lines, remarks) = site("limit_rate 1m; limit_rate_after 10m;");
        assert_eq!(lines, "connection-rate-max \"1MiB\" after=\"10MiB\"\nroot \"/srv\"");
        assert_eq!(remarks, Vec::<String>::new());
    }

    #[test]
    fn responses_of_sites_for_no_client() {
        let (text, remarks) = translated(
            "http { server { listen 443 ssl default_server; ssl_reject_handshake on; return 444; } server { listen 443 ssl; \
             server_name a.b; ssl_certificate /c; ssl_certificate_key /k; return 204; } server { listen 443 ssl; server_name _; \
             ssl_certificate /c; ssl_certificate_key /k; return 204; } }",
        );
        assert_eq!(text.matches("certificate \"/c\" key=\"/k\"").count(), 3, "{text}");
        assert!(text.contains("site \"line-1.invalid\" {"), "{text}");
        assert!(remarks.iter().any(|remark| remark.contains("certificate of another site")), "{remarks:?}");
    }
}
