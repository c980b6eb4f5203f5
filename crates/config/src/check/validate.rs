//! Checks of a configuration that no text says, such as that of `tailcoat serve`.

use std::path::Path;
use std::sync::Arc;

use super::blocks::Blocks;
use super::rules::RulesDraft;
use super::{cross_check, protocol_faults, protocols_of_upstreams, upstream_faults};
use crate::diagnostic::{ConfigSource, Diagnostics, Severity};
use crate::model::{Config, HandlerConfig, SiteConfig, UpstreamConfig};
use crate::read::ConfigReader;
use crate::read::draft::{ConfigDraft, SiteDraft, UpstreamDraft};

impl Config {
    /// Checks the whole as that of a file: conflicts between sites, and settings that cannot work together.
    ///
    /// # Errors
    ///
    /// Errors for people, one in a line.
    pub fn validate(&self) -> Result<(), String> {
        let source =
            Arc::new(ConfigSource { name: String::new(), text: String::new(), directory: Path::new("/").to_owned() });
        let mut draft = ConfigDraft::default();
        draft.server = self.server.clone();
        draft.limits = self.limits.clone();
        draft.automatic_certificates = self.automatic_certificates.clone();
        draft.rules = RulesDraft::of(&self.rules, &source);
        draft.sites = self.sites.iter().map(|site| site_draft(site, &source)).collect();
        draft.upstreams.extend(self.upstreams.iter().map(|upstream| UpstreamDraft {
            source: source.clone(),
            span: 0..0,
            is_whole: true,
            upstream: upstream.clone(),
        }));
        let mut diagnostics = Diagnostics::default();
        let blocks = Blocks {
            server: &self.server,
            limits: &self.limits,
            automatic: &self.automatic_certificates,
            traces: self.traces.as_ref(),
            store: self.store.as_ref(),
        };
        for finding in Blocks::CHECKED.into_iter().flat_map(|block| blocks.faults(block, &(0..0))) {
            ConfigReader { source: source.clone(), diagnostics: &mut diagnostics }.error(finding);
        }
        cross_check(&draft, &mut diagnostics);
        let errors = diagnostics.iter().filter(|found| found.severity == Severity::Error).map(|found| {
            let help = found.help.as_ref().map_or(String::new(), |help| format!("; {help}"));
            format!("{}{help}", found.message)
        });
        let errors: Vec<_> = self.unknown_upstreams().chain(errors).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }

    /// Checks an upstream that replaces the one of its name, as [`Self::validate`] would check the whole with it. Looks
    /// only at parts that the upstream can contradict; reads no file.
    ///
    /// # Errors
    ///
    /// Errors for people, one in a line.
    pub fn validate_upstream(&self, upstream: &UpstreamConfig) -> Result<(), String> {
        let rules = self.sites.iter().map(|site| &site.rules).chain([&self.rules]);
        let protocols = protocols_of_upstreams(self.sites.iter(), rules);
        let of_protocols = protocols.get(upstream.name.as_str()).map(|used| protocol_faults(upstream, used));
        let faults = upstream_faults(upstream).into_iter().map(|(message, help)| (message.to_owned(), help));
        let faults = faults.chain(of_protocols.unwrap_or_default());
        let errors: Vec<_> = faults.map(|(message, help)| format!("{message}; {help}")).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }

    /// Upstreams that a handler names and the configuration lacks.
    fn unknown_upstreams(&self) -> impl Iterator<Item = String> {
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        let names = routes.flat_map(|route| match &route.handler {
            HandlerConfig::Forward(forward) => forward.targets().collect(),
            HandlerConfig::Gateway(gateway, _) if !gateway.forward.upstream.is_empty() => {
                vec![&gateway.forward.upstream]
            }
            HandlerConfig::Gateway(..)
            | HandlerConfig::Files(_)
            | HandlerConfig::Respond(_)
            | HandlerConfig::Module(_)
            | HandlerConfig::Status(_) => Vec::new(),
        });
        let rules = self.sites.iter().map(|site| &site.rules).chain([&self.rules]);
        let names = names.chain(rules.flat_map(|rules| rules.auth_upstreams()));
        let is_unknown = |name: &&String| !self.upstreams.iter().any(|upstream| upstream.name == **name);
        names.filter(is_unknown).map(|name| format!("there is no upstream `{name}`"))
    }
}

/// A site with an empty place for each part.
fn site_draft(site: &SiteConfig, source: &Arc<ConfigSource>) -> SiteDraft {
    let mut draft = SiteDraft::new(source, 0..0, site.clone());
    draft.name_spans = vec![0..0; site.names.len()];
    draft.route_spans = vec![0..0; site.routes.len()];
    draft.error_page_spans = vec![0..0; site.error_pages.len()];
    draft.certificate_spans = vec![0..0; site.tls.certificates.len()];
    draft.rules = RulesDraft::of(&site.rules, source);
    if let Some(ftp) = &site.ftp {
        draft.ftp = Some((ftp.as_ref().clone(), Vec::new(), 0..0));
        // In a draft, these addresses are those of HTTP.
        draft.site.listen.clear();
        draft.site.tls_listen.clear();
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_bytes;

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
            changed.upstreams[index].servers = crate::servers_from_texts(&texts).unwrap();
            assert_eq!(config.validate_upstream(&changed.upstreams[index]), changed.validate(), "{servers:?}");
        }
    }

    #[test]
    fn what_a_file_may_not_say_is_rejected() {
        let check = |change: fn(&mut Config), expect: &str| {
            let mut config = config(
                "upstream \"app\" { server \"http://127.0.0.1:1\" }\n\
                 site a { listen 81; forward \"app\" }\nsite b { listen 81; root \"/\" }",
            );
            change(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.starts_with(expect), "{error}");
        };
        check(|config| config.sites[1].names = config.sites[0].names.clone(), "`a` is named twice on the same address");
        check(|config| config.sites.iter_mut().for_each(|site| site.default = true), "two default sites on");
        check(|config| config.upstreams.clear(), "there is no upstream `app`");
        check(|config| config.limits.target_bytes_max = usize::MAX, "`target-bytes-max` is above `head-bytes-max`");
        check(|config| config.server.status_listen = config.sites[0].listen.clone(), "0.0.0.0:81 can be reached from");
        check(|config| config.automatic_certificates.directory = "ftp://a".into(), "`ftp://a` is not the URL of");
        check(
            |config| config.traces = Some(crate::Traces { queue_spans_max: 1, ..crate::Traces::default() }),
            "`batch-spans-max` is above `queue-spans-max`",
        );
        check(|config| config.upstreams[0].servers.clear(), "this upstream has no server");
        check(|config| config.sites[0].tls_listen = config.sites[0].listen.clone(), "0.0.0.0:81 is given both with");
        check(|config| config.sites[0].proxied_listen = config.sites[0].listen.clone(), "`proxy-protocol` without");
        check(
            |config| {
                let listen = config.sites[0].listen[0].clone();
                config.sites[0].listen.push(listen);
            },
            "this site listens twice on",
        );
    }
}
