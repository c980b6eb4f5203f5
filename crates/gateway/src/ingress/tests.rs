//! Tables of annotations.

use std::collections::BTreeSet;

use routes::{Filter, PathMatch, PathRewrite};
use serde_json::{Value, json};

use super::convert::{Converted, convert};
use super::import::import;
use super::table::{ANNOTATIONS, AnnotationOutcome, outcome};
use crate::objects::{Kind, Objects};

fn ingress(name: &str, path: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), json!(value))).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"rules": [{"host": "shop.example", "http": {"paths": [
            {"path": path, "pathType": "Prefix", "backend": {"service": {"name": name, "port": {"number": 80}}}},
        ]}}]},
    })
}

fn converted(all: &[Value]) -> Converted {
    let mut objects = Objects::default();
    for value in all {
        objects.insert(Kind::Ingress, value.clone()).unwrap();
    }
    let all: Vec<_> = objects.ingresses.values().collect();
    convert(&all)
}

#[test]
fn the_table_is_sorted_and_says_why() {
    let names: Vec<&str> = ANNOTATIONS.iter().map(|(name, ..)| *name).collect();
    let sorted: Vec<&str> = names.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(names, sorted);
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    for (name, of, note) in ANNOTATIONS {
        assert_eq!(note.is_empty(), *of == AnnotationOutcome::Kept, "{name}");
        let row = format!("| `{name}` | {} | {note} |\n", format!("{of:?}").to_lowercase());
        assert!(manual.contains(&row), "docs/kubernetes.md lacks {row}");
    }
    assert_eq!(
        manual.matches(" | kept |").count()
            + manual.matches(" | differs |").count()
            + manual.matches(" | ignored |").count()
            + manual.matches(" | rejected |").count(),
        ANNOTATIONS.len()
    );
}

/// Each annotation that is kept changes the rules, and each that rejects closes them.
#[test]
fn annotations_do_what_the_table_says() {
    // Values for annotations, and others that they need.
    let of = |name: &str| -> Vec<(&'static str, &'static str)> {
        match name {
            "affinity" => vec![("affinity", "cookie")],
            "allowlist-source-range" => vec![("allowlist-source-range", "10.0.0.0/8")],
            "app-root" => vec![("app-root", "/app")],
            "auth-response-headers" => {
                vec![("auth-url", "http://auth.shop.svc/check"), ("auth-response-headers", "X-User")]
            }
            "auth-signin" => {
                vec![("auth-url", "http://auth.shop.svc/check"), ("auth-signin", "https://login.example/")]
            }
            "cors-allow-credentials" => vec![("enable-cors", "true"), ("cors-allow-credentials", "false")],
            "cors-allow-headers" => vec![("enable-cors", "true"), ("cors-allow-headers", "X-A")],
            "cors-allow-methods" => vec![("enable-cors", "true"), ("cors-allow-methods", "GET")],
            "cors-allow-origin" => vec![("enable-cors", "true"), ("cors-allow-origin", "https://a.example")],
            "cors-expose-headers" => vec![("enable-cors", "true"), ("cors-expose-headers", "X-A")],
            "cors-max-age" => vec![("enable-cors", "true"), ("cors-max-age", "5")],
            "denylist-source-range" => vec![("denylist-source-range", "10.0.0.0/8")],
            "enable-cors" => vec![("enable-cors", "true")],
            "force-ssl-redirect" => vec![("force-ssl-redirect", "true")],
            "from-to-www-redirect" => vec![("from-to-www-redirect", "true")],
            "grpc-backend" => vec![("grpc-backend", "true")],
            "limit-burst-multiplier" => vec![("limit-rps", "5"), ("limit-burst-multiplier", "2")],
            "limit-rpm" => vec![("limit-rpm", "5")],
            "limit-rps" => vec![("limit-rps", "5")],
            "permanent-redirect" => vec![("permanent-redirect", "https://a.example/b")],
            "permanent-redirect-code" => {
                vec![("permanent-redirect", "https://a.example/b"), ("permanent-redirect-code", "308")]
            }
            "proxy-body-size" => vec![("proxy-body-size", "8m")],
            "proxy-buffer-size" => vec![("proxy-buffer-size", "8k")],
            "proxy-buffering" => vec![("proxy-buffering", "on")],
            "proxy-connect-timeout" => vec![("proxy-connect-timeout", "5")],
            "proxy-max-temp-file-size" => vec![("proxy-max-temp-file-size", "8m")],
            "proxy-next-upstream-tries" => {
                vec![("proxy-next-upstream", "error http_502"), ("proxy-next-upstream-tries", "2")]
            }
            "proxy-read-timeout" => vec![("proxy-read-timeout", "5")],
            "proxy-redirect-from" | "proxy-redirect-to" => {
                vec![("proxy-redirect-from", "/a"), ("proxy-redirect-to", "/b")]
            }
            "proxy-request-buffering" => vec![("proxy-request-buffering", "off")],
            "proxy-ssl-name" => vec![("backend-protocol", "HTTPS"), ("proxy-ssl-name", "a.example")],
            "proxy-ssl-secret" => vec![("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "shop/ca")],
            "proxy-ssl-verify" => vec![("backend-protocol", "HTTPS"), ("proxy-ssl-verify", "on")],
            "rewrite-target" => vec![("rewrite-target", "/$1")],
            "secure-backends" => vec![("secure-backends", "true")],
            "server-alias" => vec![("server-alias", "b.example")],
            "session-cookie-expires" => vec![("affinity", "cookie"), ("session-cookie-expires", "60")],
            "session-cookie-max-age" => vec![("affinity", "cookie"), ("session-cookie-max-age", "60")],
            "session-cookie-name" => vec![("affinity", "cookie"), ("session-cookie-name", "SID")],
            "session-cookie-path" => vec![("affinity", "cookie"), ("session-cookie-path", "/a")],
            "temporal-redirect" => vec![("temporal-redirect", "https://a.example/b")],
            "temporal-redirect-code" => {
                vec![("temporal-redirect", "https://a.example/b"), ("temporal-redirect-code", "307")]
            }
            "upstream-vhost" => vec![("upstream-vhost", "b.example")],
            "use-regex" => vec![("use-regex", "true")],
            "whitelist-source-range" => vec![("whitelist-source-range", "10.0.0.0/8")],
            "x-forwarded-prefix" => vec![("x-forwarded-prefix", "/a")],
            _ => Vec::new(),
        }
    };
    // Annotations that need a second Ingress, or TLS; tests below hold them.
    let elsewhere = [
        "canary",
        "canary-by-cookie",
        "canary-by-header",
        "canary-by-header-value",
        "canary-weight",
        "canary-weight-total",
        "ssl-redirect",
    ];
    for (name, outcome, _) in ANNOTATIONS {
        match outcome {
            AnnotationOutcome::Kept if !elsewhere.contains(name) => {
                let with = of(name);
                assert!(!with.is_empty(), "{name} has no case");
                let without: Vec<_> = with[..with.len() - 1].to_vec();
                let with = converted(&[ingress("a", "/", &with)]);
                let without = converted(&[ingress("a", "/", &without)]);
                assert_ne!(format!("{:?}", with.hosts), format!("{:?}", without.hosts), "{name} changes nothing");
                assert!(
                    with.hosts.values().flat_map(|host| &host.rules).all(|rule| rule.rule.error.is_none()),
                    "{name}"
                );
            }
            AnnotationOutcome::Rejected => {
                let with = converted(&[ingress("a", "/", &[(name, "x")])]);
                assert!(
                    with.hosts.values().flat_map(|host| &host.rules).all(|rule| rule.rule.error.is_some()),
                    "{name}"
                );
            }
            _ => {}
        }
        if *outcome != AnnotationOutcome::Kept {
            let with = converted(&[ingress("a", "/", &[(name, "x")])]);
            assert!(with.remarks.iter().any(|remark| remark.annotation == *name), "{name} has no remark");
        }
    }
    assert_eq!(outcome("no-such-annotation"), None);
    let unknown = converted(&[ingress("a", "/", &[("no-such-annotation", "x")])]);
    assert_eq!(unknown.remarks[0].outcome, AnnotationOutcome::Ignored);
}

/// An expression in one Ingress makes the paths of all Ingresses of its host expressions, without case.
#[test]
fn expressions_spread_over_a_host() {
    let both = converted(&[ingress("a", "/a/(.*)", &[("rewrite-target", "/$1")]), ingress("b", "/B", &[])]);
    let host = &both.hosts[&Some("shop.example".to_owned())];
    let paths: Vec<_> = host.rules.iter().map(|rule| rule.rule.matches[0].path.clone().unwrap()).collect();
    assert_eq!(paths, ["(?i)(?:/a/(.*)).*", "(?i)(?:/B).*"].map(|it| PathMatch::Regex(it.to_owned())));
    let Filter::Rewrite(rewrite) = &host.rules[0].rule.filters[0] else { panic!("{host:?}") };
    assert_eq!(rewrite.path, Some(PathRewrite::Groups("/$1".to_owned())));
    let alone = converted(&[ingress("b", "/B", &[])]);
    let rule = &alone.hosts[&Some("shop.example".to_owned())].rules[0];
    assert_eq!(rule.rule.matches[0].path, Some(PathMatch::Prefix("/B".to_owned())));
    let wrong = converted(&[ingress("a", "/(", &[("use-regex", "true")])]);
    assert!(wrong.hosts[&Some("shop.example".to_owned())].rules.is_empty());
    assert_eq!(wrong.remarks[0].outcome, AnnotationOutcome::Rejected);
}

#[test]
fn canaries() {
    let main = ingress("main", "/", &[]);
    let shares = |annotations: &[(&str, &str)]| {
        let mut all = vec![("canary", "true")];
        all.extend(annotations);
        let both = converted(&[main.clone(), ingress("next", "/", &all)]);
        let host = &both.hosts[&Some("shop.example".to_owned())];
        let of = |rule: &super::convert::IngressRule| {
            let shares = rule.backends.iter().map(|share| format!("{}={}", share.service.name, share.weight));
            let headers = rule.rule.matches[0].headers.iter().map(|it| format!("[{} {:?}]", it.name, it.value));
            headers.chain(shares).collect::<Vec<_>>().join(" ")
        };
        host.rules.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(shares(&[("canary-weight", "30")]), ["main=70 next=30"]);
    assert_eq!(shares(&[("canary-weight", "30"), ("canary-weight-total", "60")]), ["main=30 next=30"]);
    assert_eq!(
        shares(&[("canary-by-header", "X-Next")]),
        ["main=100 next=0", "[X-Next Exact(\"always\")] next=1", "[X-Next Exact(\"never\")] main=100"]
    );
    assert_eq!(
        shares(&[("canary-by-header", "X-Next"), ("canary-by-header-value", "yes")]),
        ["main=100 next=0", "[X-Next Exact(\"yes\")] next=1"]
    );
    assert_eq!(shares(&[("canary-by-cookie", "next")]).len(), 3);
    // Without the Ingress that it changes, a canary has no requests.
    let alone = converted(&[ingress("next", "/", &[("canary", "true")])]);
    assert!(alone.hosts.is_empty());
}

#[test]
fn redirects_to_tls() {
    let with_tls = |annotations: &[(&str, &str)]| {
        let mut value = ingress("a", "/", annotations);
        value["spec"]["tls"] = json!([{"hosts": ["shop.example"], "secretName": "cert"}]);
        let all = converted(&[value]);
        let host = &all.hosts[&Some("shop.example".to_owned())];
        (host.redirects_to_tls, host.secret.as_ref().map(|secret| secret.name.clone()))
    };
    assert_eq!(with_tls(&[]), (true, Some("cert".to_owned())));
    assert!(!with_tls(&[("ssl-redirect", "false")]).0);
}

#[test]
fn imported_resources() {
    let mut with_tls = ingress("web", "/cart", &[("limit-rps", "5"), ("configuration-snippet", "more_set_headers x;")]);
    with_tls["spec"]["tls"] = json!([{"hosts": ["shop.example"], "secretName": "cert"}]);
    let text = json!({"kind": "List", "items": [with_tls]}).to_string();
    let imported = import(&text, "tailcoat").unwrap();
    for expect in [
        "kind: Gateway\n",
        "kind: HTTPRoute\n",
        "kind: TrafficPolicy\n",
        "value: \"/cart\"",
        "name: cert",
        "sectionName: https-shop-example",
    ] {
        assert!(imported.text.contains(expect), "{expect} is not in\n{}", imported.text);
    }
    assert!(imported.remarks.iter().any(|remark| remark.starts_with("shop/web: configuration-snippet: ignored: ")));
    // The printed resources are read again without a problem.
    let mut objects = Objects::default();
    assert_eq!(objects.read_manifests(&imported.text).unwrap(), Vec::<String>::new());
    assert_eq!((objects.gateways.len(), objects.http_routes.len(), objects.traffic_policies.len()), (1, 2, 1));
    for wrong in ["", "a: [", "kind: Service"] {
        assert!(import(wrong, "tailcoat").is_err(), "{wrong}");
    }
}
