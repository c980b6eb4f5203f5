//! Objects of S3, or of a server with its interface. `If-None-Match` and `If-Match` compare and set in one step; the ETag is
//! the version. Requests are signed with AWS Signature Version 4.
//!
//! The crate `object_store` does the same, but brings an HTTP client, an XML parser and a second set of TLS settings: some
//! hundred crates for four kinds of requests.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::header::{DATE, ETAG, IF_MATCH, IF_NONE_MATCH, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use sha2::{Digest, Sha256};
use tailcoat_config::{StoreAbilities, StoreConfig, StoreEndpoint};
use tailcoat_rest::{RestClient, RestResponse, encoded};
use time::OffsetDateTime;

use super::{
    EngineTime, Entry, Expectation, LIST_MAX, Pending, Put, RESPONSE_BYTES_MAX, SharedStore, StoreError, StoreKey,
    StoredVersion, ValueFlaw, get_all, rest_client, salt,
};

/// Random bytes at the start of each object. An ETag is a digest of the content, and each change needs a new version.
const SALT_BYTES: usize = 8;

/// Store of S3.
pub(super) struct S3Store {
    client: RestClient,
    /// Path of the objects: `/BUCKET/PREFIX/`, or `/PREFIX/` where the host names the bucket.
    path: String,
    /// Path of the bucket.
    bucket_path: String,
    prefix: String,
    region: String,
    access_key: String,
    secret_key: Vec<u8>,
    abilities: StoreAbilities,
}

impl S3Store {
    pub(super) fn new(
        bucket: &str,
        prefix: &str,
        config: &StoreConfig,
        abilities: StoreAbilities,
    ) -> Result<Self, StoreError> {
        let wrong = |error: &dyn std::fmt::Display| StoreError::Wrong(error.to_string());
        let (endpoint, bucket_path) = match &config.endpoint {
            // Other servers have the bucket in the path.
            Some(endpoint) => (endpoint.clone(), format!("/{bucket}")),
            None => {
                let host = format!("{bucket}.s3.{}.amazonaws.com", config.region);
                (StoreEndpoint { is_tls: true, host, port: 443 }, String::new())
            }
        };
        let path = config.password_file.as_ref().ok_or_else(|| wrong(&"S3 needs `password-file`"))?;
        Ok(Self {
            client: rest_client(&endpoint, config)?,
            path: format!("{bucket_path}/{prefix}/"),
            bucket_path,
            prefix: format!("{prefix}/"),
            region: config.region.clone(),
            access_key: config.username.clone().ok_or_else(|| wrong(&"S3 needs `username`"))?,
            secret_key: StoreConfig::read_secret(path).map_err(|error| wrong(&error))?,
            abilities,
        })
    }

    /// Reads an object up to one byte more than `bytes_max`, so that a larger one is found out before it is sent.
    async fn read(&self, key: &StoreKey, bytes_max: usize) -> Result<RestResponse, StoreError> {
        let range = HeaderValue::try_from(format!("bytes=0-{bytes_max}"));
        let range = range.map_err(|error| StoreError::Wrong(error.to_string()))?;
        let response_bytes_max = bytes_max.saturating_add(1).max(RESPONSE_BYTES_MAX);
        let (path, range) = (self.path_of(key), Some((RANGE, range)));
        let sent = self.send_within(response_bytes_max, (Method::GET, &path), &[], range, Bytes::new());
        sent.await.map_err(|error| match error {
            // The server does not know ranges.
            StoreError::TooLarge => StoreError::of_flaw(key, ValueFlaw::TooLarge),
            error => error,
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        condition: Option<(HeaderName, HeaderValue)>,
        content: Bytes,
    ) -> Result<RestResponse, StoreError> {
        self.send_within(RESPONSE_BYTES_MAX, (method, path), query, condition, content).await
    }

    async fn send_within(
        &self,
        response_bytes_max: usize,
        (method, path): (Method, &str),
        query: &[(&str, &str)],
        condition: Option<(HeaderName, HeaderValue)>,
        content: Bytes,
    ) -> Result<RestResponse, StoreError> {
        let query = canonical_query(query);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = HeaderMap::new();
        let signed = self.sign(&method, path, &query, seconds, &content);
        for (name, value) in signed {
            let value = HeaderValue::try_from(value).map_err(|error| StoreError::Wrong(error.to_string()))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some((name, value)) = condition {
            headers.insert(name, value);
        }
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        Ok(self.client.send_within(response_bytes_max, (method, &target), headers, content).await?)
    }

    /// Fields of a signed request (AWS Signature Version 4, "Create a signed AWS API request").
    fn sign(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        unix_seconds: u64,
        content: &[u8],
    ) -> [(&'static str, String); 3] {
        let time = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(unix_seconds);
        let day = format!("{:04}{:02}{:02}", time.year(), u8::from(time.month()), time.day());
        let moment = format!("{day}T{:02}{:02}{:02}Z", time.hour(), time.minute(), time.second());
        let digest = hex(&Sha256::digest(content));
        let names = "host;x-amz-content-sha256;x-amz-date";
        let host = self.client.host();
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{moment}\n\n{names}\n{digest}"
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let first = [b"AWS4", self.secret_key.as_slice()].concat();
        let key = [day.as_str(), &self.region, "s3", "aws4_request"].iter().fold(first, |key, part| keyed(&key, part));
        let signature = hex(&keyed(&key, &text));
        let credential = format!("{}/{scope}", self.access_key);
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}");
        [("authorization", authorization), ("x-amz-content-sha256", digest), ("x-amz-date", moment)]
    }

    fn path_of(&self, key: &StoreKey) -> String {
        format!("{}{key}", self.path)
    }
}

/// Time in the field Date of a response.
pub(super) fn time_of(headers: &HeaderMap) -> Option<EngineTime> {
    let text = headers.get(DATE)?.to_str().ok()?;
    // IMF-fixdate (RFC 9110, section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
    let mut parts = text.split_once(", ")?.1.split(' ');
    let mut next = || parts.next();
    let (day, month, year, clock) = (next()?.parse().ok()?, next()?, next()?.parse().ok()?, next()?);
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = u8::try_from(months.iter().position(|name| *name == month)? + 1).ok()?;
    let date = time::Date::from_calendar_date(year, time::Month::try_from(month).ok()?, day).ok()?;
    let mut clock = clock.split(':').map(|part| part.parse::<u8>().ok());
    let mut next = || clock.next().flatten();
    let at = date.with_hms(next()?, next()?, next()?).ok()?.assume_utc();
    // The field has whole seconds: the middle of the second is at most half a second off.
    Some(EngineTime { unix_ms: u64::try_from(at.unix_timestamp()).ok()? * 1_000 + 500, accuracy_ms: 500 })
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Query with encoded values, sorted by name.
fn canonical_query(query: &[(&str, &str)]) -> String {
    let mut parts: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    parts.sort_unstable();
    parts.join("&")
}

/// Texts of all elements of this name, which have no children.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(start.as_str()).skip(1).filter_map(|rest| rest.split_once(end.as_str()).map(|(text, _)| text)).collect()
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Does not show the secret key.
        f.debug_struct("S3Store").field("client", &self.client).field("path", &self.path).finish_non_exhaustive()
    }
}

impl SharedStore for S3Store {
    fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        Box::pin(async move {
            let bytes_max = key.value_bytes_max().min(self.abilities.value_bytes_max);
            let response = self.read(key, SALT_BYTES + bytes_max).await?;
            match response.status {
                StatusCode::NOT_FOUND => Ok(None),
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                    let version = version_of(&response.headers)?;
                    Ok(Some(match response.content.get(SALT_BYTES..) {
                        Some(value) => Entry::new(value.to_vec(), version).within(bytes_max),
                        None => Entry::flawed(ValueFlaw::Foreign, version),
                    }))
                }
                // An empty object has no range.
                StatusCode::RANGE_NOT_SATISFIABLE => {
                    let response = self.send(Method::HEAD, &self.path_of(key), &[], None, Bytes::new()).await?;
                    Ok(Some(Entry::flawed(ValueFlaw::Foreign, version_of(&response.headers)?)))
                }
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move {
            let condition = match expect {
                Expectation::Any => None,
                Expectation::Absent => Some((IF_NONE_MATCH, HeaderValue::from_static("*"))),
                Expectation::Version(version) => match HeaderValue::try_from(&version.0) {
                    Ok(version) => Some((IF_MATCH, version)),
                    Err(_) => return Ok(Put::Conflict),
                },
            };
            let content = Bytes::from([&salt::<SALT_BYTES>()?[..], value].concat());
            let response = self.send(Method::PUT, &self.path_of(key), &[], condition, content).await?;
            match response.status {
                StatusCode::OK => version_of(&response.headers).map(Put::Done),
                // 409: another change was in progress; 404: the object that `If-Match` names was removed.
                StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(Put::Conflict),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move {
            let response = self.send(Method::DELETE, &self.path_of(key), &[], None, Bytes::new()).await?;
            match response.status {
                StatusCode::OK | StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => Ok(()),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let prefix = format!("{}{folder}/", self.prefix);
            let (mut keys, mut token) = (Vec::new(), String::new());
            loop {
                let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str())];
                if !token.is_empty() {
                    query.push(("continuation-token", &token));
                }
                let path = if self.bucket_path.is_empty() { "/" } else { &self.bucket_path };
                let response = self.send(Method::GET, path, &query, None, Bytes::new()).await?;
                if response.status != StatusCode::OK {
                    return Err(StoreError::of_response(&response));
                }
                let xml = String::from_utf8_lossy(&response.content);
                let names = elements(&xml, "Key").into_iter().filter_map(|name| name.strip_prefix(&self.prefix));
                keys.extend(
                    names.filter_map(|name| StoreKey::new(name).ok()).filter(|key| key.folder() == folder.as_str()),
                );
                if keys.len() > LIST_MAX {
                    return Err(StoreError::TooLarge);
                }
                let next = elements(&xml, "NextContinuationToken").first().map(|token| (*token).to_owned());
                match next.filter(|next| elements(&xml, "IsTruncated").first() == Some(&"true") && *next != token) {
                    Some(next) => token = next,
                    None => break,
                }
            }
            get_all(self, keys).await
        })
    }

    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let response = match self.read(key, bytes_max).await {
                Err(StoreError::Unusable(_)) => return Err(StoreError::TooLarge),
                result => result?,
            };
            match response.status {
                // An empty object has no range.
                StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE => Ok(None),
                StatusCode::OK | StatusCode::PARTIAL_CONTENT if response.content.len() > bytes_max => {
                    Err(StoreError::TooLarge)
                }
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(Some(response.content.into())),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    // Objects do not expire by themselves: a lifecycle rule of the bucket removes them.
    fn put_blob<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], _time: Duration) -> Pending<'a, ()> {
        Box::pin(async move {
            let value = Bytes::copy_from_slice(value);
            let response = self.send(Method::PUT, &self.path_of(key), &[], None, value).await?;
            match response.status {
                StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT => Ok(()),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn delete_blob<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        self.delete(key)
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async move {
            let path = format!("{}time", self.path);
            // No object has this name; the response has a date all the same.
            let response = self.send(Method::HEAD, &path, &[], None, Bytes::new()).await?;
            Ok(time_of(&response.headers))
        })
    }
}

fn version_of(headers: &HeaderMap) -> Result<StoredVersion, StoreError> {
    let tag = headers.get(ETAG).and_then(|tag| tag.to_str().ok());
    tag.map(|tag| StoredVersion(tag.to_owned())).ok_or_else(|| StoreError::Wrong("no ETag".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_lists() {
        let xml = "<R><IsTruncated>true</IsTruncated><Contents><Key>a/b</Key></Contents><Contents><Key>a/c</Key></R>";
        assert_eq!(elements(xml, "Key"), ["a/b", "a/c"]);
        assert_eq!(elements(xml, "IsTruncated"), ["true"]);
        assert!(elements("<Key>cut", "Key").is_empty());
    }

    #[test]
    fn dates() {
        let check = |text: &str, expect: Option<u64>| {
            let headers = HeaderMap::from_iter([(DATE, HeaderValue::try_from(text).unwrap())]);
            assert_eq!(time_of(&headers).map(|time| time.unix_ms), expect, "{text}");
        };
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777_500));
        check("Sun, 06 Nov 1994", None);
        check("Sun, 36 Nov 1994 08:49:37 GMT", None);
        check("", None);
    }

    #[test]
    fn queries() {
        assert_eq!(canonical_query(&[("prefix", "a/b"), ("list-type", "2")]), "list-type=2&prefix=a%2Fb");
    }
}
