//! Functions that guests import from the module `http_handler`: <https://http-wasm.io/http-handler-abi/>.

use std::future::poll_fn;
use std::task::{Context as Task, Poll};

use wasmtime::{Caller, Engine, Linker, Memory, Result, bail, format_err};

use super::exchange::{BUFFER_REQUEST, BUFFER_RESPONSE, FieldsKind, HttpWasmExchange, HttpWasmStage, TRAILERS};
use super::guest::HttpWasmGuest;
use super::wasi;

/// Module name under which guests import the functions.
pub(super) const MODULE: &str = "http_handler";

/// Log levels: debug is -1, none is 3. Lines below info are not logged.
const LEVEL_INFO: i32 = 0;
const LEVEL_WARN: i32 = 1;
const LEVEL_ERROR: i32 = 2;

/// Number of values (upper half) and of their bytes (lower half), each value with a NUL after it.
type CountAndLength = u64;

/// End of content (upper half, 0 or 1), and the number of bytes read (lower half).
type EndAndLength = u64;

/// Everything that guests may import: these functions, and those of WASI that do something.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<HttpWasmGuest>> {
    let mut linker = Linker::new(engine);
    wasi::add(&mut linker)?;
    add_environment(&mut linker)?;
    add_requests(&mut linker)?;
    add_fields(&mut linker)?;
    add_responses(&mut linker)?;
    Ok(linker)
}

fn add_environment(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(MODULE, "enable_features", |mut caller: Caller<'_, HttpWasmGuest>, features: u32| -> u32 {
        let exchange = caller.data_mut().exchange_mut();
        exchange.features |= features & (BUFFER_REQUEST | BUFFER_RESPONSE | TRAILERS);
        exchange.features
    })?;
    linker.func_wrap(MODULE, "get_config", |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, limit: u32| {
        let (memory, guest) = parts(&mut caller)?;
        write_value(memory, buffer, limit, guest.settings())
    })?;
    linker.func_wrap(MODULE, "log_enabled", |level: i32| -> u32 { u32::from(is_logged(level)) })?;
    linker.func_wrap(
        MODULE,
        "log",
        |mut caller: Caller<'_, HttpWasmGuest>, level: i32, message: u32, length: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let message = slice(memory, message, length)?;
            if is_logged(level) {
                let level: &[u8] = match level {
                    LEVEL_WARN => b"warning: ",
                    LEVEL_ERROR => b"error: ",
                    _ => b"",
                };
                guest.write_log(&[level, message, b"\n"].concat());
            }
            Ok(())
        },
    )?;
    Ok(())
}

fn add_requests(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(MODULE, "get_method", |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, limit: u32| {
        let (memory, guest) = parts(&mut caller)?;
        write_value(memory, buffer, limit, guest.exchange().method()?)
    })?;
    linker.func_wrap(MODULE, "set_method", |mut caller: Caller<'_, HttpWasmGuest>, method: u32, length: u32| {
        let (memory, guest) = parts(&mut caller)?;
        guest.exchange_mut().set_method(slice(memory, method, length)?)
    })?;
    linker.func_wrap(MODULE, "get_uri", |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, limit: u32| {
        let (memory, guest) = parts(&mut caller)?;
        write_value(memory, buffer, limit, guest.exchange().uri()?)
    })?;
    linker.func_wrap(MODULE, "set_uri", |mut caller: Caller<'_, HttpWasmGuest>, uri: u32, length: u32| {
        let (memory, guest) = parts(&mut caller)?;
        guest.exchange_mut().set_uri(slice(memory, uri, length)?)
    })?;
    linker.func_wrap(
        MODULE,
        "get_protocol_version",
        |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, limit: u32| {
            let (memory, guest) = parts(&mut caller)?;
            write_value(memory, buffer, limit, guest.exchange().protocol_version()?.as_bytes())
        },
    )?;
    linker.func_wrap(MODULE, "get_source_addr", |mut caller: Caller<'_, HttpWasmGuest>, buffer: u32, limit: u32| {
        let (memory, guest) = parts(&mut caller)?;
        write_value(memory, buffer, limit, guest.exchange().source()?.as_bytes())
    })?;
    Ok(())
}

fn add_fields(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(
        MODULE,
        "get_header_names",
        |mut caller: Caller<'_, HttpWasmGuest>, kind: u32, buffer: u32, limit: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let exchange = guest.exchange();
            exchange.expect_request()?;
            let mut names: Vec<Vec<u8>> = Vec::new();
            for (name, _) in exchange.fields(fields_kind(kind)?) {
                let name = name.to_ascii_lowercase();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            write_values(memory, buffer, limit, || names.iter().map(Vec::as_slice))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "get_header_values",
        |mut caller: Caller<'_, HttpWasmGuest>, kind: u32, name: u32, name_length: u32, buffer: u32, limit: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let kind = fields_kind(kind)?;
            // Copied, because the values may be written over it.
            let name = slice(memory, name, name_length)?.to_vec();
            let exchange = guest.exchange();
            exchange.expect_request()?;
            write_values(memory, buffer, limit, || {
                exchange.fields(kind).filter(|(other, _)| other.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
            })
        },
    )?;
    for (function, replaces) in [("set_header_value", true), ("add_header_value", false)] {
        linker.func_wrap(
            MODULE,
            function,
            move |mut caller: Caller<'_, HttpWasmGuest>,
                  kind: u32,
                  name: u32,
                  name_length: u32,
                  value: u32,
                  length: u32| {
                let (memory, guest) = parts(&mut caller)?;
                let (name, value) = (slice(memory, name, name_length)?, slice(memory, value, length)?);
                guest.exchange_mut().edit_field(fields_kind(kind)?, replaces, name, Some(value))
            },
        )?;
    }
    linker.func_wrap(
        MODULE,
        "remove_header",
        |mut caller: Caller<'_, HttpWasmGuest>, kind: u32, name: u32, name_length: u32| {
            let (memory, guest) = parts(&mut caller)?;
            guest.exchange_mut().edit_field(fields_kind(kind)?, true, slice(memory, name, name_length)?, None)
        },
    )?;
    Ok(())
}

fn add_responses(linker: &mut Linker<HttpWasmGuest>) -> Result<()> {
    linker.func_wrap(MODULE, "get_status_code", |mut caller: Caller<'_, HttpWasmGuest>| -> Result<u32> {
        Ok(u32::from(caller.data_mut().exchange().status()?.code()))
    })?;
    linker.func_wrap(MODULE, "set_status_code", |mut caller: Caller<'_, HttpWasmGuest>, status: u32| {
        caller.data_mut().exchange_mut().set_status(status)
    })?;
    linker.func_wrap(
        MODULE,
        "write_body",
        |mut caller: Caller<'_, HttpWasmGuest>, kind: u32, body: u32, length: u32| {
            let (memory, guest) = parts(&mut caller)?;
            let (bytes, bytes_max) = (slice(memory, body, length)?, guest.buffered_bytes_max);
            let exchange = guest.exchange_mut();
            exchange.expect_request()?;
            let written = match body_kind(kind)? {
                BodyKind::Request if exchange.stage == HttpWasmStage::Response => {
                    bail!("the request has gone on to the next handler")
                }
                BodyKind::Request => exchange.request_body.write(bytes, bytes_max),
                BodyKind::Response => exchange.response.content.write(bytes, bytes_max),
            };
            exchange.count_buffered();
            written
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "read_body",
        |mut caller: Caller<'_, HttpWasmGuest>, (kind, buffer, limit): (u32, u32, u32)| {
            Box::new(async move {
                let kind = body_kind(kind)?;
                let mut filled = 0;
                poll_fn(|task| poll_read(&mut caller, kind, (buffer, limit), &mut filled, task)).await
            })
        },
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
enum BodyKind {
    Request,
    Response,
}

fn poll_read(
    caller: &mut Caller<'_, HttpWasmGuest>,
    kind: BodyKind,
    (buffer, limit): (u32, u32),
    filled: &mut usize,
    task: &mut Task<'_>,
) -> Poll<Result<EndAndLength>> {
    let (memory, guest) = parts(caller)?;
    let kept_max = guest.buffered_bytes_max;
    let exchange: &mut HttpWasmExchange = guest.exchange_mut();
    exchange.expect_request()?;
    let buffer = slice_mut(memory, buffer, limit)?;
    if buffer.is_empty() {
        return Poll::Ready(Err(format_err!("read_body with an empty buffer")));
    }
    let (count, is_end) = match kind {
        BodyKind::Request => {
            let kept_max = exchange.buffers_request().then_some(kept_max);
            let polled = exchange.request_body.poll_read(task, buffer, filled, kept_max);
            exchange.count_buffered();
            std::task::ready!(polled)?
        }
        BodyKind::Response => exchange.response.content.read(buffer)?,
    };
    Poll::Ready(Ok((u64::from(is_end) << 32) | count as u64))
}

/// Guest's memory, and the host's data for it.
pub(super) fn parts<'a>(caller: &'a mut Caller<'_, HttpWasmGuest>) -> Result<(&'a mut [u8], &'a mut HttpWasmGuest)> {
    let memory: Memory = match caller.data().memory {
        Some(memory) => memory,
        // During instantiation.
        None => caller
            .get_export("memory")
            .and_then(wasmtime::Extern::into_memory)
            .ok_or_else(|| format_err!("the guest exports no memory"))?,
    };
    Ok(memory.data_and_store_mut(caller))
}

pub(super) fn slice(memory: &[u8], start: u32, length: u32) -> Result<&[u8]> {
    let range = start as usize..start as usize + length as usize;
    memory.get(range).ok_or_else(|| format_err!("address outside the module's memory"))
}

pub(super) fn slice_mut(memory: &mut [u8], start: u32, length: u32) -> Result<&mut [u8]> {
    let range = start as usize..start as usize + length as usize;
    memory.get_mut(range).ok_or_else(|| format_err!("address outside the module's memory"))
}

/// Writes a value if there is room for it; returns its length in any case.
fn write_value(memory: &mut [u8], buffer: u32, limit: u32, value: &[u8]) -> Result<u32> {
    let length = u32::try_from(value.len())?;
    if length <= limit {
        slice_mut(memory, buffer, length)?.copy_from_slice(value);
    }
    Ok(length)
}

/// Writes several values, each with a NUL after it, if there is room for all; returns their number and length.
fn write_values<'a, I: Iterator<Item = &'a [u8]>>(
    memory: &mut [u8],
    buffer: u32,
    limit: u32,
    values: impl Fn() -> I,
) -> Result<CountAndLength> {
    let (mut count, mut length) = (0u64, 0usize);
    for value in values() {
        count += 1;
        length += value.len() + 1;
    }
    let length = u32::try_from(length)?;
    if length <= limit {
        let mut rest = slice_mut(memory, buffer, length)?;
        for value in values() {
            let (place, following) = rest.split_at_mut(value.len() + 1);
            place[..value.len()].copy_from_slice(value);
            place[value.len()] = 0;
            rest = following;
        }
    }
    Ok(count << 32 | u64::from(length))
}

fn fields_kind(kind: u32) -> Result<FieldsKind> {
    Ok(match kind {
        0 => FieldsKind::Request,
        1 => FieldsKind::Response,
        2 => FieldsKind::RequestTrailers,
        3 => FieldsKind::ResponseTrailers,
        _ => bail!("unknown header kind {kind}"),
    })
}

fn body_kind(kind: u32) -> Result<BodyKind> {
    Ok(match kind {
        0 => BodyKind::Request,
        1 => BodyKind::Response,
        _ => bail!("unknown body kind {kind}"),
    })
}

fn is_logged(level: i32) -> bool {
    (LEVEL_INFO..=LEVEL_ERROR).contains(&level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_if_there_is_room() {
        let check = |values: &[&[u8]], limit: u32, expect: (u64, &[u8])| {
            let mut memory = [b'-'; 8];
            let reported = write_values(&mut memory, 1, limit, || values.iter().copied()).unwrap();
            assert_eq!((reported, &memory[..]), expect, "{values:?} {limit}");
        };
        check(&[], 0, (0, b"--------"));
        check(&[b"ab", b"c"], 5, (2 << 32 | 5, b"-ab\0c\0--"));
        check(&[b"ab", b"c"], 4, (2 << 32 | 5, b"--------"));
        check(&[b""], 1, (1 << 32 | 1, b"-\0------"));
        assert!(write_values(&mut [0; 4], 2, 9, || [&b"abc"[..]].into_iter()).is_err(), "beyond memory");
        assert_eq!(write_value(&mut [0; 4], u32::MAX, 1, b"abc").unwrap(), 3);
        assert!(write_value(&mut [0; 4], u32::MAX, 3, b"abc").is_err());
    }
}
