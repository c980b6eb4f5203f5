//! One table of cases for each engine. All engines are real programs: Valkey or Redis, moto as S3, Consul, the API server of
//! Kubernetes with etcd. A case that lacks its program is skipped.

#[path = "../../../tests/support/engines.rs"]
mod engines;
#[path = "../../../tests/support/port.rs"]
mod port;
#[allow(dead_code)]
#[path = "../../../tests/support/real_server.rs"]
mod real_server;
#[allow(dead_code)]
#[path = "../../../tests/support/skips.rs"]
mod skips;
#[allow(dead_code)]
#[path = "../../../tests/support/waiting.rs"]
mod waiting;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailcoat_config::{StoreConfig, StoreEndpoint, StorePlace};
#[cfg(feature = "valkey")]
use tailcoat_config::{ValkeyPlace, ValkeyTopology};
use tailcoat_store::{
    COUNT_TIME, Expectation, InstanceCount, LIST_BYTES_MAX, LimitCharge, Measured, Put, SharedStore, StoreError,
    StoreKey, StoredVersion, ValueFlaw, open,
};
use tempfile::TempDir;

#[cfg(feature = "valkey")]
use crate::waiting::eventually;

/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

fn key(text: &str) -> StoreKey {
    StoreKey::new(text).unwrap()
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

async fn wait_until_it_works(store: &Measured) {
    let begun = Instant::now();
    while let Err(error) = store.get(&key("a")).await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn config(place: StorePlace) -> StoreConfig {
    StoreConfig { place: Some(place), timeout: Duration::from_secs(20), ..StoreConfig::default() }
}

/// Cases that each engine passes.
async fn check(store: &Arc<Measured>) {
    let (one, other) = (key("cases/one"), key("cases/Other.2_b"));
    store.delete(&one).await.unwrap();
    store.delete(&other).await.unwrap();
    assert_eq!(store.get(&one).await.unwrap(), None);
    assert_eq!(store.list(&key("cases")).await.unwrap(), []);

    // Compare and set.
    let unknown = StoredVersion("7".to_owned());
    assert_eq!(store.put(&one, b"x", Expectation::Version(&unknown)).await.unwrap(), Put::Conflict);
    let Put::Done(first) = store.put(&one, b"first", Expectation::Absent).await.unwrap() else {
        panic!("it was absent")
    };
    assert_eq!(store.put(&one, b"x", Expectation::Absent).await.unwrap(), Put::Conflict);
    let entry = store.get(&one).await.unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), &entry.version), (&b"first"[..], &first));
    let Put::Done(second) = store.put(&one, b"second", Expectation::Version(&first)).await.unwrap() else {
        panic!("as expected")
    };
    assert_ne!(first, second);
    assert_eq!(store.put(&one, b"x", Expectation::Version(&first)).await.unwrap(), Put::Conflict);
    // A repeated value has another version.
    let Put::Done(again) = store.put(&one, b"second", Expectation::Version(&second)).await.unwrap() else {
        panic!("as expected")
    };
    assert_ne!(second, again);
    assert!(matches!(store.put(&one, b"any", Expectation::Any).await.unwrap(), Put::Done(_)));
    assert_eq!(store.put(&one, b"x", Expectation::Version(&again)).await.unwrap(), Put::Conflict);

    // Values of all bytes, and none.
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for value in [&b""[..], b"\0\r\n{\"a\": 1}", &bytes] {
        assert!(matches!(store.put(&other, value, Expectation::Any).await.unwrap(), Put::Done(_)));
        assert_eq!(store.get(&other).await.unwrap().unwrap().value, value, "{} bytes", value.len());
    }
    let large = vec![0; store.abilities().value_bytes_max + 1];
    assert_eq!(store.put(&other, &large, Expectation::Any).await, Err(StoreError::TooLarge));

    // Folders do not mix.
    store.put(&key("cases2/a"), b"", Expectation::Any).await.unwrap();
    store.put(&key("cases/deep/a"), b"", Expectation::Any).await.unwrap();
    let listed = store.list(&key("cases")).await.unwrap();
    let names: Vec<&str> = listed.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["cases/Other.2_b", "cases/one"]);
    assert_eq!((listed[1].1.value.as_slice(), listed[0].1.value.len()), (&b"any"[..], bytes.len()));

    // Of many writers at once, one wins each time.
    let raced = key("cases/raced");
    store.delete(&raced).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8_u32 {
        let (store, raced) = (Arc::clone(store), raced.clone());
        writers.spawn(async move {
            let mut done = 0;
            for _ in 0..4 {
                let known = store.get(&raced).await.unwrap();
                let count =
                    known.as_ref().map_or(0, |entry| String::from_utf8_lossy(&entry.value).parse::<u32>().unwrap());
                let expect = known.as_ref().map_or(Expectation::Absent, |entry| Expectation::Version(&entry.version));
                let put = store.put(&raced, (count + 1).to_string().as_bytes(), expect).await;
                done += u32::from(matches!(put.unwrap_or_else(|error| panic!("{writer}: {error}")), Put::Done(_)));
            }
            done
        });
    }
    let mut done = 0;
    while let Some(count) = writers.join_next().await {
        done += count.unwrap();
    }
    let value = store.get(&raced).await.unwrap().unwrap().value;
    assert_eq!(String::from_utf8(value).unwrap(), done.to_string(), "each change that was reported counts");

    store.delete(&raced).await.unwrap();
    assert_eq!(store.get(&raced).await.unwrap(), None);
    store.delete(&raced).await.unwrap();

    if let Some(time) = store.time().await.unwrap() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(now.abs_diff(time.unix_ms) < 60_000, "{time:?}");
    }
    let charge = store.charge(&[LimitCharge { key: 1, cost_ns: 2_000_000_000, backlog_ns_max: 10_000_000_000 }]).await;
    match store.abilities().has_counters {
        true => assert!(charge.unwrap()[0] > 0),
        false => assert_eq!(charge, Err(StoreError::Unable)),
    }
    let counts = store.share_counts("one", &[InstanceCount { key: 1, count: 2 }]).await;
    assert_eq!(counts, if store.abilities().has_counters { Ok(vec![0]) } else { Err(StoreError::Unable) });
    check_blobs(store).await;
    check_large_lists(store).await;
}

/// Values that may vanish: cached responses.
async fn check_blobs(store: &Arc<Measured>) {
    const LONG: Duration = Duration::from_secs(3_600);
    let (one, other) = (key("blobs/one"), key("blobs/other"));
    if !store.abilities().has_responses {
        assert_eq!(store.put_blob(&one, b"1", LONG).await, Err(StoreError::Unable));
        assert_eq!(store.get_blob(&one, 1).await, Err(StoreError::Unable));
        assert_eq!(store.delete_blob(&one).await, Err(StoreError::Unable));
        return;
    }
    store.delete_blob(&one).await.unwrap();
    assert_eq!(store.get_blob(&one, 100).await.unwrap(), None);
    // Values of all bytes replace one another, and are read up to a limit.
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for value in [&b"1"[..], b"\0\r\n\xff", &bytes] {
        store.put_blob(&one, value, LONG).await.unwrap();
        assert_eq!(store.get_blob(&one, value.len()).await.unwrap().as_deref(), Some(value));
        assert_eq!(store.get_blob(&one, 1_000_000).await.unwrap().as_deref(), Some(value));
        assert_eq!(store.get_blob(&one, value.len() - 1).await, Err(StoreError::TooLarge), "{}", value.len());
    }
    let large = vec![0; store.abilities().value_bytes_max + 1];
    assert_eq!(store.put_blob(&one, &large, LONG).await, Err(StoreError::TooLarge));
    assert_eq!(store.get_blob(&one, bytes.len()).await.unwrap(), Some(bytes));
    // Keys do not mix.
    store.put_blob(&other, b"other", LONG).await.unwrap();
    store.delete_blob(&one).await.unwrap();
    store.delete_blob(&one).await.unwrap();
    assert_eq!(store.get_blob(&one, 100).await.unwrap(), None);
    assert_eq!(store.get_blob(&other, 100).await.unwrap().as_deref(), Some(&b"other"[..]));
    // An empty value is none, unless it is encrypted.
    store.put_blob(&one, b"", LONG).await.unwrap();
    assert!(store.get_blob(&one, 100).await.unwrap().is_none_or(|value| value.is_empty()));
    // Many at once.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16_u32 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let (key, value) = (key(&format!("blobs/{number}")), number.to_string().repeat(1_000));
            store.put_blob(&key, value.as_bytes(), LONG).await.unwrap();
            assert_eq!(store.get_blob(&key, 10_000).await.unwrap(), Some(value.into_bytes()), "{number}");
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // Of these engines, Valkey removes values by itself; a bucket needs a rule for it.
    if store.abilities().has_counters {
        store.put_blob(&other, b"short", Duration::from_millis(50)).await.unwrap();
        let begun = Instant::now();
        while store.get_blob(&other, 100).await.unwrap().is_some() {
            assert!(begun.elapsed() < PATIENCE, "it has expired");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Blobs of a store with `key-file`: neither names nor values say anything, and a value counts only at its own key.
async fn check_sealed_blobs(plain: &StoreConfig) {
    const LONG: Duration = Duration::from_secs(3_600);
    let (_directory, key_file) = secret(&"k".repeat(32));
    let sealed = open(&StoreConfig { key_file, ..plain.clone() }).unwrap();
    check_blobs(&sealed).await;
    let (one, other) = (key("sealed/one"), key("sealed/other"));
    for (key, value) in [(&one, b"private one"), (&other, b"private two")] {
        sealed.put_blob(key, value, LONG).await.unwrap();
    }
    let engine = open(plain).unwrap();
    assert_eq!(engine.get_blob(&one, 1_000).await.unwrap(), None, "the name is a keyed hash");
    // Another secret has other names.
    let (_directory, key_file) = secret(&"o".repeat(32));
    let stranger = open(&StoreConfig { key_file, ..plain.clone() }).unwrap();
    assert_eq!(stranger.get_blob(&one, 1_000).await.unwrap(), None);
}

#[test]
fn directory() {
    let directory = TempDir::new().unwrap();
    let store = open(&config(StorePlace::Directory(directory.path().to_owned()))).unwrap();
    run(check(&store));
    // Nothing half-written stays.
    let left = std::fs::read_dir(directory.path()).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().ends_with(".new")));
}

/// Files of another program where a directory has its versions.
#[test]
fn a_directory_with_files_of_another_program() {
    let directory = TempDir::new().unwrap();
    let store = open(&config(StorePlace::Directory(directory.path().to_owned()))).unwrap();
    let at = |name: &str| directory.path().join(name);
    for folder in ["events/1@", "events/2@", "events/3@", "events/4@/7", "members/b@"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    std::fs::write(at("events/1@/1"), vec![0; 300 << 10]).unwrap();
    std::os::unix::fs::symlink("/nowhere", at("events/2@/1")).unwrap();
    std::fs::write(at("events/3@/007"), "garbage").unwrap();
    std::fs::write(at("events/5@"), "garbage").unwrap();
    std::fs::write(at("members/b@/1"), vec![0; 65 << 10]).unwrap();
    run(async {
        for (name, flaw) in [
            ("events/1", Some(ValueFlaw::TooLarge)),
            ("events/2", Some(ValueFlaw::Foreign)),
            ("events/3", None),
            ("events/4", Some(ValueFlaw::Foreign)),
            ("events/5", Some(ValueFlaw::Foreign)),
        ] {
            let entry = store.get(&key(name)).await.unwrap();
            assert_eq!(entry.as_ref().and_then(|entry| entry.flaw), flaw, "{name}");
            let expect = match &entry {
                Some(entry) => {
                    let put = store.put(&key(name), b"1", Expectation::Absent).await.unwrap();
                    assert_eq!(put, Put::Conflict, "{name}");
                    Expectation::Version(&entry.version)
                }
                None => Expectation::Absent,
            };
            assert!(matches!(store.put(&key(name), b"new", expect).await.unwrap(), Put::Done(_)), "{name}");
            assert_eq!(store.get(&key(name)).await.unwrap().unwrap().value, b"new", "{name}");
        }
        store.put(&key("members/a"), b"1", Expectation::Any).await.unwrap();
        store.put(&key("members/c"), b"1", Expectation::Any).await.unwrap();
        let members = store.list(&key("members")).await.unwrap();
        let flaws: Vec<_> = members.iter().map(|(_, entry)| entry.flaw).collect();
        assert_eq!(flaws, [None, Some(ValueFlaw::TooLarge), None]);
    });
}

#[test]
fn a_directory_with_encrypted_values() {
    let directory = TempDir::new().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    let secret = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        StoreConfig { key_file: Some(path), ..config(place.clone()) }
    };
    let with_key = secret("key", &"k".repeat(32));
    let store = open(&with_key).unwrap();
    run(check(&store));
    run(async {
        store.put(&key("secret"), b"private key", Expectation::Any).await.unwrap();
        let plain = open(&config(place.clone())).unwrap();
        let stored = plain.get(&key("secret")).await.unwrap().unwrap();
        assert!(!stored.value.windows(7).any(|part| part == b"private"));
        // A value that was moved, changed, or written without the key.
        plain.put(&key("moved"), &stored.value, Expectation::Any).await.unwrap();
        let mut changed = stored.value.clone();
        *changed.last_mut().unwrap() ^= 1;
        plain.put(&key("changed"), &changed, Expectation::Any).await.unwrap();
        plain.put(&key("forged"), b"purge", Expectation::Any).await.unwrap();
        for name in ["moved", "changed", "forged"] {
            let entry = store.get(&key(name)).await.unwrap().unwrap();
            assert_eq!((entry.flaw, entry.value.len()), (Some(ValueFlaw::Unauthenticated), 0), "{name}");
            // This secret has decrypted the proof, so the value may be replaced.
            let put = store.put(&key(name), b"new", Expectation::Version(&entry.version)).await.unwrap();
            assert!(matches!(put, Put::Done(_)), "{name}");
            assert_eq!(store.get(&key(name)).await.unwrap().unwrap().value, b"new", "{name}");
        }
        // One value of another program among others of a list.
        store.put(&key("listed/a"), b"a", Expectation::Any).await.unwrap();
        plain.put(&key("listed/b"), b"b", Expectation::Any).await.unwrap();
        store.put(&key("listed/c"), b"c", Expectation::Any).await.unwrap();
        let listed = store.list(&key("listed")).await.unwrap();
        let values: Vec<&[u8]> = listed.iter().map(|(_, entry)| entry.value.as_slice()).collect();
        assert_eq!(values, [&b"a"[..], b"", b"c"]);
        assert_eq!(listed[1].1.flaw, Some(ValueFlaw::Unauthenticated));
        // An instance with another secret reads nothing, writes nothing, and counts nothing.
        let other = open(&secret("other", &"o".repeat(40))).unwrap();
        assert!(matches!(other.get(&key("secret")).await, Err(StoreError::Unusable(_))));
        assert!(matches!(other.put(&key("secret"), b"1", Expectation::Any).await, Err(StoreError::Unusable(_))));
        let charge = [LimitCharge { key: 7, cost_ns: 1, backlog_ns_max: 1 }];
        assert!(matches!(other.charge(&charge).await, Err(StoreError::Unusable(_))));
        assert!(matches!(
            other.share_counts("other", &[InstanceCount { key: 7, count: 1 }]).await,
            Err(StoreError::Unusable(_))
        ));
        assert_eq!(store.get(&key("secret")).await.unwrap().unwrap().value, b"private key");
        assert!(other.counts().unusable >= 3 && other.take_unusable().is_some() && !other.counts().is_away);
        // One that has the secret restores the proof.
        plain.put(&key("key-proof"), b"garbage", Expectation::Any).await.unwrap();
        let late = open(&with_key).unwrap();
        assert!(matches!(late.put(&key("a"), b"1", Expectation::Any).await, Err(StoreError::Unusable(_))));
        let begun = Instant::now();
        while late.charge(&charge).await != Err(StoreError::Unable) {
            assert!(begun.elapsed() < PATIENCE, "the proof is restored");
            assert_eq!(store.charge(&charge).await, Err(StoreError::Unable));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(open(&secret("short", "short")).is_err());
}

#[cfg(feature = "valkey")]
fn valkey_place(port: u16, topology: ValkeyTopology) -> StorePlace {
    StorePlace::Valkey(ValkeyPlace {
        nodes: vec![("127.0.0.1".to_owned(), port)],
        topology,
        is_tls: false,
        database: 0,
    })
}

fn endpoint(is_tls: bool, port: u16) -> StoreEndpoint {
    StoreEndpoint { is_tls, host: "127.0.0.1".to_owned(), port }
}

/// File of a secret, with the directory that removes it.
fn secret(text: &str) -> (TempDir, Option<std::path::PathBuf>) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, text).unwrap();
    (directory, Some(path))
}

#[cfg(feature = "valkey")]
#[test]
fn valkey_standalone() {
    let Some(server) = engines::valkey(&[], &["--requirepass", "secret"]) else { return };
    let (_directory, password_file) = secret("secret\n");
    let place = valkey_place(server.address.port(), ValkeyTopology::Standalone);
    let store = open(&StoreConfig { password_file, ..config(place.clone()) }).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        check(&store).await;
        // The backlog grows by each charge and shrinks by the server's time; it has a bound.
        let charge = |cost_ns| [LimitCharge { key: 9, cost_ns, backlog_ns_max: 100_000_000_000 }];
        let first = store.charge(&charge(40_000_000_000)).await.unwrap()[0];
        let second = store.charge(&charge(40_000_000_000)).await.unwrap()[0];
        assert!(first <= 40_000_000_000 && second > first && second <= 80_000_000_000, "{first} {second}");
        assert_eq!(store.charge(&charge(1_200_000_000_000)).await.unwrap(), [100_000_000_000]);
        let many: Vec<LimitCharge> = (100..1_100).map(|key| LimitCharge { key, ..charge(1_000)[0].clone() }).collect();
        assert_eq!(store.charge(&many).await.unwrap().len(), 1_000);
        // Each instance has its own number of a key, which ends when it tells it no more.
        let counts = |count| [InstanceCount { key: 9, count }, InstanceCount { key: 10, count: 1 }];
        let begun = Instant::now();
        let told = [("one", 3, [0, 0]), ("two", 4, [3, 1]), ("one", 3, [4, 1]), ("two", 0, [3, 1]), ("one", 1, [0, 1])];
        for (instance, count, expect) in told {
            assert_eq!(store.share_counts(instance, &counts(count)).await.unwrap(), expect, "{instance} {count}");
        }
        while store.share_counts("three", &counts(0)).await.unwrap()[0] == 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() > COUNT_TIME / 2, "{:?}", begun.elapsed());
        let without = open(&config(place)).unwrap();
        assert!(matches!(without.get(&key("a")).await, Err(StoreError::Denied(_))));
    });
}

/// Cached responses with `key-file`: a value that another program has moved to another key is an error.
#[cfg(feature = "valkey")]
#[test]
fn sealed_responses_of_valkey() {
    let Some(server) = engines::valkey(&[], &[]) else { return };
    let port = server.address.port();
    let plain = config(valkey_place(port, ValkeyTopology::Standalone));
    let (_directory, key_file) = secret(&"k".repeat(32));
    let sealed = open(&StoreConfig { key_file, ..plain.clone() }).unwrap();
    run(async {
        wait_until_it_works(&sealed).await;
        check_sealed_blobs(&plain).await;
        let names = engines::say(port, "KEYS tailcoat:sealed/*").unwrap();
        let names: Vec<&str> = names.lines().filter(|line| line.starts_with("tailcoat:sealed/")).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.iter().all(|name| !name.contains("one") && !name.contains("other")), "{names:?}");
        assert_eq!(engines::say(port, &format!("COPY {} {} REPLACE", names[0], names[1])).as_deref(), Some(":1\r\n"));
        let mut results = Vec::new();
        for name in ["sealed/one", "sealed/other"] {
            results.push(sealed.get_blob(&key(name), 1_000).await);
        }
        assert_eq!(results.iter().filter(|result| matches!(result, Ok(Some(_)))).count(), 1, "{results:?}");
        assert_eq!(
            results.iter().filter(|result| matches!(result, Err(StoreError::Unusable(_)))).count(),
            1,
            "{results:?}"
        );
    });
}

/// TLS, and a user whose permissions are those that docs/instances.md names.
#[cfg(feature = "valkey")]
#[test]
fn valkey_with_tls_and_a_user() {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let pair = rcgen::KeyPair::generate().unwrap();
    let names = ["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&pair, &authority).unwrap();
    let files = [("cert.pem", &*certificate.pem()), ("key.pem", &*pair.serialize_pem()), ("ca.pem", &*authority.pem())];
    let Some(server) = engines::valkey(
        &files,
        &[
            "--port",
            "0",
            "--tls-port",
            "@PORT@",
            "--tls-cert-file",
            "@DIR@/cert.pem",
            "--tls-key-file",
            "@DIR@/key.pem",
            "--tls-ca-cert-file",
            "@DIR@/ca.pem",
            "--tls-auth-clients",
            "no",
            "--user",
            "tailcoat",
            "on",
            ">secret",
            "~tailcoat:*",
            "+@read",
            "+@write",
            "+@scripting",
            "+@connection",
            "+time",
        ],
    ) else {
        return;
    };
    let (_directory, password_file) = secret("secret");
    let place = StorePlace::Valkey(ValkeyPlace {
        nodes: vec![("127.0.0.1".to_owned(), server.address.port())],
        topology: ValkeyTopology::Standalone,
        is_tls: true,
        database: 0,
    });
    let authorities = Some(server.directory().join("ca.pem"));
    let username = Some("tailcoat".to_owned());
    let trusting = StoreConfig { username, password_file, authorities, ..config(place) };
    let store = open(&trusting).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        check(&store).await;
        // A certificate of an unknown CA, and a wrong password.
        let doubting = open(&StoreConfig { authorities: None, ..trusting.clone() }).unwrap();
        assert!(matches!(doubting.get(&key("a")).await, Err(StoreError::Unreachable(_))));
        let (_directory, password_file) = secret("wrong");
        let wrong = open(&StoreConfig { password_file, ..trusting.clone() }).unwrap();
        assert!(matches!(wrong.get(&key("a")).await, Err(StoreError::Denied(_))));
    });
}

/// A store that stops costs an operation its time limit, no more, and works again when it continues.
#[cfg(feature = "valkey")]
#[test]
fn a_stopped_valkey() {
    let Some(server) = engines::valkey(&[], &[]) else { return };
    let place = valkey_place(server.address.port(), ValkeyTopology::Standalone);
    let patient = open(&config(place.clone())).unwrap();
    let hasty = open(&StoreConfig { timeout: Duration::from_millis(200), ..config(place) }).unwrap();
    run(async {
        wait_until_it_works(&patient).await;
        wait_until_it_works(&hasty).await;
        patient.put(&key("a"), b"1", Expectation::Any).await.unwrap();
        server.signal("STOP");
        assert_eq!(hasty.get(&key("a")).await.unwrap_err(), StoreError::TimedOut);
        assert!(hasty.counts().is_away && hasty.counts().timeouts >= 1);
        server.signal("CONT");
        assert_eq!(patient.get(&key("a")).await.unwrap().unwrap().value, b"1");
        wait_until_it_works(&hasty).await;
        assert!(!hasty.counts().is_away);
    });
}

/// A store without space for new values.
#[cfg(feature = "valkey")]
#[test]
fn a_full_valkey() {
    let Some(server) = engines::valkey(&[], &["--maxmemory", "1", "--maxmemory-policy", "noeviction"]) else { return };
    let store = open(&config(valkey_place(server.address.port(), ValkeyTopology::Standalone))).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        assert!(matches!(store.put(&key("a"), b"1", Expectation::Any).await, Err(StoreError::Busy(_))));
    });
}

/// Keys that another program has set: too large, or with another type. They are replaced by their version, and lists go on.
#[cfg(feature = "valkey")]
#[test]
fn values_of_another_program_in_valkey() {
    let Some(server) = engines::valkey(&[], &[]) else { return };
    let port = server.address.port();
    let store = open(&config(valkey_place(port, ValkeyTopology::Standalone))).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        store.put(&key("members/b"), b"good", Expectation::Any).await.unwrap();
        for command in [
            "SET tailcoat:text 1",
            "HSET tailcoat:half v 1",
            "SET tailcoat:folder/* 1",
            "SET tailcoat:limits/0000000000000007 garbage",
            "SADD tailcoat:limits/0000000000000008 garbage",
            "SET tailcoat:counts/0000000000000007 garbage",
            "EVAL \"return redis.call('HSET', KEYS[1], 'v', '1', 'd', string.rep('x', 20000000))\" 1 tailcoat:huge",
            "EVAL \"return redis.call('HSET', KEYS[1], 'v', '1', 'd', string.rep('x', 65537))\" 1 tailcoat:members/a",
            "EVAL \"return redis.call('HSET', KEYS[1], 'v', string.rep('x', 101), 'd', '')\" 1 tailcoat:long",
            "EVAL \"return redis.call('SADD', KEYS[1], 'members/a', 'members/c', string.rep('x', 20000000))\" 1 tailcoat:members/*",
            "SET tailcoat:members/c 1",
            "EVAL \"for i = 1, 20001 do redis.call('SADD', KEYS[1], 'many/' .. i) end return 1\" 1 tailcoat:many/*",
        ] {
            assert!(engines::say(port, command).is_some_and(|reply| !reply.starts_with('-')), "{command}");
        }
        for (name, flaw) in [
            ("text", ValueFlaw::Foreign),
            ("half", ValueFlaw::Foreign),
            // Too much of a value or a version is not even sent.
            ("huge", ValueFlaw::TooLarge),
            ("long", ValueFlaw::Foreign),
        ] {
            let entry = store.get(&key(name)).await.unwrap().unwrap();
            assert_eq!(entry.flaw, Some(flaw), "{name}");
            assert_eq!(store.put(&key(name), b"1", Expectation::Absent).await.unwrap(), Put::Conflict, "{name}");
            let put = store.put(&key(name), b"1", Expectation::Version(&entry.version)).await.unwrap();
            assert!(matches!(put, Put::Done(_)), "{name}");
            assert_eq!(store.get(&key(name)).await.unwrap().unwrap().value, b"1", "{name}");
        }
        let members = store.list(&key("members")).await.unwrap();
        let flaws: Vec<_> = members.iter().map(|(key, entry)| (key.as_str(), entry.flaw)).collect();
        let (large, foreign) = (Some(ValueFlaw::TooLarge), Some(ValueFlaw::Foreign));
        assert_eq!(flaws, [("members/a", large), ("members/b", None), ("members/c", foreign)]);
        assert_eq!(store.list(&key("folder")).await.unwrap(), []);
        store.put(&key("folder/a"), b"1", Expectation::Absent).await.unwrap();
        assert_eq!(store.list(&key("folder")).await.unwrap().len(), 1);
        assert_eq!(store.list(&key("many")).await, Err(StoreError::TooLarge));
        // Counts of another program count as none.
        for number in [7, 8] {
            let charge = [LimitCharge { key: number, cost_ns: 1_000, backlog_ns_max: 1_000_000 }];
            assert!(store.charge(&charge).await.is_ok_and(|backlogs| backlogs.len() == 1), "{number}");
        }
        let counts = [InstanceCount { key: 7, count: 2 }];
        assert_eq!(store.share_counts("one", &counts).await.unwrap(), [0]);
        assert_eq!(store.share_counts("two", &counts).await.unwrap(), [2]);
        assert!(store.counts().unusable >= 6 && !store.counts().is_away, "{:?}", store.counts());
    });
}

/// A list of values that are too large together: the first are read, and no memory is taken for the rest.
async fn check_large_lists(store: &Measured) {
    let value = vec![b'x'; 200 << 10];
    for number in 0..60 {
        store.put(&key(&format!("heap/{number:02}")), &value, Expectation::Any).await.unwrap();
    }
    let listed = store.list(&key("heap")).await.unwrap();
    assert_eq!(listed.len(), 60);
    let sum: usize = listed.iter().map(|(_, entry)| entry.value.len()).sum();
    assert!(sum <= LIST_BYTES_MAX && sum + value.len() > LIST_BYTES_MAX, "{sum}");
    let flawed: Vec<_> = listed.iter().filter_map(|(_, entry)| entry.flaw).collect();
    assert_eq!(flawed, vec![ValueFlaw::TooLarge; 60 - LIST_BYTES_MAX / value.len()]);
    // Values of a kind that is small.
    for name in ["members/large", "events/0000000000000007"] {
        assert_eq!(store.put(&key(name), &vec![b'x'; 300 << 10], Expectation::Any).await, Err(StoreError::TooLarge));
    }
    store.put(&key("members/small"), b"1", Expectation::Any).await.unwrap();
}

/// Three nodes, each with a third of the keys.
#[cfg(feature = "valkey")]
#[test]
fn valkey_cluster() {
    let start = || {
        let bus = port::free_port().to_string();
        let server = engines::valkey(&[], &["--cluster-enabled", "yes", "--cluster-port", &bus])?;
        Some((server, bus))
    };
    let Some(nodes) = (0..3).map(|_| start()).collect::<Option<Vec<_>>>() else { return };
    let ports: Vec<u16> = nodes.iter().map(|(server, _)| server.address.port()).collect();
    let order =
        |port: u16, command: &str| assert_eq!(engines::say(port, command).as_deref(), Some("+OK\r\n"), "{command}");
    for (port, slots) in ports.iter().zip(["0 5000", "5001 11000", "11001 16383"]) {
        order(*port, &format!("CLUSTER ADDSLOTSRANGE {slots}"));
    }
    for (server, bus) in &nodes[1..] {
        order(ports[0], &format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.address.port()));
    }
    for port in &ports {
        eventually("the cluster is complete", || {
            let state = engines::say(*port, "CLUSTER INFO").unwrap_or_default();
            state.contains("cluster_state:ok") && state.contains("cluster_known_nodes:3")
        });
    }
    let store = open(&config(valkey_place(ports[0], ValkeyTopology::Cluster))).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        check(&store).await;
        let many: Vec<LimitCharge> =
            (0..100).map(|key| LimitCharge { key, cost_ns: 1_000_000_000, backlog_ns_max: 2_000_000_000 }).collect();
        assert!(store.charge(&many).await.unwrap().iter().all(|backlog| *backlog > 0));
    });
    let has_keys = |port: &u16| engines::say(*port, "DBSIZE").is_some_and(|reply| reply.trim() != ":0");
    assert!(ports.iter().all(has_keys), "keys are spread");
}

/// The primary is killed, and Sentinel makes its replica the primary.
#[cfg(feature = "valkey")]
#[test]
fn valkey_sentinel_replaces_the_primary() {
    let Some(mut primary) = engines::valkey(&[], &[]) else { return };
    let port = primary.address.port();
    let Some(replica) = engines::valkey(&[], &["--replicaof", "127.0.0.1", &port.to_string()]) else { return };
    let says = |server: &real_server::RealServer, command: &str, text: &str| {
        engines::say(server.address.port(), command).is_some_and(|reply| reply.contains(text))
    };
    eventually("the replica follows", || says(&replica, "INFO replication", "master_link_status:up"));
    let Some(sentinel) = engines::sentinel(port) else { return };
    let order_patience = |ms: u32| {
        let order = format!("SENTINEL SET edge down-after-milliseconds {ms}");
        eventually("Sentinel obeys", || says(&sentinel, &order, "+OK"));
    };
    // On a busy machine, the primary may respond late while it is still needed.
    order_patience(60_000);
    eventually("Sentinel knows the replica", || says(&sentinel, "SENTINEL MASTER edge", "num-slaves\r\n$1\r\n1"));
    let place = valkey_place(sentinel.address.port(), ValkeyTopology::Sentinel("edge".to_owned()));
    let store = open(&config(place)).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        check(&store).await;
        store.put(&key("kept"), b"1", Expectation::Any).await.unwrap();
    });
    // Without a value, the reply is `$-1`.
    let copied = || says(&replica, "HGET tailcoat:kept d", "$1\r\n1");
    eventually("the value is copied", copied);
    order_patience(500);
    primary.kill();
    run(async {
        let begun = Instant::now();
        while let Err(error) = store.put(&key("later"), b"2", Expectation::Any).await {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(store.get(&key("kept")).await.unwrap().unwrap().value, b"1");
    });
    assert!(says(&replica, "HGET tailcoat:later d", "2"));
}

#[test]
fn s3() {
    let Some(server) = engines::s3() else { return };
    let (_directory, password_file) = secret("secret");
    let place = StorePlace::S3 { bucket: "shared".to_owned(), prefix: "edge/a".to_owned() };
    let endpoint = Some(endpoint(false, server.address.port()));
    let config = StoreConfig { username: Some("id".to_owned()), password_file, endpoint, ..config(place) };
    run(async {
        check(&open(&config).unwrap()).await;
        check_sealed_blobs(&config).await;
    });
}

#[test]
fn consul() {
    let Some(server) = engines::consul() else { return };
    let endpoint = endpoint(false, server.address.port());
    let store = open(&config(StorePlace::Consul { endpoint, prefix: "edge/a".to_owned() })).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        check(&store).await;
    });
}

/// Secrets and Leases, by TLS and with a token.
#[test]
fn kubernetes() {
    let account = rcgen::KeyPair::generate().unwrap();
    let Some(kubernetes) = engines::Kubernetes::start(&account) else { return };
    let (_directory, password_file) = secret(engines::KUBERNETES_TOKEN);
    let place = StorePlace::Kubernetes { namespace: "default".to_owned(), prefix: "edge".to_owned() };
    let endpoint = Some(endpoint(true, kubernetes.server.address.port()));
    let authorities = Some(kubernetes.authority());
    let config = StoreConfig { endpoint, authorities, password_file, ..config(place) };
    let store = open(&config).unwrap();
    run(async {
        wait_until_it_works(&store).await;
        // The API server makes the namespace after it begins to listen.
        let begun = Instant::now();
        while let Err(error) = store.put(&key("a"), b"1", Expectation::Any).await {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        check(&store).await;
        let lease = key("leases/a");
        let Put::Done(version) = store.put(&lease, br#"{"owner":"a"}"#, Expectation::Absent).await.unwrap() else {
            panic!("it was absent")
        };
        assert_eq!(store.get(&lease).await.unwrap().unwrap().version, version);
        assert_eq!(store.list(&key("leases")).await.unwrap().len(), 1);
        // Two pages of a list.
        for number in 0..510 {
            store.put(&key(&format!("many/{number:03}")), b"", Expectation::Absent).await.unwrap();
        }
        assert_eq!(store.list(&key("many")).await.unwrap().len(), 510);
        let (_directory, password_file) = secret("unknown");
        let stranger = open(&StoreConfig { password_file, ..config.clone() }).unwrap();
        assert!(matches!(stranger.get(&key("a")).await, Err(StoreError::Denied(_))));
    });
}

/// Engines that respond with garbage, with too much, or with nothing: errors in time, and nothing else.
#[test]
fn hostile_engines() {
    for (response, is_expected) in [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}[".to_vec(),
            (|error| matches!(error, StoreError::Wrong(_))) as fn(&StoreError) -> bool,
        ),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".to_vec(), |error| {
            matches!(error, StoreError::Denied(_))
        }),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(), |error| matches!(error, StoreError::Busy(_))),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), |error| matches!(error, StoreError::Unreachable(_))),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n".to_vec(), |error| matches!(error, StoreError::TooLarge)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec(), |error| {
            matches!(error, StoreError::TooLarge)
        }),
        (Vec::new(), |error| matches!(error, StoreError::TimedOut)),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let bytes = response.clone();
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(&bytes);
                kept.push(stream);
            }
        });
        let endpoint = StoreEndpoint { is_tls: false, host: "127.0.0.1".to_owned(), port };
        let place = StorePlace::Consul { endpoint, prefix: "a".to_owned() };
        let limit = if response.is_empty() { Duration::from_millis(200) } else { Duration::from_secs(20) };
        let store = open(&StoreConfig { timeout: limit, ..config(place) }).unwrap();
        run(async {
            let error = store.get(&key("a")).await.unwrap_err();
            assert!(is_expected(&error), "{}: {error:?}", String::from_utf8_lossy(&response));
        });
    }
}
