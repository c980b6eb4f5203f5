use crate::http::Fields;

/// Writes the head of an SCGI request: a netstring of NUL-terminated names and values, CONTENT_LENGTH first, then
/// `SCGI` (the SCGI specification). The content follows unchanged. `variables` must not contain CONTENT_LENGTH or a NUL
/// in any value.
pub fn write_scgi_request(variables: &Fields, content_length: u64, out: &mut Vec<u8>) {
    let mut netstring = Vec::with_capacity(2048);
    let mut push = |name: &[u8], value: &[u8]| {
        netstring.extend_from_slice(name);
        netstring.push(0);
        netstring.extend_from_slice(value);
        netstring.push(0);
    };
    push(b"CONTENT_LENGTH", content_length.to_string().as_bytes());
    variables.iter().for_each(|(name, value)| push(name, value));
    push(b"SCGI", b"1");
    out.extend_from_slice(netstring.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(&netstring);
    out.push(b',');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification() {
        let mut variables = Fields::new();
        variables.push("REQUEST_METHOD", "POST").push("REQUEST_URI", "/deepthought");
        let mut request = Vec::new();
        write_scgi_request(&variables, 27, &mut request);
        let expect = "70:CONTENT_LENGTH\x0027\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0SCGI\x001\0,";
        // The example in the specification has the same variables in another order.
        assert_eq!(String::from_utf8(request).unwrap(), expect);
    }
}
