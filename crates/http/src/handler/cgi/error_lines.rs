use crate::log::{ServerLog, escaped};

/// Longest line of a script that is logged as one, in bytes; the rest becomes another line.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Error output of a script, passed line by line to the server log.
pub struct ErrorLines {
    log: ServerLog,
    script: Box<str>,
    /// Start of an incomplete line.
    line: Vec<u8>,
    /// Bytes that may still be logged.
    remaining_bytes: usize,
}

impl ErrorLines {
    /// Creates the log of a script of this name, limited to `bytes_max`.
    pub fn new(log: &ServerLog, script: &str, bytes_max: usize) -> Self {
        Self { log: log.clone(), script: script.into(), line: Vec::new(), remaining_bytes: bytes_max }
    }

    /// Logs complete lines and keeps the rest.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.remaining_bytes == 0 {
            return;
        }
        if bytes.len() >= self.remaining_bytes {
            bytes = &bytes[..self.remaining_bytes];
        }
        self.remaining_bytes -= bytes.len();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in piece.chunks(LINE_BYTES_MAX) {
                self.line.extend_from_slice(piece);
                if piece.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                    self.end();
                }
            }
        }
        if self.remaining_bytes == 0 {
            self.end();
            self.log.relay(format_args!("{}: wrote more than `error-bytes-max`; the rest is dropped", self.script));
        }
    }

    /// Moves the state to a new value, for another owner; no line is logged twice.
    pub fn take(&mut self) -> Self {
        let (line, remaining_bytes) = (std::mem::take(&mut self.line), std::mem::take(&mut self.remaining_bytes));
        Self { log: self.log.clone(), script: self.script.clone(), line, remaining_bytes }
    }

    /// Logs the last, incomplete line.
    pub fn end(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = line.trim_ascii_end();
        if !text.is_empty() {
            self.log.relay(format_args!("{}: {}", self.script, escaped(text)));
        }
    }
}

impl Drop for ErrorLines {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;
    use crate::log::LineStyle;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Messages(Arc<Mutex<Vec<u8>>>);

    impl Write for Messages {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(pieces: &[&[u8]], bytes_max: usize) -> String {
        let messages = Messages::default();
        let log = ServerLog::new(LogLevel::Warn, LineStyle::Journal, Box::new(messages.clone()));
        let mut lines = ErrorLines::new(&log, "/a.php", bytes_max);
        pieces.iter().for_each(|piece| lines.push(piece));
        drop(lines);
        let text = messages.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap().replace("<4>/a.php: ", ">")
    }

    #[test]
    fn lines() {
        let check = |pieces: &[&[u8]], expect: &str| assert_eq!(logged(pieces, 100), expect);
        check(&[], "");
        check(&[b"one\ntwo\n"], ">one\n>two\n");
        check(&[b"o", b"ne\r\nt", b"wo"], ">one\n>two\n");
        check(&[b"\n \n"], "");
        check(&[b"\x1b[2J\xff\0"], ">\\x1B[2J\\xFF\\x00\n");
        check(
            &[&[b'x'; 200]],
            &format!(">{}\n>wrote more than `error-bytes-max`; the rest is dropped\n", "x".repeat(100)),
        );
    }

    #[test]
    fn a_line_without_end() {
        let text = logged(&[&[b'x'; 2 * LINE_BYTES_MAX + 1]], 1 << 20);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [LINE_BYTES_MAX + 1, LINE_BYTES_MAX + 1, 2]);
    }
}
