//! Compression of responses: the model.

use super::FilesConfig;

/// Time that an encoder takes for smaller content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// Least CPU time.
    Fast,
    /// Text is about a tenth larger than with the best level, in a small part of its time.
    #[default]
    Balanced,
    /// Smallest content.
    Best,
}

impl CompressionLevel {
    /// Names that a configuration may have.
    pub const NAMES: [&str; 3] = ["fast", "balanced", "best"];

    /// Level with one of these names.
    pub fn from_name(name: &str) -> Self {
        match name {
            "fast" => Self::Fast,
            "best" => Self::Best,
            _ => Self::Balanced,
        }
    }
}

/// Compression of responses that are made for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseCompression {
    /// Minimum size of content, in bytes, if its size is known.
    pub bytes_min: u64,
    /// Level of the encoders.
    pub level: CompressionLevel,
}

/// Compression of a handler's responses. A site fills in the settings that the handler's block leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionSettings {
    /// Compresses responses; off until a site fills it in.
    pub is_on: Option<bool>,
    /// Minimum size of content, in bytes.
    pub bytes_min: Option<u64>,
    /// Level of the encoders.
    pub level: Option<CompressionLevel>,
}

impl CompressionSettings {
    /// Fills in the settings of the site.
    pub fn inherit(&mut self, files: &FilesConfig) {
        self.is_on.get_or_insert(files.compress);
        self.bytes_min.get_or_insert(files.compress_bytes_min);
        self.level.get_or_insert(files.compress_level);
    }

    /// The settings; `None` if responses are not compressed.
    pub fn resolved(&self) -> Option<ResponseCompression> {
        let (bytes_min, level) = (self.bytes_min.unwrap_or_default(), self.level.unwrap_or_default());
        self.is_on.unwrap_or(false).then_some(ResponseCompression { bytes_min, level })
    }
}
