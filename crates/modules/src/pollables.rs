//! Pollables of streams. All pollables that a guest has of one stream share one server object with several handles,
//! because guests may never drop them. JavaScript's engine takes a new one for each piece of content. The handles count
//! as the guest's memory.

use std::collections::HashMap;

use wasmtime::Result;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi_io::bindings::wasi::io::poll::HostPollable;
use wasmtime_wasi_io::poll::{DynPollable, Pollable, subscribe};
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream};

use super::guest::ComponentGuest;

/// Interfaces by wasmtime's names; components may ask for an older version.
const POLL: &str = "wasi:io/poll@0.2.12";
const STREAMS: &str = "wasi:io/streams@0.2.12";

/// Handles that count as memory together, one WebAssembly page: each takes at most 64 bytes in wasmtime's table.
const HANDLES_A_PAGE: usize = PAGE_BYTES / 64;

const PAGE_BYTES: usize = 64 << 10;

/// Limit of handles with which an instance may answer another request.
const KEPT_HANDLES_MAX: usize = 16 * HANDLES_A_PAGE;

/// Pollables of an instance's streams.
#[derive(Debug, Default)]
pub(super) struct Pollables {
    /// Pollables by stream.
    of_streams: HashMap<u32, u32>,
    pollables: HashMap<u32, PollableHandles>,
    /// Number of handles of all pollables.
    handles: usize,
    /// Number of handles that count as memory.
    handles_counted: usize,
}

/// Handles that a guest has of one pollable.
#[derive(Debug)]
struct PollableHandles {
    stream: u32,
    count: usize,
}

/// Replaces the linker's functions for pollables of streams.
///
/// # Errors
/// The linker rejects the replacement.
pub(super) fn add_to_linker(linker: &mut Linker<ComponentGuest>) -> Result<()> {
    let mut streams = linker.instance(STREAMS)?;
    streams.func_wrap("[method]input-stream.subscribe", |mut store, (stream,): (Resource<DynInputStream>,)| {
        store.data_mut().subscribe(stream).map(|pollable| (pollable,))
    })?;
    streams.func_wrap("[method]output-stream.subscribe", |mut store, (stream,): (Resource<DynOutputStream>,)| {
        store.data_mut().subscribe(stream).map(|pollable| (pollable,))
    })?;
    let pollable = ResourceType::host::<DynPollable>();
    linker.instance(POLL)?.resource("pollable", pollable, |mut store, index| store.data_mut().drop_pollable(index))
}

impl ComponentGuest {
    /// Gives the guest a handle of a stream's pollable, which is created if there is none.
    fn subscribe<T: Pollable>(&mut self, stream: Resource<T>) -> Result<Resource<DynPollable>> {
        if let Some(bytes) = self.pollables.uncounted_bytes() {
            self.limiter.take_for_handles(bytes)?;
            self.pollables.handles_counted += HANDLES_A_PAGE;
        }
        let stream_index = stream.rep();
        if let Some(pollable) = self.pollables.again(stream_index) {
            return Ok(Resource::new_own(pollable));
        }
        let pollable = subscribe(self.table(), stream)?;
        self.pollables.insert(stream_index, pollable.rep());
        Ok(pollable)
    }

    /// Takes a handle back; the last one drops the pollable.
    fn drop_pollable(&mut self, index: u32) -> Result<()> {
        if self.pollables.drop_handle(index) {
            return Ok(());
        }
        HostPollable::drop(self.table(), Resource::new_own(index))
    }
}

impl Pollables {
    /// True if the instance has few enough handles to answer another request.
    pub(super) fn are_few(&self) -> bool {
        self.handles <= KEPT_HANDLES_MAX
    }

    /// Memory that must be counted before another handle is created.
    fn uncounted_bytes(&self) -> Option<usize> {
        // Most instances have only a few handles, which cost little compared with the instance.
        let is_counted = self.handles < self.handles_counted + HANDLES_A_PAGE;
        (!is_counted).then_some(PAGE_BYTES)
    }

    /// Adds a handle to the pollable of this stream, if there is one.
    fn again(&mut self, stream: u32) -> Option<u32> {
        let pollable = *self.of_streams.get(&stream)?;
        self.pollables.get_mut(&pollable)?.count += 1;
        self.handles += 1;
        Some(pollable)
    }

    fn insert(&mut self, stream: u32, pollable: u32) {
        self.of_streams.insert(stream, pollable);
        self.pollables.insert(pollable, PollableHandles { stream, count: 1 });
        self.handles += 1;
    }

    /// Forgets a handle; returns true if the pollable has others.
    fn drop_handle(&mut self, pollable: u32) -> bool {
        let Some(handles) = self.pollables.get_mut(&pollable) else { return false };
        handles.count -= 1;
        self.handles -= 1;
        if handles.count > 0 {
            return true;
        }
        let stream = handles.stream;
        self.pollables.remove(&pollable);
        self.of_streams.remove(&stream);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pollable_goes_with_its_last_handle() {
        let mut pollables = Pollables::default();
        assert_eq!(pollables.again(7), None);
        pollables.insert(7, 3);
        assert_eq!((pollables.again(7), pollables.again(7), pollables.again(8)), (Some(3), Some(3), None));
        assert_eq!([(); 3].map(|()| pollables.drop_handle(3)), [true, true, false]);
        assert_eq!((pollables.again(7), pollables.handles), (None, 0));
        assert!(!pollables.drop_handle(4), "one of something else than a stream");
    }

    #[test]
    fn many_handles_are_counted_as_memory() {
        let mut pollables = Pollables::default();
        pollables.insert(7, 3);
        let mut bytes = 0;
        for _ in 1..3 * HANDLES_A_PAGE {
            if let Some(more) = pollables.uncounted_bytes() {
                bytes += more;
                pollables.handles_counted += HANDLES_A_PAGE;
            }
            pollables.again(7).unwrap();
        }
        assert_eq!(bytes, 2 * PAGE_BYTES, "the first are free");
        assert!(pollables.are_few());
    }
}
