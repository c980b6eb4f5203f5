//! Addresses of a server block: sites and their listeners.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Shared;
use super::global::GlobalOptions;
use super::matcher::fits_host;
use super::site::{self, SiteContext};
use super::syntax::{CaddySite, Caddyfile};
use crate::directive::Directive;
use crate::expression::ReadOnce;
use crate::kdl::KdlNode;
use crate::notes::Notes;

/// An address such as `https://example.com:8443`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    host: String,
    /// Path matcher; without one, the site has all paths.
    path: Option<String>,
    /// Port, and true if connections use TLS.
    listener: CaddyListener,
}

/// CaddyListener of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CaddyListener {
    /// HTTPS with a certificate that Caddy gets itself, and HTTP, which redirects to it.
    Automatic,
    Port(u16, bool),
}

impl CaddyListener {
    /// Returns `true` for the port of its protocol.
    pub(super) fn is_usual(&self) -> bool {
        matches!(self, Self::Automatic | Self::Port(80, false) | Self::Port(443, true))
    }
}

/// Sites of a server block.
pub(super) fn translate(site: &CaddySite, shared: &mut Shared<'_>, notes: &mut Notes) -> Vec<KdlNode> {
    let directive = Directive {
        name: site.addresses.join(", "),
        arguments: Vec::new(),
        block: None,
        place: site.place.clone(),
        had_variables: false,
        expression: ReadOnce::default(),
    };
    let mut listeners: BTreeMap<String, BTreeSet<CaddyListener>> = BTreeMap::new();
    for text in &site.addresses {
        match read(text, shared.options) {
            // The site of all paths, or of the first, has those of the other addresses, too.
            Ok(address) if owner(&address, shared).is_some_and(|owner| !std::ptr::eq(owner, site)) => {}
            Ok(address) => {
                let is_plain = CaddyListener::Port(shared.options.http_port, false);
                let has_plain = address.listener == CaddyListener::Automatic
                    && has_site(&address.host, &BTreeSet::from([is_plain]), shared);
                // Another site has its requests without TLS.
                let listener =
                    if has_plain { CaddyListener::Port(shared.options.https_port, true) } else { address.listener };
                listeners.entry(address.host).or_default().insert(listener);
            }
            Err(why) => notes.left(&directive, format!("`{text}`: {why}")),
        }
    }
    // Hosts with the same listeners are one site, unless some paths have a block of their own.
    let mut groups: BTreeMap<(BTreeSet<CaddyListener>, Option<String>), Vec<String>> = BTreeMap::new();
    for (host, listeners) in listeners {
        let own = has_paths(&host, shared).then(|| host.clone());
        groups.entry((listeners, own)).or_default().push(host);
    }
    let mut nodes = Vec::new();
    for ((listeners, own), names) in groups {
        let directives = own.map_or_else(|| site.directives.clone(), |host| by_path(&host, site, shared));
        let mut named = hosts_of_matchers(&directives);
        if uses_labels(&directives) {
            named.extend(names.iter().filter(|name| !name.is_empty() && !name.contains('*')).cloned());
            let mut seen = BTreeSet::new();
            named.retain(|host| seen.insert(host.clone()));
        }
        // A site with matchers of hosts is translated for each host: there, the matcher is always or never true.
        let mut own: Vec<(Vec<String>, Option<String>)> = Vec::new();
        for host in &named {
            let is_here = |name: &String| name.is_empty() || fits_host(name, host);
            let is_of_other = !names.contains(host) && has_site(host, &listeners, shared);
            if names.iter().any(is_here) && !host.contains('{') && !is_of_other {
                own.push((vec![host.clone()], Some(host.clone())));
            }
        }
        let others: Vec<String> = names.iter().filter(|name| !named.contains(name)).cloned().collect();
        if !others.is_empty() {
            // A host that no matcher names.
            let host = match others.as_slice() {
                [host] if !host.contains('*') && !host.is_empty() => host.clone(),
                _ => "\u{1}".to_owned(),
            };
            own.push((others, Some(host)));
        }
        for (names, host) in own {
            let context = SiteContext { names, host, listeners: &listeners, place: &directive };
            nodes.push(site::translate(context, &directives, shared, notes));
        }
    }
    nodes
}

/// Site of requests for hosts that no site names: Caddy answers them without content.
pub(super) fn of_other_hosts(file: &Caddyfile, shared: &Shared<'_>) -> Option<KdlNode> {
    // Address of the machine, or none for all, and port; true if a site catches all hosts there.
    let mut listened: BTreeMap<(Option<String>, u16), bool> = BTreeMap::new();
    for site in &file.sites {
        let bound = bound_to(&site.directives, shared);
        for address in site.addresses.iter().filter_map(|text| read(text, shared.options).ok()) {
            let CaddyListener::Port(port, false) = address.listener else { continue };
            let places = match bound.as_slice() {
                [] => vec![None],
                bound => bound.iter().cloned().map(Some).collect(),
            };
            for place in places {
                *listened.entry((place, port)).or_default() |= address.host.is_empty();
            }
        }
    }
    let mut lines: Vec<KdlNode> = listened
        .into_iter()
        .filter(|(_, catches)| !catches)
        .flat_map(|((place, port), _)| listeners(place.as_slice(), port))
        .collect();
    if lines.is_empty() {
        return None;
    }
    lines.push(KdlNode::with("respond", "*").word(200));
    Some(KdlNode::new("site").required_block(lines).comment("hosts that no other site names"))
}

/// Addresses of the machine at which a site listens; without any, all.
pub(super) fn bound_to(directives: &[Directive], shared: &Shared<'_>) -> Vec<String> {
    let own = directives.iter().rfind(|directive| directive.name == "bind");
    own.map_or(&shared.options.default_bind, |directive| &directive.arguments).clone()
}

/// Listeners of a port at these addresses of the machine.
pub(super) fn listeners(bound: &[String], port: u16) -> Vec<KdlNode> {
    let listen = || KdlNode::new("listen");
    let at = |address: &String| match address.contains(':') && !address.starts_with('[') {
        true => listen().text(format!("[{address}]:{port}")),
        false => listen().text(format!("{address}:{port}")),
    };
    if bound.is_empty() { vec![listen().word(port)] } else { bound.iter().map(at).collect() }
}

/// Returns `true` if a site has exactly this name at one of these listeners.
fn has_site(host: &str, listeners: &BTreeSet<CaddyListener>, shared: &Shared<'_>) -> bool {
    shared.addresses.of_host(host).any(|(_, address)| listeners.contains(&address.listener))
}

/// Addresses of all sites, with their blocks.
pub(super) struct CaddyAddresses<'a> {
    all: Vec<(&'a CaddySite, Address)>,
    /// Indexes by host.
    by_host: HashMap<String, Vec<usize>>,
}

impl<'a> CaddyAddresses<'a> {
    pub(super) fn read(file: &'a Caddyfile, options: &GlobalOptions) -> Self {
        let texts = file.sites.iter().flat_map(|site| site.addresses.iter().map(move |text| (site, text)));
        let all: Vec<_> = texts.filter_map(|(site, text)| Some((site, read(text, options).ok()?))).collect();
        let mut by_host: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, (_, address)) in all.iter().enumerate() {
            by_host.entry(address.host.clone()).or_default().push(index);
        }
        Self { all, by_host }
    }

    fn of_host(&self, host: &str) -> impl Iterator<Item = &(&'a CaddySite, Address)> {
        self.by_host.get(host).into_iter().flatten().map(|index| &self.all[*index])
    }
}

/// Returns `true` if an address of a host has a path.
fn has_paths(host: &str, shared: &Shared<'_>) -> bool {
    shared.addresses.of_host(host).any(|(_, address)| address.path.is_some())
}

/// The block in whose place the site of a host is written, if it has paths.
fn owner<'a>(address: &Address, shared: &Shared<'a>) -> Option<&'a CaddySite> {
    address.path.as_ref()?;
    let same = || shared.addresses.of_host(&address.host).filter(|(_, other)| other.listener == address.listener);
    same().find(|(_, other)| other.path.is_none()).or_else(|| same().next()).map(|(site, _)| *site)
}

/// Directives of a host that has addresses with paths: the longest path comes first, and then the site of all paths.
fn by_path(host: &str, site: &CaddySite, shared: &Shared<'_>) -> Vec<Directive> {
    let of_site = shared.addresses.of_host(host).filter(|(of, _)| std::ptr::eq(*of, site));
    let own: Vec<CaddyListener> = of_site.map(|(_, address)| address.listener).collect();
    let mut paths: Vec<(&CaddySite, &str)> = Vec::new();
    // The site of all paths: of this host, or of the most specific name that fits.
    let mut rest: Option<(usize, &CaddySite)> = None;
    for (of, address) in shared.addresses.all.iter().filter(|(_, address)| own.contains(&address.listener)) {
        let fits = address.host.is_empty() || fits_host(&address.host, host);
        let rank = if address.host == host { usize::MAX } else { address.host.len() };
        match &address.path {
            Some(path) if address.host == host => paths.push((*of, path.as_str())),
            None if fits && rest.is_none_or(|(known, _)| known < rank) => rest = Some((rank, *of)),
            _ => {}
        }
    }
    paths.sort_by_key(|(_, path)| std::cmp::Reverse(path.len()));
    let is_of_site =
        |directive: &&Directive| matches!(directive.name.as_str(), "tls" | "bind" | "log" | "handle_errors");
    let mut directives: Vec<Directive> = site.directives.iter().filter(is_of_site).cloned().collect();
    let blocks = paths.into_iter().map(|(of, path)| (of, vec![path.to_owned()]));
    for (of, arguments) in blocks.chain(rest.map(|(_, of)| (of, Vec::new()))) {
        let block = of.directives.iter().filter(|directive| !is_of_site(directive)).cloned().collect();
        directives.push(Directive {
            name: "handle".to_owned(),
            arguments,
            block: Some(block),
            place: of.place.clone(),
            had_variables: false,
            expression: ReadOnce::default(),
        });
    }
    directives
}

/// Reads an address.
fn read(text: &str, options: &GlobalOptions) -> Result<Address, String> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => (String::new(), text),
    };
    let scheme = scheme.as_str();
    let (rest, path) = match rest.find('/') {
        Some(at) => (&rest[..at], Some(rest[at..].to_owned())),
        None => (rest, None),
    };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (rest, ""),
    };
    let number = |port: &str| port.parse::<u16>().map_err(|_| format!("`{port}` is no port"));
    let listener = match (scheme, port) {
        ("http", "") => CaddyListener::Port(options.http_port, false),
        ("http", port) => CaddyListener::Port(number(port)?, false),
        (_, "") if options.is_automatic() && !host.is_empty() => CaddyListener::Automatic,
        (_, "") => {
            CaddyListener::Port(if host.is_empty() && scheme.is_empty() { 80 } else { options.https_port }, true)
        }
        (scheme, port) => {
            let port = number(port)?;
            // A port alone has no name for a certificate.
            let has_tls =
                scheme == "https" || port == options.https_port || (!host.is_empty() && port != options.http_port);
            if has_tls && port == options.https_port && options.is_automatic() && !host.is_empty() {
                CaddyListener::Automatic
            } else {
                CaddyListener::Port(port, has_tls)
            }
        }
    };
    if host.contains('{') {
        return Err("a name must be fixed".to_owned());
    }
    Ok(Address { host: host.trim_matches(['[', ']']).to_ascii_lowercase(), path, listener })
}

/// Returns `true` if a directive uses labels of the host, or the host in a text that is fixed here.
fn uses_labels(directives: &[Directive]) -> bool {
    let has_labels = |word: &String| word.contains("{labels.") || word.contains("{http.request.host.labels.");
    let has_host = |word: &String| word.contains("{host}") || word.contains("{http.request.host}");
    directives.iter().any(|directive| {
        let is_fixed = matches!(directive.name.as_str(), "root" | "respond" | "body" | "env");
        let mut words = directive.arguments.iter();
        let is_of_field = |word: &String| word.eq_ignore_ascii_case("host");
        let compares_host = directive.has("header_regexp") || directive.name == "header_regexp";
        (compares_host && directive.arguments.iter().any(is_of_field))
            || words.any(|word| has_labels(word) || (is_fixed && has_host(word)))
            || uses_labels(directive.children())
    })
}

/// Hosts that matchers of a block name.
fn hosts_of_matchers(directives: &[Directive]) -> Vec<String> {
    let mut hosts = Vec::new();
    collect_hosts(directives, &mut hosts);
    hosts
}

fn collect_hosts(directives: &[Directive], hosts: &mut Vec<String>) {
    for directive in directives {
        if directive.name.starts_with('@') {
            let inline = directive.arguments.iter().skip_while(|word| *word == "not");
            let mut inline = inline.skip_while(|word| *word != "host");
            if inline.next().is_some() && directive.arguments.iter().take_while(|word| *word != "host").count() <= 1 {
                hosts.extend(inline.cloned());
            }
            collect_host_lines(directive.children(), hosts);
            directive.arguments.iter().for_each(|text| collect_host_calls(text, hosts));
        }
        collect_hosts(directive.children(), hosts);
    }
    let mut seen = BTreeSet::new();
    hosts.retain(|host| seen.insert(host.clone()));
}

fn collect_host_lines(directives: &[Directive], hosts: &mut Vec<String>) {
    for directive in directives {
        directive.arguments.iter().for_each(|text| collect_host_calls(text, hosts));
        match (directive.name.as_str(), directive.first()) {
            ("host", _) => hosts.extend(directive.arguments.iter().cloned()),
            ("not", "host") => hosts.extend(directive.arguments[1..].iter().cloned()),
            _ => {}
        }
        collect_host_lines(directive.children(), hosts);
    }
}

/// Hosts that an expression names, as in `host('a.example')`.
fn collect_host_calls(text: &str, hosts: &mut Vec<String>) {
    for call in text.split("host(").skip(1) {
        let list = call.split(')').next().unwrap_or_default();
        hosts.extend(list.split(['\'', '"']).skip(1).step_by(2).map(str::to_owned));
    }
}
