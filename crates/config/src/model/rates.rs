//! Maximum rates of responses.

/// Maximum rates of a site's responses, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseRates {
    /// Rate of each connection.
    pub connection_max: Option<u64>,
    /// Bytes of each response that are sent before the rate of the connection applies.
    pub free_bytes: u64,
    /// Rate of all responses of the site together.
    pub site_max: Option<u64>,
}

impl ResponseRates {
    /// True if there is no maximum.
    pub fn is_unlimited(&self) -> bool {
        self.connection_max.is_none() && self.site_max.is_none()
    }
}
