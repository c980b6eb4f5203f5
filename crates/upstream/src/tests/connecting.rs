use std::os::unix::net::UnixListener;

use super::*;

/// Error of an upstream with these servers.
fn error_of(addresses: &[UpstreamServerAddress], change: impl FnOnce(&mut config::UpstreamConfig)) -> AcquireError {
    on_worker(true, async {
        let upstream = upstream(addresses, change);
        acquire(&upstream, Tried::default(), 0).await.unwrap_err()
    })
}

#[test]
fn errors_tell_the_cause() {
    let (_socket, refusing) = refusing();
    let missing = UpstreamServerAddress::Unix("/nowhere/at/all.sock".into());
    let rejected = AcquireError::Unreachable(io::ErrorKind::ConnectionRefused);
    assert_eq!(error_of(std::slice::from_ref(&refusing), |_| {}), rejected);
    assert_eq!(error_of(&[refusing.clone(), refusing], |_| {}), rejected);
    assert_eq!(error_of(&[missing], |_| {}), AcquireError::NoSocket);
    let directory = tempfile::tempdir().unwrap();
    let unused = directory.path().join("unused.sock");
    drop(UnixListener::bind(&unused).unwrap());
    assert_eq!(error_of(&[UpstreamServerAddress::Unix(unused)], |_| {}), AcquireError::SocketUnused);
    assert_eq!(error_of(&[], |_| {}), AcquireError::NoServer);
    // No task looks it up.
    let named = UpstreamServerAddress::Tcp("name.invalid".into(), 80);
    assert_eq!(error_of(&[named], |_| {}), AcquireError::ConnectTimeout);
    for (error, status) in [
        (AcquireError::NoServer, 503),
        (AcquireError::QueueFull, 503),
        (AcquireError::QueueTimeout, 503),
        (rejected, 502),
        (AcquireError::NoSocket, 502),
        (AcquireError::SocketDenied, 502),
        (AcquireError::SocketUnused, 502),
        (AcquireError::Untrusted(CertificateProblem::Expired), 502),
        (AcquireError::NotResolved, 502),
        (AcquireError::ConnectTimeout, 504),
    ] {
        assert_eq!(error.status().code(), status, "{error}");
    }
}

/// The server never accepts: its listen queue is full, and Linux drops further connections.
#[test]
fn connecting_has_a_limit() {
    let (listener, address) = listen();
    let listener = socket2::Socket::from(listener);
    listener.listen(0).unwrap();
    let local = listener.local_addr().unwrap();
    let _fill: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&local);
            socket
        })
        .collect();
    assert_eq!(error_of(&[address], |_| {}), AcquireError::ConnectTimeout);
}

#[test]
fn the_next_server_is_tried_when_one_refuses() {
    on_worker(false, async {
        let sockets: Vec<_> = (0..2).map(|_| refusing()).collect();
        let (_listener, good) = listen();
        let mut addresses: Vec<_> = sockets.iter().map(|(_, address)| address.clone()).collect();
        addresses.push(good.clone());
        let upstream = upstream(&addresses, |upstream| upstream.fail_max = 1);
        // Each server that rejects connections is tried once, wherever the first choice falls, and then passed over.
        for _ in 0..10 {
            assert_eq!(lease(&upstream, 0).await.server_name(), good.to_string());
        }
        assert_eq!(upstream.shared.servers.get().iter().filter(|server| server.shared.is_unsettled()).count(), 2);
    });
}

#[test]
fn no_more_servers_are_tried_than_may_be() {
    let sockets: Vec<_> = (0..8).map(|_| refusing()).collect();
    let addresses: Vec<_> = sockets.iter().map(|(_, address)| address.clone()).collect();
    for tries_max in [1, 3, 8] {
        on_worker(false, async {
            let upstream = upstream(&addresses, |upstream| {
                upstream.tries_max = tries_max;
                upstream.fail_max = 1;
            });
            acquire(&upstream, Tried::default(), 0).await.unwrap_err();
            let tried = upstream.shared.servers.get().iter().filter(|server| server.shared.is_unsettled()).count();
            assert_eq!(tried, tries_max);
        });
    }
}

#[test]
fn a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    on_worker(false, async {
        let upstream = upstream(&[UpstreamServerAddress::Unix(path.clone())], |_| {});
        let mut lease = lease(&upstream, 0).await;
        let (mut server, _) = listener.accept().unwrap();
        std::future::poll_fn(|task| lease.poll_write(task, b"ask")).await.unwrap();
        let mut read = [0; 3];
        server.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"ask");
        assert_eq!(lease.server_name(), format!("unix:{}", path.display()));
        lease.finish(Ending::Reusable, 0);
        assert!(super::lease(&upstream, 0).await.is_reused());
        drop(server);
        turn().await;
        drop(listener);
        assert_eq!(acquire(&upstream, Tried::default(), 0).await.unwrap_err(), AcquireError::SocketUnused);
    });
}

/// A full queue of a unix socket is waited for, as TCP would.
#[test]
fn a_full_unix_socket_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    socket2::SockRef::from(&listener).listen(0).unwrap();
    on_worker(false, async {
        let upstream = upstream(&[UpstreamServerAddress::Unix(path)], |_| {});
        let _first = lease(&upstream, 0).await;
        let mut second = std::pin::pin!(acquire(&upstream, Tried::default(), 0));
        let early = tokio::time::timeout(Duration::from_millis(20), &mut second).await;
        assert!(early.is_err(), "there was room");
        listener.accept().unwrap();
        assert!(second.await.is_ok());
    });
}

#[test]
fn a_connection_begins_with_the_clients_address() {
    let check = |version, endpoints: Option<(&str, &str)>, expect: &[u8]| {
        on_worker(false, async {
            let (listener, address) = listen();
            let upstream = upstream(&[address], |upstream| upstream.proxy_protocol = Some(version));
            let endpoints = endpoints.map(|(source, destination)| wire::proxy_protocol::Endpoints {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            });
            let lease = connection(
                upstream.acquire(AcquireOptions { endpoints, ..AcquireOptions::default() }, 0).await.unwrap(),
            );
            assert!(!lease.may_be_kept());
            let (mut server, _) = listener.accept().unwrap();
            lease.finish(Ending::Reusable, 0);
            let mut all = Vec::new();
            server.read_to_end(&mut all).unwrap();
            assert_eq!(all, expect);
        });
    };
    let ends = Some(("192.0.2.1:4", "192.0.2.2:80"));
    check(config::ProxyProtocol::V1, ends, b"PROXY TCP4 192.0.2.1 192.0.2.2 4 80\r\n");
    check(config::ProxyProtocol::V1, None, b"PROXY UNKNOWN\r\n");
    check(config::ProxyProtocol::V2, None, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
}
