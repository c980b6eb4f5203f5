use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Runs a test while names are looked up with `lookup`.
async fn keeping<T>(shared: &Arc<SharedUpstream>, lookup: AddressLookup, test: impl Future<Output = T>) -> T {
    tokio::select! {
        () = keep(vec![Arc::clone(shared)], lookup, Duration::MAX) => panic!("nothing to keep"),
        result = test => result,
    }
}

fn named(port: u16, change: impl FnOnce(&mut config::UpstreamConfig)) -> Rc<Upstream> {
    upstream(&[UpstreamServerAddress::Tcp("app.internal".into(), port)], change)
}

#[test]
fn requests_wait_for_the_first_lookup() {
    on_worker(false, async {
        let (_listener, UpstreamServerAddress::Tcp(_, port)) = listen() else { panic!("TCP") };
        let upstream = named(port, |_| {});
        let lookup: AddressLookup = |name, port| {
            assert_eq!(name, "app.internal");
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        };
        let lease = keeping(&upstream.shared, lookup, lease(&upstream, 0)).await;
        assert_eq!(lease.server_name(), format!("http://app.internal:{port}"));
    });
}

#[test]
fn a_name_that_is_not_found_is_an_error_at_once() {
    on_worker(false, async {
        for lookup in [(|_, _| Err(io::ErrorKind::NotFound.into())) as AddressLookup, |_, _| Ok(Vec::new())] {
            let upstream = named(80, |_| {});
            let error = keeping(&upstream.shared, lookup, acquire(&upstream, Tried::default(), 0)).await.unwrap_err();
            assert_eq!(error, AcquireError::NotResolved);
        }
    });
}

#[test]
fn the_next_address_is_tried_when_one_refuses() {
    on_worker(false, async {
        let (_listener, UpstreamServerAddress::Tcp(_, port)) = listen() else { panic!("TCP") };
        let upstream = named(port, |_| {});
        // No server listens on the first address.
        let lookup: AddressLookup =
            |_, port| Ok([[127, 0, 0, 9], [127, 0, 0, 1]].map(|ip| SocketAddr::from((ip, port))).into());
        keeping(&upstream.shared, lookup, lease(&upstream, 0)).await;
        assert!(!upstream.shared.server(0).is_unsettled(), "that is no failure of the server");
    });
}

/// Count of lookups, which find in turn: nothing, the first address, an error, the second address.
static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn names_are_looked_up_again() {
    static TIMES: Mutex<Vec<tokio::time::Instant>> = Mutex::new(Vec::new());
    on_worker(true, async {
        let upstream = named(80, |upstream| upstream.resolve_interval = Duration::from_secs(30));
        let lookup: AddressLookup = |_, port| {
            TIMES.lock().unwrap().push(tokio::time::Instant::now());
            match LOOKUPS.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(Vec::new()),
                1 => Ok(vec![([10, 0, 0, 1], port).into()]),
                2 => Err(io::ErrorKind::Other.into()),
                _ => Ok(vec![([10, 0, 0, 2], port).into()]),
            }
        };
        let server::UpstreamLocation::Tcp { addresses, .. } = &upstream.shared.server(0).location else {
            panic!("TCP")
        };
        let mut seen = Vec::new();
        keeping(&upstream.shared, lookup, async {
            while LOOKUPS.load(Ordering::Relaxed) < 5 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let found: Vec<_> = addresses.next(tokio::time::Instant::now()).unwrap_or_default();
                let found: Vec<_> = found.iter().map(ToString::to_string).collect();
                if seen.last() != Some(&found) {
                    seen.push(found);
                }
            }
        })
        .await;
        assert_eq!(seen, [vec![], vec!["10.0.0.1:80".to_owned()], vec!["10.0.0.2:80".to_owned()]]);
    });
}

#[test]
fn the_systems_resolver() {
    let found = system_lookup("localhost", 81).unwrap();
    assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback() && address.port() == 81));
    assert!(system_lookup("name.invalid", 80).is_err());
}
