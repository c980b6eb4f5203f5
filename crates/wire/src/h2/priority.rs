//! Extensible priorities (RFC 9218).

/// Urgencies from 0, the most urgent, to 7.
pub(super) const URGENCIES: usize = 8;

/// How a response is to be sent among others (section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether parts of it are of use, so that it shares with others of its urgency.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, is_incremental: false }
    }
}

impl Priority {
    /// Reads the value of a Priority field or PRIORITY_UPDATE: a dictionary (RFC 8941, section 3.2) of which `u` and `i`
    /// are known. What is not of the right type or out of range is ignored (section 4), and so is a value that is no
    /// dictionary: a hint is not worth an error.
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            let item = member.split(|byte| *byte == b';').next().unwrap_or_default();
            match item {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::Priority;

    #[test]
    fn values() {
        for (value, urgency, is_incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=5, i", 5, true),
            ("i,u=7", 7, true),
            ("i=?0, u=1;x=y", 1, false),
            ("u=1, u=2", 2, false),
            ("u=8", 3, false),
            ("u=-1", 3, false),
            ("u=01", 3, false),
            ("u=1.0, i=1, other=\"x\"", 3, false),
            ("i;a=1", 3, true),
            ("\0,,,=", 3, false),
        ] {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, is_incremental }, "{value}");
        }
    }
}
