//! The user's own variables: `set` and `map`.
//!
//! A variable of `set` that has one value for all requests of its block stands for that value. A `map` whose source and
//! values have counterparts here becomes a `map`; its variable is `${map.NAME}` from then on.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::matching::expression;
use super::server_names::{self, HostVariable};
use super::syntax::NginxDirective;
use super::{Notes, settings, values};
use crate::kdl::KdlNode;

/// Texts for which variables stand, by name.
type Texts = BTreeMap<String, String>;

/// Most bytes of a value after its variables are replaced.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// Replaces variables in all directives. Returns the maps that are used.
pub(super) fn replace(directives: &[NginxDirective], notes: &mut Notes) -> (Vec<NginxDirective>, Vec<KdlNode>) {
    let mut maps = Maps::default();
    maps.collect(directives, notes);
    maps.add_hosts(directives);
    let mut scope = maps.texts.clone();
    let mut replaced = replace_block(directives, &mut scope);
    maps.replace_times(&mut replaced, directives);
    let mut used = BTreeSet::new();
    find_used(&replaced, &mut used);
    (replaced, maps.into_nodes(used))
}

/// Directives of the rewrite module, which use the values that variables have when they are reached.
fn is_in_order(name: &str) -> bool {
    matches!(name, "set" | "if" | "rewrite" | "return" | "break")
}

/// Replaces the variables of a block. `scope` has the texts that are known outside of it.
fn replace_block(block: &[NginxDirective], scope: &mut Texts) -> Vec<NginxDirective> {
    let mut result = Vec::with_capacity(block.len());
    for directive in block.iter().filter(|directive| is_in_order(&directive.name)) {
        match directive.name.as_str() {
            "set" => {
                let name = directive.first().trim_start_matches('$').to_owned();
                let value = with_texts(directive.argument(1), scope);
                match is_fixed(&value) && value.len() <= TEXT_BYTES_MAX {
                    true => drop(scope.insert(name, value)),
                    false => {
                        scope.remove(&name);
                        result.push(replaced(directive, scope));
                    }
                }
            }
            "if" => {
                let mut one = replaced(directive, scope);
                // Values that it sets depend on its condition.
                let mut inner = scope.clone();
                one.block = Some(replace_block(directive.children(), &mut inner));
                let mut names = BTreeSet::new();
                find_set(directive.children(), &mut names);
                scope.retain(|name, _| !names.contains(name));
                result.push(one);
            }
            _ => result.push(replaced(directive, scope)),
        }
    }
    let mut ordered = result.into_iter().peekable();
    let mut all = Vec::with_capacity(block.len());
    for directive in block {
        if is_in_order(&directive.name) {
            // Variables that stand for their text are gone.
            all.extend(ordered.next_if(|next| next.place == directive.place && next.name == directive.name));
            continue;
        }
        let mut one = replaced(directive, scope);
        if directive.block.is_some() {
            let mut inner = scope.clone();
            inner.extend(server_name(directive).map(|name| ("server_name".to_owned(), name)));
            if directive.name == "server" {
                for variable in server_names::variables(directive.children()) {
                    let of_root = format!("{ROOT}{}", variable.name);
                    match &variable.part {
                        Some(part) => drop(inner.insert(of_root, part.text())),
                        None => drop(inner.remove(&of_root)),
                    }
                    inner.insert(variable.name.clone(), format!("${{map.{}}}", name_of_map(directive, &variable)));
                }
            }
            one.block = Some(replace_block(directive.children(), &mut inner));
        }
        all.push(one);
    }
    all
}

/// Front of the names of variables whose text is for roots.
const ROOT: &str = "root:";

/// Name of the map for a variable that the name of a server sets.
fn name_of_map(server: &NginxDirective, variable: &HostVariable) -> String {
    format!("host-{}-{}", server.place.line, variable.name)
}

/// Texts of variables in a root.
fn of_roots(scope: &Texts) -> Texts {
    let mut texts = scope.clone();
    texts.entry("host".to_owned()).or_insert_with(|| "{host}".to_owned());
    texts.extend(scope.iter().filter_map(|(name, text)| Some((name.strip_prefix(ROOT)?.to_owned(), text.clone()))));
    texts
}

/// `$server_name` in the block of a server: its first name.
fn server_name(directive: &NginxDirective) -> Option<String> {
    let names = directive.children().iter().find(|child| directive.name == "server" && child.name == "server_name")?;
    let name = names.first();
    (!name.starts_with(['~', '$'])).then(|| name.strip_prefix('.').unwrap_or(name).to_ascii_lowercase())
}

/// Names of variables that a block sets.
fn find_set(block: &[NginxDirective], names: &mut BTreeSet<String>) {
    for directive in block {
        if directive.name == "set" {
            names.insert(directive.first().trim_start_matches('$').to_owned());
        }
        find_set(directive.children(), names);
    }
}

/// Names of maps that directives use.
fn find_used(block: &[NginxDirective], used: &mut BTreeSet<String>) {
    for directive in block {
        for argument in &directive.arguments {
            used.extend(argument.match_indices("${map.").filter_map(|(at, start)| {
                let rest = &argument[at + start.len()..];
                Some(rest[..rest.find('}')?].to_owned())
            }));
        }
        find_used(directive.children(), used);
    }
}

/// The directive with texts in place of its variables.
fn replaced(directive: &NginxDirective, scope: &Texts) -> NginxDirective {
    let mut one = directive.clone();
    // The first argument of these is a name, or has its own syntax.
    let from = match directive.name.as_str() {
        "set" | "log_format" | "auth_request_set" => 1,
        "map" => 2,
        _ => 0,
    };
    let of_roots = (directive.name == "root").then(|| of_roots(scope));
    for argument in one.arguments.iter_mut().skip(from).filter(|argument| argument.contains('$')) {
        *argument = with_texts(argument, of_roots.as_ref().unwrap_or(scope));
    }
    one.had_variables = directive.arguments.iter().any(|argument| argument.contains('$'));
    one
}

/// A text with texts in place of its variables.
fn with_texts(text: &str, scope: &Texts) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        result.push_str(&rest[..start]);
        let (name, following) = values::variable(&rest[start + 1..]);
        match scope.get(name) {
            Some(value) => result.push_str(value),
            None => result.push_str(&rest[start..rest.len() - following.len()]),
        }
        rest = following;
    }
    result.push_str(rest);
    result
}

/// Returns `true` if a text has the same value wherever it stands in a request.
fn is_fixed(text: &str) -> bool {
    const FIXED: [&str; 14] = [
        "host",
        "http_host",
        "scheme",
        "remote_addr",
        "binary_remote_addr",
        "request_method",
        "request_uri",
        "server_name",
        "server_port",
        "fastcgi_path_info",
        "fastcgi_script_name",
        "proxy_add_x_forwarded_for",
        "document_root",
        "realpath_root",
    ];
    names(text).all(|name| FIXED.contains(&name) || name.starts_with("http_") || name.starts_with("map."))
}

/// Names of the variables in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find('$')?;
        let (name, following) = values::variable(&rest[start + 1..]);
        rest = following;
        Some(name)
    })
}

/// Maps of all blocks.
#[derive(Default)]
struct Maps {
    /// Texts of their variables.
    texts: Texts,
    /// Their translations, by name, and the names of maps that each uses.
    nodes: BTreeMap<String, (KdlNode, BTreeSet<String>)>,
}

impl Maps {
    fn collect(&mut self, block: &[NginxDirective], notes: &mut Notes) {
        for directive in block {
            match directive.name.as_str() {
                // Decides on upgrades, which pass by default.
                "map" if directive.first() == "$http_upgrade" => {}
                "map" => self.add(directive, notes),
                "http" => self.collect(directive.children(), notes),
                _ => {}
            }
        }
    }

    /// Adds maps for variables that names of servers set.
    fn add_hosts(&mut self, block: &[NginxDirective]) {
        for directive in block {
            match directive.name.as_str() {
                "http" => self.add_hosts(directive.children()),
                "server" => {
                    for variable in server_names::variables(directive.children()) {
                        let name = name_of_map(directive, &variable);
                        let pattern = format!("~{}", variable.expression);
                        let case = KdlNode::with("case", pattern).text(format!("{{match.{}}}", variable.name));
                        let node = KdlNode::with("map", &name).text("{host}").required_block(vec![case]);
                        self.nodes.insert(name, (node, BTreeSet::new()));
                    }
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        let name = directive.argument(1).trim_start_matches('$').to_owned();
        let source = with_texts(directive.first(), &self.texts);
        if !source.contains('$') {
            // Such a map is a variable with one value.
            let value = fixed_value(directive, &source);
            if let Some(value) = value.filter(|value| is_fixed(value)) {
                self.texts.insert(name, value);
            }
            return;
        }
        match self.node(&name, &source, directive) {
            Ok(node) => {
                let mut used = BTreeSet::new();
                find_used(std::slice::from_ref(directive), &mut used);
                for child in directive.children() {
                    let replaced = child.arguments.iter().map(|argument| with_texts(argument, &self.texts));
                    let child = NginxDirective { arguments: replaced.collect(), ..child.clone() };
                    find_used(std::slice::from_ref(&child), &mut used);
                }
                let source = NginxDirective { arguments: vec![source], ..directive.clone() };
                find_used(&[NginxDirective { block: None, ..source }], &mut used);
                self.texts.insert(name.clone(), format!("${{map.{name}}}"));
                self.nodes.insert(name, (node, used));
            }
            Err(why) => notes.left(directive, why),
        }
    }

    /// Gives each map of times, which `expires` uses, one of `Cache-Control` beside it.
    fn replace_times(&mut self, block: &mut [NginxDirective], all: &[NginxDirective]) {
        for directive in block {
            let used = directive.first().strip_prefix("${map.").and_then(|name| name.strip_suffix('}'));
            let used = used.filter(|_| directive.name == "expires").map(str::to_owned);
            if let Some((name, source)) = used.and_then(|name| Some((name.clone(), find_map(all, &name)?))) {
                let own = format!("{name}-freshness");
                let mut times = source.clone();
                let children = times.block.iter_mut().flatten();
                for child in children.filter(|child| !matches!(child.name.as_str(), "hostnames" | "volatile")) {
                    child.arguments = vec![settings::freshness(child.first()).unwrap_or_default()];
                }
                let text = with_texts(source.first(), &self.texts);
                if let Ok(node) = self.node(&own, &text, &times) {
                    self.nodes.insert(own.clone(), (node, BTreeSet::new()));
                    let is_of_type = source.first() == "$sent_http_content_type";
                    // Redirects of nginx are pages.
                    let of_pages = fixed_value(&times, "text/html").filter(|_| is_of_type);
                    directive.arguments = [Some(format!("${{map.{own}}}")), of_pages].into_iter().flatten().collect();
                }
            }
            if let Some(block) = &mut directive.block {
                self.replace_times(block, all);
            }
        }
    }

    fn node(&self, name: &str, source: &str, directive: &NginxDirective) -> Result<KdlNode, String> {
        let mut cases = Vec::new();
        let mut expressions = Vec::new();
        let mut default = None;
        let has_host_names = directive.children().iter().any(|child| child.name == "hostnames");
        for child in directive.children() {
            let value = || values::of_map(&with_texts(child.first(), &self.texts));
            let case =
                |pattern: String| -> Result<KdlNode, String> { Ok(KdlNode::with("case", pattern).text(value()?)) };
            match child.name.as_str() {
                "hostnames" | "volatile" => {}
                "include" => return Err("the file that it includes cannot be read".to_owned()),
                "default" => default = Some(KdlNode::with("default", value()?)),
                text => match text.strip_prefix("~*").map(|rest| (rest, true)) {
                    Some((text, ignores_case)) => expressions.push(case(map_expression(text, ignores_case)?)?),
                    None => match text.strip_prefix('~') {
                        Some(text) => expressions.push(case(map_expression(text, false)?)?),
                        None => cases.push(case(literal(text, has_host_names)?)?),
                    },
                },
            }
        }
        // nginx looks for a literal text first, whatever the order.
        // Literal texts ignore letter case in nginx.
        let has_case = |pattern: &str| !pattern.starts_with('~') && pattern.bytes().any(|it| it.is_ascii_alphabetic());
        let ignores_case = cases.iter().any(|case: &KdlNode| has_case(case.first_value()));
        cases.extend(expressions);
        cases.extend(default);
        if ignores_case {
            cases.insert(0, KdlNode::new("ignore-case").word("on"));
        }
        Ok(KdlNode::with("map", name).text(values::of_map(source)?).required_block(cases))
    }

    /// The maps with these names, and those that they use.
    fn into_nodes(mut self, used: BTreeSet<String>) -> Vec<KdlNode> {
        let mut queue: Vec<String> = used.into_iter().collect();
        let mut nodes = BTreeMap::new();
        while let Some(name) = queue.pop() {
            if let Some((node, used)) = self.nodes.remove(&name) {
                queue.extend(used);
                nodes.insert(name, node);
            }
        }
        nodes.into_values().collect()
    }
}

/// The map that sets a variable.
pub(super) fn find_map<'a>(block: &'a [NginxDirective], name: &str) -> Option<&'a NginxDirective> {
    block.iter().find_map(|directive| match directive.name.as_str() {
        "map" if directive.argument(1).trim_start_matches('$') == name => Some(directive),
        "http" => find_map(directive.children(), name),
        _ => None,
    })
}

/// Value of a map for a source without variables.
fn fixed_value(directive: &NginxDirective, source: &str) -> Option<String> {
    let matches = |child: &&NginxDirective| match child.name.as_str() {
        "default" | "hostnames" | "volatile" => false,
        text => match text.strip_prefix('~') {
            Some(text) => {
                let (text, ignores_case) = text.strip_prefix('*').map_or((text, false), |text| (text, true));
                expression(text, ignores_case)
                    .ok()
                    .is_some_and(|text| Regex::new(&text).is_ok_and(|text| text.is_match(source)))
            }
            None => text.eq_ignore_ascii_case(source),
        },
    };
    let default = || directive.children().iter().find(|child| child.name == "default");
    let found = directive.children().iter().find(matches).or_else(default);
    Some(found.map_or_else(String::new, |child| child.first().to_owned()))
}

fn map_expression(text: &str, ignores_case: bool) -> Result<String, String> {
    Ok(format!("~{}", expression(text, ignores_case)?))
}

/// The pattern of a literal text.
fn literal(text: &str, has_host_names: bool) -> Result<String, String> {
    let text = text.strip_prefix('\\').unwrap_or(text);
    if has_host_names && (text.starts_with(['*', '.']) || text.ends_with('*')) {
        return Err("host names with `*` have no counterpart in a map".to_owned());
    }
    let is_special = text.starts_with(['*', '~']) || text.ends_with('*');
    Ok(if is_special { format!("~(?i)^{}$", regex::escape(text)) } else { text.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kdl;
    use crate::nginx::syntax;

    /// The lines and maps of a text whose variables are replaced.
    fn of(text: &str) -> (String, String) {
        let directives = syntax::parse(Path::new("n"), text).unwrap();
        let (directives, maps) = replace(&directives, &mut Notes::default());
        let lines: Vec<String> = directives.iter().map(NginxDirective::text).collect();
        (lines.join("; "), kdl::write(&maps))
    }

    #[test]
    fn constants_stand_for_their_text() {
        let check = |text: &str, expect: &str| assert_eq!(of(text).0, expect, "{text}");
        check(
            "location / { set $app a; set $port 80; proxy_pass http://$app:$port; }",
            "location / { proxy_pass http://a:80 }",
        );
        check("set $a /srv; location / { root ${a}/b; }", "location / { root /srv/b }");
        check("set $a $fastcgi_path_info; fastcgi_param P $a;", "fastcgi_param P $fastcgi_path_info");
        check(
            "server { server_name .A.b c.d; return 301 https://$server_name$request_uri; }",
            "server { server_name .A.b c.d; return 301 https://a.b$request_uri }",
        );
        // A later value counts for what is not in order.
        check("set $a 1; return 200 $a; set $a 2; root /$a;", "return 200 1; root /2");
        check("set $a $1; root /$a;", "set $a $1; root /$a");
        check("set $a 0; if ($b) { set $a 1; } root /$a;", "if ($b); root /$a");
        check("location / { set $a 1; } location /b { root /$a; }", "location /; location /b { root /$a }");
    }

    #[test]
    fn maps_become_maps() {
        let map = "map $arg_v $immutable { \"\" \"\"; default \", immutable\"; }";
        let (lines, maps) = of(&format!("{map} add_header Cache-Control \"public$immutable\";"));
        assert!(lines.ends_with("add_header Cache-Control public${map.immutable}"), "{lines}");
        assert_eq!(maps, "map \"immutable\" \"{query.v}\" {\n    case \"\" \"\"\n    default \", immutable\"\n}\n");
        assert_eq!(of(map).1, "", "it is not used");
        let (lines, maps) = of("map '' $pool { default php; } fastcgi_pass $pool;");
        assert!(lines.ends_with("fastcgi_pass php") && maps.is_empty(), "{lines}");
        let (_, maps) = of("map $host $a { ~^b c; D d; 1 e; } root $a;");
        assert_eq!(
            maps,
            "map \"a\" \"{host}\" {\n    ignore-case on\n    case \"D\" \"d\"\n    case \"1\" \"e\"\n    case \"~^b\" \"c\"\n}\n"
        );
    }
}
