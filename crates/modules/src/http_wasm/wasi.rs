//! Subset of WASI preview 1 (`wasi_snapshot_preview1`) for filters: standard output and error, environment, clocks,
//! random numbers, sleeping, exit. There are no arguments, files or sockets. Descriptors beyond the standard ones are
//! bad, and all other functions return ENOSYS, so that a guest that imports them still starts. wasmtime's
//! implementation has files, too, but is several times larger, and a filter needs none.

use std::time::{Duration, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};
use wasmtime::{Caller, ExternType, Linker, Module, Result, Val, ValType};
use wasmtime_wasi::I32Exit;

use super::abi::{parts, slice, slice_mut};
use super::guest::HttpWasmGuest;
use crate::guest::{CLOCK_STEP, coarse};

/// Module name under which guests import the functions.
pub(super) const MODULE: &str = "wasi_snapshot_preview1";

/// Error numbers (WASI preview 1, `errno`).
const SUCCESS: i32 = 0;
const EBADF: i32 = 8;
const EINVAL: i32 = 28;
const ENOSYS: i32 = 52;

/// Sizes of a gather list entry (`ciovec`), a subscription and an event, in bytes.
const VECTOR_BYTES: u32 = 8;
const SUBSCRIPTION_BYTES: u32 = 48;
const EVENT_BYTES: u32 = 32;

/// Limit of gather list entries, and of subscriptions, per call.
const LIST_MAX: u32 = 1024;

/// Limit of random bytes per call.
const RANDOM_BYTES_MAX: u32 = 1 << 20;

/// Defines the functions that do something.
pub(super) fn add(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    add_output(linker)?;
    add_environment(linker)?;
    add_clocks(linker)?;
    linker.func_wrap(MODULE, "random_get", |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, length: u32| {
        let (memory, _) = parts(&mut caller)?;
        let mut rest = slice_mut(memory, buffer, length.min(RANDOM_BYTES_MAX))?;
        while !rest.is_empty() {
            let count = getrandom(&mut *rest, GetRandomFlags::empty())?;
            rest = &mut rest[count..];
        }
        Ok(if length > RANDOM_BYTES_MAX { EINVAL } else { SUCCESS })
    })?;
    linker.func_wrap(MODULE, "proc_exit", |status: i32| -> Result<()> { Err(I32Exit(status).into()) })?;
    linker.func_wrap(MODULE, "sched_yield", || SUCCESS)?;
    Ok(())
}

/// Defines all other imported WASI functions, which return ENOSYS.
pub(super) fn add_missing(linker: &mut Linker<HttpWasmGuest>, module: &Module) {
    for import in module.imports().filter(|import| import.module() == MODULE) {
        let ExternType::Func(function) = import.ty() else { continue };
        if function.results().len() == 1 && function.results().all(|result| matches!(result, ValType::I32)) {
            // Fails for functions that are already defined.
            let _ = linker.func_new(MODULE, import.name(), function, |_, _, results| {
                results[0] = Val::I32(ENOSYS);
                Ok(())
            });
        }
    }
}

fn add_output(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(
        MODULE,
        "fd_write",
        |mut caller: Caller<'_, HttpWasmGuest>, descriptor: i32, vectors: u32, count: u32, written: u32| {
            let (memory, guest) = parts(&mut caller)?;
            if !(1..=2).contains(&descriptor) {
                return Ok(EBADF);
            }
            if count > LIST_MAX {
                return Ok(EINVAL);
            }
            let mut total = 0u32;
            for vector in slice(memory, vectors, count * VECTOR_BYTES)?.chunks_exact(VECTOR_BYTES as usize) {
                let piece = slice(memory, number(&vector[..4]), number(&vector[4..]))?;
                guest.write_log(piece);
                total = total.saturating_add(piece.len() as u32);
            }
            slice_mut(memory, written, 4)?.copy_from_slice(&total.to_le_bytes());
            Ok(SUCCESS)
        },
    )?;
    // There is no input, and no directory was opened in advance.
    linker.func_wrap(MODULE, "fd_read", |_: i32, _: u32, _: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_prestat_get", |_: i32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_prestat_dir_name", |_: i32, _: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_close", |_: i32| SUCCESS)?;
    Ok(())
}

fn add_environment(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(
        MODULE,
        "environ_sizes_get",
        |mut caller: Caller<'_, HttpWasmGuest>, count: u32, length: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let bytes: usize = guest.environment().iter().map(|variable| variable.len() + 1).sum();
            let sizes = (guest.environment().len() as u32, u32::try_from(bytes)?);
            slice_mut(memory, count, 4)?.copy_from_slice(&sizes.0.to_le_bytes());
            slice_mut(memory, length, 4)?.copy_from_slice(&sizes.1.to_le_bytes());
            Ok(SUCCESS)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "environ_get",
        |mut caller: Caller<'_, HttpWasmGuest>, mut pointers: u32, mut text: u32| {
            let (memory, guest) = parts(&mut caller)?;
            for variable in guest.environment() {
                slice_mut(memory, pointers, 4)?.copy_from_slice(&text.to_le_bytes());
                let place = slice_mut(memory, text, variable.len() as u32 + 1)?;
                place[..variable.len()].copy_from_slice(variable.as_bytes());
                place[variable.len()] = 0;
                pointers += 4;
                text += variable.len() as u32 + 1;
            }
            Ok(SUCCESS)
        },
    )?;
    linker.func_wrap(MODULE, "args_sizes_get", |mut caller: Caller<'_, HttpWasmGuest>, count: u32, length: u32| {
        let (memory, _) = parts(&mut caller)?;
        slice_mut(memory, count, 4)?.fill(0);
        slice_mut(memory, length, 4)?.fill(0);
        Ok(SUCCESS)
    })?;
    linker.func_wrap(MODULE, "args_get", |_: u32, _: u32| SUCCESS)?;
    Ok(())
}

fn add_clocks(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(MODULE, "clock_res_get", |mut caller: Caller<'_, HttpWasmGuest>, _: i32, resolution: u32| {
        let (memory, _) = parts(&mut caller)?;
        slice_mut(memory, resolution, 8)?.copy_from_slice(&(CLOCK_STEP.as_nanos() as u64).to_le_bytes());
        Ok(SUCCESS)
    })?;
    linker.func_wrap(
        MODULE,
        "clock_time_get",
        |mut caller: Caller<'_, HttpWasmGuest>, clock: i32, _: u64, time: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let Some(now) = now(clock, guest) else { return Ok(EINVAL) };
            slice_mut(memory, time, 8)?.copy_from_slice(&(now.as_nanos() as u64).to_le_bytes());
            Ok(SUCCESS)
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "poll_oneoff",
        |mut caller: Caller<'_, HttpWasmGuest>, (subscriptions, events, count, written): (u32, u32, u32, u32)| {
            Box::new(async move {
                let (memory, guest) = parts(&mut caller)?;
                if count == 0 || count > LIST_MAX {
                    return Ok(EINVAL);
                }
                let subscriptions = slice(memory, subscriptions, count * SUBSCRIPTION_BYTES)?;
                let Some((time, event)) = first_event(subscriptions, guest) else { return Ok(ENOSYS) };
                slice_mut(memory, events, EVENT_BYTES)?.copy_from_slice(&event);
                slice_mut(memory, written, 4)?.copy_from_slice(&1u32.to_le_bytes());
                tokio::time::sleep(time).await;
                Ok(SUCCESS)
            })
        },
    )?;
    Ok(())
}

/// First event among these subscriptions, and the time until it, if one is on a clock.
fn first_event(subscriptions: &[u8], guest: &HttpWasmGuest) -> Option<(Duration, [u8; EVENT_BYTES as usize])> {
    let due = subscriptions.chunks_exact(SUBSCRIPTION_BYTES as usize).filter_map(|subscription| {
        // Tag 0 is a clock: its id, a time, a precision, and a flag that the time is absolute.
        let (userdata, clock) = (&subscription[..8], &subscription[16..]);
        let now = now(number(&clock[..4]) as i32, guest).filter(|_| subscription[8] == 0)?;
        let time = Duration::from_nanos(u64::from_le_bytes(clock[8..16].try_into().ok()?));
        let is_absolute = clock[24] & 1 != 0;
        Some((if is_absolute { time.saturating_sub(now) } else { time }, userdata))
    });
    let (time, userdata) = due.min_by_key(|(time, _)| *time)?;
    // Clock event without an error: zeros.
    let mut event = [0; EVENT_BYTES as usize];
    event[..8].copy_from_slice(userdata);
    Some((time, event))
}

/// Time on a clock: 0 is real time, 1 is monotonic.
fn now(clock: i32, guest: &HttpWasmGuest) -> Option<Duration> {
    match clock {
        // A clock before 1970 was never set.
        0 => Some(coarse(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())),
        1 => Some(coarse(guest.age())),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}
