//! Differences between two configurations, for the report of a reload.

use std::collections::HashMap;

use crate::config::{Config, SiteConfig, UpstreamConfig};

/// Names that are listed for each kind of change; further ones are counted.
const NAMES_MAX: usize = 5;

/// Text about the differences, such as `site a.example changed; limits changed`.
pub(super) fn differences(before: &Config, after: &Config) -> String {
    let mut found = of_named("site", &sites(before), &sites(after));
    found.extend(of_named("upstream", &upstreams(before), &upstreams(after)));
    let parts = [
        ("rules of all sites", before.rules != after.rules),
        ("access log of all sites", before.access_log != after.access_log),
        ("server", before.server != after.server),
        ("limits", before.limits != after.limits),
        ("cache", before.cache != after.cache),
        ("modules", before.modules != after.modules),
        ("automatic certificates", before.automatic_certificates != after.automatic_certificates),
        ("traces", before.traces != after.traces),
        ("maps", before.maps != after.maps),
        ("secrets", before.secrets != after.secrets),
        ("confinement", before.confinement != after.confinement),
    ];
    found.extend(parts.iter().filter(|(_, is_changed)| *is_changed).map(|(part, _)| format!("{part} changed")));
    if found.is_empty() { "nothing changed".to_owned() } else { found.join("; ") }
}

/// Sites by name; several may have the same, on other addresses.
fn sites(config: &Config) -> HashMap<String, Vec<&SiteConfig>> {
    let mut sites: HashMap<String, Vec<&SiteConfig>> = HashMap::new();
    for site in &config.sites {
        sites.entry(site.label()).or_default().push(site);
    }
    sites
}

fn upstreams(config: &Config) -> HashMap<String, &UpstreamConfig> {
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), &**upstream)).collect()
}

fn of_named<T: PartialEq>(kind: &str, before: &HashMap<String, T>, after: &HashMap<String, T>) -> Vec<String> {
    let names = |of: &HashMap<String, T>, is_wanted: &dyn Fn(&String, &T) -> bool| -> Vec<String> {
        let mut names: Vec<_> =
            of.iter().filter(|(name, value)| is_wanted(name, value)).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    };
    let changes = [
        ("added", names(after, &|name, _| !before.contains_key(name))),
        ("changed", names(after, &|name, value| before.get(name).is_some_and(|other| other != value))),
        ("removed", names(before, &|name, _| !after.contains_key(name))),
    ];
    let text = |(change, names): (&str, Vec<String>)| {
        let listed = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = names.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| format!("{kind} {listed}{more} {change}"))
    };
    changes.into_iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::check_bytes;

    fn config(text: &str) -> Config {
        check_bytes("t.kdl", text.as_bytes().to_vec(), Path::new("/")).config.unwrap()
    }

    #[test]
    fn changes_have_names() {
        let site =
            |name: &str, status: u16| format!("site {name} {{ listen \"127.0.0.1:1\"; respond \"*\" {status} }}\n");
        let check = |before: &str, after: &str, expect: &str| {
            assert_eq!(differences(&config(before), &config(after)), expect, "{before}{after}");
        };
        let (first, second) = (site("a.example", 200), site("a.example", 201));
        check(&first, &first, "nothing changed");
        check(&first, &second, "site a.example changed");
        check(&first, &(first.clone() + &site("b.example", 200)), "site b.example added");
        check(&first, &site("b.example", 200), "site b.example added; site a.example removed");
        check(&first, &(second + "limits { idle-timeout \"5s\" }"), "site a.example changed; limits changed");
        let many: String = (0..8).map(|index| site(&format!("s{index}.example"), 200)).collect();
        let expect = "site s0.example, s1.example, s2.example, s3.example, s4.example and 3 more added; \
                      site a.example removed";
        check(&first, &many, expect);
    }
}
