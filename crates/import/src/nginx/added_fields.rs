//! `add_header`: a block that has any has none of those around it.
//!
//! Here, fields of all blocks add up. Therefore each location states the fields that differ from those around it.

use super::matching::LocationMatch;
use super::precedence::ServerLocation;
use super::settings::{DirectiveLevel, response_header};
use super::syntax::NginxDirective;
use super::values::{self, Within};
use super::{Chain, auth_request, forward};
use crate::kdl::KdlNode;

/// Condition for fields about freshness: errors must not be kept as long. nginx sends no field without `always` there.
pub(super) const OF_SUCCESS: &str = "status < 400";

/// Fields that a location, the server or all servers state.
struct StatedFields<'f, 'a> {
    /// `None` for all paths.
    location: Option<&'f LocationMatch>,
    fields: Vec<&'a NginxDirective>,
}

impl<'a> StatedFields<'_, 'a> {
    /// Values of a field.
    fn values(&self, name: &str) -> Vec<&'a str> {
        let own = self.fields.iter().filter(|field| field.first().eq_ignore_ascii_case(name));
        own.map(|field| field.argument(1)).collect()
    }

    /// True if errors have the field, too.
    fn is_always(&self, name: &str) -> bool {
        let mut own = self.fields.iter().filter(|field| field.first().eq_ignore_ascii_case(name));
        own.any(|field| field.argument(2) == "always")
    }

    fn overlaps(&self, location: &LocationMatch) -> bool {
        self.location.is_none_or(|own| own.overlaps(location))
    }
}

/// Returns `true` if the option for the freshness of files says this field.
pub(super) fn is_freshness(directive: &NginxDirective, is_forwarded: bool) -> bool {
    let is_fixed = !directive.argument(1).contains('$');
    directive.first().eq_ignore_ascii_case("cache-control") && is_fixed && !is_forwarded
}

/// Fields of all responses and of those of each location, from the widest to the narrowest.
pub(super) fn of_locations(locations: &[ServerLocation<'_>], server: Chain<'_>) -> Vec<KdlNode> {
    let (http, own) = (server.blocks[0], server.blocks[1]);
    let of_all = StatedFields { location: None, fields: fields(Chain::new(http), false) };
    let mut nodes = Vec::new();
    let names = names(http, own, locations);
    // The server's own lines are there already; those of all servers must be left out.
    let of_server = StatedFields { location: None, fields: fields(server, false) };
    for name in &names {
        if of_server.values(name).is_empty() && !of_all.values(name).is_empty() {
            nodes.push(kept(&DirectiveLevel::Server, name));
        }
    }
    let mut stated = vec![of_server];
    for found in locations.iter().rev().filter(|found| !matches!(found.location, LocationMatch::Named(_))) {
        let chain = server.with_all(found.blocks());
        let block = found.directive.children();
        // The option for files is not for other responses.
        let is_forwarded = forward::pass(block).is_some() || block.iter().any(|child| child.name == "return");
        let own = StatedFields { location: Some(&found.location), fields: fields(chain, is_forwarded) };
        let level = DirectiveLevel::Location { pattern: found.location.pattern(), is_forwarded };
        for name in &names {
            let values = own.values(name);
            let mut around = stated.iter().filter(|stated| stated.overlaps(&found.location));
            if around.all(|stated| stated.values(name) == values) {
                continue;
            }
            if values.is_empty() {
                nodes.push(kept(&level, name));
            }
            // Upstream responses have the value of `expires`, too.
            let has_age = is_forwarded
                && name.eq_ignore_ascii_case("cache-control")
                && chain.last("expires").is_some_and(|expires| expires.first() != "off");
            let is_of_success = is_forwarded && name.eq_ignore_ascii_case("cache-control") && !own.is_always(name);
            for (index, value) in values.into_iter().enumerate() {
                let node = response_header(&level, name, &values::text(value, Within::Field).unwrap_or_default());
                let node = if is_of_success { node.property("when", OF_SUCCESS) } else { node };
                nodes.push(if index > 0 || has_age { node.word_property("action", "add") } else { node });
            }
        }
        if found.location.pattern().is_none() {
            // The location has all paths.
            stated.clear();
        }
        stated.push(own);
    }
    nodes
}

/// Fields that apply in a chain of blocks, without those that are said otherwise or have no counterpart.
fn fields(chain: Chain<'_>, is_forwarded: bool) -> Vec<&NginxDirective> {
    let is_said_here = |field: &&NginxDirective| {
        !is_freshness(field, is_forwarded)
            && !auth_request::is_copied(chain, field.argument(1))
            && values::text(field.argument(1), Within::Field).is_ok()
    };
    chain.all("add_header").into_iter().filter(is_said_here).collect()
}

/// Names of the fields of all blocks.
fn names(http: &[NginxDirective], server: &[NginxDirective], locations: &[ServerLocation<'_>]) -> Vec<String> {
    let blocks = locations.iter().map(|found| found.directive.children());
    let fields = [http, server].into_iter().chain(blocks).flatten().filter(|child| child.name == "add_header");
    let mut names: Vec<String> = Vec::new();
    for field in fields {
        if !names.iter().any(|name| name.eq_ignore_ascii_case(field.first())) {
            names.push(field.first().to_owned());
        }
    }
    names
}

/// Leaves a field as the handler sets it.
fn kept(level: &DirectiveLevel, name: &str) -> KdlNode {
    response_header(level, name, "").word_property("action", "keep")
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::{site, translated};

    /// Issue 23: fields of the server were also those of locations that have others.
    #[test]
    fn a_location_with_fields_drops_those_around_it() {
        let (lines, remarks) = site(
            "add_header X-A 1; add_header X-A 2; location /a/ { add_header X-B $host; } location /b/ { } \
             location ~ \\.css$ { add_header x-a 1; add_header x-a 2; }",
        );
        assert_eq!(
            lines,
            "root \"/srv\"\nresponse-header \"X-A\" \"1\"\nresponse-header \"X-A\" \"2\" action=add\n\
             response-header \"/a/*\" \"X-A\" \"\" action=keep\nresponse-header \"/a/*\" \"X-B\" \"{host}\"\n\
             response-header \"*.css\" \"X-A\" \"1\"\nresponse-header \"*.css\" \"X-A\" \"2\" action=add\n\
             response-header \"*.css\" \"X-B\" \"\" action=keep"
        );
        assert_eq!(remarks, Vec::<String>::new());
    }

    /// Issue 23: uploads of Discourse lost the age of their responses.
    #[test]
    fn upstream_responses_have_age_and_cache_control() {
        let (lines, _) = site("location /a/ { expires 1h; add_header Cache-Control public; proxy_pass http://b:1; }");
        assert!(
            lines.contains(
                "response-header \"/a/*\" \"Cache-Control\" \"max-age=3600\" when=\"status < 400\"\n\
                 response-header \"/a/*\" \"Cache-Control\" \"public\" when=\"status < 400\" action=add"
            ),
            "{lines}"
        );
    }

    #[test]
    fn a_server_with_fields_drops_those_of_all_servers() {
        let (text, _) = translated("http { add_header X-A 1; server { listen 80; add_header X-B 1; root /srv; } }");
        assert!(text.contains("response-header \"X-A\" \"\" action=keep"), "{text}");
    }
}
