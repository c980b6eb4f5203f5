/// Output to send: frames with their content, in order. The caller uses one for all of its connections.
#[derive(Debug, Default)]
pub struct H2Output {
    pub(super) bytes: Vec<u8>,
}

/// Result of a request to provide content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The caller has appended exactly these bytes.
    Copied,
    /// The caller has lost the content. The stream is reset, and bytes that the caller appended are dropped.
    Lost,
}

impl H2Output {
    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Removes `length` sent bytes from the front.
    pub fn drop_front(&mut self, length: usize) {
        self.bytes.drain(..length);
    }

    /// Restores what [`H2Output::suspend`] left in `kept`. If it left anything, this output's own memory stays in `kept`
    /// until the next call of `suspend`.
    pub fn resume(&mut self, kept: &mut Vec<u8>) {
        self.clear();
        if !kept.is_empty() {
            std::mem::swap(&mut self.bytes, kept);
        }
    }

    /// Moves unsent output to `kept` and undoes [`H2Output::resume`]. If everything was sent, `kept` has no memory
    /// afterwards.
    pub fn suspend(&mut self, kept: &mut Vec<u8>) {
        if !self.bytes.is_empty() || kept.capacity() > self.bytes.capacity() {
            std::mem::swap(&mut self.bytes, kept);
            self.bytes.clear();
        }
        if kept.is_empty() {
            *kept = Vec::new();
        } else if kept.capacity() / 2 > kept.len() {
            kept.shrink_to_fit();
        }
    }

    /// Removes all output, after the caller has sent it or stored it elsewhere. Keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sent_is_kept_without_copying() {
        let mut output = H2Output { bytes: Vec::with_capacity(100) };
        let mut kept = Vec::new();
        let check = |output: &H2Output, kept: &Vec<u8>, expect: (&[u8], &[u8])| {
            assert_eq!((&output.bytes[..], &kept[..]), expect);
        };
        output.suspend(&mut kept);
        check(&output, &kept, (b"", b""));
        assert_eq!((output.bytes.capacity(), kept.capacity()), (100, 0));
        output.bytes.extend([b'a'; 80]);
        let there = output.bytes.as_ptr();
        output.suspend(&mut kept);
        check(&output, &kept, (b"", &[b'a'; 80]));
        assert_eq!(kept.as_ptr(), there);
        output.resume(&mut kept);
        check(&output, &kept, (&[b'a'; 80], b""));
        assert_eq!(output.bytes.as_ptr(), there);
        output.drop_front(60);
        output.suspend(&mut kept);
        check(&output, &kept, (b"", &[b'a'; 20]));
        assert!(kept.capacity() < 100, "a little is kept in little memory");
        output.resume(&mut kept);
        output.drop_front(20);
        output.suspend(&mut kept);
        check(&output, &kept, (b"", b""));
        assert_eq!(kept.capacity(), 0);
    }
}
