//! Basic authentication (RFC 7617).
//!
//! Verifying a password is slow by design. The blocking pool does it, with few verifications at a time. Right passwords
//! are remembered for some minutes, so that not each request needs a verification. Users who signed in before a flood
//! of wrong passwords are not affected by it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use argon2::PasswordVerifier;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64ct::{Base64Unpadded, Encoding};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use wire::http::{KnownField, Request, Status};

use super::md5_crypt::is_md5_crypt;
use super::{CountTable, KeyHasher, Permit};
use crate::config::{Limits, PasswordFile, PasswordHash, sha1_of};
use crate::handler::BuiltResponse;
use crate::log::{LogClient, ServerLog, event};
use crate::object_cache::{FileIdentity, FileStatus, file_time_now_ns};

/// Time for which a file is assumed to be unchanged.
const RECHECK_AFTER_MS: u64 = 1_000;

/// Time for which a right password is remembered. A change of the file ends it at once.
const REMEMBERED_MS: u64 = 10 * 60 * 1_000;

/// Maximum number of remembered passwords for each file; each takes 64 bytes.
const REMEMBERED_MAX: usize = 10_000;

/// Maximum length of a password that is verified. The time of SHA crypt grows with the length, so longer passwords
/// would only cost CPU time.
const PASSWORD_BYTES_MAX: usize = 1_024;

/// Divisor of the waiting places: one client may use this part of them.
const WAITING_PART_OF_CLIENT: usize = 8;

/// Password file, shared by all workers.
pub(crate) struct PasswordStore {
    path: PathBuf,
    /// Key of the digests of remembered passwords. Without it, leaked memory or timing does not reveal a password.
    key: [u8; 32],
    state: Mutex<PasswordState>,
    /// Lock held while the file is checked for changes.
    recheck: Arc<tokio::sync::Mutex<()>>,
    server_log: ServerLog,
}

#[derive(Default)]
struct PasswordState {
    /// `None` if the file could not be read; then no user is admitted.
    file: Option<Arc<PasswordFile>>,
    identity: Option<FileIdentity>,
    /// True if the file was read so long after its last change that each later change gets another identity.
    is_settled: bool,
    checked_ms: Option<u64>,
    /// End of the time for which a keyed hash of user and password is remembered.
    remembered: HashMap<[u8; 32], u64>,
}

/// Limits on concurrent verifications, shared by all workers.
pub struct PasswordChecks {
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    waiting_of_client_max: u32,
    clients: Arc<CountTable>,
    hasher: KeyHasher,
}

/// User and password as the request contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(super) user: Vec<u8>,
    password: Vec<u8>,
}

/// Result of checking credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialVerdict {
    /// The password is right.
    Right,
    /// The user does not exist, or the password is wrong.
    Wrong,
    /// Too many passwords wait to be verified.
    Busy,
    /// The file cannot be read.
    Failed,
}

/// Passwords of a protocol other than HTTP.
#[derive(Clone)]
pub struct PasswordGate {
    pub(super) store: Arc<PasswordStore>,
    pub(super) checks: Arc<PasswordChecks>,
}

impl PasswordGate {
    /// Verifies a user's password.
    pub async fn verify(self, user: Vec<u8>, password: Vec<u8>, client: LogClient, now_ms: u64) -> CredentialVerdict {
        let credentials = Credentials { user, password };
        if let Some(verdict) = self.store.recall(&credentials, now_ms) {
            return verdict;
        }
        self.store.verify(self.checks, credentials, client, now_ms).await
    }
}

impl PasswordStore {
    /// Makes the store for a file, which is read later.
    pub(crate) fn new(path: &Path, server_log: &ServerLog) -> io::Result<Arc<Self>> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        let (state, recheck) = (Mutex::default(), Arc::default());
        Ok(Arc::new(Self { path: path.to_owned(), key, state, recheck, server_log: server_log.clone() }))
    }

    /// Returns the verdict if it is known without waiting.
    pub(crate) fn recall(&self, credentials: &Credentials, now_ms: u64) -> Option<CredentialVerdict> {
        let state = self.state();
        if state.is_due(now_ms) {
            return None;
        }
        if state.file.is_none() {
            return Some(CredentialVerdict::Failed);
        }
        let until_ms = state.remembered.get(&self.digest(credentials))?;
        (now_ms < *until_ms).then_some(CredentialVerdict::Right)
    }

    /// Verifies credentials.
    pub(crate) async fn verify(
        self: Arc<Self>,
        checks: Arc<PasswordChecks>,
        credentials: Credentials,
        client: LogClient,
        now_ms: u64,
    ) -> CredentialVerdict {
        self.recheck(now_ms).await;
        if let Some(verdict) = self.recall(&credentials, now_ms) {
            return verdict;
        }
        let Some(place) = checks.wait_place(client) else { return CredentialVerdict::Busy };
        // Local invariant: the semaphore is never closed.
        let Ok(running) = Arc::clone(&checks.running).acquire_owned().await else { return CredentialVerdict::Busy };
        let verified = tokio::task::spawn_blocking(move || {
            // Both are held until the work ends, even if the client disconnects. Otherwise a client could disconnect to
            // make room for its next request.
            let _held = (place, running);
            self.verify_now(&credentials, now_ms)
        });
        let verified = verified.await;
        // Only a library can panic here, on hashes that were parsed before.
        verified.unwrap_or(CredentialVerdict::Failed)
    }

    /// Reads the file again if it has changed. One task checks at a time; a remembered password then needs no further
    /// waiting.
    async fn recheck(self: &Arc<Self>, now_ms: u64) {
        let only = Arc::clone(&self.recheck).lock_owned().await;
        if self.state().is_due(now_ms) {
            let store = Arc::clone(self);
            let looked = tokio::task::spawn_blocking(move || {
                let _held = only;
                store.recheck_now(now_ms);
            });
            // After a panic, the old file stays in use, and the next request checks it again.
            let _ = looked.await;
        }
    }

    /// Verifies a user's password. Slow, so it must run on the blocking pool.
    fn verify_now(&self, credentials: &Credentials, now_ms: u64) -> CredentialVerdict {
        // Another task may have verified the same credentials meanwhile.
        if let Some(verdict) = self.recall(credentials, now_ms) {
            return verdict;
        }
        let Some(file) = self.state().file.clone() else { return CredentialVerdict::Failed };
        let (hash, is_known) = hash_of(&file, &credentials.user);
        // A password is verified for unknown users, too, so that the time does not reveal which users exist.
        let is_right = hash.is_some_and(|hash| is_password(&credentials.password, hash));
        if !is_right || !is_known {
            return CredentialVerdict::Wrong;
        }
        self.remember(&file, credentials, now_ms);
        CredentialVerdict::Right
    }

    fn remember(&self, file: &Arc<PasswordFile>, credentials: &Credentials, now_ms: u64) {
        let mut state = self.state();
        // The file may have been read again meanwhile, with another result.
        if !state.file.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)) {
            return;
        }
        if state.remembered.len() >= REMEMBERED_MAX {
            state.remembered.retain(|_, until_ms| *until_ms > now_ms);
        }
        if state.remembered.len() >= REMEMBERED_MAX {
            state.remembered.clear();
        }
        state.remembered.insert(self.digest(credentials), now_ms + REMEMBERED_MS);
    }

    /// Values that identify the file's present version.
    fn identity(&self) -> io::Result<FileIdentity> {
        Ok(FileStatus::at(rustix::fs::CWD, self.path.as_os_str().as_bytes())?.identity)
    }

    /// Reads the file if it has changed.
    fn recheck_now(&self, now_ms: u64) {
        let (identity, now_ns) = (self.identity(), file_time_now_ns());
        let (known, is_settled) = {
            let state = self.state();
            (state.identity, state.is_settled)
        };
        let is_known = matches!((&identity, known), (Ok(identity), Some(known)) if *identity == known);
        if is_known && is_settled {
            self.state().checked_ms = Some(now_ms);
            return;
        }
        // Uses the identity from before reading, so that a change during the read leads to another read.
        let read = identity.and_then(|identity| Ok((identity, PasswordFile::read(&self.path)?)));
        let mut state = self.state();
        state.remembered.clear();
        state.checked_ms = Some(now_ms);
        match read {
            Ok((identity, file)) => {
                if let Some((line, problem)) = file.problems.first().filter(|_| !is_known) {
                    let values: &[(&str, &dyn fmt::Display)] =
                        &[("file", &self.path.display()), ("line", line), ("reason", problem)];
                    self.server_log
                        .warn(event("password ignored", values), "this user cannot sign in; repair the line");
                }
                if let Some((line, problem)) = file.weak.first().filter(|_| !is_known) {
                    let values: &[(&str, &dyn fmt::Display)] =
                        &[("file", &self.path.display()), ("line", line), ("weak_lines", &file.weak.len())];
                    self.server_log.warn(event("weak password hash", values), problem);
                }
                state.identity = Some(identity);
                state.is_settled = identity.is_settled(now_ns);
                state.file = Some(Arc::new(file));
            }
            Err(error) => {
                self.server_log.error(
                    event("reading password file failed", &[("file", &self.path.display()), ("error", &error)]),
                    "no user of this file can sign in; make it readable for the server's user",
                );
                state.identity = None;
                state.file = None;
            }
        }
    }

    fn digest(&self, credentials: &Credentials) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.key);
        // The length distinguishes `a` and `bc` from `ab` and `c`.
        hash.update((credentials.user.len() as u64).to_le_bytes());
        hash.update(&credentials.user);
        hash.update(&credentials.password);
        hash.finalize().into()
    }

    fn state(&self) -> MutexGuard<'_, PasswordState> {
        // A panic while the lock is held leaves no half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PasswordState {
    /// Returns true if the file must be checked for changes.
    fn is_due(&self, now_ms: u64) -> bool {
        self.checked_ms.is_none_or(|checked_ms| now_ms.saturating_sub(checked_ms) >= RECHECK_AFTER_MS)
    }
}

impl PasswordChecks {
    /// Makes the limits on verifications from the configuration.
    pub fn new(limits: &Limits, hasher: &KeyHasher) -> Arc<Self> {
        let waiting_max = limits.password_checks_waiting_max;
        Arc::new(Self {
            running: Arc::new(Semaphore::new(limits.password_checks_max)),
            waiting: AtomicUsize::new(0),
            waiting_max,
            waiting_of_client_max: (waiting_max / WAITING_PART_OF_CLIENT).max(1) as u32,
            clients: Arc::default(),
            hasher: hasher.clone(),
        })
    }

    /// Reserves a waiting place; returns `None` if no place is free for this client.
    fn wait_place(self: &Arc<Self>, client: LogClient) -> Option<WaitPlace> {
        let key = self.hasher.of_client(client);
        let of_client = self.clients.take(key, self.waiting_of_client_max)?;
        let is_free = |waiting: usize| (waiting < self.waiting_max).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).ok()?;
        Some(WaitPlace { checks: Arc::clone(self), _of_client: of_client })
    }
}

/// Place of a password that waits for its verification or is being verified.
struct WaitPlace {
    checks: Arc<PasswordChecks>,
    _of_client: Permit,
}

impl Drop for WaitPlace {
    fn drop(&mut self) {
        self.checks.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the hash to verify for a user, and true if it is the user's own hash.
fn hash_of<'f>(file: &'f PasswordFile, user: &[u8]) -> (Option<&'f PasswordHash>, bool) {
    let stand_in = file.stand_in(user);
    match file.hashes.get(user) {
        Some(hash) => (Some(hash), true),
        None => (stand_in, false),
    }
}

/// Returns true if the password matches the hash. The libraries compare in constant time.
fn is_password(password: &[u8], hash: &PasswordHash) -> bool {
    if password.len() > PASSWORD_BYTES_MAX {
        return false;
    }
    match hash {
        PasswordHash::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
        PasswordHash::ShaCrypt(hash) => sha_crypt::ShaCrypt::default().verify_password(password, hash.as_str()).is_ok(),
        PasswordHash::Argon2(hash) => argon2::password_hash::phc::PasswordHash::new(hash)
            .is_ok_and(|hash| argon2::Argon2::default().verify_password(password, &hash).is_ok()),
        PasswordHash::Md5Crypt(hash) => is_md5_crypt(password, hash),
        PasswordHash::Sha1(hash) => sha1_of(hash).is_some_and(|(expect, salt)| {
            let salted = [password, &salt].concat();
            is_equal(digest(&SHA1_FOR_LEGACY_USE_ONLY, &salted).as_ref(), &expect)
        }),
    }
}

/// Compares without revealing by the time where two texts differ.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

/// Returns the credentials of a request; `None` if they are missing or malformed.
pub(crate) fn credentials(request: &Request<'_>) -> Option<Credentials> {
    if request.head.is_repeated(KnownField::Authorization) {
        return None;
    }
    let value = request.field(KnownField::Authorization)?;
    let (scheme, rest) = value.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let text = std::str::from_utf8(rest.trim_ascii()).ok()?;
    let decoded = Base64Unpadded::decode_vec(text.trim_end_matches('=')).ok()?;
    let colon = memchr::memchr(b':', &decoded)?;
    // RFC 7617, section 2: no control characters, and no colon in the user name.
    if decoded.iter().any(u8::is_ascii_control) {
        return None;
    }
    Some(Credentials { user: decoded[..colon].to_vec(), password: decoded[colon + 1..].to_vec() })
}

/// Makes the response to a request without a right password.
pub(crate) fn challenge(realm: &str) -> Box<BuiltResponse> {
    let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
    let mut response = BuiltResponse::new(Status::UNAUTHORIZED);
    response.fields.push("WWW-Authenticate", format!("Basic realm=\"{quoted}\", charset=\"UTF-8\""));
    response
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::Poll;

    use proptest::prelude::*;

    use super::*;
    use crate::config::LogLevel;
    use crate::log::LogClient;
    use crate::routing::rules::Visit;
    use crate::routing::rules::tests::RuleTestRequest;

    /// Hashes of `secret`, each with the lowest cost of its kind.
    const HASHES: [(&str, &str); 8] = [
        ("apr1", "$apr1$lZL6V/ci$PR6QJXkRFUzdUuaYcwrI//"),
        ("md5", "$1$gvRqPyWj$LaKmPcDWCIedG5X/j/yYj1"),
        ("sha1", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="),
        ("bcrypt", "$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC"),
        ("sha256", "$5$rounds=1000$saltstring$AH5PD0i.riCRu4BNDy9v7OPV7u3dfLBApcXI6khquVA"),
        (
            "sha512",
            "$6$saltstring$AIsRs/Ee56G/tC8MEHhvReZTfx8u3rXXMl6eYrjCG9ibix19DxoMBLogdTET5Ukw9Sf7eZTITsuk0Ry5qulYz.",
        ),
        ("argon2id", "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$pclxcsa4X0bZ5lu7Vy5h3p7EU7VbuW7pGRWETxHuU0c"),
        ("argon2i", "$argon2i$v=19$m=64,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$bIz/V4n7hzlok4Xqgotx+ZpWTmvoY4+FQ+dM9zILHSw"),
    ];

    fn given(value: &str) -> Option<(String, String)> {
        let request = RuleTestRequest::new(&format!("GET / HTTP/1.1\r\nHost: h\r\n{value}\r\n\r\n"));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        credentials(&request.routed().request).map(|found| (text(found.user), text(found.password)))
    }

    #[test]
    fn credentials_of_requests() {
        let check = |value: &str, expect: Option<(&str, &str)>| {
            let expect = expect.map(|(user, password)| (user.to_owned(), password.to_owned()));
            assert_eq!(given(value), expect, "{value}");
        };
        let aladdin = Some(("Aladdin", "open sesame"));
        check("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", aladdin);
        check("authorization: bAsIc   QWxhZGRpbjpvcGVuIHNlc2FtZQ== ", aladdin);
        check("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ", aladdin);
        check("Authorization: Basic dGVzdDoxMjPCow==", Some(("test", "123£")));
        check("Authorization: Basic YTpiOmM=", Some(("a", "b:c")));
        check("Authorization: Basic Og==", Some(("", "")));
        for value in [
            "X: y",
            "Authorization: Basic",
            "Authorization: Basic ",
            "Authorization: Basic QWxhZGRpbg==",
            "Authorization: Basic !!!!",
            "Authorization: Basic YQpiOmM=",
            "Authorization: Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "Authorization: BasicQWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "Authorization: Basic YTpi\r\nAuthorization: Basic YTpj",
        ] {
            check(value, None);
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read(value in "(Basic )?[ -~]{0,40}", user in "[ -9;-~]{0,20}", password in "[ -~]{0,20}") {
            let _ = given(&format!("Authorization: {value}"));
            let encoded = base64ct::Base64::encode_string(format!("{user}:{password}").as_bytes());
            prop_assert_eq!(given(&format!("Authorization: Basic {encoded}")), Some((user, password)));
        }
    }

    #[test]
    fn kinds_of_hashes() {
        let lines: Vec<String> = HASHES.iter().map(|(user, hash)| format!("{user}:{hash}")).collect();
        let file = PasswordFile::parse(lines.join("\n").as_bytes());
        assert_eq!(file.problems, []);
        for (user, _) in HASHES {
            let hash = &file.hashes[user.as_bytes()];
            assert!(is_password(b"secret", hash), "{user}");
            for wrong in ["", "Secret", "secre", "secret ", "secret\u{e4}"] {
                assert!(!is_password(wrong.as_bytes(), hash), "{user} {wrong}");
            }
        }
        let salted = PasswordHash::Sha1("{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0".into());
        assert!(is_password(b"secret", &salted) && !is_password(b"secrets", &salted));
        assert!(!is_password(&[b'a'; PASSWORD_BYTES_MAX + 1], &file.hashes[&b"bcrypt"[..]]));
    }

    #[test]
    fn unknown_users_are_verified_against_hashes_of_the_file() {
        let lines: Vec<String> = HASHES.iter().map(|(user, hash)| format!("{user}:{hash}")).collect();
        let file = PasswordFile::parse(lines.join("\n").as_bytes());
        let mut verified: Vec<_> =
            (0..200).map(|number| hash_of(&file, format!("unknown{number}").as_bytes())).collect();
        assert!(verified.iter().all(|(hash, is_known)| hash.is_some() && !is_known));
        for (user, hash) in HASHES {
            assert!(matches!(hash_of(&file, user.as_bytes()), (Some(_), true)), "{user}");
            let before = verified.len();
            verified.retain(|(stand_in, _)| *stand_in != file.hashes.get(user.as_bytes()));
            assert!(
                (5..50).contains(&(before - verified.len())),
                "{user}: an eighth of 200 is verified against {hash}"
            );
        }
        assert_eq!(verified, []);
        // The right password of the stand-in hash does not admit an unknown user.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        std::fs::write(&path, lines.join("\n")).unwrap();
        let store = PasswordStore::new(&path, &ServerLog::stderr(LogLevel::Error)).unwrap();
        store.recheck_now(1_000);
        let unknown = Credentials { user: b"unknown1".to_vec(), password: b"secret".to_vec() };
        assert_eq!(store.verify_now(&unknown, 1_000), CredentialVerdict::Wrong);
    }

    #[test]
    fn files_are_read_again_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        let store = PasswordStore::new(&path, &ServerLog::stderr(LogLevel::Error)).unwrap();
        let credentials = Credentials { user: b"anna".to_vec(), password: b"secret".to_vec() };
        let check = |now_ms: u64, recalled: Option<CredentialVerdict>, verified: CredentialVerdict| {
            assert_eq!(store.recall(&credentials, now_ms), recalled, "{now_ms}");
            store.recheck_now(now_ms);
            assert_eq!(store.verify_now(&credentials, now_ms), verified, "{now_ms}");
        };
        check(10_000, None, CredentialVerdict::Failed);
        check(10_500, Some(CredentialVerdict::Failed), CredentialVerdict::Failed);
        std::fs::write(&path, format!("anna:{}\n", HASHES[0].1)).unwrap();
        check(12_000, None, CredentialVerdict::Right);
        check(12_500, Some(CredentialVerdict::Right), CredentialVerdict::Right);
        check(14_000, None, CredentialVerdict::Right);
        // Within a tick of the clock of time stamps, the length alone tells versions apart.
        std::fs::write(&path, format!("bert:{}\n", HASHES[0].1)).unwrap();
        check(16_000, None, CredentialVerdict::Wrong);
        std::fs::write(&path, format!("anna:{}\n# longer\n", HASHES[0].1)).unwrap();
        check(18_000, None, CredentialVerdict::Right);
        // A password is remembered for a limited time, even if the file was just checked.
        store.state().checked_ms = Some(18_000 + REMEMBERED_MS);
        assert_eq!(store.recall(&credentials, 18_000 + REMEMBERED_MS), None);
    }

    #[test]
    fn few_may_wait() {
        let limits = Limits { password_checks_waiting_max: 16, ..Limits::default() };
        let checks = PasswordChecks::new(&limits, &KeyHasher::default());
        let visit = |number: u8| Visit::new(LogClient::Ip(([192, 0, 2, number], 1).into()), &Rc::default());
        let mut places: Vec<_> = (0..2).map(|_| checks.wait_place(visit(1).client()).unwrap()).collect();
        assert!(checks.wait_place(visit(1).client()).is_none(), "one client has its part");
        places.extend((2..16).map(|number| checks.wait_place(visit(number).client()).unwrap()));
        assert!(checks.wait_place(visit(99).client()).is_none(), "all are taken");
        places.pop();
        assert!(checks.wait_place(visit(99).client()).is_some());
        drop(places);
        assert_eq!(checks.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_hangs_up_makes_no_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        // The verification takes some tenths of a second; no other request may take its place meanwhile.
        let hash = bcrypt::hash("secret", 12).unwrap();
        std::fs::write(&path, format!("anna:{hash}\n")).unwrap();
        let store = PasswordStore::new(&path, &ServerLog::stderr(LogLevel::Error)).unwrap();
        let limits = Limits { password_checks_max: 1, ..Limits::default() };
        let checks = PasswordChecks::new(&limits, &KeyHasher::default());
        let visit = Visit::new(LogClient::Unix, &Rc::default());
        let credentials = Credentials { user: b"anna".to_vec(), password: b"wrong".to_vec() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let hang_up = async || {
            let (store, credentials) = (Arc::clone(&store), credentials.clone());
            let mut verifying = Box::pin(store.verify(Arc::clone(&checks), credentials, visit.client(), 1_000));
            while checks.running.available_permits() == 1 {
                let polled = std::future::poll_fn(|task| Poll::Ready(verifying.as_mut().poll(task))).await;
                if polled.is_ready() {
                    return (1, 0);
                }
                tokio::task::yield_now().await;
            }
            drop(verifying);
            let room = (checks.running.available_permits(), checks.waiting.load(Ordering::Relaxed));
            while checks.running.available_permits() == 0 {
                tokio::task::yield_now().await;
            }
            room
        };
        runtime.block_on(async {
            // On a busy machine, the verification may have ended before this thread looked.
            let mut tries = 1;
            while hang_up().await != (0, 1) {
                assert!(tries < 20, "there is room");
                tries += 1;
            }
        });
        assert_eq!(checks.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn realms_are_quoted() {
        let response = challenge("a \"b\\c\"");
        let expect = "Basic realm=\"a \\\"b\\\\c\\\"\", charset=\"UTF-8\"";
        assert_eq!(response.fields.get("WWW-Authenticate"), Some(expect.as_bytes()));
    }
}
