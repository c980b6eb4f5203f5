//! Messages between a controller and a server, as lines of JSON.
//!
//! The server connects, over TLS or a unix socket, and sends [`PlaneMessage::Hello`] with its token. The controller answers
//! with [`PlaneMessage::Snapshot`], then sends [`PlaneMessage::Change`]s. The server responds with
//! [`PlaneMessage::Applied`]; one response is for all messages up to its revision. A server that gets a change with another `base` than its revision closes the
//! connection and connects again, so that it gets a snapshot.
//!
//! Each message is one line of at most [`MESSAGE_BYTES_MAX`] bytes that ends with a line feed. Both sides send
//! [`PlaneMessage::Ping`] after 10 seconds without another message, and close the connection after 30 seconds without any.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Change, Snapshot};

/// Version of the messages. A side that reads another one closes the connection.
pub const VERSION: u32 = 1;

/// Bytes of a message, at most.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// A message, in either direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaneMessage {
    /// First message of a server.
    Hello(Hello),
    /// From the controller: everything.
    Snapshot {
        /// Version of the messages: [`VERSION`].
        version: u32,
        /// Revision after it.
        revision: u64,
        /// The snapshot.
        snapshot: Box<Snapshot>,
    },
    /// From the controller: what differs.
    Change {
        /// Revision before it.
        base: u64,
        /// Revision after it.
        revision: u64,
        /// The change.
        change: Box<Change>,
    },
    /// From the server: result of a snapshot or change.
    Applied(Applied),
    /// Keeps the connection.
    Ping,
}

/// First message of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Version of the messages: [`VERSION`].
    pub version: u32,
    /// Name of the server, such as that of its pod.
    pub server: String,
    /// Version of the program.
    pub program: String,
    /// Secret that both know; empty if the connection itself shows who the server is.
    #[serde(default)]
    pub token: String,
    /// Revision that it serves by; `None` before the first.
    #[serde(default)]
    pub revision: Option<u64>,
}

/// Result of a snapshot or change: the server serves by it, except for what has an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// Revision that the server serves by now.
    pub revision: u64,
    /// Errors by kind and name: `listener/NAME`, `route/NAME`, `stream-route/NAME`, `backend/NAME`. Those of options of
    /// policies are there twice: also as `route-options/NAME` or `backend-options/NAME`.
    #[serde(default)]
    pub errors: BTreeMap<String, String>,
    /// Reason why nothing was applied; the server continues with the revision before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
}

impl PlaneMessage {
    /// The message as a line with its end.
    pub fn to_line(&self) -> Vec<u8> {
        // Local invariant: these types have no maps with keys other than strings, so that they always become JSON.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Reads a line.
    ///
    /// # Errors
    /// The line is no message of this version.
    pub fn from_line(line: &[u8]) -> Result<Self, String> {
        let message: Self =
            serde_json::from_slice(line).map_err(|error| format!("the message is not valid: {error}"))?;
        match &message {
            Self::Hello(Hello { version, .. }) | Self::Snapshot { version, .. } if *version != VERSION => {
                Err(format!("the message has version {version}, this program has {VERSION}"))
            }
            _ => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let hello = PlaneMessage::Hello(Hello {
            version: VERSION,
            server: "pod-1".into(),
            program: "0.2.0".into(),
            token: "secret".into(),
            revision: None,
        });
        let applied = PlaneMessage::Applied(Applied {
            revision: 7,
            errors: [("route/a".to_owned(), "the regular expression is not valid".to_owned())].into(),
            rejected: None,
        });
        let change = PlaneMessage::Change { base: 1, revision: 2, change: Box::default() };
        for message in [hello, applied, change, PlaneMessage::Ping] {
            let line = message.to_line();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(PlaneMessage::from_line(&line), Ok(message));
        }
        for line in ["", "{}", "\"other\"", "{\"snapshot\":{\"version\":2,\"revision\":1,\"snapshot\":{}}}"] {
            assert!(PlaneMessage::from_line(line.as_bytes()).is_err(), "{line}");
        }
    }
}
