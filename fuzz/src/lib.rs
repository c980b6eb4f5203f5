//! Helpers of all fuzz targets.
//!
//! The rooms of `crates/tailcoat` that targets feed are compiled here from their own files: as a dependency, that crate
//! would bring wasmtime, which takes minutes to build. It works because these rooms know no room that is not here.

pub mod control;
pub mod log;
#[path = "../../crates/observe/src/metrics/mod.rs"]
#[allow(dead_code)]
pub mod metrics;
pub mod status;

pub use tailcoat_config as config;
pub use tailcoat_import as import;
use wire::h1::{HeadLimits, parse_request_head};
use wire::http::{Request, RequestHead};

/// Reads a GET request whose field lines, ended by line feeds, are the input. `None` if it is no valid head.
pub fn with_fields<T>(lines: &[u8], read: impl FnOnce(&Request<'_>) -> T) -> Option<T> {
    let mut bytes = b"GET / HTTP/1.1\r\n".to_vec();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    let mut head = RequestHead::default();
    parse_request_head(&bytes, &mut head, &HeadLimits::default()).ok()??;
    Some(read(&Request { head: &head, bytes: &bytes }))
}

/// Splits a number off the front of the input, for targets that need more than text: decimal digits up to a line feed, so
/// that people can read seeds. 0 if there are none.
pub fn take_number(input: &[u8]) -> (u64, &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let number = str::from_utf8(&input[..end]).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
    (number, input.get(end + 1..).unwrap_or_default())
}
