use super::*;
use crate::health::ServerFitness;

const SECOND_MS: u64 = 1_000;

/// Servers that respond at this time; stops when each has, or after 100 requests.
async fn who_answers(upstream: &Rc<Upstream>, now_ms: u64) -> std::collections::BTreeSet<String> {
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let Ok(lease) = acquire(upstream, Tried::default(), now_ms).await else { continue };
        names.insert(lease.server_name().to_owned());
        lease.finish(Ending::Reusable, now_ms);
    }
    names
}

fn names(addresses: &[&UpstreamServerAddress]) -> std::collections::BTreeSet<String> {
    addresses.iter().map(|address| address.to_string()).collect()
}

#[test]
fn a_server_that_failed_is_tried_out_before_it_is_back() {
    on_worker(false, async {
        let [(_first, good), (_second, bad)] = [listen(), listen()];
        let upstream = upstream(&[good.clone(), bad.clone()], |upstream| upstream.fail_max = 1);
        let fail = |now_ms| {
            upstream.shared.tell(&upstream.shared.server(1), now_ms, |health| health.on_failure(false, now_ms))
        };
        fail(0);
        assert_eq!(who_answers(&upstream, 4 * SECOND_MS).await, names(&[&good]));
        // The first request after the ejection time is the trial; the others go elsewhere.
        let trial = lease(&upstream, 5 * SECOND_MS).await;
        assert_eq!(trial.server_name(), bad.to_string());
        assert_eq!(who_answers(&upstream, 5 * SECOND_MS).await, names(&[&good]));
        // A client that goes away leaves the trial to another.
        drop(trial);
        let mut trial = lease(&upstream, 5 * SECOND_MS).await;
        assert_eq!(trial.server_name(), bad.to_string());
        trial.answered(6 * SECOND_MS);
        assert_eq!(upstream.shared.server(1).standing(6 * SECOND_MS), ServerFitness::Fit(1_000));
        trial.finish(Ending::Close, 7 * SECOND_MS);
        assert_eq!(who_answers(&upstream, 7 * SECOND_MS).await, names(&[&good, &bad]));
        // The next trial fails: the server is passed over for twice as long.
        fail(10 * SECOND_MS);
        let trial = lease(&upstream, 20 * SECOND_MS).await;
        assert_eq!(trial.server_name(), bad.to_string());
        trial.fail(UpstreamFailure::TimedOut, &mut Tried::default(), 20 * SECOND_MS);
        assert_eq!(who_answers(&upstream, 39 * SECOND_MS).await, names(&[&good]));
        assert_eq!(who_answers(&upstream, 40 * SECOND_MS).await, names(&[&good, &bad]));
    });
}

#[test]
fn backups_are_for_when_all_others_are_down() {
    on_worker(false, async {
        let servers = [listen(), listen()];
        let addresses = servers.each_ref().map(|(_, address)| address.clone());
        let upstream = upstream(&addresses, |upstream| {
            upstream.servers[1].backup = true;
            upstream.fail_max = 1;
            upstream.connections_max = 1;
        });
        assert_eq!(who_answers(&upstream, 0).await, names(&[&addresses[0]]));
        // A busy server is not down.
        let busy = lease(&upstream, 0).await;
        let mut waiting = std::pin::pin!(acquire(&upstream, Tried::default(), 0));
        assert!(tokio::time::timeout(Duration::from_millis(5), &mut waiting).await.is_err());
        let mut tried = Tried::default();
        busy.fail(UpstreamFailure::Malformed, &mut tried, 0);
        // The waiting request comes first; the request that failed goes to the backup.
        drop(waiting.await);
        assert_eq!(acquire(&upstream, tried, 0).await.unwrap().server_name(), addresses[1].to_string());
        assert_eq!(who_answers(&upstream, 0).await, names(&[&addresses[1]]));
    });
}

#[test]
fn the_last_resort() {
    on_worker(false, async {
        let servers = [listen(), listen()];
        let addresses = servers.each_ref().map(|(_, address)| address.clone());
        for last_resort in [true, false] {
            let upstream = upstream(&addresses, |upstream| {
                upstream.last_resort = last_resort;
                upstream.fail_max = 1;
            });
            upstream.shared.tell(&upstream.shared.server(0), 0, |health| health.on_failure(false, 0));
            (0..3)
                .for_each(|_| upstream.shared.tell(&upstream.shared.server(1), 0, |health| health.on_check(false, 0)));
            let found = acquire(&upstream, Tried::default(), 0).await;
            assert_eq!(found.is_ok(), last_resort);
            match found {
                // A response shows that it is back, if requests had failed and not checks.
                Ok(lease) => lease.finish(Ending::Close, 0),
                Err(error) => assert_eq!(error, AcquireError::NoServer),
            }
            // Even then, servers that have failed this very request are not tried.
            let mut tried = Tried::default();
            (0..2).for_each(|server| tried.add(upstream.shared.server(server).id));
            assert_eq!(acquire(&upstream, tried, 0).await.unwrap_err(), AcquireError::NoServer);
            // After the ejection time, one request tests the server.
            assert!(acquire(&upstream, Tried::default(), 5 * SECOND_MS).await.is_ok());
        }
    });
}

#[test]
fn a_slow_start_is_a_small_share() {
    on_worker(false, async {
        let servers = [listen(), listen()];
        let addresses = servers.each_ref().map(|(_, address)| address.clone());
        let upstream = upstream(&addresses, |upstream| {
            upstream.balance = config::Balance::RoundRobin;
            upstream.slow_start = Duration::from_secs(10);
            upstream.fail_max = 1;
        });
        upstream.shared.tell(&upstream.shared.server(1), 0, |health| health.on_failure(false, 0));
        upstream.shared.tell(&upstream.shared.server(1), 0, |health| health.on_success(0));
        // Requests that the returning server gets, of this many at this time.
        let share = async |now_ms, requests| {
            let mut count = 0;
            for _ in 0..requests {
                let lease = lease(&upstream, now_ms).await;
                count += usize::from(lease.server_name() == addresses[1].to_string());
                lease.finish(Ending::Reusable, now_ms);
            }
            count
        };
        assert_eq!(share(0, 110).await, 10);
        assert_eq!(share(10 * SECOND_MS, 100).await, 50);
    });
}

/// Responds to health checks with these responses in turn, the last one forever.
fn answer_checks(listener: TcpListener, answers: &'static [&'static str]) {
    std::thread::spawn(move || {
        for answer in answers.iter().chain(std::iter::repeat(answers.last().unwrap())) {
            let Ok((mut socket, _)) = listener.accept() else { return };
            let mut request = [0; 1024];
            let count = socket.read(&mut request).unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..count]).into_owned();
            if !answer.is_empty() {
                assert!(request.starts_with("GET /health HTTP/1.1\r\nHost: app\r\n"), "{request}");
            }
            let _ = socket.write_all(answer.as_bytes());
        }
    });
}

#[test]
fn checks_find_out_who_is_down() {
    let check = |answers: &'static [&'static str], expect: ServerFitness| {
        on_worker(false, async {
            let (listener, address) = listen();
            answer_checks(listener, answers);
            let shared = shared(&[address], |upstream| {
                upstream.health_check = Some(config::HealthCheck {
                    path: "/health".into(),
                    host: Some("app".into()),
                    interval: Duration::from_millis(1),
                    timeout: Duration::from_secs(5),
                    fall: 2,
                    rise: 1,
                    ..config::HealthCheck::default()
                });
            });
            let seen = async {
                while shared.server(0).standing(0) != expect {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                () = keep(vec![Arc::clone(&shared)], system_lookup, Duration::MAX) => panic!("it ended"),
                seen = tokio::time::timeout(PATIENCE, seen) => assert!(seen.is_ok(), "{answers:?}"),
            }
        });
    };
    let fit = ServerFitness::Fit(1_000);
    check(&["HTTP/1.1 200 OK\r\n\r\n"], fit);
    check(&["HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"], fit);
    check(&["HTTP/1.1 500 Internal Server Error\r\n\r\n"], ServerFitness::Out);
    check(&["HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\n"], ServerFitness::Out);
    check(&["no HTTP\r\n\r\n"], ServerFitness::Out);
    check(&["HTTP/1.1 200 OK\r\n"], ServerFitness::Out);
    check(&[""], ServerFitness::Out);
}

#[test]
fn a_server_that_does_not_answer_checks_is_down() {
    on_worker(true, async {
        // The kernel accepts connections, but the server never sends a byte.
        let (_listener, address) = listen();
        let shared = shared(&[address], |upstream| upstream.health_check = Some(config::HealthCheck::default()));
        let (began, keeping) =
            (tokio::time::Instant::now(), keep(vec![Arc::clone(&shared)], system_lookup, Duration::MAX));
        let mut keeping = std::pin::pin!(keeping);
        let mut seen_out = None;
        for second in 0..60 {
            let _ = tokio::time::timeout(Duration::from_secs(1), &mut keeping).await;
            if seen_out.is_none() && shared.server(0).standing(0) == ServerFitness::Out {
                seen_out = Some(second);
            }
        }
        assert!(began.elapsed() >= Duration::from_secs(60));
        // Three checks of 2 s each; the interval of 5 s may run from begin or from end.
        assert!(seen_out.is_some_and(|second| (12..18).contains(&second)), "{seen_out:?}");
    });
}
