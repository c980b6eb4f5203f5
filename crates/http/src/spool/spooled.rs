use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::account::{SpoolAccount, SpoolStore};
use super::file::{self, Written};
use super::pieces::SpoolPieces;
use crate::memory_budget::Holder;
use crate::object_cache::Blocking;

/// Bytes per write to a file or read from it.
const BLOCK_BYTES: usize = 64 << 10;

/// Block size while all spools together have reached their limit of memory.
const SMALL_BLOCK_BYTES: usize = 8 << 10;

/// Limit of a message's bytes that wait to be written, beyond `memory_bytes_max`.
const UNWRITTEN_BYTES_MAX: usize = 2 * BLOCK_BYTES;

/// Limits of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes in memory. Bytes on their way to a file, at most 128 KiB, come on top.
    pub memory_bytes_max: usize,
    /// Bytes in a file.
    pub file_bytes_max: u64,
}

impl MessageLimits {
    /// Size of the largest message that fits.
    pub fn total_bytes_max(&self) -> u64 {
        self.file_bytes_max.saturating_add(self.memory_bytes_max as u64)
    }
}

/// Reason why a spool takes no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The message has reached its limit.
    Message,
    /// The client has reached its limit.
    Client,
    /// The process has reached its limit.
    Process,
    /// The client has stopped sending, and other messages need the space.
    Stalled,
    /// The file cannot be written.
    Failed,
}

/// Bytes of a message in order of arrival: the first in memory, later ones in a file, the last again in memory.
///
/// The writer appends as many bytes as [`poll_room`](Self::poll_room) permits; the reader reads from the front. All
/// methods that poll must be called from one task.
#[derive(Debug)]
pub struct Spool {
    account: SpoolAccount,
    limits: MessageLimits,
    /// True if bytes stay after they were read, for [`rewind`](Self::rewind).
    keeps_all: bool,
    /// Bytes before those of the file.
    front: SpoolPieces,
    file: Option<Arc<File>>,
    /// Bytes written to the file, and how many of them were read back.
    written_bytes: u64,
    fetched_bytes: u64,
    /// Bytes read from the file that the reader has not consumed: `window[window_at..]`.
    window: Vec<u8>,
    window_at: usize,
    /// Bytes after those of the file.
    back: SpoolPieces,
    job: Option<SpoolJob>,
    /// Reason why writing does not continue.
    full: Option<Full>,
    read_error: Option<io::ErrorKind>,
}

/// File operation on another thread.
#[derive(Debug)]
enum SpoolJob {
    /// Writes this many bytes; the job alone holds them meanwhile.
    Write(Blocking<Written>, usize),
    Read(Blocking<io::Result<Vec<u8>>>),
}

/// Location of the next unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRead {
    Front,
    Window,
    File,
    /// In a write that is under way.
    Unwritten,
    Back,
    Nowhere,
}

impl Spool {
    /// Empty spool for a message of this client. `holder` is charged for its bytes in memory.
    pub fn new(
        store: &Arc<SpoolStore>,
        client: Option<u64>,
        holder: &Rc<Holder>,
        limits: MessageLimits,
        keeps_all: bool,
    ) -> Self {
        Self {
            // Requests are kept whole for retries, responses are not.
            account: SpoolAccount::new(store, client, holder, !keeps_all),
            limits,
            keeps_all,
            front: SpoolPieces::default(),
            file: None,
            written_bytes: 0,
            fetched_bytes: 0,
            window: Vec::new(),
            window_at: 0,
            back: SpoolPieces::default(),
            job: None,
            full: None,
            read_error: None,
        }
    }

    /// Bytes held, read or not.
    pub fn held_bytes(&self) -> u64 {
        (self.front.held_bytes() + self.back.held_bytes() + self.writing_bytes()) as u64 + self.written_bytes
    }

    /// True if all bytes were read.
    pub fn is_drained(&self) -> bool {
        self.next() == NextRead::Nowhere
    }

    /// True if [`Self::rewind`] can be called.
    pub fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// Number of bytes that may be appended now, at least one. Pending while the disk works.
    ///
    /// # Errors
    /// The limit that leaves no room until bytes are read or other spools release some.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> Poll<Result<usize, Full>> {
        if self.account.is_closed(task) {
            return Poll::Ready(Err(Full::Stalled));
        }
        self.drive(task);
        if self.appends_to_front() && self.front.held_bytes() < self.limits.memory_bytes_max {
            let room = self.limits.memory_bytes_max - self.front.held_bytes();
            return Poll::Ready(Ok(room.min(BLOCK_BYTES)));
        }
        let unwritten_bytes = self.back.held_bytes() + self.writing_bytes();
        let file_room = self.limits.file_bytes_max.saturating_sub(self.written_bytes + unwritten_bytes as u64);
        if file_room == 0 {
            // Without a file, the memory of the whole process may be exhausted.
            let is_short = self.held_bytes() < self.limits.total_bytes_max();
            return Poll::Ready(Err(if is_short { Full::Process } else { Full::Message }));
        }
        if let Some(full) = self.full {
            return Poll::Ready(Err(full));
        }
        match UNWRITTEN_BYTES_MAX.saturating_sub(unwritten_bytes).min(usize::try_from(file_room).unwrap_or(usize::MAX))
        {
            // A write is under way; otherwise there would be a reason.
            0 => Poll::Pending,
            room => Poll::Ready(Ok(room)),
        }
    }

    /// Appends bytes: at least one, at most as many as [`Self::poll_room`] permits.
    pub fn append(&mut self, bytes: &[u8]) {
        if !self.keeps_all && self.is_file_read() && self.writing_bytes() == 0 {
            (self.written_bytes, self.fetched_bytes) = (0, 0);
        }
        let fits = self.front.held_bytes() + bytes.len() <= self.limits.memory_bytes_max;
        if self.appends_to_front() && fits {
            self.front.push(bytes);
        } else {
            self.back.push(bytes);
        }
        self.count_memory();
    }

    /// The next unread bytes; empty if there are none. [`Self::consume`] counts them as read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn poll_peek(&mut self, task: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        loop {
            self.drive(task);
            match self.next() {
                NextRead::Front => return Poll::Ready(Ok(self.front.front())),
                NextRead::Window => return Poll::Ready(Ok(&self.window[self.window_at..])),
                NextRead::Back if self.keeps_all => return Poll::Ready(Ok(self.back.front())),
                NextRead::Back => self.turn_over(),
                NextRead::Nowhere => return Poll::Ready(Ok(&[])),
                NextRead::Unwritten => return Poll::Pending,
                NextRead::File => {
                    if let Some(kind) = self.read_error {
                        return Poll::Ready(Err(kind.into()));
                    }
                    if self.job.is_some() {
                        return Poll::Pending;
                    }
                    self.fetch();
                }
            }
        }
    }

    /// Counts bytes as read, at most as many as [`Self::poll_peek`] returned.
    pub fn consume(&mut self, count: usize) {
        match self.next() {
            NextRead::Front => self.front.advance(count, self.keeps_all),
            NextRead::Window => {
                self.window_at += count;
                if self.window_at == self.window.len() {
                    (self.window, self.window_at) = (Vec::new(), 0);
                }
            }
            NextRead::Back => self.back.advance(count, self.keeps_all),
            NextRead::File | NextRead::Unwritten | NextRead::Nowhere => {}
        }
        self.count_memory();
    }

    /// Moves the read position back to the first byte. Must be called only while all bytes are kept.
    pub fn rewind(&mut self) {
        debug_assert!(self.keeps_all);
        self.front.rewind();
        self.back.rewind();
        (self.window, self.window_at, self.fetched_bytes) = (Vec::new(), 0, 0);
        if matches!(self.job, Some(SpoolJob::Read(_))) {
            self.job = None;
        }
    }

    /// Records that no more is received. Until then, a spool that [keeps all](Self::keeps_all) may be closed while its
    /// client sends nothing.
    pub fn end_upload(&mut self) {
        self.account.end_upload();
    }

    /// Frees the bytes that were read, now and from now on.
    pub fn forget_read(&mut self) {
        if std::mem::take(&mut self.keeps_all) {
            self.front.forget_read();
            self.back.forget_read();
            self.count_memory();
        }
    }

    /// Handles finished file operations and starts the next ones.
    fn drive(&mut self, task: &mut Context<'_>) {
        loop {
            match self.poll_job(task) {
                Poll::Pending => return,
                Poll::Ready(()) if !self.wants_to_write() => return,
                Poll::Ready(()) => self.begin_writing(),
            }
            if self.job.is_none() {
                return;
            }
        }
    }

    fn poll_job(&mut self, task: &mut Context<'_>) -> Poll<()> {
        match &mut self.job {
            None => return Poll::Ready(()),
            Some(SpoolJob::Write(writing, bytes)) => {
                let (written, bytes) = (ready!(Pin::new(writing).poll(task)), *bytes);
                self.job = None;
                self.on_written(written.map_err(io::Error::other), bytes);
            }
            Some(SpoolJob::Read(reading)) => {
                let read = ready!(Pin::new(reading).poll(task));
                self.job = None;
                match read.map_err(io::Error::other).and_then(|read| read) {
                    Ok(bytes) => {
                        self.fetched_bytes += bytes.len() as u64;
                        (self.window, self.window_at) = (bytes, 0);
                    }
                    Err(error) => {
                        self.account.store().tell(&error);
                        self.read_error = Some(error.kind());
                    }
                }
            }
        }
        self.count_memory();
        Poll::Ready(())
    }

    fn on_written(&mut self, written: io::Result<Written>, bytes: usize) {
        let Written { file, result } = match written {
            Ok(written) => written,
            // The thread has panicked, or the process ends: the bytes are lost.
            Err(error) => {
                (self.full, self.read_error) = (Some(Full::Failed), Some(error.kind()));
                self.written_bytes += bytes as u64;
                return;
            }
        };
        self.file = file;
        match result {
            Ok(bytes) => self.written_bytes += bytes,
            Err((pieces, error)) => {
                self.account.store().tell(&error);
                self.full = Some(Full::Failed);
                self.back.put_back(pieces);
            }
        }
    }

    fn wants_to_write(&self) -> bool {
        let block_bytes = if self.account.is_memory_full() { SMALL_BLOCK_BYTES } else { BLOCK_BYTES };
        // A partly read buffer is not written any more.
        let is_unread = self.back.unread_bytes() == self.back.held_bytes();
        self.job.is_none() && is_unread && self.back.held_bytes() >= block_bytes && self.full != Some(Full::Failed)
    }

    /// Writes the bytes that wait in memory, if the limits of client and process permit a larger file.
    fn begin_writing(&mut self) {
        let end = self.written_bytes + self.back.held_bytes() as u64;
        self.full = self.account.grow_file(end).err();
        if self.full.is_some() {
            return;
        }
        let bytes = self.back.held_bytes();
        let pieces: VecDeque<Vec<u8>> = self.back.take();
        let (file, offset, directory) = (self.file.take(), self.written_bytes, self.account.store().directory());
        self.job = Some(SpoolJob::Write(Blocking::spawn(move || file::write(file, &directory, offset, pieces)), bytes));
    }

    /// Reads the next bytes from the file.
    fn fetch(&mut self) {
        let Some(file) = &self.file else {
            self.read_error = Some(io::ErrorKind::NotFound);
            return;
        };
        let (file, offset) = (Arc::clone(file), self.fetched_bytes);
        let length = (self.written_bytes - offset).min(BLOCK_BYTES as u64) as usize;
        self.job = Some(SpoolJob::Read(Blocking::spawn(move || file::read(&file, offset, length))));
    }

    /// Starts over once the file is read: the bytes after it become the front, and the file is filled again from offset
    /// 0.
    fn turn_over(&mut self) {
        self.front = std::mem::take(&mut self.back);
        (self.written_bytes, self.fetched_bytes) = (0, 0);
        if self.full != Some(Full::Failed) {
            self.full = None;
        }
    }

    /// True if new bytes may follow the front: no byte comes after it, and memory is not full.
    fn appends_to_front(&self) -> bool {
        let is_file_empty = self.written_bytes == 0 || !self.keeps_all && self.is_file_read();
        is_file_empty && self.writing_bytes() == 0 && self.back.held_bytes() == 0 && !self.account.is_memory_full()
    }

    fn is_file_read(&self) -> bool {
        self.fetched_bytes == self.written_bytes && self.window.is_empty()
    }

    fn next(&self) -> NextRead {
        if self.front.unread_bytes() > 0 {
            NextRead::Front
        } else if !self.window.is_empty() {
            NextRead::Window
        } else if self.fetched_bytes < self.written_bytes {
            NextRead::File
        } else if self.writing_bytes() > 0 {
            NextRead::Unwritten
        } else if self.back.unread_bytes() > 0 {
            NextRead::Back
        } else {
            NextRead::Nowhere
        }
    }

    fn writing_bytes(&self) -> usize {
        if let Some(SpoolJob::Write(_, bytes)) = self.job { bytes } else { 0 }
    }

    fn count_memory(&mut self) {
        let held = self.front.held_bytes() + self.back.held_bytes() + self.window.len() + self.writing_bytes();
        if held as u64 != self.account.memory_bytes() {
            self.account.set_memory(held as u64);
        }
    }
}
