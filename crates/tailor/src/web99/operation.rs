//! Operations of the workload: requests, and the responses that they must get.

use std::sync::Arc;

use wire::http::Fields;

use super::file_set::FileId;
use super::tables::{AdChoice, AdTables, USER_ID_FIRST};
use crate::engine::{BodyCheck, ContentPiece, ContentPieces, ResponseCheck, WorkloadRequest};

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OperationKind {
    StaticGet,
    DynamicGet,
    AdRotation,
    Post,
    CgiGet,
}

impl OperationKind {
    /// All kinds, in the order of `--mix`.
    pub(crate) const ALL: [Self; 5] = [Self::StaticGet, Self::DynamicGet, Self::AdRotation, Self::Post, Self::CgiGet];

    /// Name of the kind in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StaticGet => "static GET",
            Self::DynamicGet => "dynamic GET",
            Self::AdRotation => "ad rotation GET",
            Self::Post => "POST",
            Self::CgiGet => "CGI GET",
        }
    }
}

/// Operation of the workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Operation {
    pub(crate) kind: OperationKind,
    pub(crate) file: FileId,
    /// Number of the user, in ad rotation and POST.
    pub(crate) user: u32,
    /// Advertisement that the user saw last, in ad rotation and POST.
    pub(crate) last_ad: u16,
    /// Number that identifies a POST of this run.
    pub(crate) client: u32,
}

/// Paths of the operations on the server, and the state that its responses depend on.
#[derive(Clone, Debug)]
pub(crate) struct Web99Site {
    /// Path of the script for dynamic operations.
    pub(crate) script: String,
    /// Path of the CGI program.
    pub(crate) cgi_script: String,
    pub(crate) tables: AdTables,
    /// Creation time of the tables, in seconds since 1970. Advertisements expire a day before it or 30 days after.
    pub(crate) now_seconds: u64,
}

/// Request and the response that it must get.
#[derive(Clone, Debug)]
pub(crate) struct OperationRequest {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    pub(crate) cookie: Option<String>,
    pub(crate) content: String,
    /// Expected value of the Set-Cookie field.
    pub(crate) set_cookie: Option<String>,
    /// Expected length of the content, if it follows from the file's name.
    pub(crate) length_bytes: Option<u64>,
    pub(crate) body: ContentPieces,
}

impl Operation {
    /// Builds the request of this operation and its expected response.
    pub(crate) fn exchange(&self, site: &Web99Site) -> OperationRequest {
        let path = self.file.path();
        match self.kind {
            OperationKind::StaticGet => OperationRequest {
                method: "GET",
                target: path,
                cookie: None,
                content: String::new(),
                set_cookie: None,
                length_bytes: Some(self.file.length_bytes() as u64),
                body: ContentPieces::new(self.file.pieces(None)),
            },
            OperationKind::DynamicGet => get(&site.script, &path, self.file.pieces(None)),
            OperationKind::CgiGet => get(&site.cgi_script, &path, self.file.pieces(None)),
            OperationKind::AdRotation => {
                self.rotation(site, &self.cookie(), site.tables.choose(self.user, self.last_ad, site.now_seconds))
            }
            OperationKind::Post => OperationRequest {
                method: "POST",
                target: site.script.clone(),
                cookie: Some(self.cookie()),
                content: format!(
                    "urlroot=/file_set,dir={},class={},num={},client={}",
                    self.file.directory, self.file.class, self.file.number, self.client
                ),
                set_cookie: Some(format!("my_cookie={}", self.user)),
                length_bytes: None,
                body: reply(&site.script, "", self.file.pieces(None)),
            },
        }
    }

    /// Builds the request for a file with this cookie, for which the server must make this choice.
    pub(crate) fn rotation(&self, site: &Web99Site, cookie: &str, choice: AdChoice) -> OperationRequest {
        let pieces = self.file.pieces(choice.ad);
        let exchange = get(&site.script, &self.file.path(), pieces);
        OperationRequest { cookie: Some(cookie.to_owned()), set_cookie: Some(choice.cookie()), ..exchange }
    }

    fn cookie(&self) -> String {
        format!("my_cookie=user_id={}&last_ad={}", USER_ID_FIRST + self.user, self.last_ad)
    }
}

impl OperationRequest {
    /// Converts the request for the load generator.
    pub(crate) fn into_request(self, authority: &str) -> WorkloadRequest {
        let mut fields = Fields::new();
        fields.push("Host", authority);
        fields.push("User-Agent", concat!("tailor/", env!("CARGO_PKG_VERSION")));
        fields.push("Accept", "*/*");
        if let Some(cookie) = &self.cookie {
            fields.push("Cookie", cookie.clone());
        }
        if !self.content.is_empty() {
            fields.push("Content-Type", "text/plain");
        }
        let mut expected = vec![(b"content-length".to_vec(), None)];
        expected.extend(self.set_cookie.map(|value| (b"set-cookie".to_vec(), Some(value.into_bytes()))));
        let check = ResponseCheck {
            statuses: vec![200],
            length_bytes: self.length_bytes,
            fields: expected,
            body: Some(BodyCheck::pieces(self.body)),
        };
        WorkloadRequest::new(self.method, &self.target, &fields, self.content.as_bytes(), check)
    }
}

fn get(script: &str, path: &str, content: Vec<ContentPiece>) -> OperationRequest {
    OperationRequest {
        method: "GET",
        target: format!("{script}?{path}"),
        cookie: None,
        content: String::new(),
        set_cookie: None,
        length_bytes: None,
        body: reply(script, path, content),
    }
}

/// Expected dynamic reply around a file's content. The server's name and the client's address may be any text.
pub(crate) fn reply(script: &str, query: &str, content: Vec<ContentPiece>) -> ContentPieces {
    let own = |text: &str| ContentPiece::Own(text.as_bytes().into());
    let head = "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n<p>SERVER_SOFTWARE = ";
    let before = [
        own(head),
        ContentPiece::Line,
        own("<p>REMOTE_ADDR = "),
        ContentPiece::Line,
        own(&format!("<p>SCRIPT_NAME = {script}\n<p>QUERY_STRING = {query}\n<pre>\n")),
    ];
    let after = own("\n</pre>\n</body></html>\n");
    ContentPieces::new(before.into_iter().chain(content).chain([after]))
}

/// Requests of a run in the order of sending.
pub(crate) fn requests(operations: &[Operation], site: &Web99Site, authority: &str) -> Arc<[WorkloadRequest]> {
    operations.iter().map(|operation| operation.exchange(site).into_request(authority)).collect()
}
