//! Checks of `ftp`.

use std::collections::HashSet;
use std::path::PathBuf;

use super::finding::{ModelFinding, ModelPart, checked_sites};
use crate::model::ftp::{FtpConfig, FtpWriters};
use crate::model::rules::RulesConfig;
use crate::model::*;

/// Notes conflicts of FTP with HTTP, and within `ftp`.
pub(super) fn check(config: &Config, findings: &mut Vec<ModelFinding>) {
    let mut known: HashSet<(&Listen, Option<&HostPattern>)> = HashSet::new();
    for site in checked_sites(config) {
        let Some(ftp) = &site.config.ftp else { continue };
        let part = ModelPart::SiteFtp(site.index);
        if ftp.users.is_some() && !ftp.needs_tls {
            let message = "without TLS, passwords of `users` can be read on the way".to_owned();
            let help = "add `require-tls on`, and a `certificate` to the site".to_owned();
            findings.push(ModelFinding::warning(part, message, "here").help(help));
        }
        if let Some(directory) = unprotected_programs(config, ftp) {
            let verb = if ftp.writers == FtpWriters::Off { "read" } else { "change" };
            let message = format!("FTP clients can {verb} programs in {directory}");
            let help = "serve another directory, or use the `root` of the site that runs them";
            findings.push(ModelFinding::warning(part, message, "here").help(help));
        }
        let mut error = |message: String, help: &str| {
            findings.push(ModelFinding::error(part, message, "here").help(help));
        };
        if !ftp.files.root.is_given() {
            error("`ftp` has no `root`".to_owned(), "add, for example, `root \"/srv/ftp\"` to the site or to `ftp`");
        }
        if ftp.passive_ports.as_ref().is_some_and(|ports| ports.is_empty()) {
            error("the last of `passive-ports` is below the first".to_owned(), "write the lower port first");
        }
        let tls = &site.config.tls;
        if (ftp.needs_tls || !ftp.implicit_listen.is_empty()) && tls.certificates.is_empty() && !tls.is_automatic {
            let help = "add, for example, `certificate \"/etc/ssl/example.com.pem\" key=\"/etc/ssl/example.com.key\"`";
            error("`ftp` needs TLS, but the site has no certificate".to_owned(), help);
        }
        if ftp.writers == FtpWriters::Users && ftp.users.is_none() {
            error("`write \"users\"` without `users`".to_owned(), "add `users \"/etc/tailcoat/ftp.users\"`");
        }
        if ftp.users.is_none() && ftp.anonymous == Some(false) {
            error("no client can log in".to_owned(), "add `users`, or remove `anonymous off`");
        }
        // FTP has no place to ask for these passwords, and no path to select a rule by.
        let has_access = |rules: &RulesConfig| {
            !rules.clients.is_empty()
                || !rules.passwords.is_empty()
                || !rules.forward_auths.is_empty()
                || !rules.internals.is_empty()
        };
        if has_access(&site.config.rules) || has_access(&config.rules) {
            let help =
                "move `ftp` to a site without `allow`, `deny` and `basic-auth`, and use a firewall for addresses";
            error("access rules do not apply to FTP".to_owned(), help);
        }
        let of_http =
            |listen: &Listen| config.sites.iter().any(|other| other.ftp.is_none() && other.listen.contains(listen));
        for listen in &ftp.listen {
            if let Listen::Unix(path, _) = listen {
                let message = format!("FTP needs a TCP address, not unix:{}", path.display());
                error(message, "write a port or `\"ADDRESS:PORT\"`");
            }
            if of_http(listen) || config.server.status_listen.contains(listen) {
                error(format!("{listen} is used for FTP and for HTTP"), "give each its own port");
            }
            let is_implicit = |ftp: &FtpConfig| ftp.implicit_listen.contains(listen);
            let mut others = config.sites.iter().filter_map(|other| other.ftp.as_deref());
            if others.any(|other| other.listen.contains(listen) && is_implicit(other) != is_implicit(ftp)) {
                error(format!("{listen} has `implicit-tls` in one site only"), "give one of them another address");
            }
            let names = site.config.names.iter().map(Some);
            let default = site.config.default.then_some(None);
            for name in names.chain(default) {
                if !known.insert((listen, name)) {
                    let message = match name {
                        Some(name) => format!("`{name}` has two `ftp` on {listen}"),
                        None => format!("two default sites for FTP on {listen}"),
                    };
                    error(message, "give one of them another address");
                }
            }
        }
    }
}

/// Directory of programs that FTP reaches although nothing protects them there. FTP protects the programs of a site only if
/// it serves the same files.
fn unprotected_programs(config: &Config, ftp: &FtpConfig) -> Option<String> {
    let is_same = |route: &RouteConfig| matches!(&route.handler, HandlerConfig::Files(files) if *files == ftp.files);
    let shared = config.sites.iter().position(|site| site.routes.iter().any(is_same));
    let own = fixed_part(&ftp.files.root);
    config.sites.iter().enumerate().find_map(|(index, site)| {
        site.routes.iter().find_map(|route| {
            let HandlerConfig::Gateway(gateway, _) = &route.handler else { return None };
            let root = gateway.root.as_ref()?;
            let is_protected = shared == Some(index) && *root == ftp.files.root;
            let directory = fixed_part(root);
            let overlaps = directory.starts_with(&own) || own.starts_with(&directory);
            (overlaps && !is_protected).then(|| directory.display().to_string())
        })
    })
}

/// Directory that a root has for all hosts.
fn fixed_part(root: &RootPattern) -> PathBuf {
    let mut literal = String::new();
    for piece in &root.pieces {
        match piece {
            RootPiece::Literal(text) => literal.push_str(text),
            RootPiece::Host | RootPiece::HostPrefix(_) => {
                literal.truncate(literal.rfind('/').map_or(0, |slash| slash + 1));
                break;
            }
        }
    }
    PathBuf::from(literal)
}
