use crate::http::Fields;

/// Error of [`write_uwsgi_request`]: the variables exceed the 65,535 bytes of a uwsgi packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariablesTooLong;

/// Writes the head of a uwsgi request (the uwsgi protocol, modifier 0): each name and value follows its length, in
/// little endian. The content follows unchanged.
///
/// # Errors
/// The variables are longer than a packet; nothing is written.
pub fn write_uwsgi_request(variables: &Fields, out: &mut Vec<u8>) -> Result<(), VariablesTooLong> {
    let length: usize = variables.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
    let length = u16::try_from(length).map_err(|_| VariablesTooLong)?.to_le_bytes();
    out.extend_from_slice(&[0, length[0], length[1], 0]);
    for part in variables.iter().flat_map(|(name, value)| [name, value]) {
        // No part is longer than all parts together, and those were checked.
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
        out.extend_from_slice(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets() {
        let mut variables = Fields::new();
        variables.push("A", "bc").push("D", "");
        let mut packet = Vec::new();
        write_uwsgi_request(&variables, &mut packet).unwrap();
        assert_eq!(packet, b"\0\x0c\0\0\x01\0A\x02\0bc\x01\0D\0\0");
        let length_of = |value_bytes: usize| {
            let mut variables = Fields::new();
            variables.push("A", vec![b'x'; value_bytes]);
            let mut packet = Vec::new();
            write_uwsgi_request(&variables, &mut packet).map(|()| packet.len())
        };
        assert_eq!(length_of(65_530), Ok(65_539));
        assert_eq!(length_of(65_531), Err(VariablesTooLong));
    }
}
