use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

use super::{Full, MessageLimits, Spool, SpoolLimits, SpoolStore};
use crate::config::LogLevel;
use crate::log::ServerLog;
use crate::memory_budget::Holder;

const KIB: usize = 1 << 10;

fn store(directory: &Path, file_bytes_max: u64, per_client_max: u64) -> Arc<SpoolStore> {
    let store = SpoolStore::new(ServerLog::stderr(LogLevel::Error));
    store.apply(&SpoolLimits {
        directory: directory.into(),
        memory_bytes_max: 1 << 20,
        file_bytes_max: Some(file_bytes_max),
        file_bytes_per_client_max: Some(per_client_max),
    });
    store
}

/// Test content in which each 8 bytes contain their own offset.
fn content(from: u64, length: usize) -> Vec<u8> {
    let bytes = (from / 8..).flat_map(u64::to_be_bytes).skip((from % 8) as usize);
    bytes.take(length).collect()
}

/// Appends up to this many bytes; returns the number appended, and the reason if it is less.
async fn fill(spool: &mut Spool, from: u64, length: usize) -> (usize, Option<Full>) {
    let mut appended = 0;
    while appended < length {
        match poll_fn(|task| spool.poll_room(task)).await {
            Ok(room) => {
                let piece = content(from + appended as u64, room.min(length - appended).min(5000));
                spool.append(&piece);
                appended += piece.len();
            }
            Err(full) => return (appended, Some(full)),
        }
    }
    (appended, None)
}

/// Reads this many bytes and checks that they are those from `from` on.
async fn drain(spool: &mut Spool, from: u64, length: usize) {
    let mut read = Vec::new();
    while read.len() < length {
        let count = poll_fn(|task| {
            spool.poll_peek(task).map(|bytes| {
                let bytes = bytes.unwrap();
                let count = bytes.len().min(length - read.len());
                read.extend_from_slice(&bytes[..count]);
                count
            })
        })
        .await;
        assert!(count > 0, "only {} of {length} bytes", read.len());
        spool.consume(count);
    }
    assert!(read == content(from, length), "other bytes from {from} on");
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn bytes_come_back_in_order_from_memory_and_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 1 << 30, 1 << 30);
    run(async {
        for length in [0, 1, 64 * KIB, 64 * KIB + 1, 300 * KIB, 3000 * KIB] {
            for keeps_all in [false, true] {
                let limits = MessageLimits { memory_bytes_max: 64 * KIB, file_bytes_max: 1 << 30 };
                let mut spool = Spool::new(&store, Some(7), &Holder::uncounted(), limits, keeps_all);
                assert_eq!(fill(&mut spool, 0, length).await, (length, None));
                assert_eq!(spool.held_bytes(), length as u64);
                assert!(store.memory_bytes() <= 256 * KIB as u64, "{} bytes in memory", store.memory_bytes());
                drain(&mut spool, 0, length).await;
                assert!(spool.is_drained());
                if keeps_all {
                    spool.rewind();
                    drain(&mut spool, 0, length / 2).await;
                    spool.rewind();
                    drain(&mut spool, 0, length).await;
                }
                assert_eq!(files_in(directory.path()), 0, "files have no names");
                drop(spool);
                assert_eq!((store.memory_bytes(), store.file_bytes()), (0, 0));
            }
        }
    });
}

#[test]
fn bytes_are_read_while_others_come() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 1 << 20, 1 << 20);
    run(async {
        let limits = MessageLimits { memory_bytes_max: 32 * KIB, file_bytes_max: 1 << 20 };
        let mut spool = Spool::new(&store, None, &Holder::uncounted(), limits, false);
        let (mut appended, mut read) = (0, 0);
        let mut random = fastrand::Rng::with_seed(7);
        // More passes through the file than it may hold at once.
        while read < 30 << 20 {
            let (count, _) = fill(&mut spool, appended, random.usize(1..300_000)).await;
            appended += count as u64;
            let count = random.usize(1..400_000).min((appended - read) as usize);
            drain(&mut spool, read, count).await;
            read += count as u64;
        }
        assert!(store.file_bytes() <= 1 << 20);
    });
}

#[test]
fn each_bound_is_named() {
    let directory = tempfile::tempdir().unwrap();
    run(async {
        // (file of a message, of a client, of all; memory of a message; least number of bytes that fit, and the reason
        // for the end)
        for (message, client, process, memory, expect) in [
            (256 * KIB, 1 << 20, 1 << 20, 64 * KIB, (320 * KIB, Some(Full::Message))),
            (0, 1 << 20, 1 << 20, 64 * KIB, (64 * KIB, Some(Full::Message))),
            (1 << 20, 256 * KIB, 1 << 20, 64 * KIB, (250 * KIB, Some(Full::Client))),
            (1 << 20, 1 << 20, 256 * KIB, 64 * KIB, (250 * KIB, Some(Full::Process))),
            (1 << 20, 1 << 20, 1 << 20, 0, (500 * KIB, None)),
        ] {
            let store = store(directory.path(), process as u64, client as u64);
            let limits = MessageLimits { memory_bytes_max: memory, file_bytes_max: message as u64 };
            let mut spool = Spool::new(&store, Some(1), &Holder::uncounted(), limits, true);
            let (count, full) = fill(&mut spool, 0, 500 * KIB).await;
            assert!(count >= expect.0 && full == expect.1, "{message} {client} {process} {memory}: {count} {full:?}");
            drain(&mut spool, 0, count).await;
            assert!(spool.is_drained());
            assert!(store.file_bytes() <= process.min(client) as u64);
        }
    });
}

#[test]
fn a_client_leaves_room_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 1 << 20, 256 << 10);
    let limits = MessageLimits { memory_bytes_max: 0, file_bytes_max: 1 << 20 };
    run(async {
        let mut request = Spool::new(&store, Some(1), &Holder::uncounted(), limits, true);
        assert_eq!(fill(&mut request, 0, 1 << 20).await.1, Some(Full::Client));
        drop(request);
        // A response in progress may fill half of all files.
        let mut first = Spool::new(&store, Some(1), &Holder::uncounted(), limits, false);
        assert_eq!(fill(&mut first, 0, 1 << 20).await.1, Some(Full::Client));
        assert!(store.file_bytes() > 256 << 10 && store.file_bytes() <= 512 << 10);
        assert!(store.is_client_full(1) && !store.is_client_full(2));
        let mut second = Spool::new(&store, Some(2), &Holder::uncounted(), limits, false);
        assert_eq!(fill(&mut second, 0, 256 << 10).await, (256 << 10, None));
        drop(first);
        assert!(!store.is_client_full(1));
        let mut third = Spool::new(&store, Some(1), &Holder::uncounted(), limits, false);
        assert_eq!(fill(&mut third, 0, 256 << 10).await, (256 << 10, None));
    });
}

#[test]
fn nothing_is_lost_where_files_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory.path().join("missing"), 1 << 30, 1 << 30);
    run(async {
        let limits = MessageLimits { memory_bytes_max: 64 * KIB, file_bytes_max: 1 << 30 };
        for keeps_all in [false, true] {
            let mut spool = Spool::new(&store, None, &Holder::uncounted(), limits, keeps_all);
            let (count, full) = fill(&mut spool, 0, 1 << 20).await;
            assert!(full == Some(Full::Failed) && count >= 128 * KIB, "{count} {full:?}");
            drain(&mut spool, 0, count).await;
            assert!(spool.is_drained());
        }
    });
}

#[test]
fn short_memory_sends_bytes_to_files_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 1 << 30, 1 << 30);
    store.apply(&SpoolLimits {
        directory: directory.path().into(),
        memory_bytes_max: 16 << 10,
        file_bytes_max: None,
        file_bytes_per_client_max: None,
    });
    let limits = MessageLimits { memory_bytes_max: 64 * KIB, file_bytes_max: 1 << 30 };
    run(async {
        let mut first = Spool::new(&store, None, &Holder::uncounted(), limits, true);
        fill(&mut first, 0, 20 * KIB).await;
        let mut second = Spool::new(&store, None, &Holder::uncounted(), limits, true);
        fill(&mut second, 0, 60 * KIB).await;
        // Waits for the write that is under way.
        let room = poll_fn(|task| {
            let room = second.poll_room(task);
            if second.held_bytes() == 60 * KIB as u64 && store.memory_bytes() < 40 * KIB as u64 {
                Poll::Ready(true)
            } else {
                task.waker().wake_by_ref();
                let _ = room;
                Poll::Pending
            }
        });
        assert!(room.await);
        drain(&mut second, 0, 60 * KIB).await;
        drain(&mut first, 0, 20 * KIB).await;
    });
}
