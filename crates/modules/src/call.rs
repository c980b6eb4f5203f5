//! One request through a component's instance.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use wasmtime_wasi_http::WasiBody;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;

use super::Module;
use super::component::{ComponentInstance, ComponentStart, answer};
use super::failure::CallFailure;
use super::run::InstanceRun;

/// Request that an instance answers. Dropping it ends the instance.
pub struct Call {
    module: Arc<Module>,
    response: oneshot::Receiver<Result<Response<HyperOutgoingBody>, ErrorCode>>,
    run: InstanceRun<Option<ComponentInstance>>,
    /// Finished instance that may be used again.
    ended: Option<ComponentInstance>,
    failure: Arc<OnceLock<CallFailure>>,
}

/// Content that an instance sends.
pub struct ResponseBody(HyperOutgoingBody);

/// Piece of content.
pub enum ContentFrame {
    /// Bytes; may be empty.
    Data(Bytes),
    /// End of the content, with trailers.
    End(Option<HeaderMap>),
}

impl Module {
    /// Waits for a free place among the module's instances.
    pub fn instance(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + use<> {
        let acquire = Arc::clone(&self.instances).acquire_owned();
        // No code closes the semaphore.
        async move { acquire.await.ok() }
    }

    /// Free place among the module's instances, if there is one now.
    pub fn try_instance(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.instances).try_acquire_owned().ok()
    }

    /// True if instances may wait for a disk, because they can reach files. They run on other threads then, so that no
    /// worker waits.
    fn waits_for_disk(&self) -> bool {
        self.config.waits_for_disk && !self.config.grants.directories.is_empty()
    }

    /// Creates a call in which an instance answers a request. Runs nothing before the first poll.
    pub fn call(
        self: &Arc<Self>,
        begun: ComponentStart,
        place: OwnedSemaphorePermit,
        is_tls: bool,
        request: Request<WasiBody>,
    ) -> Call {
        let (sender, response) = oneshot::channel();
        let meter = begun.meter(self);
        let failure = Arc::<OnceLock<CallFailure>>::default();
        let what = format!("{} {}", request.method(), request.uri().path());
        self.metrics.requests.add(1);
        let (module, of_run, metered) = (Arc::clone(self), Arc::clone(&failure), Arc::clone(&meter));
        let run = async move {
            // Held until the instance has ended, however long that is after its response.
            let _place = place;
            let (mut store, answerer) = match begun.store(&module, metered) {
                Ok(begun) => begun,
                Err(error) => {
                    fail(&module, &of_run, CallFailure::failed(format_args!("{error:#}")), &what);
                    return None;
                }
            };
            let scheme = if is_tls { Scheme::Https } else { Scheme::Http };
            match answer(&mut store, answerer, scheme, request, sender).await {
                Ok(proxy) => ComponentInstance::keep(store, proxy, &module),
                Err(error) => {
                    let failure = CallFailure::of(&error, &store.data().meter, &store.data().limiter);
                    fail(&module, &of_run, failure, &what);
                    // Dropped after the failure is recorded, because this closes the response's channels.
                    drop(store);
                    None
                }
            }
        };
        let runtime = Arc::clone(&self.runtime);
        let run = if self.waits_for_disk() {
            InstanceRun::new_away(run, meter, runtime)
        } else {
            InstanceRun::new(run, meter, runtime)
        };
        Call { module: Arc::clone(self), response, run, failure, ended: None }
    }
}

/// Records the failure of an instance.
fn fail(module: &Module, noted: &OnceLock<CallFailure>, failure: CallFailure, request: &str) {
    module.note(&failure, Some(request));
    // Set only here.
    let _ = noted.set(failure);
}

impl Call {
    /// Runs the instance. Ready with its response, or with the failure that prevented one.
    pub fn poll_response(&mut self, task: &mut Task<'_>) -> Poll<Result<Response<ResponseBody>, CallFailure>> {
        self.run(task);
        let waker = self.run.waker(task);
        let task = &mut Task::from_waker(waker.as_ref().unwrap_or_else(|| task.waker()));
        let mut polled = Pin::new(&mut self.response).poll(task);
        if polled.is_pending() && self.ended.take().is_some() {
            // The instance has kept the sender of its response, which is dropped with it.
            polled = Pin::new(&mut self.response).poll(task);
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Ok(response))) => Poll::Ready(Ok(response.map(ResponseBody))),
            Poll::Ready(Ok(Err(code))) => Poll::Ready(Err(self.fail(CallFailure::failed(code)))),
            Poll::Ready(Err(_)) => Poll::Ready(Err(match self.failure.get() {
                Some(failure) => failure.clone(),
                None => self.fail(CallFailure::failed("it sent no response")),
            })),
        }
    }

    /// Runs the instance. Ready with content.
    ///
    /// # Errors
    /// The content cannot be completed.
    pub fn poll_content(
        &mut self,
        body: &mut ResponseBody,
        task: &mut Task<'_>,
    ) -> Poll<Result<ContentFrame, CallFailure>> {
        // Content that is present needs no further run.
        let mut polled = Pin::new(&mut body.0).poll_frame(&mut Task::from_waker(Waker::noop()));
        if polled.is_pending() {
            self.run(task);
            let waker = self.run.waker(task);
            let task = &mut Task::from_waker(waker.as_ref().unwrap_or_else(|| task.waker()));
            polled = Pin::new(&mut body.0).poll_frame(task);
            if polled.is_pending() && self.ended.take().is_some() {
                // The instance has kept its content open, which ends with it.
                polled = Pin::new(&mut body.0).poll_frame(task);
            }
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Ok(match frame.into_data() {
                Ok(data) => ContentFrame::Data(data),
                Err(frame) => ContentFrame::End(frame.into_trailers().ok()),
            })),
            Poll::Ready(Some(Err(_))) => {
                Poll::Ready(Err(self.fail(CallFailure::failed("it did not complete its content"))))
            }
            // The end of an instance looks like the end of its content.
            Poll::Ready(None) => Poll::Ready(match self.failure.get() {
                Some(failure) => Err(failure.clone()),
                None => Ok(ContentFrame::End(None)),
            }),
        }
    }

    /// Lets an instance complete its work after the response, at most for `limit`. Returns an instance that has
    /// finished and may be used again.
    pub fn finish(self, limit: Duration) -> Option<ComponentInstance> {
        if self.ended.is_none() {
            self.run.finish(limit);
        }
        self.ended
    }

    fn run(&mut self, task: &mut Task<'_>) {
        if let Poll::Ready(Some(ended)) = self.run.poll(task) {
            self.ended = ended;
        }
    }

    /// Records a failure outside the instance's run.
    fn fail(&self, failure: CallFailure) -> CallFailure {
        self.module.note(&failure, None);
        failure
    }
}
