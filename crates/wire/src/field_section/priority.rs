//! Extensible priorities (RFC 9218).

/// Number of urgencies: from 0, the most urgent, to 7.
pub(crate) const URGENCIES: usize = 8;

/// Priority of a response (section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// True if the client can use parts of the response, so that it shares bandwidth with others of the same urgency.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, is_incremental: false }
    }
}

impl Priority {
    /// Parses a Priority field or PRIORITY_UPDATE: a dictionary (RFC 8941, section 3.2) with the known keys `u` and
    /// `i`. Ignores values of the wrong type or out of range (section 4), and anything that is not a dictionary,
    /// because a priority is only a hint.
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
