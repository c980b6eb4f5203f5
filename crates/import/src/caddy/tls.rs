//! `tls`: certificates of a site.

use super::site::CaddySiteParts;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;

/// Translates `tls`. Returns `true` if the site's certificate comes from files.
pub(super) fn translate(directive: &Directive, site: &mut CaddySiteParts<'_, '_>, notes: &mut Notes) -> bool {
    let mut has_certificate = false;
    match directive.arguments.as_slice() {
        [certificate, key] => {
            site.parts.options.push(KdlNode::with("certificate", certificate).property("key", key));
            has_certificate = true;
        }
        [word] if word == "internal" => site.is_internal = true,
        [address] if address.contains('@') => {
            notes.left(directive, "write it as `contact` into `automatic-certificates`");
        }
        [] => {}
        _ => notes.left(directive, "there is no counterpart"),
    }
    for child in directive.children() {
        match child.name.as_str() {
            "protocols" => {
                if child.first() == "tls1.3" {
                    site.parts.options.push(KdlNode::with("tls-version-min", "1.3"));
                }
            }
            "ciphers"
            | "curves"
            | "alpn"
            | "key_type"
            | "reuse_private_keys"
            | "force_automate"
            | "renewal_window_ratio" => {
                notes.needless(child, "only strong cipher suites and key exchange groups are available");
            }
            "client_auth" => client_certificate(child, site, notes),
            "on_demand" => notes.left(child, "automatic certificates are for the names of `site` blocks"),
            "dns"
            | "resolvers"
            | "propagation_timeout"
            | "propagation_delay"
            | "dns_ttl"
            | "dns_challenge_override_domain" => {
                notes.left(child, "write a `dns-hook` into `automatic-certificates`");
            }
            "issuer" if child.first() == "internal" => site.is_internal = true,
            "issuer" | "ca" | "ca_root" | "eab" | "get_certificate" | "load" => {
                notes.left(child, "see `automatic-certificates`: `directory`, `external-account`");
            }
            _ => notes.left(child, "there is no counterpart"),
        }
    }
    has_certificate
}

fn client_certificate(directive: &Directive, site: &mut CaddySiteParts<'_, '_>, notes: &mut Notes) {
    let mut mode = "required";
    let mut file = None;
    for child in directive.children() {
        match (child.name.as_str(), child.first()) {
            ("mode", "require_and_verify") => mode = "required",
            ("mode", "verify_if_given") => mode = "optional",
            ("mode", other) => {
                let why = format!("certificates of clients are verified: `{other}` has no counterpart");
                return site.parts.close(directive, &[], why, notes);
            }
            ("trusted_ca_cert_file", name) => file = Some(name.to_owned()),
            ("trust_pool", "file") => {
                file = child.arguments.get(1).cloned().or_else(|| {
                    let inner =
                        child.children().iter().find(|inner| inner.name == "pem_file" || inner.name == "pem_files");
                    inner.map(|inner| inner.first().to_owned())
                });
            }
            _ => {
                let why = "the CA of client certificates must be a file: `trust_pool file`";
                return site.parts.close(child, &[], why, notes);
            }
        }
    }
    match file {
        Some(file) => {
            site.parts.options.push(KdlNode::with("client-certificate", mode).property("ca-file", file));
        }
        None => site.parts.close(directive, &[], "the CA of client certificates must be a file", notes),
    }
}
