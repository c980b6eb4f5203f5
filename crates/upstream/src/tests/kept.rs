use super::*;

#[test]
fn a_connection_is_used_again() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |_| {});
        let mut first = lease(&upstream, 0).await;
        let (mut server, _) = listener.accept().unwrap();
        assert!(!first.is_reused() && first.may_be_kept());
        assert!(first.server_name().starts_with("http://127.0.0.1:"));
        send(&mut first, &mut server, b"ask").await;
        receive(&mut first, &mut server, b"answer").await;
        first.finish(Ending::Reusable, 10);
        // The connection is available at once, without a wait.
        let Acquire::Ready(Some(Leased::Connection(mut second))) = upstream.acquire(AcquireOptions::default(), 20)
        else {
            panic!("not kept")
        };
        assert!(second.is_reused());
        send(&mut second, &mut server, b"again").await;
        receive(&mut second, &mut server, b"answer").await;
        second.finish(Ending::Close, 30);
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "closed");
        assert_eq!(upstream.shared.server(0).in_use(), 0);
    });
}

/// Two connections are kept, from times 0 and 1,000; how many does a request at this time find?
#[test]
fn connections_are_kept_within_limits() {
    let check = |change: fn(&mut config::UpstreamConfig), now_ms: u64, expect: usize| {
        on_worker(false, async {
            let (listener, address) = listen();
            let upstream = upstream(&[address], change);
            let leases = [lease(&upstream, 0).await, lease(&upstream, 0).await];
            let _servers = [listener.accept().unwrap(), listener.accept().unwrap()];
            for (lease, end_ms) in leases.into_iter().zip([0, 1_000]) {
                lease.finish(Ending::Reusable, end_ms);
            }
            let found = |_: &usize| matches!(upstream.acquire(AcquireOptions::default(), now_ms), Acquire::Ready(_));
            assert_eq!((0..2).filter(found).count(), expect, "at {now_ms}");
        });
    };
    check(|_| {}, 1_000, 2);
    check(|_| {}, 3_999, 2);
    check(|_| {}, 4_000, 1);
    check(|_| {}, 5_000, 0);
    check(|upstream| upstream.idle_timeout = Duration::from_secs(60), 5_000, 2);
    check(|upstream| upstream.idle_max = 1, 1_000, 1);
    check(|upstream| upstream.idle_max = 0, 1_000, 0);
    check(|upstream| upstream.requests_per_connection_max = 1, 1_000, 0);
    check(|upstream| upstream.requests_per_connection_max = 2, 1_000, 2);
    check(|upstream| upstream.connection_age_max = Duration::from_millis(1_500), 1_499, 2);
    check(|upstream| upstream.connection_age_max = Duration::from_millis(1_500), 1_500, 0);
    check(|upstream| upstream.proxy_protocol = Some(config::ProxyProtocol::V1), 1_000, 0);
}

/// End of one client's exchange, and whether another client's request then finds the connection; by policy.
#[test]
fn the_policy_says_whose_requests_a_kept_connection_carries() {
    use ConnectionReuse::{Always, Never, Safe};
    use Ending::{Close, Reusable, ReusableBySameClient};
    let client = |number: u64| AcquireOptions {
        client_connection: ClientConnectionId::new(number),
        ..AcquireOptions::default()
    };
    // A client with the number 0 speaks for many.
    for (reuse, ending, first, second, expect) in [
        (Safe, Reusable, 1, 2, true),
        (Safe, Reusable, 0, 0, true),
        (Safe, ReusableBySameClient, 1, 2, false),
        (Safe, ReusableBySameClient, 1, 0, false),
        (Safe, ReusableBySameClient, 0, 0, false),
        (Safe, ReusableBySameClient, 1, 1, true),
        (Never, Reusable, 1, 2, false),
        (Never, Reusable, 0, 0, false),
        (Never, Reusable, 1, 1, true),
        (Always, ReusableBySameClient, 1, 2, true),
        (Always, ReusableBySameClient, 0, 0, true),
        (Always, Close, 1, 1, false),
        (Safe, Close, 1, 1, false),
    ] {
        on_worker(false, async {
            let (listener, address) = listen();
            let upstream = upstream(&[address], |upstream| upstream.reuse = reuse);
            let lease = connection(upstream.acquire(client(first), 0).await.unwrap());
            let _server = listener.accept().unwrap();
            lease.finish(ending, 0);
            let found = matches!(upstream.acquire(client(second), 0), Acquire::Ready(_));
            assert_eq!(found, expect, "{reuse:?} {ending:?} {first} {second}");
        });
    }
}

#[test]
fn a_reserved_connection_stays_so_and_leaves_before_the_others() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |upstream| upstream.idle_max = 2);
        let client = |number: u64| AcquireOptions {
            client_connection: ClientConnectionId::new(number),
            ..AcquireOptions::default()
        };
        let take = async |number| connection(upstream.acquire(client(number), 0).await.unwrap());
        let mut servers = Vec::new();
        let mut leases = Vec::new();
        for number in 1..=3 {
            leases.push(take(number).await);
            servers.push(listener.accept().unwrap());
        }
        let [first, second, third] = <[Lease; 3]>::try_from(leases).unwrap();
        first.finish(Ending::ReusableBySameClient, 0);
        // A request without content does not release it.
        let again = take(1).await;
        assert!(again.is_reused());
        again.finish(Ending::Reusable, 0);
        second.finish(Ending::Reusable, 0);
        assert_eq!(upstream.idle(), 2);
        third.finish(Ending::ReusableBySameClient, 0);
        assert_eq!(upstream.idle(), 2, "the first has made room");
        assert!(take(1).await.is_reused(), "by the one that all may use");
        assert!(upstream.sweep(999));
        assert!(!upstream.sweep(1_000), "a reserved one is kept for a second");
    });
}

#[test]
fn a_reserved_connection_that_was_closed_says_nothing_of_others() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |_| {});
        let client = AcquireOptions { client_connection: ClientConnectionId::new(1), ..AcquireOptions::default() };
        let (first, second) = (connection(upstream.acquire(client, 0).await.unwrap()), lease(&upstream, 0).await);
        let _servers = [listener.accept().unwrap(), listener.accept().unwrap()];
        first.finish(Ending::ReusableBySameClient, 0);
        second.finish(Ending::Reusable, 0);
        let stale = connection(upstream.acquire(client, 0).await.unwrap());
        stale.fail(UpstreamFailure::Closed, &mut Tried::default(), 0);
        assert_eq!(upstream.idle(), 1);
    });
}

#[test]
fn a_request_limit_is_reported_before_the_last_request() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |upstream| upstream.requests_per_connection_max = 2);
        let first = lease(&upstream, 0).await;
        let _server = listener.accept().unwrap();
        assert!(first.may_be_kept());
        first.finish(Ending::Reusable, 0);
        let second = lease(&upstream, 0).await;
        assert!(second.is_reused() && !second.may_be_kept());
        second.finish(Ending::Reusable, 0);
        assert!(!lease(&upstream, 0).await.is_reused());
    });
}

/// Event on a kept connection, and whether a request still gets it.
#[test]
fn a_connection_with_anything_to_read_is_not_given_out() {
    let check = |event: fn(TcpStream) -> Option<TcpStream>, expect: bool| {
        on_worker(false, async {
            let (listener, address) = listen();
            let upstream = upstream(&[address], |_| {});
            let first = lease(&upstream, 0).await;
            let (server, _) = listener.accept().unwrap();
            first.finish(Ending::Reusable, 0);
            let _server = event(server);
            turn().await;
            assert_eq!(lease(&upstream, 0).await.is_reused(), expect);
        });
    };
    check(Some, true);
    // The end.
    check(|_| None, false);
    // A half-closed connection.
    check(|server| server.shutdown(std::net::Shutdown::Write).map(|()| server).ok(), false);
    // Unexpected bytes: a worker would take them for the response to the next request.
    check(|mut server| server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").map(|()| server).ok(), false);
}

#[test]
fn a_closed_connection_is_dropped_while_it_is_idle() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |_| {});
        let leases = [lease(&upstream, 0).await, lease(&upstream, 0).await];
        let (first, _kept) = (listener.accept().unwrap(), listener.accept().unwrap());
        leases.into_iter().for_each(|lease| lease.finish(Ending::Reusable, 0));
        drop(first);
        turn().await;
        assert!(upstream.sweep(0), "the other is left");
        assert_eq!(upstream.idle(), 1);
        assert!(!upstream.sweep(4_000), "it has grown old");
    });
}

#[test]
fn a_stale_connection_is_no_fault_of_the_servers() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |upstream| upstream.fail_max = 1);
        let leases = [lease(&upstream, 0).await, lease(&upstream, 0).await, lease(&upstream, 0).await];
        let servers: Vec<_> = (0..3).map(|_| listener.accept().unwrap()).collect();
        leases.into_iter().for_each(|lease| lease.finish(Ending::Reusable, 0));
        let stale = lease(&upstream, 0).await;
        assert!(stale.is_reused());
        drop(servers);
        let mut tried = Tried::default();
        stale.fail(UpstreamFailure::Closed, &mut tried, 0);
        assert_eq!((tried.wants_new(), tried.count()), (true, 0));
        assert!(!upstream.shared.server(0).is_unsettled());
        assert!(!upstream.sweep(0), "all kept connections are gone, for the server was started again");
        // The retry goes to that server again, on a new connection.
        assert!(!acquire(&upstream, tried, 0).await.unwrap().is_reused());
    });
}

#[test]
fn a_failure_on_a_kept_connection_counts_once_an_answer_has_begun() {
    on_worker(false, async {
        let check = async |answers: bool, failure: UpstreamFailure, expect: usize| {
            let (listener, address) = listen();
            let upstream = upstream(&[address], |_| {});
            let first = lease(&upstream, 0).await;
            let (mut server, _) = listener.accept().unwrap();
            first.finish(Ending::Reusable, 0);
            let mut second = lease(&upstream, 0).await;
            assert!(second.is_reused());
            if answers {
                receive(&mut second, &mut server, b"HTT").await;
            }
            let mut tried = Tried::default();
            second.fail(failure, &mut tried, 0);
            assert_eq!(tried.count(), expect, "{answers} {failure:?}");
        };
        check(false, UpstreamFailure::Closed, 0).await;
        check(true, UpstreamFailure::Closed, 1).await;
        check(false, UpstreamFailure::TimedOut, 1).await;
        check(true, UpstreamFailure::Malformed, 1).await;
    });
}

#[test]
fn a_tunnel_counts_as_in_use_as_long_as_it_lasts() {
    on_worker(false, async {
        let (listener, address) = listen();
        let upstream = upstream(&[address], |_| {});
        let mut tunnel = lease(&upstream, 0).await.into_tunnel(0);
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(upstream.shared.server(0).in_use(), 1);
        std::future::poll_fn(|task| tunnel.poll_write(task, b"up")).await.unwrap();
        server.write_all(b"down").unwrap();
        let mut read = [0; 8];
        assert_eq!(std::future::poll_fn(|task| tunnel.poll_read(task, &mut read)).await.unwrap(), 4);
        std::future::poll_fn(|task| tunnel.poll_shutdown(task)).await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"up");
        drop(tunnel);
        assert_eq!(upstream.shared.server(0).in_use(), 0);
    });
}

/// The warm path: a kept connection is acquired and returned.
#[test]
fn acquiring_a_kept_connection_allocates_nothing() {
    on_worker(false, async {
        let servers: Vec<_> = (0..3).map(|_| listen()).collect();
        let addresses: Vec<_> = servers.iter().map(|(_, address)| address.clone()).collect();
        let upstream = upstream(&addresses, |_| {});
        // Two connections to each, because the limit allows no others.
        let mut leases = Vec::new();
        for _ in 0..6 {
            leases.push(lease(&upstream, 0).await);
        }
        leases.drain(..).for_each(|lease| lease.finish(Ending::Reusable, 0));
        let allocated = allocation_counter::measure(|| {
            for _ in 0..100 {
                let Acquire::Ready(Some(lease)) = upstream.acquire(AcquireOptions::default(), 1) else {
                    panic!("not kept")
                };
                connection(lease).finish(Ending::Reusable, 1);
            }
        });
        assert_eq!(allocated.count_total, 0);
    });
}
