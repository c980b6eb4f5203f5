//! Instance of a core module, and its reset between two requests.

use std::sync::Arc;

use wasmtime::{InstancePre, Linker, Memory, Module as CoreModule, Result, Store, TypedFunc};
use wasmtime_wasi::I32Exit;

use super::exchange::HttpWasmExchange;
use super::guest::HttpWasmGuest;
use super::wasi;
use crate::Module;
use crate::code::error_text;
use crate::config::Reset;
use crate::meter::Meter;

/// Unit in which memory is compared with its initial state: a system page, because most pages stay untouched.
const PAGE_BYTES: usize = 4096;

/// Compiled core module.
pub struct HttpWasmCode(InstancePre<HttpWasmGuest>);

/// Instance, with its current request.
pub struct Instance {
    pub(super) store: Store<HttpWasmGuest>,
    pub(super) handle_request: TypedFunc<(), u64>,
    pub(super) handle_response: TypedFunc<(u32, u32), ()>,
    memory: Memory,
    /// Memory after the start, if it must be restored.
    initial: Option<Box<[u8]>>,
}

impl HttpWasmCode {
    /// Resolves a module's imports.
    ///
    /// # Errors
    /// The module does not use this ABI; the message is for an operator.
    pub(crate) fn new(module: &CoreModule, linker: &Linker<HttpWasmGuest>) -> std::result::Result<Self, String> {
        for function in ["handle_request", "handle_response"] {
            if module.get_export(function).is_none() {
                return Err(format!(
                    "is a core module without the function {function} of the http-wasm HTTP handler ABI; build it for that, \
                     or make a component of it: for `wasm32-wasip2`, or with `wasm-tools component new`"
                ));
            }
        }
        if module.get_export("memory").is_none() {
            return Err("exports no memory".to_owned());
        }
        let mut linker = linker.clone();
        wasi::add_missing(&mut linker, module);
        linker.instantiate_pre(module).map(Self).map_err(error_text)
    }
}

impl Instance {
    /// Instantiates and starts the module.
    ///
    /// # Errors
    /// The module failed, or there is no room for it.
    pub(super) async fn new(
        code: &HttpWasmCode,
        module: &Module,
        meter: Arc<Meter>,
    ) -> std::result::Result<Self, Failed> {
        let mut store = Store::new(module.runtime.engine(), HttpWasmGuest::new(module, meter));
        store.limiter(|guest| &mut guest.limiter);
        store.epoch_deadline_callback(|store| store.data().meter.on_interrupt());
        store.set_epoch_deadline(1);
        match start(code, &mut store).await {
            Ok((handle_request, handle_response, memory)) => {
                store.data_mut().on_started();
                let is_restored = module.config.reset == Reset::Memory;
                let initial = is_restored.then(|| memory.data(&store).into());
                Ok(Self { store, handle_request, handle_response, memory, initial })
            }
            Err(error) => Err(Failed { error, store: Box::new(store) }),
        }
    }

    /// Current request and response.
    pub fn exchange(&mut self) -> &mut HttpWasmExchange {
        self.store.data_mut().exchange_mut()
    }

    /// Drops the request and resets the instance. Returns true if it can take another one.
    pub fn reset(&mut self, module: &Module) -> bool {
        match module.config.reset {
            Reset::Fresh => return false,
            Reset::None => {}
            Reset::Memory if self.restore() => {}
            Reset::Memory => return false,
        }
        self.store.data_mut().end(module.config.limits.log_bytes_max);
        true
    }

    /// Restores the memory; returns false if it has grown, which cannot be undone.
    fn restore(&mut self) -> bool {
        let memory = self.memory.data_mut(&mut self.store);
        let Some(initial) = self.initial.as_deref().filter(|initial| initial.len() == memory.len()) else {
            return false;
        };
        // Writes changed pages only: untouched ones stay part of the module's image, which instances share.
        for (page, initial) in memory.chunks_mut(PAGE_BYTES).zip(initial.chunks(PAGE_BYTES)) {
            if page != initial {
                page.copy_from_slice(initial);
            }
        }
        true
    }
}

/// Reason why there is no instance, and its remains.
pub(super) struct Failed {
    pub(super) error: wasmtime::Error,
    pub(super) store: Box<Store<HttpWasmGuest>>,
}

type Exports = (TypedFunc<(), u64>, TypedFunc<(u32, u32), ()>, Memory);

async fn start(code: &HttpWasmCode, store: &mut Store<HttpWasmGuest>) -> Result<Exports> {
    let instance = code.0.instantiate_async(&mut *store).await?;
    let memory = instance.get_memory(&mut *store, "memory");
    let memory = memory.ok_or_else(|| wasmtime::format_err!("the guest's memory is not a memory"))?;
    store.data_mut().memory = Some(memory);
    // A library exports the first, a program the second. A program may exit after it has started.
    for function in ["_initialize", "_start"] {
        if let Ok(function) = instance.get_typed_func::<(), ()>(&mut *store, function)
            && let Err(error) = function.call_async(&mut *store, ()).await
            && !matches!(error.downcast_ref(), Some(I32Exit(0)))
        {
            return Err(error);
        }
    }
    let handle_request = instance.get_typed_func(&mut *store, "handle_request")?;
    let handle_response = instance.get_typed_func(&mut *store, "handle_response")?;
    Ok((handle_request, handle_response, memory))
}
