use super::*;

fn one_connection(upstream: &mut config::Upstream) {
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
        // Who comes now has to wait for those that came before.
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

/// Who has many waiting lets others go before; but does come to its turn.
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
                    let wanted = Wanted { client: Some(client), ..Wanted::default() };
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
        let waiting = upstream.acquire(Wanted::default(), 0);
        let waiting = tokio::task::spawn_local(waiting);
        turn().await;
        assert_eq!(acquire(&upstream, Tried::default(), 0).await.unwrap_err(), AcquireError::QueueFull);
        // The clock goes forward, for there is nothing else to do.
        assert_eq!(waiting.await.unwrap().unwrap_err(), AcquireError::QueueTimeout);
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
        let spawn = || tokio::task::spawn_local(upstream.acquire(Wanted::default(), 0));
        let (first, waiting, next) = (lease(&upstream, 0).await, spawn(), spawn());
        turn().await;
        // Gone before its turn, and gone when it had just been granted the slot.
        waiting.abort();
        turn().await;
        first.finish(Ending::Reusable, 0);
        next.abort();
        turn().await;
        assert_eq!(upstream.shared.server(0).in_use(), 0);
        assert!(upstream.shared.queue.is_empty());
    });
}

/// What one worker gives back, another gets: the limit is for all, and so is the queue.
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
        tried.add(upstream.shared.servers.iter().position(|server| server.name == first.server_name()).unwrap() as u16);
        let waiting = tokio::task::spawn_local(upstream.acquire(Wanted { tried, ..Wanted::default() }, 0));
        turn().await;
        first.finish(Ending::Reusable, 0);
        turn().await;
        assert!(!waiting.is_finished());
        second.finish(Ending::Reusable, 0);
        assert_eq!(connection(waiting.await.unwrap().unwrap()).server_name(), wanted);
    });
}
