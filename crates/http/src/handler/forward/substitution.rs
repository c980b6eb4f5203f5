//! Texts that are replaced in content while it is sent. At most one unfinished occurrence is held back.

use std::io;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use wire::http::Fields;

use crate::config::Substitution;
use crate::handler::{ContentSource, ContentStream, Filled, ProducedContent};

/// Size of one read.
const PIECE_BYTES: usize = 16 << 10;

/// Changed content that waits for the client, above which no more is changed.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Texts and their replacements.
#[derive(Debug)]
pub(super) struct Patterns {
    patterns: Vec<Pattern>,
    /// True for each byte that some text begins with.
    begins: Box<[bool; 256]>,
    longest: usize,
}

#[derive(Debug)]
struct Pattern {
    /// In lower case.
    from: Box<[u8]>,
    to: Box<[u8]>,
    is_once: bool,
}

/// Occurrences so far, for patterns that are replaced once.
#[derive(Debug, Default)]
struct Replaced(Vec<bool>);

/// End of a search.
enum Searched {
    /// All input that can be decided on was.
    Done,
    /// The output is full.
    Full,
}

impl Patterns {
    /// Prepares texts. None is empty.
    pub(super) fn new(substitutions: &[Substitution]) -> Self {
        let patterns = substitutions.iter().map(|one| Pattern {
            from: one.text.from.to_ascii_lowercase().into_bytes().into(),
            to: one.text.to.as_bytes().into(),
            is_once: one.is_once,
        });
        let patterns: Vec<_> = patterns.filter(|pattern| !pattern.from.is_empty()).collect();
        let mut begins = Box::new([false; 256]);
        for first in patterns.iter().map(|pattern| pattern.from[0]) {
            begins[usize::from(first)] = true;
            begins[usize::from(first.to_ascii_uppercase())] = true;
        }
        let longest = patterns.iter().map(|pattern| pattern.from.len()).max().unwrap_or(0);
        Self { patterns, begins, longest }
    }

    /// Whole content with its texts replaced; `None` if it would be longer than `bytes_max`.
    pub(super) fn replace_all(&self, content: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
        let (mut output, mut at, mut replaced) = (Vec::with_capacity(content.len()), 0, Replaced::default());
        match self.replace(content, &mut at, true, &mut replaced, &mut output, bytes_max) {
            Searched::Done if output.len() <= bytes_max => Some(output),
            _ => None,
        }
    }

    /// Moves `input[*at..]` to the output, as far as later input can't change it, with texts replaced.
    fn replace(
        &self,
        input: &[u8],
        at: &mut usize,
        is_end: bool,
        replaced: &mut Replaced,
        output: &mut Vec<u8>,
        output_bytes_max: usize,
    ) -> Searched {
        replaced.0.resize(self.patterns.len(), false);
        let mut copied = *at;
        while *at < input.len() {
            let rest = &input[*at..];
            let Some(skip) = rest.iter().position(|byte| self.begins[usize::from(*byte)]) else {
                *at = input.len();
                break;
            };
            *at += skip;
            let rest = &rest[skip..];
            let mut decided = None;
            for (index, pattern) in self.patterns.iter().enumerate().filter(|(index, _)| !replaced.0[*index]) {
                let length = pattern.from.len().min(rest.len());
                if !rest[..length].eq_ignore_ascii_case(&pattern.from[..length]) {
                    continue;
                }
                if length == pattern.from.len() {
                    decided = Some(index);
                    break;
                }
                if !is_end {
                    // More input decides whether this text is here.
                    output.extend_from_slice(&input[copied..*at]);
                    return Searched::Done;
                }
            }
            let Some(index) = decided else {
                *at += 1;
                continue;
            };
            let pattern = &self.patterns[index];
            output.extend_from_slice(&input[copied..*at]);
            output.extend_from_slice(&pattern.to);
            *at += pattern.from.len();
            copied = *at;
            replaced.0[index] = pattern.is_once;
            if output.len() > output_bytes_max {
                return Searched::Full;
            }
        }
        output.extend_from_slice(&input[copied..*at]);
        Searched::Done
    }
}

/// Content whose texts are replaced while it is sent.
pub(super) struct SubstitutedContent {
    patterns: Arc<Patterns>,
    /// `None` after the end of the content.
    stream: Option<ContentStream>,
    /// Content that was not searched: `input[searched..]`.
    input: Vec<u8>,
    searched: usize,
    replaced: Replaced,
    /// Changed content.
    output: ProducedContent,
    /// True if `input` may have more that can be decided on.
    is_full: bool,
    trailers: Option<Box<Fields>>,
}

impl SubstitutedContent {
    /// Replaces texts in content that begins with `beginning`.
    pub(super) fn new(patterns: Arc<Patterns>, beginning: Vec<u8>, stream: Option<ContentStream>) -> Self {
        Self {
            patterns,
            stream,
            input: beginning,
            searched: 0,
            replaced: Replaced::default(),
            output: ProducedContent::default(),
            is_full: true,
            trailers: None,
        }
    }

    fn search(&mut self) {
        let is_end = self.stream.is_none();
        let searched = self.patterns.replace(
            &self.input,
            &mut self.searched,
            is_end,
            &mut self.replaced,
            &mut self.output.bytes,
            OUTPUT_BYTES_MAX,
        );
        self.is_full = matches!(searched, Searched::Full);
        if !self.is_full {
            self.input.drain(..self.searched);
            self.searched = 0;
        }
        debug_assert!(self.is_full || self.input.len() < self.patterns.longest.max(1));
    }

    /// Reads more content.
    fn poll_read(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        if let Filled::End(trailers) = ready!(stream.poll_append(task, &mut self.input, PIECE_BYTES))? {
            (self.trailers, self.stream) = (trailers, None);
        }
        Poll::Ready(Ok(()))
    }
}

impl ContentSource for SubstitutedContent {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        loop {
            if let count @ 1.. = self.output.take(buffer) {
                return Poll::Ready(Ok(Filled::Content(count)));
            }
            if self.is_full {
                self.search();
                continue;
            }
            if self.stream.is_none() {
                return Poll::Ready(Ok(Filled::End(self.trailers.take())));
            }
            match self.poll_read(task) {
                Poll::Ready(Ok(())) => self.is_full = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = &mut self.stream {
            stream.source.poll_ahead(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;
    use crate::config::TextRewrite;

    struct Pieces(VecDeque<Vec<u8>>);

    impl ContentSource for Pieces {
        fn poll_fill(&mut self, _task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
            let Some(mut piece) = self.0.pop_front() else { return Poll::Ready(Ok(Filled::End(None))) };
            if piece.is_empty() {
                return Poll::Pending;
            }
            let rest = piece.split_off(piece.len().min(buffer.len()));
            buffer[..piece.len()].copy_from_slice(&piece);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
            Poll::Ready(Ok(Filled::Content(piece.len())))
        }
    }

    fn patterns(list: &[(&str, &str, bool)]) -> Arc<Patterns> {
        let one = |(from, to, is_once): &(&str, &str, bool)| Substitution {
            text: TextRewrite { from: (*from).into(), to: (*to).into() },
            is_once: *is_once,
        };
        Arc::new(Patterns::new(&list.iter().map(one).collect::<Vec<_>>()))
    }

    fn content(patterns: &Arc<Patterns>, pieces: &[&[u8]], length: Option<u64>) -> SubstitutedContent {
        let source = Box::new(Pieces(pieces.iter().map(|piece| piece.to_vec()).collect()));
        SubstitutedContent::new(Arc::clone(patterns), Vec::new(), Some(ContentStream { source, length }))
    }

    /// Content of the source until it pauses or ends.
    fn drained(content: &mut SubstitutedContent) -> String {
        let (task, mut all, mut buffer) = (&mut Task::from_waker(Waker::noop()), Vec::new(), [0; 7]);
        while let Poll::Ready(Ok(Filled::Content(count))) = content.poll_fill(task, &mut buffer) {
            all.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(all).unwrap()
    }

    /// Checks the whole, and all ways to cut the text into two and three pieces.
    fn check(list: &[(&str, &str, bool)], text: &str, expect: &str) {
        let patterns = patterns(list);
        assert_eq!(patterns.replace_all(text.as_bytes(), 1 << 20).unwrap(), expect.as_bytes(), "{text}");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let bytes = text.as_bytes();
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let pieces: Vec<_> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
                let mut content = content(&patterns, &pieces, Some(text.len() as u64));
                assert_eq!(drained(&mut content), expect, "{text}: {first} {second}");
            }
        }
    }

    #[test]
    fn texts_are_found_across_pieces() {
        check(&[("abc", "x", false)], "abcabABCab", "xabxab");
        check(&[("aab", "x", false)], "aaab aab", "ax x");
        check(&[("abcd", "1", false), ("bc", "2", false)], "abcabcd", "a21");
        check(&[("ab", "1", false), ("abc", "2", false)], "abcab", "1c1");
        check(&[("abc", "2", false), ("ab", "1", false)], "abcab", "21");
        check(&[("a", "aa", false)], "aba", "aabaa");
        check(&[("a", "", false)], "aba", "b");
        check(&[("a", "x", true), ("b", "y", false)], "aabb", "xayy");
        check(&[("</HEAD>", "<s></head>", true)], "<head></head></head>", "<head><s></head></head>");
        check(&[("zz", "x", false)], "", "");
    }

    #[test]
    fn only_an_unfinished_text_is_held_back() {
        let patterns = patterns(&[("abcdef", "x", false)]);
        let mut content = content(&patterns, &[b"one ab", b"", b"c two", b"", b"abc"], None);
        assert_eq!(drained(&mut content), "one ");
        assert_eq!(drained(&mut content), "abc two");
        assert_eq!(drained(&mut content), "abc");
    }

    #[test]
    fn memory_is_bounded() {
        let patterns = patterns(&[("a", &"b".repeat(10_000), false)]);
        let piece = vec![b'a'; PIECE_BYTES];
        let mut content = content(&patterns, &[&piece], None);
        let (task, mut total, mut buffer) = (&mut Task::from_waker(Waker::noop()), 0, vec![0; 9_999]);
        while let Poll::Ready(Ok(Filled::Content(count))) = content.poll_fill(task, &mut buffer) {
            total += count;
            let capacity = content.output.bytes.capacity();
            assert!(capacity < 4 * OUTPUT_BYTES_MAX, "{capacity}");
        }
        assert_eq!(total, PIECE_BYTES * 10_000);
        assert!(patterns.replace_all(&piece, 1 << 20).is_none());
    }

    #[test]
    fn content_that_is_cut_off_does_not_look_complete() {
        let mut content = content(&patterns(&[("a", "b", false)]), &[b"xx"], Some(3));
        let (task, mut buffer) = (&mut Task::from_waker(Waker::noop()), [0; 9]);
        assert!(matches!(content.poll_fill(task, &mut buffer), Poll::Ready(Ok(Filled::Content(2)))));
        assert!(matches!(content.poll_fill(task, &mut buffer), Poll::Ready(Err(_))));
    }
}
