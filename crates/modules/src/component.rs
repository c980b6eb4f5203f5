//! Instance of a component, and its reuse between two requests.

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

/// Sender of a response to the server.
pub(super) type ResponseSender = oneshot::Sender<Result<Response<HyperOutgoingBody>, ErrorCode>>;

/// Instance that has answered a request and may answer another.
pub struct ComponentInstance {
    store: Store<ComponentGuest>,
    proxy: Proxy,
}

/// Instance, or the code to make one from.
pub(super) enum Answerer {
    Instance(Proxy),
    Code(Arc<ModuleCode>),
}

/// Start of a request: a used instance or a new one.
pub enum ComponentStart {
    /// Instance that has answered other requests.
    Used(ComponentInstance),
    /// New instance of this code.
    Fresh(Arc<ModuleCode>),
}

impl ComponentStart {
    /// Meter of the instance.
    pub(super) fn meter(&self, module: &Module) -> Arc<Meter> {
        match self {
            Self::Used(instance) => Arc::clone(&instance.store.data().meter),
            Self::Fresh(_) => Arc::new(Meter::new(module.config.limits.processor_time_max)),
        }
    }

    /// Store of the instance, and the instance or its code.
    ///
    /// # Errors
    /// A granted directory cannot be opened.
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
    /// Keeps an instance for another request, if the configuration permits it and the instance has accumulated few
    /// handles.
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
/// The instance failed, or there is no room for it.
pub(super) async fn answer(
    store: &mut Store<ComponentGuest>,
    answerer: Answerer,
    scheme: Scheme,
    request: Request<WasiBody>,
    sender: ResponseSender,
) -> wasmtime::Result<Proxy> {
    store.set_epoch_deadline(1);
    // Comes first, so that the channel does not close before the store is dropped.
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
