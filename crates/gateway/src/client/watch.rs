//! Lists and watches of a kind of resource, without end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tailcoat_rest::RestError;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::{Client, ClientError};
use crate::objects::Kind;

/// Resources of a page of a list.
const PAGE_ITEMS: usize = 500;

/// Bytes of an event, at most: an object in etcd has 1.5 MiB by default.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Seconds after which the server ends a watch. They differ between watches, so that not all end at once.
const WATCH_SECONDS: std::ops::Range<u64> = 240..360;

/// Silence after which a watch counts as broken. The server sends a bookmark each minute, and ends watches itself.
const SILENCE_MAX: Duration = Duration::from_secs(400);

/// Least and longest time between tries.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Time between looks for a kind that the cluster lacks.
const ABSENT_RETRY: Duration = Duration::from_secs(30);

/// Change of a resource.
#[derive(Debug)]
pub(crate) enum Event {
    /// All resources of a kind; those that are not among them are gone.
    Listed(Kind, Vec<Value>),
    /// A new or changed resource.
    Applied(Kind, Value),
    /// A resource that is gone.
    Deleted(Kind, Value),
    /// A kind that cannot be read for now, with the reason.
    Failed(Kind, String),
}

/// Reason why a watch ended.
enum End {
    /// The receiver is gone.
    Closed,
    /// Continue after this version.
    Resume(String),
    /// List again.
    Expired,
    Failed(ClientError),
}

/// Lists a kind, then watches it, and does so again after errors, until the receiver is gone.
pub(crate) async fn watch(client: Arc<Client>, kind: Kind, events: Sender<Event>) {
    let mut wait = RETRY_MIN;
    loop {
        let end = list_and_watch(&client, kind, &events, &mut wait).await;
        let reason = match end {
            End::Closed => return,
            End::Resume(_) | End::Expired => continue,
            End::Failed(error) if error.is_not_found() && kind.is_optional() => {
                if events.send(Event::Listed(kind, Vec::new())).await.is_err() {
                    return;
                }
                sleep(ABSENT_RETRY).await;
                continue;
            }
            End::Failed(error) => error.to_string(),
        };
        if events.send(Event::Failed(kind, reason)).await.is_err() {
            return;
        }
        // Not all replicas and kinds at once, after the server was away.
        sleep(wait.mul_f64(fastrand::f64().mul_add(0.5, 0.75))).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}

async fn list_and_watch(client: &Client, kind: Kind, events: &Sender<Event>, wait: &mut Duration) -> End {
    let (items, version) = match list(client, kind).await {
        Ok(listed) => listed,
        Err(error) => return End::Failed(error),
    };
    if events.send(Event::Listed(kind, items)).await.is_err() {
        return End::Closed;
    }
    *wait = RETRY_MIN;
    let mut version = version;
    loop {
        match follow(client, kind, version.clone(), events).await {
            End::Resume(last) => version = last,
            other => return other,
        }
    }
}

async fn list(client: &Client, kind: Kind) -> Result<(Vec<Value>, String), ClientError> {
    let (mut items, mut more) = (Vec::new(), String::new());
    loop {
        let path = format!("{}/{}?limit={PAGE_ITEMS}{more}", kind.api(), kind.plural());
        let mut page = client.get(&path).await?;
        if let Some(Value::Array(of_page)) = page.get_mut("items").map(Value::take) {
            items.extend(of_page);
        }
        let metadata = &page["metadata"];
        match metadata["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => more = format!("&continue={}", token.replace('+', "%2B").replace('=', "%3D")),
            None => {
                let version = metadata["resourceVersion"].as_str().unwrap_or_default().to_owned();
                return Ok((items, version));
            }
        }
    }
}

/// Follows the changes after a version until the server ends the watch.
async fn follow(client: &Client, kind: Kind, mut version: String, events: &Sender<Event>) -> End {
    let seconds = fastrand::u64(WATCH_SECONDS);
    let path = format!(
        "{}/{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}",
        kind.api(),
        kind.plural()
    );
    let mut lines = match client.open_lines(&path, EVENT_BYTES_MAX).await {
        Ok(lines) => lines,
        Err(ClientError::Status(410, _)) => return End::Expired,
        Err(error) => return End::Failed(error),
    };
    loop {
        let line = match timeout(SILENCE_MAX, lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Err(RestError::TooLarge)) => {
                return End::Failed(ClientError::Invalid(format!("an event has more than {EVENT_BYTES_MAX} bytes")));
            }
            // The next watch goes on where this one ended.
            Ok(Ok(None) | Err(_)) | Err(_) => return End::Resume(version),
        };
        match read_event(kind, &line, &mut version) {
            Ok(None) => {}
            Ok(Some(event)) => {
                if events.send(event).await.is_err() {
                    return End::Closed;
                }
            }
            Err(end) => return end,
        }
    }
}

/// Reads a line of a watch, and notes the version that it leads to.
fn read_event(kind: Kind, line: &[u8], version: &mut String) -> Result<Option<Event>, End> {
    let mut event: Value =
        serde_json::from_slice(line).map_err(|error| End::Failed(ClientError::Invalid(error.to_string())))?;
    let object = event["object"].take();
    let status = event["type"].as_str().unwrap_or_default();
    if status == "ERROR" {
        let code = object["code"].as_u64().unwrap_or_default();
        let text = object["message"].as_str().unwrap_or_default().to_owned();
        return Err(match u16::try_from(code) {
            Ok(410) => End::Expired,
            code => End::Failed(ClientError::Status(code.unwrap_or_default(), text)),
        });
    }
    if let Some(of_object) = object["metadata"]["resourceVersion"].as_str() {
        of_object.clone_into(version);
    }
    Ok(match status {
        "ADDED" | "MODIFIED" => Some(Event::Applied(kind, object)),
        "DELETED" => Some(Event::Deleted(kind, object)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let mut version = "1".to_owned();
        let mut read = |line: &str| match read_event(Kind::Secret, line.as_bytes(), &mut version) {
            Ok(None) => format!("nothing {version}"),
            Ok(Some(Event::Applied(..))) => format!("applied {version}"),
            Ok(Some(Event::Deleted(..))) => format!("deleted {version}"),
            Ok(Some(_)) => "other".to_owned(),
            Err(End::Expired) => "expired".to_owned(),
            Err(End::Failed(error)) => error.to_string(),
            Err(_) => "end".to_owned(),
        };
        for (line, expect) in [
            (r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"2"}}}"#, "applied 2"),
            (r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"3"}}}"#, "nothing 3"),
            (r#"{"type":"DELETED","object":{"metadata":{"resourceVersion":"4"}}}"#, "deleted 4"),
            (r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#, "expired"),
            (
                r#"{"type":"ERROR","object":{"code":500,"message":"broken"}}"#,
                "the API server responded with status 500: broken",
            ),
        ] {
            assert_eq!(read(line), expect, "{line}");
        }
        assert!(read("not json").starts_with("the response of the API server is not valid"));
    }
}
