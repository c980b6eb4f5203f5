//! Requests to http-wasm modules: most finish at the first poll, and keep no state.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker, ready};

use tokio::sync::OwnedSemaphorePermit;
use wire::h1::BodyFraming;
use wire::http::forwarding::is_hop_by_hop;
use wire::http::{Fields, Method, Status};

use super::content::{ModuleUpload, await_until};
use super::exchange::{no_answer, no_instance, status_of};
use super::idle::IdleInstances;
use super::next_response::{NextResponse, of_bytes};
use super::reject;
use crate::handler::forward::{is_trace_field, push_trace_fields};
use crate::handler::{
    BuiltResponse, ClientGone, ClientLink, HandlerOutcome, LateOutcome, OwnedRequest, PassedOn, Response,
    ResponseFilter, Routed,
};
use crate::log::{LogClient, event};
use crate::memory_budget::Charge;
use crate::metrics::ModuleFailure;
use crate::modules::http_wasm::{
    BufferedBytes, HandlerCall, HttpWasmExchange, HttpWasmNext, HttpWasmStart, Instance, PassedContent,
};
use crate::modules::{CallFailure, Module, ModuleCode, RequestContent, RequestContentSupply};

/// A worker's part of a module: the idle instances.
pub(super) struct HttpWasm {
    module: Arc<Module>,
    idle: IdleInstances<Box<Instance>>,
}

/// An instance with a request, and its place among the module's instances.
struct Busy {
    handler: Rc<HttpWasm>,
    instance: Box<Instance>,
    code: Arc<ModuleCode>,
    _place: OwnedSemaphorePermit,
}

/// Charge for content that an exchange buffers, while it waits.
struct BufferCharge {
    link: Rc<ClientLink>,
    buffered: BufferedBytes,
    /// `None` until something is buffered.
    charge: Option<Charge>,
}

impl BufferCharge {
    fn new(link: &Rc<ClientLink>, buffered: BufferedBytes) -> Self {
        Self { link: Rc::clone(link), buffered, charge: None }
    }

    /// Charges what is buffered now, and these bytes.
    fn set(&mut self, more_bytes: usize) {
        let bytes = self.buffered.get() + more_bytes;
        if bytes > 0 || self.charge.is_some() {
            self.charge.get_or_insert_with(|| self.link.holder().charge(0)).set(bytes);
        }
    }
}

/// Result of a call.
type Handled = Result<(Box<Instance>, HttpWasmNext), CallEnd>;

/// End of a call without a result.
enum CallEnd {
    /// The call failed; the client gets this status.
    Failed(Status),
    ClientGone,
}

impl HttpWasm {
    pub(super) fn new(module: Arc<Module>) -> Self {
        Self { idle: IdleInstances::new(module.config().limits.idle_instances_max), module }
    }

    /// Gives a request to an instance.
    pub(super) fn handle(self: &Rc<Self>, code: &Arc<ModuleCode>, routed: &Routed<'_>) -> HandlerOutcome {
        let Some(place) = self.module.try_instance() else {
            let (link, request) = (Rc::clone(routed.link.link()), OwnedRequest::new(routed));
            return HandlerOutcome::Wait(Box::pin(Rc::clone(self).wait_for_place(Arc::clone(code), request, link)));
        };
        let (mut call, upload, buffered) = self.begin(code, routed);
        // A call that must wait is polled again by the connection.
        match call.poll(&mut Task::from_waker(Waker::noop())) {
            Poll::Ready(handled) => {
                let handled = handled.map_err(|failure| CallEnd::Failed(status_of(&failure)));
                self.on_handled(handled, code, place, routed)
            }
            Poll::Pending => {
                let (link, request) = (Rc::clone(routed.link.link()), OwnedRequest::new(routed));
                let charge = BufferCharge::new(&link, buffered);
                let upload = ModuleUpload::new(link, upload);
                let future = Rc::clone(self).wait(Arc::clone(code), call, (upload, charge), place, request);
                HandlerOutcome::Wait(Box::pin(future))
            }
        }
    }

    /// Gives a request to an idle instance, or to a fresh one.
    fn begin(
        &self,
        code: &Arc<ModuleCode>,
        routed: &Routed<'_>,
    ) -> (HandlerCall, Option<RequestContentSupply>, BufferedBytes) {
        let mut begun = match self.idle.take(code) {
            Some(instance) => HttpWasmStart::Used(instance),
            None => HttpWasmStart::Fresh(Box::default()),
        };
        let exchange: &mut HttpWasmExchange = match &mut begun {
            HttpWasmStart::Used(instance) => instance.exchange(),
            HttpWasmStart::Fresh(exchange) => exchange,
        };
        let source = match routed.client {
            LogClient::Ip(address) => Some(address),
            LogClient::Unix => None,
        };
        let traced = traced(routed);
        let request = traced.as_ref().map_or(routed.request, OwnedRequest::request);
        exchange.begin(request.head, request.bytes, source);
        let has_content = routed.link.get().is_some_and(|link| link.framing() != BodyFraming::None);
        let supply = has_content.then(|| {
            let (content, supply) = RequestContent::new();
            exchange.request_body().set_source(content);
            supply
        });
        let buffered = exchange.buffered();
        (self.module.handle_request(Arc::clone(code), begun), supply, buffered)
    }

    async fn wait_for_place(
        self: Rc<Self>,
        code: Arc<ModuleCode>,
        request: OwnedRequest,
        link: Rc<ClientLink>,
    ) -> LateOutcome {
        let limits = &self.module.config().limits;
        await_until(&link, limits.queue_timeout);
        let mut waiting = Box::pin(self.module.instance());
        let place = poll_fn(|task| match waiting.as_mut().poll(task) {
            Poll::Pending if link.take_late() || link.has_client_ended() => Poll::Ready(None),
            polled => polled,
        });
        let place = place.await;
        link.set_deadline(None);
        let Some(place) = place else {
            self.module.note(&no_instance(), None);
            return reject(Status::SERVICE_UNAVAILABLE);
        };
        let (call, supply, buffered) = self.begin(&code, &request.routed(false));
        let charge = BufferCharge::new(&link, buffered);
        self.wait(code, call, (ModuleUpload::new(link, supply), charge), place, request).await
    }

    async fn wait(
        self: Rc<Self>,
        code: Arc<ModuleCode>,
        mut call: HandlerCall,
        (mut upload, mut charge): (ModuleUpload, BufferCharge),
        place: OwnedSemaphorePermit,
        request: OwnedRequest,
    ) -> LateOutcome {
        let handled = self.run(&mut call, &mut upload, &mut charge, 0).await;
        self.on_handled(handled, &code, place, &request.routed(false))
    }

    /// Runs an instance until its part is done. Meanwhile the client is charged for what the exchange buffers, and for
    /// `more_bytes`.
    async fn run(
        &self,
        call: &mut HandlerCall,
        upload: &mut ModuleUpload,
        charge: &mut BufferCharge,
        more_bytes: usize,
    ) -> Handled {
        let time = self.module.config().limits.first_byte_timeout;
        await_until(upload.link(), time);
        let handled = poll_fn(|task| {
            loop {
                if upload.link().take_late() {
                    self.module.note(&no_answer(), None);
                    return Poll::Ready(Err(CallEnd::Failed(Status::GATEWAY_TIMEOUT)));
                }
                if upload.link().has_client_ended() {
                    return Poll::Ready(Err(CallEnd::ClientGone));
                }
                let polled = call.poll(task);
                charge.set(more_bytes);
                if let Poll::Ready(handled) = polled {
                    return Poll::Ready(handled.map_err(|failure| CallEnd::Failed(status_of(&failure))));
                }
                let supplied: io::Result<()> = ready!(upload.poll_supply_within(time, task));
                if supplied.is_err() {
                    return Poll::Ready(Err(CallEnd::Failed(Status::BAD_REQUEST)));
                }
            }
        });
        let handled = handled.await;
        upload.link().set_deadline(None);
        handled
    }

    fn on_handled<W>(
        self: &Rc<Self>,
        handled: Handled,
        code: &Arc<ModuleCode>,
        place: OwnedSemaphorePermit,
        routed: &Routed<'_>,
    ) -> HandlerOutcome<W> {
        let (instance, next) = match handled {
            Ok(handled) => handled,
            Err(CallEnd::Failed(status)) => return reject(status),
            Err(CallEnd::ClientGone) => return HandlerOutcome::ClientGone,
        };
        let mut busy = Busy { handler: Rc::clone(self), instance, code: Arc::clone(code), _place: place };
        match next {
            HttpWasmNext::Answered => {
                let mut response = busy.response();
                response.compression = self.module.config().compression.resolved();
                busy.end();
                HandlerOutcome::Ready(Response::Built(response))
            }
            HttpWasmNext::Handler(context) => match busy.passed_request(routed) {
                Ok(request) => {
                    let link = Rc::clone(routed.link.link());
                    let is_head = routed.request.method() == Method::Head;
                    let exchange = busy.instance.exchange();
                    exchange.count_buffered();
                    let mut charge = BufferCharge::new(&link, exchange.buffered());
                    charge.set(0);
                    HandlerOutcome::Pass(PassedOn {
                        request,
                        filter: Box::new(Filter { busy, context, link, is_head, charge }),
                    })
                }
                Err(status) => reject(status),
            },
        }
    }
}

impl Busy {
    /// Builds the guest's response.
    fn response(&mut self) -> Box<BuiltResponse> {
        let response = self.instance.exchange().response();
        let mut fields = std::mem::take(&mut response.fields);
        fields.retain(is_passed_on);
        let content = response.content.take_written().filter(|_| may_have_content(response.status));
        let body = of_bytes(content.unwrap_or_default().into(), &response.trailers);
        BuiltResponse::with_fields(response.status, fields, body)
    }

    /// Request for the next handler, if the guest has changed it.
    ///
    /// # Errors
    /// The changed request is invalid.
    fn passed_request(&mut self, routed: &Routed<'_>) -> Result<Option<Box<OwnedRequest>>, Status> {
        let exchange = self.instance.exchange();
        let content = exchange.request_body().take_passed();
        let mut changed = exchange.take_changed();
        if let PassedContent::Instead(content) = content {
            let mut request = match changed {
                Some(changed) => changed,
                None => exchange.copied_request(),
            };
            tell_length(&mut request.fields, content.len());
            routed.link.link().replace_content(content);
            changed = Some(request);
        }
        let Some(changed) = changed else { return Ok(None) };
        let request = OwnedRequest::changed(routed, &changed.method, &changed.uri, &changed.fields);
        match request {
            Some(request) => Ok(Some(Box::new(request))),
            None => {
                let failure = CallFailure::new(ModuleFailure::Failed, "passed a request on without a path");
                self.handler.module.note(&failure, None);
                Err(Status::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// Keeps the instance for another request, if it can be reused.
    fn end(mut self) {
        let HttpWasm { module, idle } = &*self.handler;
        if idle.has_room() && self.instance.reset(module) {
            idle.put(self.instance, self.code);
        }
    }
}

/// A module that has passed a request to the next handler.
struct Filter {
    busy: Busy,
    context: u32,
    link: Rc<ClientLink>,
    is_head: bool,
    /// Charge for what the guest has written before the next handler's response.
    charge: BufferCharge,
}

impl ResponseFilter for Filter {
    fn filter(self: Box<Self>, response: Response) -> Pin<Box<dyn Future<Output = Result<Response, ClientGone>>>> {
        Box::pin(self.run(response))
    }
}

impl Filter {
    async fn run(self: Box<Self>, response: Response) -> Result<Response, ClientGone> {
        let Self { mut busy, context, link, is_head, mut charge } = *self;
        let (handler, code) = (Rc::clone(&busy.handler), Arc::clone(&busy.code));
        let mut next = NextResponse::new(response);
        let exchange = busy.instance.exchange();
        let mut content = None;
        if exchange.buffers_response() {
            let bytes_max = handler.module.config().limits.buffered_bytes_max;
            // Local invariant: no more than that is written.
            let left = bytes_max - exchange.response().content.written_bytes();
            match next.take_content(left, is_head, |held_bytes| charge.set(held_bytes)).await {
                Ok(taken) => content = Some(taken),
                Err(error) => {
                    let name = handler.module.name();
                    handler
                        .module
                        .log()
                        .warn(event("reading response for module failed", &[("module", &name), ("error", &error)]), "");
                    return Ok(Response::Built(BuiltResponse::new(Status::INTERNAL_SERVER_ERROR)));
                }
            }
        }
        exchange.on_response(next.status(), next.fields().clone(), content, next.take_trailers());
        let Busy { instance, _place: place, .. } = busy;
        let mut call = handler.module.handle_response(instance, context, next.is_failure());
        let mut upload = ModuleUpload::new(link, None);
        let handled = handler.run(&mut call, &mut upload, &mut charge, next.held_bytes()).await;
        let mut instance = match handled {
            Ok((instance, _)) => instance,
            Err(CallEnd::Failed(status)) => return Ok(Response::Built(BuiltResponse::new(status))),
            Err(CallEnd::ClientGone) => return Err(ClientGone),
        };
        let response = next.change(instance.exchange().response());
        Busy { handler, instance, code, _place: place }.end();
        Ok(response)
    }
}

/// Request with trace fields, if traces are recorded.
fn traced(routed: &Routed<'_>) -> Option<OwnedRequest> {
    routed.trace?;
    let request = &routed.request;
    let lines = request.head.fields.iter().map(|field| (field.name.of(request.bytes), field.value.of(request.bytes)));
    let mut fields = Fields::new();
    for (name, value) in lines.filter(|(name, _)| !is_trace_field(name)) {
        fields.push(name, value);
    }
    push_trace_fields(routed, false, &mut fields);
    OwnedRequest::changed(routed, request.method_name(), request.target(), &fields)
}

/// Sets a request's content length.
fn tell_length(fields: &mut Fields, length: usize) {
    for name in ["Content-Length", "Transfer-Encoding", "Trailer", "Expect"] {
        fields.remove(name);
    }
    if length > 0 {
        fields.push("Content-Length", length.to_string());
    }
}

/// True if a field of the guest is sent: connection fields and content framing are Tailcoat's.
pub(super) fn is_passed_on(name: &[u8]) -> bool {
    !is_hop_by_hop(name) && !name.eq_ignore_ascii_case(b"content-length")
}

/// True if a response with this status may have content (RFC 9110, sections 15.3.5 and 15.4.5).
pub(super) fn may_have_content(status: Status) -> bool {
    ![Status::NO_CONTENT, Status::NOT_MODIFIED].contains(&status)
}
