//! Differences between two responses.

use std::collections::{BTreeMap, BTreeSet};

use super::client::ReplayResponse;

/// Fields whose values may differ between two correct servers: they describe the server, the moment or the transfer.
/// Entity tags are made by each server in its own way. Size and content are compared as such.
const IGNORED: [&str; 12] = [
    "age",
    "alt-svc",
    "connection",
    "content-length",
    "date",
    "etag",
    "keep-alive",
    "server",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-request-id",
];

/// Part of a response that can differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DifferenceSubject {
    /// One of the servers gave no valid response.
    Response,
    Status,
    /// Size of the content, or its bytes.
    Content,
    /// Field of this name, in lower case.
    Field(String),
}

/// Difference between two responses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResponseDifference {
    pub(super) subject: DifferenceSubject,
    /// Description that is the same for all requests with this kind of difference.
    pub(super) kind: String,
    /// Description for this request.
    pub(super) detail: String,
}

/// Fields that are not compared.
pub(super) struct FieldFilter {
    ignored: BTreeSet<String>,
}

impl FieldFilter {
    /// Makes a filter with further names.
    pub(super) fn new(names: &[String]) -> Self {
        let ignored = IGNORED.iter().map(|name| (*name).to_owned());
        Self { ignored: ignored.chain(names.iter().map(|name| name.trim().to_ascii_lowercase())).collect() }
    }
}

/// Compares the responses of the old and the new server.
pub(super) fn differences(
    old: &Result<ReplayResponse, String>,
    new: &Result<ReplayResponse, String>,
    filter: &FieldFilter,
) -> Vec<ResponseDifference> {
    let (old, new) = match (old, new) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(old), Err(new)) if old == new => return Vec::new(),
        (old, new) => {
            let state = |result: &Result<ReplayResponse, String>| match result {
                Ok(response) => format!("status {}", response.status),
                Err(reason) => reason.clone(),
            };
            let kind = format!("{} -> {}", state(old), state(new));
            return vec![ResponseDifference { subject: DifferenceSubject::Response, detail: String::new(), kind }];
        }
    };
    let mut found = Vec::new();
    if old.status != new.status {
        let kind = format!("status {} -> {}", old.status, new.status);
        found.push(ResponseDifference { subject: DifferenceSubject::Status, kind, detail: String::new() });
        // Fields and content of another status differ as a matter of course.
        return found;
    }
    let (before, after) = (by_name(old), by_name(new));
    let names: BTreeSet<&String> =
        before.keys().chain(after.keys()).filter(|name| !filter.ignored.contains(*name)).collect();
    for name in names {
        let (before, after) = (before.get(name), after.get(name));
        if before == after {
            continue;
        }
        let shown = |value: Option<&String>| value.map_or("none".to_owned(), |value| format!("`{value}`"));
        let kind = match (before, after) {
            (Some(_), None) => format!("field {name}: missing"),
            (None, _) => format!("field {name}: added"),
            _ => format!("field {name}: changed"),
        };
        let detail = format!("{} -> {}", shown(before), shown(after));
        found.push(ResponseDifference { subject: DifferenceSubject::Field(name.clone()), kind, detail });
    }
    if old.content_bytes != new.content_bytes {
        let detail = format!("{} -> {} bytes", old.content_bytes, new.content_bytes);
        found.push(ResponseDifference {
            subject: DifferenceSubject::Content,
            kind: "size of the content".into(),
            detail,
        });
    } else if old.digest != new.digest {
        let detail = format!("{} bytes", old.content_bytes);
        let kind = "content of the same size".into();
        found.push(ResponseDifference { subject: DifferenceSubject::Content, kind, detail });
    }
    found
}

/// Values by name, joined as RFC 9110, section 5.3, says. Of cookies only the names and attributes count, because their
/// values are often new in each response.
fn by_name(response: &ReplayResponse) -> BTreeMap<String, String> {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in &response.fields {
        let value = if name == "set-cookie" { without_cookie_value(value) } else { value.clone() };
        values.entry(name.clone()).and_modify(|known| *known += &format!(", {value}")).or_insert(value);
    }
    values
}

fn without_cookie_value(cookie: &str) -> String {
    let mut parts = cookie.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().split('=').next().unwrap_or_default();
    let is_time = |part: &&str| part.to_ascii_lowercase().starts_with("expires=");
    let attributes = parts.filter(|part| !is_time(part));
    std::iter::once(format!("{name}=")).chain(attributes.map(str::to_owned)).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, fields: &[(&str, &str)], content: &[u8]) -> Result<ReplayResponse, String> {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Ok(ReplayResponse { status, fields, content_bytes: content.len() as u64, digest: content.to_vec() })
    }

    #[test]
    fn kinds() {
        let filter = FieldFilter::new(&["X-Powered-By".to_owned()]);
        let old = || response(200, &[("content-type", "text/html"), ("date", "1"), ("x-powered-by", "a")], b"abc");
        for (new, expect) in [
            (response(200, &[("content-type", "text/html"), ("date", "2"), ("x-powered-by", "b")], b"abc"), vec![]),
            (response(404, &[], b""), vec!["status 200 -> 404"]),
            (response(200, &[("content-type", "text/html")], b"abd"), vec!["content of the same size"]),
            (response(200, &[("content-type", "text/html")], b"ab"), vec!["size of the content"]),
            (
                response(200, &[("content-type", "text/plain"), ("x-frame-options", "DENY")], b"abc"),
                vec!["field content-type: changed", "field x-frame-options: added"],
            ),
            (response(200, &[], b"abc"), vec!["field content-type: missing"]),
            (Err("no response in time".into()), vec!["status 200 -> no response in time"]),
        ] {
            let kinds: Vec<String> = differences(&old(), &new, &filter).into_iter().map(|one| one.kind).collect();
            assert_eq!(kinds, expect, "{new:?}");
        }
        let gone = || Err("refused".to_owned());
        assert_eq!(differences(&gone(), &gone(), &filter), []);
    }

    #[test]
    fn values_of_cookies_do_not_count() {
        let filter = FieldFilter::new(&[]);
        let with = |cookie: &str| response(200, &[("set-cookie", cookie)], b"");
        let old = with("session=1; Path=/; Expires=Tue; HttpOnly");
        assert_eq!(differences(&old, &with("session=2; Path=/; Expires=Wed; HttpOnly"), &filter), []);
        for other in ["session=1; Path=/", "other=1; Path=/; HttpOnly"] {
            assert_eq!(differences(&old, &with(other), &filter).len(), 1, "{other}");
        }
    }
}
