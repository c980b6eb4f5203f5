//! Checker of the workload: it tries each operation alone and compares the response byte for byte.

use fastrand::Rng;

use super::client::{Web99Client, Web99Response};
use super::commands::Commands;
use super::file_set::{CLASSES, FILES_PER_CLASS, FileId};
use super::mix::Mix;
use super::operation::{Operation, OperationKind, OperationRequest, Web99Site};
use super::post_log;
use super::tables::{ADS, USER_ID_FIRST};
use crate::engine::Cursor;

/// Number of ad rotations, and of POSTs, that the checker tries.
const TRIES: u32 = 40;

/// Findings of the checker.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteFindings {
    /// Number of checks.
    pub(crate) checked: u64,
    /// Faults, one sentence each.
    pub(crate) faults: Vec<String>,
}

/// Tries each kind of operation of a mix, on a server that has just created its tables.
///
/// # Errors
/// The server cannot be reached, or rejects a command.
pub(crate) fn run(commands: &Commands, mix: Mix, directories: u32, users: u32) -> Result<SiteFindings, String> {
    let mut checker = SiteChecker { client: &commands.client, site: &commands.site, findings: SiteFindings::default() };
    let mut rng = Rng::with_seed(7);
    let mut operation = |kind, directory| Operation {
        kind,
        file: FileId { directory, class: rng.u8(..CLASSES), number: rng.u8(..FILES_PER_CLASS) },
        user: rng.u32(..users),
        last_ad: rng.u16(..ADS),
        client: rng.u32(..),
    };
    // The first directory and the last, which is missing in a file set for fewer connections.
    for kind in [OperationKind::StaticGet, OperationKind::DynamicGet, OperationKind::CgiGet]
        .into_iter()
        .filter(|kind| mix.has(*kind))
    {
        for directory in [0, directories - 1] {
            for (class, number) in [(0, 0), (1, 4), (2, 8), (3, 0)] {
                let file = FileId { directory, class, number };
                checker.try_operation(&Operation { file, ..operation(kind, 0) });
            }
        }
    }
    if mix.has(OperationKind::AdRotation) {
        for number in 0..TRIES {
            checker.try_operation(&operation(OperationKind::AdRotation, number % directories));
        }
        checker.try_bad_cookies(&operation(OperationKind::AdRotation, 0), users);
    }
    if mix.has(OperationKind::DynamicGet) {
        checker.try_missing_file(directories);
    }
    if mix.has(OperationKind::Post) {
        let posts: Vec<Operation> =
            (0..TRIES).map(|number| operation(OperationKind::Post, number % directories)).collect();
        posts.iter().for_each(|post| checker.try_operation(post));
        let log = commands.fetch()?;
        checker.expect(post_log::is_sequence(&log, &posts), || "post log: differs from the POSTs sent, in their order");
        commands.reset()?;
        let log = commands.fetch()?;
        checker.expect(log == b"         0\n", || "post log: not empty after Reset");
    }
    Ok(checker.findings)
}

struct SiteChecker<'a> {
    client: &'a Web99Client,
    site: &'a Web99Site,
    findings: SiteFindings,
}

impl SiteChecker<'_> {
    fn expect<T: Into<String>>(&mut self, holds: bool, fault: impl FnOnce() -> T) {
        self.findings.checked += 1;
        if !holds {
            self.findings.faults.push(fault().into());
        }
    }

    fn try_operation(&mut self, operation: &Operation) {
        self.try_exchange(operation.kind.name(), &operation.exchange(self.site));
    }

    fn try_exchange(&mut self, name: &str, exchange: &OperationRequest) {
        let OperationRequest { method, target, cookie, content, .. } = exchange;
        let fault = match self.client.send(method, target, cookie.as_deref(), content) {
            Ok(response) => find_fault(exchange, &response),
            Err(error) => Some(error),
        };
        let cookie = cookie.as_ref().map_or(String::new(), |cookie| format!(" with {cookie}"));
        self.expect(fault.is_none(), || format!("{name}: {target}{cookie}: {}", fault.unwrap_or_default()));
    }

    /// Tries cookies without a valid user and ad, for which the server must send the file as it is.
    fn try_bad_cookies(&mut self, operation: &Operation, users: u32) {
        let none = self.site.tables.choose(users, 0, self.site.now_seconds);
        for cookie in [
            format!("my_cookie=user_id={}&last_ad=0", USER_ID_FIRST + users),
            format!("my_cookie=user_id={USER_ID_FIRST}&last_ad={ADS}"),
            "my_cookie=user_id=x".to_owned(),
            "my_cookie=".to_owned(),
        ] {
            self.try_exchange("ad rotation GET", &operation.rotation(self.site, &cookie, none));
        }
    }

    fn try_missing_file(&mut self, directories: u32) {
        // No file set of ours has this many directories.
        let file = FileId { directory: directories.max(99_999), class: 0, number: 0 };
        let target = format!("{}?{}", self.site.script, file.path());
        let status = self.client.send("GET", &target, None, "").map(|response| response.status);
        self.expect(status == Ok(404), || format!("dynamic GET: {target}: {status:?} instead of status 404"));
    }
}

/// Describes the first fault of a response.
fn find_fault(exchange: &OperationRequest, response: &Web99Response) -> Option<String> {
    if response.status != 200 {
        return Some(format!("status {}", response.status));
    }
    match response.content_length {
        None => return Some("no Content-Length".to_owned()),
        Some(length) if length != response.content.len() as u64 => {
            return Some(format!("Content-Length {length}, but {} bytes of content", response.content.len()));
        }
        Some(_) => {}
    }
    if response.set_cookies.iter().ne(&exchange.set_cookie) {
        return Some(format!("Set-Cookie {:?} instead of {:?}", response.set_cookies, exchange.set_cookie));
    }
    let mut cursor = Cursor::default();
    let is_right = exchange.body.advance(&mut cursor, &response.content) && exchange.body.is_end(cursor);
    (!is_right).then(|| format!("wrong content ({} bytes)", response.content.len()))
}
