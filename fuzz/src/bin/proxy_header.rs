//! Headers of the PROXY protocol: what is read is within the limits, and is read alike when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proxy_protocol::{ProxyHeader, V2_BYTES_MAX, parse_proxy_header, write_v1, write_v2};

fuzz_target!(|input: &[u8]| {
    let parsed = parse_proxy_header(input);
    let Ok(Some((header, length))) = parsed else {
        assert!(parsed.is_err() || input.len() < V2_BYTES_MAX);
        return;
    };
    assert!(length <= input.len());
    assert_eq!(parse_proxy_header(&input[..length]), parsed, "what follows does not matter");
    assert!((1..length).all(|part| parse_proxy_header(&input[..part]) == Ok(None)), "it ends where it ends");
    let ProxyHeader::Proxied(endpoints) = header else { return };
    for write in [write_v1, write_v2] {
        let mut written = Vec::new();
        write(&mut written, Some(endpoints));
        assert_eq!(parse_proxy_header(&written), Ok(Some((header, written.len()))));
    }
});
