//! Old names of options and properties. They keep working until 1.0, with a warning; `tailcoat fmt` replaces them.

use super::{OptionContext, OptionSetter, ParameterShape};
use crate::text::kdl::{self, KdlDocument};

/// An option that has got a better-known name.
pub(crate) struct RenamedOption {
    pub(crate) old: &'static str,
    pub(crate) new: &'static str,
}

/// A property of an option that has got a better-known name.
pub(crate) struct RenamedProperty {
    pub(crate) option: &'static str,
    pub(crate) old: &'static str,
    pub(crate) new: &'static str,
}

/// Old names of options, wherever the new name may stand.
pub(crate) static OPTIONS: &[RenamedOption] = &[
    // HAProxy: abortonclose
    RenamedOption { old: "abort-with-client", new: "abort-on-close" },
    // Traefik: forwardedHeaders; HAProxy: option forwarded
    RenamedOption { old: "client-fields", new: "forwarded-headers" },
    // "Field" alone does not say whose.
    RenamedOption { old: "fields-max", new: "header-fields-max" },
    // Caddy: grace_period
    RenamedOption { old: "grace-time", new: "grace-period" },
    RenamedOption { old: "key-fields", new: "key-headers" },
    // nginx: tcp_nodelay
    RenamedOption { old: "no-delay", new: "tcp-nodelay" },
    RenamedOption { old: "processor-time-max", new: "cpu-time-max" },
    RenamedOption { old: "response-fields-max", new: "response-header-fields-max" },
    // nginx: server_tokens
    RenamedOption { old: "server-field", new: "server-tokens" },
    // HAProxy: ca-file
    RenamedOption { old: "tls-authorities", new: "tls-ca-file" },
    // nginx: underscores_in_headers
    RenamedOption { old: "underscore-fields", new: "underscores-in-headers" },
];

/// Old names of properties.
pub(crate) static PROPERTIES: &[RenamedProperty] = &[
    RenamedProperty { option: "client-certificate", old: "authorities", new: "ca-file" },
    RenamedProperty { option: "directory", old: "authority", new: "ca-file" },
];

/// New name of an option.
pub(crate) fn new_option(old: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|renamed| renamed.old == old).map(|renamed| renamed.new)
}

/// New name of a property.
pub(crate) fn new_property(option: &str, old: &str) -> Option<&'static str> {
    PROPERTIES.iter().find(|renamed| renamed.option == option && renamed.old == old).map(|renamed| renamed.new)
}

/// The text with new names in place of old ones. A text that is not KDL stays as it is.
pub(crate) fn with_new_names(text: &str) -> String {
    let Ok(document) = kdl::parse(text) else { return text.to_owned() };
    let mut edits = Vec::new();
    collect_edits(&document, OptionContext::Top, &mut edits);
    // From the end, so that earlier spans stay valid.
    edits.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut text = text.to_owned();
    for (span, new) in edits {
        text.replace_range(span, new);
    }
    text
}

type Edit = (std::ops::Range<usize>, &'static str);

fn collect_edits(document: &KdlDocument, place: OptionContext, edits: &mut Vec<Edit>) {
    for node in &document.nodes {
        let name = node.name.as_str();
        let renamed = place.option(name).is_none().then(|| new_option(name)).flatten();
        let Some(option) = place.option(renamed.unwrap_or(name)) else { continue };
        edits.extend(renamed.map(|new| (node.span.clone(), new)));
        for property in node.entries.iter().filter_map(|entry| entry.name.as_ref()) {
            let is_known = option
                .parameters
                .iter()
                .any(|parameter| parameter.shape == ParameterShape::Property && parameter.name == property.text);
            let new = new_property(option.name, &property.text).filter(|_| !is_known);
            edits.extend(new.map(|new| (property.span.clone(), new)));
        }
        if let (OptionSetter::Block(inner), Some(children)) = (option.set, &node.children) {
            collect_edits(children, inner, edits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parameter, places_of};
    use super::*;

    #[test]
    fn old_names_are_not_in_use_and_new_ones_are() {
        for renamed in OPTIONS {
            assert!(places_of(renamed.old).is_empty(), "`{}` is an option", renamed.old);
            assert!(!places_of(renamed.new).is_empty(), "`{}` is no option", renamed.new);
        }
        for renamed in PROPERTIES {
            let has = |name: &str| {
                let of = |option: &'static super::super::OptionDefinition| option.parameters.iter();
                let named = |parameter: &&'static Parameter| parameter.name == name;
                let place =
                    |place: OptionContext| place.option(renamed.option).into_iter().flat_map(of).any(|one| named(&one));
                OptionContext::ALL.into_iter().any(place)
            };
            assert!(has(renamed.new) && !has(renamed.old), "`{}` of `{}`", renamed.old, renamed.option);
        }
    }

    #[test]
    fn new_names_replace_old_ones_in_their_places_alone() {
        let check = |text: &str, expect: &str| assert_eq!(with_new_names(text), expect, "{text}");
        check("server { no-delay off } // no-delay", "server { tcp-nodelay off } // no-delay");
        check("limits {\n  fields-max 50\n}", "limits {\n  header-fields-max 50\n}");
        check(
            "site \"a\" { forward \"http://a:1\" { \"client-fields\" none; cache { key-fields \"A\" } } }",
            "site \"a\" { forward \"http://a:1\" { forwarded-headers none; cache { key-headers \"A\" } } }",
        );
        check(
            "site \"a\" { client-certificate required authorities=\"a.pem\" }",
            "site \"a\" { client-certificate required ca-file=\"a.pem\" }",
        );
        // Another option of this name, an unknown one, and no KDL.
        check("no-delay off", "no-delay off");
        check("other { no-delay off }", "other { no-delay off }");
        check("server { no-delay off", "server { no-delay off");
    }
}
