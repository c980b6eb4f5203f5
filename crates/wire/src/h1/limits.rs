/// Limits of a request head. A head beyond a limit is rejected as soon as it exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes from the first one to the empty line.
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
