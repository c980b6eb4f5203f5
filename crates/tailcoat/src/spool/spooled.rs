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

/// Bytes that are written to a file or read from it at once.
const BLOCK_BYTES: usize = 64 << 10;

/// The same while all spools together hold as much in memory as they may.
const SMALL_BLOCK_BYTES: usize = 8 << 10;

/// Bytes of a message beyond `memory_bytes_max` that wait to be written.
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
    /// Bytes of the longest message that fits.
    pub fn total_bytes_max(&self) -> u64 {
        self.file_bytes_max.saturating_add(self.memory_bytes_max as u64)
    }
}

/// Why a spool takes no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The message has as many as it may.
    Message,
    /// The client's messages have.
    Client,
    /// All messages have.
    Process,
    /// The file cannot be written.
    Failed,
}

/// Bytes of a message, in the order in which they came: the first in memory, those behind in a file.
///
/// Bytes are appended as far as [`poll_room`](Self::poll_room) says, and read from the front. All methods that poll must be
/// called from one task.
#[derive(Debug)]
pub struct Spool {
    account: SpoolAccount,
    limits: MessageLimits,
    /// Bytes that were read are kept, for [`rewind`](Self::rewind).
    keeps_all: bool,
    /// The bytes before those of the file.
    front: SpoolPieces,
    file: Option<Arc<File>>,
    /// Bytes written to the file, and how many of those were read from it.
    written_bytes: u64,
    fetched_bytes: u64,
    /// Bytes from the file that were not taken yet: `window[window_at..]`.
    window: Vec<u8>,
    window_at: usize,
    /// The bytes behind those of the file.
    back: SpoolPieces,
    job: Option<SpoolJob>,
    /// Why writing does not go on.
    full: Option<Full>,
    read_error: Option<io::ErrorKind>,
}

/// Job that another thread does for the spool.
#[derive(Debug)]
enum SpoolJob {
    /// Writes so many bytes, which are nowhere else meanwhile.
    Write(Blocking<Written>, usize),
    Read(Blocking<io::Result<Vec<u8>>>),
}

/// Where the next unread bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRead {
    Front,
    Window,
    File,
    /// In the hands of another thread.
    Unwritten,
    Back,
    Nowhere,
}

impl Spool {
    /// An empty one, for a message of this client, whose connection is charged for what is in memory.
    pub fn new(
        store: &Arc<SpoolStore>,
        client: Option<u64>,
        holder: &Rc<Holder>,
        limits: MessageLimits,
        keeps_all: bool,
    ) -> Self {
        Self {
            // Requests are kept whole, responses are not.
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

    /// Says how many bytes may be appended now, at least one. Pending while a disk is waited for.
    ///
    /// # Errors
    /// Why there is no room before bytes are read, or others leave some.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> Poll<Result<usize, Full>> {
        self.drive(task);
        if self.appends_to_front() && self.front.held_bytes() < self.limits.memory_bytes_max {
            let room = self.limits.memory_bytes_max - self.front.held_bytes();
            return Poll::Ready(Ok(room.min(BLOCK_BYTES)));
        }
        let unwritten_bytes = self.back.held_bytes() + self.writing_bytes();
        let file_room = self.limits.file_bytes_max.saturating_sub(self.written_bytes + unwritten_bytes as u64);
        if file_room == 0 {
            // Without a file, the memory of all may be what is lacking.
            let is_short = self.held_bytes() < self.limits.total_bytes_max();
            return Poll::Ready(Err(if is_short { Full::Process } else { Full::Message }));
        }
        if let Some(full) = self.full {
            return Poll::Ready(Err(full));
        }
        match UNWRITTEN_BYTES_MAX.saturating_sub(unwritten_bytes).min(usize::try_from(file_room).unwrap_or(usize::MAX))
        {
            // Something is being written, or it would say why not.
            0 => Poll::Pending,
            room => Poll::Ready(Ok(room)),
        }
    }

    /// Appends bytes: at least one, and no more than there is room for.
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

    /// Counts bytes as read: at most as many as [`Self::poll_peek`] gave.
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

    /// Goes back to the first byte. Only while all is kept.
    pub fn rewind(&mut self) {
        debug_assert!(self.keeps_all);
        self.front.rewind();
        self.back.rewind();
        (self.window, self.window_at, self.fetched_bytes) = (Vec::new(), 0, 0);
        if matches!(self.job, Some(SpoolJob::Read(_))) {
            self.job = None;
        }
    }

    /// Keeps what was read no longer.
    pub fn forget_read(&mut self) {
        if std::mem::take(&mut self.keeps_all) {
            self.front.forget_read();
            self.back.forget_read();
            self.count_memory();
        }
    }

    /// Takes note of what another thread has done, and gives it more to do.
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
        // What was read in part is written no more.
        let is_unread = self.back.unread_bytes() == self.back.held_bytes();
        self.job.is_none() && is_unread && self.back.held_bytes() >= block_bytes && self.full != Some(Full::Failed)
    }

    /// Has what waits in memory written, if client and process may have a larger file.
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

    /// Has the next bytes read from the file.
    fn fetch(&mut self) {
        let Some(file) = &self.file else {
            self.read_error = Some(io::ErrorKind::NotFound);
            return;
        };
        let (file, offset) = (Arc::clone(file), self.fetched_bytes);
        let length = (self.written_bytes - offset).min(BLOCK_BYTES as u64) as usize;
        self.job = Some(SpoolJob::Read(Blocking::spawn(move || file::read(&file, offset, length))));
    }

    /// All that was before them has been read: the bytes in the back become the front, and the file is filled again from
    /// its beginning.
    fn turn_over(&mut self) {
        self.front = std::mem::take(&mut self.back);
        (self.written_bytes, self.fetched_bytes) = (0, 0);
        if self.full != Some(Full::Failed) {
            self.full = None;
        }
    }

    /// True if no byte is behind those of the front.
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
