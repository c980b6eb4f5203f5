use super::*;

fn one_connection(upstream: &mut config::UpstreamConfig) {
    upstream.connections_max = 1;
}

#[test]
fn requests_wait_in_turn_for_a_connection() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], one_connection);
        let first = lease(&upstream, 0).await;
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..3)
            .map(|number| {
                let (upstream, order) = (Rc::clone(&upstream), Rc::clone(&order));
                tokio::task::spawn_local(async move {
                    let lease = lease(&upstream, 0).await;
                    order.borrow_mut().push(number);
                    assert_eq!(upstream.shared.server(0).in_use(), 1);
                    lease.finish(Ending::Reusable, 0);
                })
            })
            .collect();
        turn().await;
        assert!(order.borrow().is_empty());
        first.finish(Ending::Reusable, 0);
        // A new request waits for those that came before.
        let last = lease(&upstream, 0).await;
        assert_eq!(*order.borrow(), [0, 1, 2]);
        assert!(last.is_reused(), "one connection has served all");
        drop(last);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(upstream.shared.server(0).in_use(), 0);
    });
}

/// A client with many waiting requests lets others go first, but still gets its turn.
#[test]
fn one_client_does_not_hold_up_others() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], one_connection);
        let first = lease(&upstream, 0).await;
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let clients = [1, 1, 1, 1, 2, 3, 2, 1];
        let tasks: Vec<_> = clients
            .into_iter()
            .map(|client| {
                let (upstream, order) = (Rc::clone(&upstream), Rc::clone(&order));
                tokio::task::spawn_local(async move {
                    let wanted = AcquireOptions { client: Some(client), ..AcquireOptions::default() };
                    let lease = connection(upstream.acquire(wanted, 0).await.unwrap());
                    order.borrow_mut().push(client);
                    lease.finish(Ending::Reusable, 0);
                })
            })
            .collect();
        turn().await;
        first.finish(Ending::Reusable, 0);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [1, 2, 3, 1, 2, 1, 1, 1]);
    });
}

#[test]
fn a_client_has_a_share_of_a_queue_that_fills() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], |upstream| {
            one_connection(upstream);
            upstream.queue_max = 16;
        });
        let _first = lease(&upstream, 0).await;
        let join = |client| {
            let place = crate::fair_queue::QueuePlace::join(&upstream.shared, client, 16);
            place.map(std::mem::forget).is_some()
        };
        assert_eq!((0..20).filter(|_| join(Some(1))).count(), 8);
        assert_eq!((0..20).filter(|_| join(Some(2))).count(), 2);
        assert_eq!((0..20).filter(|_| join(None)).count(), 6);
    });
}

#[test]
fn the_queue_has_limits() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], |upstream| {
            one_connection(upstream);
            upstream.queue_max = 1;
        });
        let first = lease(&upstream, 0).await;
        let waiting = upstream.acquire(AcquireOptions::default(), 0);
        let waiting = tokio::task::spawn_local(waiting);
        turn().await;
        assert_eq!(acquire(&upstream, Tried::default(), 0).await.unwrap_err(), AcquireError::QueueFull);
        // The clock advances because the test is idle.
        assert_eq!(waiting.await.unwrap().unwrap_err().error, AcquireError::QueueTimeout);
        assert!(upstream.shared.queue.is_empty());
        drop(first);
        assert!(acquire(&upstream, Tried::default(), 0).await.is_ok());
    });
}

#[test]
fn a_waiting_request_that_goes_away_takes_nothing_with_it() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], one_connection);
        let spawn = || tokio::task::spawn_local(upstream.acquire(AcquireOptions::default(), 0));
        let (first, waiting, next) = (lease(&upstream, 0).await, spawn(), spawn());
        turn().await;
        // One left before its turn, one just after it was granted the slot.
        waiting.abort();
        turn().await;
        first.finish(Ending::Reusable, 0);
        next.abort();
        turn().await;
        assert_eq!(upstream.shared.server(0).in_use(), 0);
        assert!(upstream.shared.queue.is_empty());
    });
}

/// A slot that one worker releases goes to another: all workers share the limit and the queue.
#[test]
fn workers_share_limit_and_queue() {
    let (_listener, address) = listen();
    let shared = shared(&[address], |upstream| {
        upstream.connections_max = 2;
        upstream.queue_timeout = PATIENCE;
    });
    let workers: Vec<_> = (0..4)
        .map(|seed| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                on_worker(false, async {
                    let upstream = Upstream::new(shared, seed);
                    for _ in 0..200 {
                        let lease = lease(&upstream, 0).await;
                        assert!(upstream.shared.server(0).in_use() <= 2);
                        tokio::task::yield_now().await;
                        lease.finish(Ending::Reusable, 0);
                    }
                });
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(shared.server(0).in_use(), 0);
    assert!(shared.queue.is_empty());
}

#[test]
fn a_request_waits_only_for_servers_that_have_not_failed_it() {
    on_worker(true, async {
        let servers = [listen(), listen()];
        let addresses = servers.each_ref().map(|(_, address)| address.clone());
        let upstream = upstream(&addresses, one_connection);
        let (first, second) = (lease(&upstream, 0).await, lease(&upstream, 0).await);
        let wanted = second.server_name().to_owned();
        let mut tried = Tried::default();
        tried.add(upstream.shared.servers.get().find(first.server_name()).unwrap().shared.id);
        let waiting =
            tokio::task::spawn_local(upstream.acquire(AcquireOptions { tried, ..AcquireOptions::default() }, 0));
        turn().await;
        first.finish(Ending::Reusable, 0);
        turn().await;
        assert!(!waiting.is_finished());
        second.finish(Ending::Reusable, 0);
        assert_eq!(connection(waiting.await.unwrap().unwrap()).server_name(), wanted);
    });
}

/// Twice as many requests as the servers can handle: the newest are served, those that waited too long are rejected,
/// and after the overload all are served again.
#[test]
fn an_overloaded_queue_serves_the_newest_and_recovers() {
    const SERVICE: Duration = Duration::from_millis(25);
    const OVERLOAD_MS: u64 = 30_000;
    const END_MS: u64 = 40_000;
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], one_connection);
        let began = tokio::time::Instant::now();
        let now_ms = move || began.elapsed().as_millis() as u64;
        // Arrival time, wait, and whether the request got a connection.
        let results = Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut came_ms = 0;
        let mut client = 0;
        while came_ms < END_MS {
            let (upstream, results) = (Rc::clone(&upstream), Rc::clone(&results));
            let wanted = AcquireOptions { client: Some(client % 200), ..AcquireOptions::default() };
            client += 1;
            tokio::task::spawn_local(async move {
                let came_ms = now_ms();
                let leased = upstream.acquire(wanted, came_ms).await;
                let waited_ms = now_ms() - came_ms;
                results.borrow_mut().push((came_ms, waited_ms, leased.is_ok()));
                match leased {
                    Ok(leased) => {
                        tokio::time::sleep(SERVICE).await;
                        connection(leased).finish(Ending::Reusable, now_ms());
                    }
                    Err(failure) => assert_eq!(failure.error, AcquireError::QueueOverloaded),
                }
            });
            // 80 a second, and then 20.
            let interval_ms = if came_ms < OVERLOAD_MS { 12 } else { 50 };
            tokio::time::sleep(Duration::from_millis(interval_ms)).await;
            came_ms = now_ms();
        }
        tokio::time::sleep(PATIENCE).await;
        let results = results.borrow();
        let of =
            |from_ms: u64, to_ms: u64| results.iter().filter(move |(came_ms, ..)| (from_ms..to_ms).contains(came_ms));
        let served = of(0, OVERLOAD_MS).filter(|(.., is_served)| *is_served).count() as u128;
        let capacity = u128::from(OVERLOAD_MS) / SERVICE.as_millis();
        assert!(served * 10 >= capacity * 9, "{served} of {capacity} were served");
        // Since the overload was detected: a second above a second's wait.
        let mut waits: Vec<_> =
            of(5_000, OVERLOAD_MS).filter(|(.., is_served)| *is_served).map(|(_, wait, _)| *wait).collect();
        waits.sort_unstable();
        let p99 = waits[waits.len() * 99 / 100];
        assert!(p99 <= 1_250, "the slowest hundredth waited for {p99} ms");
        let median = waits[waits.len() / 2];
        assert!(median <= 100, "half of them waited for {median} ms");
        let longest = of(5_000, END_MS).map(|(_, waited_ms, _)| *waited_ms).max();
        assert!(longest <= Some(1_500), "no request waits for longer: {longest:?} ms");
        let after: Vec<_> = of(OVERLOAD_MS + 1_000, END_MS).collect();
        assert!(after.iter().all(|(_, waited_ms, is_served)| *is_served && *waited_ms < 100), "{after:?}");
        assert!(!upstream.shared.is_queue_overloaded() && upstream.shared.queue_shed() > 0);
    });
}

/// While the queue is overloaded, a client with many waiting requests still lets others go first.
#[test]
fn one_client_does_not_have_an_overloaded_queue_for_itself() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], one_connection);
        let first = lease(&upstream, 0).await;
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let spawn = |client: u64, now_ms: u64| {
            let (upstream, order) = (Rc::clone(&upstream), Rc::clone(&order));
            tokio::task::spawn_local(async move {
                let wanted = AcquireOptions { client: Some(client), ..AcquireOptions::default() };
                match upstream.acquire(wanted, now_ms).await {
                    Ok(leased) => {
                        order.borrow_mut().push(client);
                        connection(leased).finish(Ending::Reusable, 0);
                    }
                    Err(failure) => assert_eq!(failure.error, AcquireError::QueueOverloaded),
                }
            })
        };
        // This request has waited for a second, and for another one: then it must leave.
        let old = spawn(1, 10_000);
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        let others: Vec<_> = [2, 3, 2, 2].into_iter().map(|client| spawn(client, 12_100)).collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(old.is_finished() && upstream.shared.is_queue_overloaded());
        first.finish(Ending::Reusable, 0);
        for task in others {
            task.await.unwrap();
        }
        // The newest first, but each client in its turn.
        assert_eq!(*order.borrow(), [2, 3, 2, 2]);
    });
}

/// While the queue is overloaded and full, a new request takes the place of the oldest.
#[test]
fn the_oldest_leaves_a_full_queue_that_is_overloaded() {
    on_worker(true, async {
        let (_listener, address) = listen();
        let upstream = upstream(&[address], |upstream| {
            one_connection(upstream);
            upstream.queue_max = 4;
        });
        let _first = lease(&upstream, 0).await;
        let join = |client, now_ms| {
            let limits = upstream.shared.queue_limits();
            crate::fair_queue::QueuePlace::join_at(&upstream.shared, Some(client), 4, now_ms, limits)
        };
        let places: Vec<_> = (1..=4).map(|client| join(client, u64::from(client > 1)).unwrap()).collect();
        assert!(join(5, 500).is_none(), "full");
        assert!(places[1].look(1_500).is_ok());
        // A second later: overloaded, and all have waited too long, but none has checked yet.
        assert!(join(5, 2_600).is_some());
        let called = places.iter().map(|place| place.poll_called(std::task::Waker::noop()));
        let displaced: Vec<_> = called.map(|called| matches!(called, std::task::Poll::Ready(Err(_)))).collect();
        assert_eq!(displaced, [true, false, false, false]);
        assert!(places[1].look(2_600).is_err());
    });
}
