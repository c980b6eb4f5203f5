//! Files and standard input that users name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum size of a file that is held in memory as a whole, such as a scenario, a lab or a record.
pub(crate) const FILE_BYTES_MAX: u64 = 256 << 20;

/// Reads a file of at most `bytes_max` bytes. Devices without an end, such as `/dev/zero`, are an error, too.
///
/// # Errors
/// The file cannot be read or is too long. The message begins with the path.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let content = File::open(path).map_err(|error| error.to_string()).and_then(|file| read_bounded(file, bytes_max));
    content.map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes of UTF-8.
///
/// # Errors
/// As [`read`], or the file is not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let text = read(path, FILE_BYTES_MAX)?;
    String::from_utf8(text).map_err(|error| format!("{}: not UTF-8: {}", path.display(), error.utf8_error()))
}

/// Reads a source of at most `bytes_max` bytes.
///
/// # Errors
/// The source cannot be read or is too long.
pub(crate) fn read_bounded(source: impl Read, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    source.take(bytes_max.saturating_add(1)).read_to_end(&mut content).map_err(|error| error.to_string())?;
    match content.len() as u64 > bytes_max {
        true => Err(format!("more than {bytes_max} bytes")),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_bounded() {
        assert_eq!(read_bounded(&b"1234"[..], 4), Ok(b"1234".to_vec()));
        assert_eq!(read_bounded(&b"12345"[..], 4), Err("more than 4 bytes".to_owned()));
        assert_eq!(read_bounded(std::io::repeat(0), 1000), Err("more than 1000 bytes".to_owned()));
        assert_eq!(read(Path::new("/dev/zero"), 1000), Err("/dev/zero: more than 1000 bytes".to_owned()));
        assert!(read_text(Path::new("no/such/file")).unwrap_err().starts_with("no/such/file: "));
    }
}
