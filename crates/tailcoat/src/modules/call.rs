//! One request's way through an instance.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;
use wasmtime::{PoolConcurrencyLimitError, Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::{WasiBody, WasiHttpView};

use super::code::Code;
use super::engine::Runtime;
use super::limiter::SHARED_MEMORY_LIMIT;
use super::meter::Meter;
use super::ticker::Ticker;
use super::{Guest, Module};

/// A module that has computed so long leaves the worker's thread when it is next interrupted. Not an option: it is as
/// long as a worker's other requests may wait for one, and as short as pays for moving.
const TIME_ON_WORKER: Duration = Duration::from_millis(1);

/// Why a module gave no whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There was no instance for the request.
    Busy(String),
    /// It has computed for longer than it may.
    TimeUsedUp,
    /// It gave up, and how.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(what) => write!(f, "has no instance for a request: {what}"),
            Self::TimeUsedUp => f.write_str("has computed for longer than processor-time-max"),
            Self::Failed(how) => write!(f, "failed: {how}"),
        }
    }
}

/// A request that an instance answers. Dropping it ends the instance.
pub struct Call {
    module: Arc<Module>,
    response: oneshot::Receiver<Result<Response<HyperOutgoingBody>, ErrorCode>>,
    run: Run,
    meter: Arc<Meter>,
    failure: Arc<OnceLock<Failure>>,
}

/// Where the instance runs.
enum Run {
    /// On the thread that polls the call.
    Here(Metered),
    /// On a thread for those that take long.
    Away(JoinHandle<()>),
    /// Nowhere any more.
    Ended,
}

/// An instance, which is metered and can be interrupted while it runs.
struct Metered {
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    meter: Arc<Meter>,
    runtime: Arc<Runtime>,
}

/// Content that comes from an instance.
pub struct ResponseBody(HyperOutgoingBody);

/// A piece of content.
pub enum Frame {
    /// Bytes; may be none.
    Data(Bytes),
    /// The end, with trailers.
    End(Option<HeaderMap>),
}

impl Module {
    /// A place among the module's instances, as soon as there is one.
    pub fn instance(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + use<> {
        let acquire = Arc::clone(&self.instances).acquire_owned();
        // Nobody closes it.
        async move { acquire.await.ok() }
    }

    /// A place, if there is one now.
    pub fn try_instance(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.instances).try_acquire_owned().ok()
    }

    /// Has an instance answer a request. Nothing happens before the call is polled.
    pub fn call(self: &Arc<Self>, place: OwnedSemaphorePermit, is_tls: bool, request: Request<WasiBody>) -> Call {
        let (sender, response) = oneshot::channel();
        let meter = Arc::new(Meter::new(self.config.limits.processor_time_max));
        let failure = Arc::<OnceLock<Failure>>::default();
        let what = format!("{} {}", request.method(), request.uri().path());
        let (module, of_run, metered) = (Arc::clone(self), Arc::clone(&failure), Arc::clone(&meter));
        let run = async move {
            let code = module.code();
            let guest = match Guest::new(&module, Arc::clone(&metered)) {
                Ok(guest) => guest,
                Err(error) => return fail(&module, &of_run, Failure::Failed(format!("{error:#}")), &what),
            };
            let scheme = if is_tls { Scheme::Https } else { Scheme::Http };
            let mut store = Store::new(module.runtime.engine(), guest);
            if let Err(error) = answer(&code, &mut store, scheme, request, sender).await {
                let failure = failure_of(&error, store.data());
                fail(&module, &of_run, failure, &what);
            }
            // After what went wrong is known, for with it the channels go by which the response came.
            drop(store);
            drop(place);
        };
        let run = Metered { run: Box::pin(run), meter: Arc::clone(&meter), runtime: Arc::clone(&self.runtime) };
        Call { module: Arc::clone(self), response, run: Run::Here(run), meter, failure }
    }
}

/// Runs an instance from its beginning to its end.
async fn answer(
    code: &Code,
    store: &mut Store<Guest>,
    scheme: Scheme,
    request: Request<WasiBody>,
    sender: oneshot::Sender<Result<Response<HyperOutgoingBody>, ErrorCode>>,
) -> wasmtime::Result<()> {
    store.limiter(|guest| &mut guest.limiter);
    store.epoch_deadline_callback(|store| {
        let may_go_on = store.data().meter.may_go_on();
        Ok(if may_go_on { UpdateDeadline::Yield(1) } else { UpdateDeadline::Interrupt })
    });
    store.set_epoch_deadline(1);
    // First of all, so that the channel goes no sooner than the store.
    let mut http = store.data_mut().http();
    let response = http.new_response_outparam(sender)?;
    let request = http.new_incoming_request(scheme, request)?;
    let proxy = code.pre.instantiate_async(&mut *store).await?;
    proxy.wasi_http_incoming_handler().call_handle(store, request, response).await
}

fn failure_of(error: &wasmtime::Error, guest: &Guest) -> Failure {
    if guest.meter.is_used_up() {
        return Failure::TimeUsedUp;
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Failure::Busy(error.root_cause().to_string());
    }
    if guest.limiter.refused() == Some(SHARED_MEMORY_LIMIT) {
        return Failure::Busy(format!("memory beyond {SHARED_MEMORY_LIMIT}"));
    }
    let how = if let Some(I32Exit(status)) = error.downcast_ref() {
        format!("it exited with status {status}")
    } else {
        let cause = error.downcast_ref::<Trap>().map_or_else(|| error.root_cause().to_string(), Trap::to_string);
        match innermost_function(error) {
            Some(name) => format!("{cause}, in {name}"),
            None => cause,
        }
    };
    Failure::Failed(match guest.limiter.refused() {
        Some(limit) => format!("{how} (it did not get what would have been beyond {limit})"),
        None => how,
    })
}

/// Where an instance was, if its file tells names.
fn innermost_function(error: &wasmtime::Error) -> Option<&str> {
    error.downcast_ref::<WasmBacktrace>()?.frames().iter().find_map(|frame| frame.func_name())
}

fn fail(module: &Module, noted: &OnceLock<Failure>, failure: Failure, what: &str) {
    module.log().warn(format_args!("the module {} {failure} ({what})", module.name), "");
    // It is the only one who notes any.
    let _ = noted.set(failure);
}

impl Call {
    /// Runs the instance; ready with its response, or with what went wrong before there was one.
    pub fn poll_response(&mut self, task: &mut Task<'_>) -> Poll<Result<Response<ResponseBody>, Failure>> {
        self.poll_run(task);
        match Pin::new(&mut self.response).poll(task) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Ok(response))) => Poll::Ready(Ok(response.map(ResponseBody))),
            Poll::Ready(Ok(Err(code))) => Poll::Ready(Err(self.fail(Failure::Failed(code.to_string())))),
            Poll::Ready(Err(_)) => Poll::Ready(Err(match self.failure.get() {
                Some(failure) => failure.clone(),
                None => self.fail(Failure::Failed("it gave no answer".to_owned())),
            })),
        }
    }

    /// Runs the instance; ready with content.
    ///
    /// # Errors
    /// The content can't be completed.
    pub fn poll_content(&mut self, body: &mut ResponseBody, task: &mut Task<'_>) -> Poll<Result<Frame, Failure>> {
        // What is there needs no more running.
        let mut polled = Pin::new(&mut body.0).poll_frame(task);
        if polled.is_pending() {
            self.poll_run(task);
            polled = Pin::new(&mut body.0).poll_frame(task);
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Ok(match frame.into_data() {
                Ok(data) => Frame::Data(data),
                Err(frame) => Frame::End(frame.into_trailers().ok()),
            })),
            Poll::Ready(Some(Err(_))) => {
                Poll::Ready(Err(self.fail(Failure::Failed("it did not complete its content".to_owned()))))
            }
            // The end of an instance looks like the end of its content.
            Poll::Ready(None) => Poll::Ready(match self.failure.get() {
                Some(failure) => Err(failure.clone()),
                None => Ok(Frame::End(None)),
            }),
        }
    }

    /// Lets an instance whose response is complete do what it still has to, for so long at most.
    pub fn finish(mut self, limit: Duration) {
        match std::mem::replace(&mut self.run, Run::Ended) {
            Run::Here(run) => {
                self.meter.set_away();
                // It ends by itself.
                drop(self.module.runtime.threads().spawn(tokio::time::timeout(limit, run)));
            }
            Run::Away(mut handle) => {
                self.module.runtime.threads().spawn(async move {
                    if tokio::time::timeout(limit, &mut handle).await.is_err() {
                        handle.abort();
                    }
                });
            }
            Run::Ended => {}
        }
    }

    /// Logs a failure that is none of the instance's run.
    fn fail(&self, failure: Failure) -> Failure {
        self.module.log().warn(format_args!("the module {} {failure}", self.module.name), "");
        failure
    }

    /// Gives the instance its turn, if it runs here.
    fn poll_run(&mut self, task: &mut Task<'_>) {
        match &mut self.run {
            Run::Ended => {}
            Run::Away(handle) => {
                // A panic is the end as well. What it was is on stderr.
                if Pin::new(handle).poll(task).is_ready() {
                    self.run = Run::Ended;
                }
            }
            Run::Here(run) => {
                if Pin::new(run).poll(task).is_ready() {
                    self.run = Run::Ended;
                } else if self.meter.used() >= TIME_ON_WORKER {
                    self.leave_worker();
                }
            }
        }
    }

    fn leave_worker(&mut self) {
        self.run = match std::mem::replace(&mut self.run, Run::Ended) {
            Run::Here(run) => {
                self.meter.set_away();
                Run::Away(self.module.runtime.threads().spawn(run))
            }
            elsewhere => elsewhere,
        };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Run::Away(handle) = &self.run {
            handle.abort();
        }
    }
}

impl Future for Metered {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<()> {
        let Self { run, meter, runtime } = &mut *self;
        let _running = Running::begin(meter, runtime.ticker());
        run.as_mut().poll(task)
    }
}

/// The time that an instance runs, up to its end or its next pause.
struct Running<'a> {
    meter: &'a Meter,
    ticker: &'a Ticker,
}

impl<'a> Running<'a> {
    fn begin(meter: &'a Meter, ticker: &'a Ticker) -> Self {
        ticker.enter();
        meter.begin();
        Self { meter, ticker }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.meter.end();
        self.ticker.leave();
    }
}
