//! Lookups of scripts on a real tree.

use std::sync::Arc;

use tokio::runtime::{Builder, LocalOptions};
use wire::h1::{HeadLimits, parse_request_head};
use wire::http::{RequestHead, RequestTarget, path};

use super::script::{ScriptLookup, ScriptTree, Scripts};
use crate::config::{CacheConfig, GatewayConfig, GatewayProtocol, PathPattern, RootPattern, RootPiece};
use crate::handler::{ClientLinkCell, Now, Routed};
use crate::log::LogClient;
use crate::object_cache::ObjectStore;

/// Script and PATH_INFO for a path, with this configuration.
fn find(root: &std::path::Path, target: &str, change: impl FnOnce(&mut GatewayConfig)) -> String {
    let mut config = GatewayConfig::new(GatewayProtocol::FastCgi, PathPattern::Suffix(".php".into()), "x");
    let pieces = vec![RootPiece::Literal(root.to_str().unwrap().into())];
    config.root = Some(RootPattern { pieces, ..RootPattern::default() });
    change(&mut config);
    let config = Arc::new(config);
    let store = ObjectStore::new(CacheConfig::default()).unwrap();
    let scripts = Scripts::new(&ScriptTree::new(&config, &store));
    let input = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut head = RequestHead::default();
    parse_request_head(input.as_bytes(), &mut head, &HeadLimits::default()).unwrap().unwrap();
    let request = wire::http::Request { head: &head, bytes: input.as_bytes() };
    let parsed = RequestTarget::parse(request.target(), head.method).unwrap();
    let mut buffer = Vec::new();
    let routed = Routed {
        request,
        path: path::normalise(parsed.path, &mut buffer).unwrap(),
        query: parsed.query,
        host: b"h",
        client: LogClient::Unix,
        tls: None,
        proxied: None,
        trace: None,
        locations: None,
        link: &ClientLinkCell::default(),
        has_next: false,
        now: Now::read(),
    };
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    match runtime.block_on(scripts.find(&config, &routed)) {
        ScriptLookup::Found(script) => {
            let below = script.file.strip_prefix(root.to_str().unwrap().as_bytes()).unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            format!("{}|{}|{}", text(&script.name), text(&script.path_info), text(below))
        }
        ScriptLookup::Nothing => "nothing".into(),
        ScriptLookup::Rejected(rejection) => format!("{rejection:?}"),
        ScriptLookup::Failed(status) => status.to_string(),
    }
}

#[test]
fn scripts_are_files_below_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("a/b.php")).unwrap();
    for name in ["index.php", "a/index.php", "a/b.php/c.php", "x.jpg"] {
        std::fs::write(root.join(name), "").unwrap();
    }
    std::fs::write(directory.path().join("secret.php"), "").unwrap();
    std::os::unix::fs::symlink("../secret.php", root.join("out.php")).unwrap();
    std::os::unix::fs::symlink("index.php", root.join("in.php")).unwrap();
    for (target, expect) in [
        ("/index.php", "/index.php||/index.php"),
        ("/index.php/x", "/index.php|/x|/index.php"),
        ("/", "/index.php||/index.php"),
        ("/a/", "/a/index.php||/a/index.php"),
        ("/a", "nothing"),
        ("/a/b.php/c.php/d.php", "/a/b.php/c.php|/d.php|/a/b.php/c.php"),
        ("/a/b.php", "nothing"),
        ("/x.jpg/y.php", "nothing"),
        ("/x.jpg/index.php", "nothing"),
        ("/x.jpg", "nothing"),
        ("/in.php", "/in.php||/in.php"),
        ("/out.php", "Forbidden"),
        ("/out.php/x", "Forbidden"),
        ("/missing.php/index.php", "nothing"),
    ] {
        assert_eq!(find(&root, target, |_| {}), expect, "{target}");
    }
    let prefixed = |target: &str| find(&root, target, |config| config.strip_prefix = "/wiki".into());
    assert_eq!(prefixed("/wiki/index.php/x"), "/wiki/index.php|/x|/index.php");
    assert_eq!(prefixed("/wiki/"), "/wiki/index.php||/index.php");
    assert_eq!(prefixed("/index.php"), "nothing");
    assert_eq!(prefixed("/wikiindex.php"), "nothing");
    let whole = |target: &str| find(&root, target, |config| config.has_path_info = false);
    assert_eq!(whole("/index.php"), "/index.php||/index.php");
    assert_eq!(whole("/a/b.php/c.php"), "/a/b.php/c.php||/a/b.php/c.php");
    assert_eq!(whole("/a/"), "/a/index.php||/a/index.php");
    assert_eq!(whole("/index.php/x"), "nothing");
    let some = |target: &str| find(&root, target, |config| config.scripts = PathPattern::Exact("/index.php".into()));
    assert_eq!((&some("/")[..], &some("/a/")[..]), ("/index.php||/index.php", "nothing"));
}
