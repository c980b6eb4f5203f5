/// What a request head may take; the units are in the names. A head beyond is refused while it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes from the first byte to the empty line.
    pub head_bytes_max: usize,
    /// Field lines.
    pub fields_max: usize,
    /// Bytes of the request target.
    pub target_bytes_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 16 << 10, fields_max: 100, target_bytes_max: 8 << 10 }
    }
}
