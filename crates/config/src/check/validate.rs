//! Checks of a configuration that no text says, such as that of `tailcoat serve`.

use super::finding::Soundness;
use super::{all_rules, check, protocol_faults, protocols_of_upstreams, upstream_faults};
use crate::diagnostic::Severity;
use crate::model::{Config, UpstreamConfig};

impl Config {
    /// Checks the whole as that of a file: conflicts between sites, and settings that cannot work together.
    ///
    /// # Errors
    ///
    /// Errors for people, one in a line.
    pub fn validate(&self) -> Result<(), String> {
        let found = check(self, &Soundness::default());
        let errors = found.into_iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|finding| finding.to_string()).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }

    /// Checks an upstream that replaces the one of its name, as [`Self::validate`] would check the whole with it. Looks
    /// only at parts that the upstream can contradict; reads no file.
    ///
    /// # Errors
    ///
    /// Errors for people, one in a line.
    pub fn validate_upstream(&self, upstream: &UpstreamConfig) -> Result<(), String> {
        let protocols = protocols_of_upstreams(self.sites.iter().map(|site| &**site), all_rules(self));
        let of_protocols = protocols.get(upstream.name.as_str()).map(|used| protocol_faults(upstream, used));
        let faults = upstream_faults(upstream).into_iter().map(|(message, help)| (message.to_owned(), help));
        let faults = faults.chain(of_protocols.unwrap_or_default());
        let errors: Vec<_> = faults.map(|(message, help)| format!("{message}; {help}")).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::check_bytes;
    use crate::model::{HostPattern, PathPattern, SiteConfig};

    fn config(text: &str) -> Config {
        let checked = check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/"));
        checked.config.unwrap_or_else(|| panic!("{text}: {}", checked.diagnostics.to_text(false)))
    }

    #[test]
    fn what_a_file_may_say_is_valid() {
        for text in [
            "site { root \"/\" }",
            "site { root \"/\"; forward \"http://127.0.0.1:1\" }",
            "site a { listen 81; root \"/\"; ftp 21 }\nsite b { ftp 2121 { root \"/\" } }",
            "upstream \"app\" { server \"http://127.0.0.1:1\" }\nsite a { forward \"app\" }\nsite b { forward \"app\" }",
            "server { status-listen \"127.0.0.1:9180\" }\nsite a { root \"/\"; allow \"10.0.0.0/8\"; deny all }",
            "site a { fastcgi \"*.php\" \"unix:/run/php.sock\" root=\"/\" { fallback \"/index.php\" } }",
        ] {
            assert_eq!(config(text).validate(), Ok(()), "{text}");
        }
    }

    #[test]
    fn an_upstream_is_checked_as_the_whole_with_it() {
        let config = config(
            "upstream \"app\" { server \"http://127.0.0.1:1\" }\nupstream \"php\" { server \"tcp://127.0.0.1:1\" }\n\
             site a { listen 81; forward \"app\"; fastcgi \"*.php\" \"php\" root=\"/\" }",
        );
        for (index, servers) in [
            (0, &["http://127.0.0.1:2", "http://127.0.0.1:3 weight=2"][..]),
            (0, &["tcp://127.0.0.1:2"]),
            (0, &["http://127.0.0.1:2 backup=on"]),
            (0, &[]),
            (1, &["tcp://127.0.0.1:2"]),
            (1, &["http://127.0.0.1:2"]),
        ] {
            let texts: Vec<String> = servers.iter().map(|text| (*text).to_owned()).collect();
            let mut changed = config.clone();
            Arc::make_mut(&mut changed.upstreams[index]).servers = crate::servers_from_texts(&texts).unwrap();
            assert_eq!(config.validate_upstream(&changed.upstreams[index]), changed.validate(), "{servers:?}");
        }
    }

    #[test]
    fn what_a_file_may_not_say_is_rejected() {
        fn site(config: &mut Config, index: usize) -> &mut SiteConfig {
            Arc::make_mut(&mut config.sites[index])
        }
        let check = |change: fn(&mut Config), expect: &str| {
            let mut config = config(
                "upstream \"app\" { server \"http://127.0.0.1:1\" }\n\
                 site a { listen 81; forward \"app\" }\nsite b { listen 81; root \"/\" }",
            );
            change(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.starts_with(expect), "{error}");
        };
        check(|config| site(config, 1).names = config.sites[0].names.clone(), "`a` is named twice on the same address");
        check(|config| (0..2).for_each(|index| site(config, index).default = true), "two default sites on");
        check(|config| config.upstreams.clear(), "there is no upstream `app`");
        check(|config| config.limits.target_bytes_max = usize::MAX, "`target-bytes-max` is above `head-bytes-max`");
        check(|config| config.server.status_listen = config.sites[0].listen.clone(), "0.0.0.0:81 can be reached from");
        check(|config| config.automatic_certificates.directory = "ftp://a".into(), "`ftp://a` is not the URL of");
        check(
            |config| config.traces = Some(crate::Traces { queue_spans_max: 1, ..crate::Traces::default() }),
            "`batch-spans-max` is above `queue-spans-max`",
        );
        check(|config| Arc::make_mut(&mut config.upstreams[0]).servers.clear(), "this upstream has no server");
        check(
            |config| config.rules.canonical_host = Some(HostPattern::Suffix("example.com".into())),
            "`canonical-host` needs one host",
        );
        // A redirect that leads to itself, of a site and of all sites.
        let rules = config("site { listen 80; redirect \"/a\" \"/b\"; root \"/\" }").sites[0].rules.clone();
        for of_all in [true, false] {
            let mut changed = config("site { listen 80; root \"/\" }");
            let rules_of = if of_all { &mut changed.rules } else { &mut site(&mut changed, 0).rules };
            *rules_of = rules.clone();
            rules_of.rewrites[0].path = PathPattern::Exact("/b".into());
            let error = changed.validate().unwrap_err();
            assert!(error.starts_with("this redirect leads to itself; give it another target"), "{of_all}: {error}");
        }
        check(|config| site(config, 0).tls_listen = config.sites[0].listen.clone(), "0.0.0.0:81 is given both with");
        check(|config| site(config, 0).proxied_listen = config.sites[0].listen.clone(), "`proxy-protocol` without");
        check(
            |config| {
                let listen = config.sites[0].listen[0].clone();
                site(config, 0).listen.push(listen);
            },
            "this site listens twice on",
        );
    }
}
