//! Core modules for the HTTP handler ABI of http-wasm. A guest answers a request itself, or changes it, lets the next
//! handler answer, and then changes the response. Each function of the ABI is a direct call with little overhead, and
//! instances may be used again.

mod abi;
mod content;
mod exchange;
mod guest;
mod instance;
mod wasi;

use std::sync::Arc;
use std::task::{Context as Task, Poll};

pub(super) use self::abi::linker;
pub use self::content::PassedContent;
pub use self::exchange::{BufferedBytes, ChangedRequest, GuestResponse, HttpWasmExchange, ResponseFieldEdit};
pub(super) use self::guest::HttpWasmGuest;
pub use self::instance::{HttpWasmCode, Instance};
use super::meter::Meter;
use super::run::InstanceRun;
use super::{CallFailure, Module};
use crate::metrics::ModuleFailure;

/// Work of an instance for a request. Dropping it ends the instance.
pub struct HandlerCall {
    module: Arc<Module>,
    run: InstanceRun<Result<(Box<Instance>, HttpWasmNext), CallFailure>>,
}

/// Request for an instance to handle.
pub enum HttpWasmStart {
    /// Reused instance, whose exchange has the request.
    Used(Box<Instance>),
    /// Request for a new instance.
    Fresh(Box<HttpWasmExchange>),
}

/// Next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpWasmNext {
    /// The guest has answered it.
    Answered,
    /// The next handler answers it; then the guest continues, and gets this number.
    Handler(u32),
}

impl Module {
    /// Creates a call in which an instance handles a request. Runs nothing before the first poll.
    pub fn handle_request(self: &Arc<Self>, code: Arc<super::ModuleCode>, begun: HttpWasmStart) -> HandlerCall {
        let meter = match &begun {
            HttpWasmStart::Used(instance) => Arc::clone(&instance.store.data().meter),
            HttpWasmStart::Fresh(_) => Arc::new(Meter::new(self.config.limits.processor_time_max)),
        };
        let (module, of_instance) = (Arc::clone(self), Arc::clone(&meter));
        self.metrics.requests.add(1);
        let run = async move {
            let (mut instance, exchange) = match begun {
                HttpWasmStart::Used(instance) => (instance, None),
                HttpWasmStart::Fresh(exchange) => (module.new_instance(&code, of_instance).await?, Some(exchange)),
            };
            let guest = instance.store.data_mut();
            guest.meter.restart();
            guest.limiter.restart();
            guest.begin(exchange);
            instance.store.set_epoch_deadline(1);
            let handled = instance.handle_request.call_async(&mut instance.store, ()).await;
            match handled {
                // The lower half says whether to continue; the upper half is a number for later.
                Ok(next) if next & 0xffff_ffff == 0 => Ok((instance, HttpWasmNext::Answered)),
                Ok(next) => match instance.read_rest().await {
                    Ok(()) => Ok((instance, HttpWasmNext::Handler((next >> 32) as u32))),
                    Err(error) => Err(module.failed(&error, &mut instance)),
                },
                Err(error) => Err(module.failed(&error, &mut instance)),
            }
        };
        HandlerCall { module: Arc::clone(self), run: InstanceRun::new(run, meter, Arc::clone(&self.runtime)) }
    }

    /// Has an instance handle the next handler's response, which its exchange contains.
    pub fn handle_response(self: &Arc<Self>, mut instance: Box<Instance>, context: u32, is_error: bool) -> HandlerCall {
        let (module, meter) = (Arc::clone(self), Arc::clone(&instance.store.data().meter));
        let run = async move {
            instance.store.set_epoch_deadline(1);
            let parameters = (context, u32::from(is_error));
            match instance.handle_response.call_async(&mut instance.store, parameters).await {
                Ok(()) => Ok((instance, HttpWasmNext::Answered)),
                Err(error) => Err(module.failed(&error, &mut instance)),
            }
        };
        HandlerCall { module: Arc::clone(self), run: InstanceRun::new(run, meter, Arc::clone(&self.runtime)) }
    }

    async fn new_instance(&self, code: &super::ModuleCode, meter: Arc<Meter>) -> Result<Box<Instance>, CallFailure> {
        let super::ModuleCode::HttpWasm(code) = code else {
            return Err(CallFailure::failed("its code is of another kind"));
        };
        match Instance::new(code, self, Arc::clone(&meter)).await {
            Ok(instance) => Ok(Box::new(instance)),
            Err(failed) => Err(CallFailure::of(&failed.error, &meter, &failed.store.data().limiter)),
        }
    }

    /// Failure of an instance that ended with this error.
    fn failed(&self, error: &wasmtime::Error, instance: &mut Instance) -> CallFailure {
        if instance.exchange().request_body().is_too_large() {
            return CallFailure::new(ModuleFailure::BufferedBytesMax, "received more content than buffered-bytes-max");
        }
        let guest = instance.store.data();
        CallFailure::of(error, &guest.meter, &guest.limiter)
    }
}

impl Instance {
    /// Reads the remaining content of the request, if the next handler needs all of it.
    async fn read_rest(&mut self) -> wasmtime::Result<()> {
        let kept_max = self.store.data().buffered_bytes_max;
        let exchange = self.exchange();
        if !exchange.buffers_request() {
            return Ok(());
        }
        std::future::poll_fn(|task| {
            let polled = exchange.request_body().poll_rest(task, kept_max);
            exchange.count_buffered();
            polled
        })
        .await
    }
}

impl HandlerCall {
    /// Runs the instance. Ready with the instance when it has finished, or with its failure.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<Result<(Box<Instance>, HttpWasmNext), CallFailure>> {
        self.run.poll(task).map(|done| {
            let done =
                done.unwrap_or_else(|| Err(CallFailure::failed("the server failed while it handled the module")));
            done.inspect_err(|failure| self.module.note(failure, None))
        })
    }
}
