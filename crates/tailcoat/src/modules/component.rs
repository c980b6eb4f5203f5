//! An instance of a component, and what becomes of it between two requests.

use std::sync::Arc;

use http::{Request, Response};
use tokio::sync::oneshot;
use wasmtime::Store;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::{WasiBody, WasiHttpView};

use super::meter::Meter;
use super::{ComponentGuest, Module, ModuleCode};
use crate::config::Reset;

/// Where a response is sent to.
pub(super) type ResponseSender = oneshot::Sender<Result<Response<HyperOutgoingBody>, ErrorCode>>;

/// An instance that has answered a request and may answer another.
pub struct ComponentInstance {
    store: Store<ComponentGuest>,
    proxy: Proxy,
}

/// Who answers: an instance, or one of this code that is yet to be.
pub(super) enum Answerer {
    Instance(Proxy),
    Code(Arc<ModuleCode>),
}

/// What a request begins in.
pub enum ComponentStart {
    /// An instance that has answered others.
    Used(ComponentInstance),
    /// A fresh one of this code.
    Fresh(Arc<ModuleCode>),
}

impl ComponentStart {
    /// The meter of its instance.
    pub(super) fn meter(&self, module: &Module) -> Arc<Meter> {
        match self {
            Self::Used(instance) => Arc::clone(&instance.store.data().meter),
            Self::Fresh(_) => Arc::new(Meter::new(module.config.limits.processor_time_max)),
        }
    }

    /// The store of its instance, and who answers.
    ///
    /// # Errors
    /// A granted directory can't be opened.
    pub(super) fn store(
        self,
        module: &Arc<Module>,
        meter: Arc<Meter>,
    ) -> wasmtime::Result<(Store<ComponentGuest>, Answerer)> {
        match self {
            Self::Used(ComponentInstance { mut store, proxy }) => {
                store.data_mut().restart(module.config.limits.log_bytes_max);
                Ok((store, Answerer::Instance(proxy)))
            }
            Self::Fresh(code) => {
                let mut store = Store::new(module.runtime.engine(), ComponentGuest::new(module, meter)?);
                store.limiter(|guest| &mut guest.limiter);
                store.epoch_deadline_callback(|store| store.data().meter.on_interrupt());
                Ok((store, Answerer::Code(code)))
            }
        }
    }
}

impl ComponentInstance {
    /// Keeps what has answered a request for another, if the module is configured so and it has not piled up handles.
    pub(super) fn keep(mut store: Store<ComponentGuest>, proxy: Proxy, module: &Module) -> Option<Self> {
        let limits = &module.config.limits;
        let guest = store.data_mut();
        let has_few_handles = guest.handles() <= limits.handles_max / 2 && guest.pollables.are_few();
        let is_kept = module.config.reset == Reset::None && has_few_handles;
        is_kept.then_some(Self { store, proxy })
    }
}

/// Has an instance answer a request.
///
/// # Errors
/// It failed, or there is no room for it.
pub(super) async fn answer(
    store: &mut Store<ComponentGuest>,
    answerer: Answerer,
    scheme: Scheme,
    request: Request<WasiBody>,
    sender: ResponseSender,
) -> wasmtime::Result<Proxy> {
    store.set_epoch_deadline(1);
    // First of all, so that the channel goes no sooner than the store.
    let mut http = store.data_mut().http();
    let response = http.new_response_outparam(sender)?;
    let request = http.new_incoming_request(scheme, request)?;
    let proxy = match answerer {
        Answerer::Instance(proxy) => proxy,
        Answerer::Code(code) => match &*code {
            ModuleCode::Component(code) => code.instantiate_async(&mut *store).await?,
            ModuleCode::HttpWasm(_) => wasmtime::bail!("its code is of another kind"),
        },
    };
    proxy.wasi_http_incoming_handler().call_handle(store, request, response).await?;
    Ok(proxy)
}
