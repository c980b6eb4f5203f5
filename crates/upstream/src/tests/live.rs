//! Servers that are replaced while requests are in progress.

use super::*;

fn servers(addresses: &[&UpstreamServerAddress]) -> Vec<UpstreamServer> {
    let server =
        |address: &&UpstreamServerAddress| UpstreamServer { address: (*address).clone(), weight: 1, backup: false };
    addresses.iter().map(server).collect()
}

#[test]
fn requests_go_to_the_new_servers_and_those_in_progress_end_where_they_are() {
    on_worker(false, async {
        let ((old, old_address), (_new, new_address)) = (listen(), listen());
        let upstream = upstream(std::slice::from_ref(&old_address), |_| {});
        let mut first = lease(&upstream, 0).await;
        let (mut server, _) = old.accept().unwrap();
        upstream.shared.set_servers(&servers(&[&new_address])).unwrap();
        let second = lease(&upstream, 0).await;
        assert_eq!(second.server_name(), new_address.to_string());
        send(&mut first, &mut server, b"still here").await;
        first.finish(Ending::Reusable, 0);
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 0, "a connection to a removed server is not kept");
        second.finish(Ending::Reusable, 0);
        assert!(lease(&upstream, 0).await.is_reused());
    });
}

#[test]
fn a_server_that_stays_keeps_its_connections_and_state() {
    on_worker(false, async {
        let ((_stays, stays), (_other, other)) = (listen(), listen());
        let upstream = upstream(std::slice::from_ref(&stays), |upstream| upstream.fail_max = 1);
        lease(&upstream, 0).await.finish(Ending::Reusable, 0);
        let in_progress = lease(&upstream, 0).await;
        assert!(in_progress.is_reused());
        let before = upstream.shared.server(0);
        upstream.shared.set_drained(&stays.to_string(), true).unwrap();
        upstream.shared.set_servers(&servers(&[&other, &stays])).unwrap();
        assert!(Arc::ptr_eq(&before, &upstream.shared.server(1)));
        assert!(before.is_drained() && before.in_use() == 1);
        in_progress.finish(Ending::Reusable, 0);
        assert_eq!((before.in_use(), upstream.idle()), (0, 1));
        upstream.shared.set_drained(&stays.to_string(), false).unwrap();
        upstream.shared.set_servers(&servers(&[&stays])).unwrap();
        assert!(lease(&upstream, 0).await.is_reused());
    });
}

#[test]
fn a_server_that_returns_still_counts_its_requests() {
    on_worker(false, async {
        let ((_one, one), (_other, other)) = (listen(), listen());
        let upstream = upstream(std::slice::from_ref(&one), |upstream| upstream.connections_max = 1);
        let in_progress = lease(&upstream, 0).await;
        upstream.shared.set_servers(&servers(&[&other])).unwrap();
        upstream.shared.set_servers(&servers(&[&one])).unwrap();
        assert_eq!(upstream.shared.server(0).in_use(), 1);
        in_progress.finish(Ending::Close, 0);
        assert_eq!(upstream.shared.server(0).in_use(), 0);
    });
}

#[test]
fn a_request_that_waits_gets_a_new_server() {
    on_worker(true, async {
        let ((_one, one), (_other, other)) = (listen(), listen());
        let upstream = upstream(std::slice::from_ref(&one), |upstream| upstream.connections_max = 1);
        let busy = lease(&upstream, 0).await;
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let upstream = Rc::clone(&upstream);
                tokio::task::spawn_local(async move {
                    let lease = lease(&upstream, 0).await;
                    let name = lease.server_name().to_owned();
                    lease.finish(Ending::Reusable, 0);
                    name
                })
            })
            .collect();
        turn().await;
        upstream.shared.set_servers(&servers(&[&one, &other])).unwrap();
        for task in waiting {
            assert_eq!(task.await.unwrap(), other.to_string());
        }
        drop(busy);
    });
}

#[test]
fn turns_go_on_over_changes() {
    on_worker(false, async {
        let listeners: Vec<_> = (0..3).map(|_| listen()).collect();
        let [a, b, c] = [0, 1, 2].map(|index: usize| &listeners[index].1);
        let upstream = upstream(&[a.clone(), b.clone()], |upstream| {
            upstream.balance = config::Balance::RoundRobin;
            upstream.idle_max = 0;
        });
        let mut counts = [0_u32; 3];
        for round in 0..60 {
            // The list changes before each request, and yet no server gets two requests more than another.
            let set = if round % 2 == 0 { servers(&[a, b]) } else { servers(&[b, a]) };
            upstream.shared.set_servers(&set).unwrap();
            let name = lease(&upstream, 0).await.server_name().to_owned();
            counts[[a, b, c].iter().position(|address| address.to_string() == name).unwrap()] += 1;
        }
        assert!(counts[0].abs_diff(counts[1]) <= 1 && counts[2] == 0, "{counts:?}");
    });
}

#[test]
fn removed_servers_are_not_remembered_for_ever() {
    on_worker(false, async {
        let (_one, one) = listen();
        let upstream = upstream(&[one], |_| {});
        for port in 1..=1_000 {
            let address = UpstreamServerAddress::Tcp("127.0.0.1".into(), port);
            upstream.shared.set_servers(&servers(&[&address])).unwrap();
        }
        // The worker has not looked yet, so that it still holds the first. The latest is forgotten with the next change.
        assert_eq!(upstream.shared.servers.removed_count(), 2);
    });
}

#[test]
fn tls_needs_settings() {
    let (_one, one) = listen();
    let upstream = shared(&[one], |_| {});
    let tls = UpstreamServerAddress::Tls("localhost".into(), 443);
    assert_eq!(upstream.set_servers(&servers(&[&tls])), Err(NoTlsSettings));
}
