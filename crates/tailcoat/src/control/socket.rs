use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::geteuid;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::sync::mpsc::{UnboundedSender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::order::{ControlOrder, ControlReply, ControlReport, ControlRequest, REPORTS_MAX};

/// Bytes of an order or a report.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of an order that are read together with its descriptor.
const BEGINNING_BYTES_MAX: usize = 4 << 10;

/// Time that the server waits for a report to be read.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that the server waits for an order: commands send it at once, and others may wait meanwhile.
const ORDER_PATIENCE: Duration = Duration::from_secs(2);

/// Operators served at the same time; others wait.
const CONNECTIONS_MAX: u32 = 16;

/// Operators who may watch the server without a time limit, in addition.
const LOOKING_ON_MAX: u32 = 16;

/// Control socket. An order needs access to the socket's file, the user root or that of the server, and an open
/// descriptor of the socket's directory (SCM_RIGHTS, unix(7)). CGI programs may run as the server's user, and no kernel
/// keeps them from connecting; but confinement keeps them from opening that directory (`confinement/`).
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    removes_file: Arc<AtomicBool>,
    audience: Audience,
}

/// Limits of served operators, shared by consecutive sockets.
#[derive(Clone, Debug)]
pub struct Audience {
    attended: Arc<Semaphore>,
    looking_on: Arc<Semaphore>,
}

impl ControlSocket {
    /// Creates the control socket from a listener bound to this path. Removes the file at the end, if `removes_file` is
    /// set by then.
    pub fn new(listener: UnixListener, path: PathBuf, removes_file: Arc<AtomicBool>, audience: Audience) -> Self {
        Self { listener, path, removes_file, audience }
    }

    /// Passes orders on until the task is dropped, and writes the reports.
    ///
    /// # Errors
    /// The listener is not usable.
    pub async fn serve(self, orders: UnboundedSender<ControlRequest>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            // Local invariant: the semaphore is never closed.
            let Ok(place) = Arc::clone(&self.audience.attended).acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of file descriptors: some will be freed.
                tokio::time::sleep(PATIENCE / 10).await;
                continue;
            };
            let (orders, path, looking_on) = (orders.clone(), self.path.clone(), Arc::clone(&self.audience.looking_on));
            tokio::spawn(async move {
                // A command that leaves early does not want the report.
                let _ = attend(stream, &path, &orders, place, looking_on).await;
            });
        }
    }
}

impl Default for Audience {
    fn default() -> Self {
        let places = |count: u32| Arc::new(Semaphore::new(count as usize));
        Self { attended: places(CONNECTIONS_MAX), looking_on: places(LOOKING_ON_MAX) }
    }
}

impl Audience {
    /// Waits until all reports are delivered, but at most `limit`. The socket must not be served by then.
    pub async fn dismiss(&self, limit: Duration) {
        // The permits are only awaited, not used.
        let all_gone = async {
            let _ = self.attended.acquire_many(CONNECTIONS_MAX).await;
            let _ = self.looking_on.acquire_many(LOOKING_ON_MAX).await;
        };
        let _ = timeout(limit, all_gone).await;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let is_socket = |file: std::fs::Metadata| file.file_type().is_socket();
        if self.removes_file.load(Ordering::Relaxed) && self.path.symlink_metadata().is_ok_and(is_socket) {
            // The file may be gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Reads one order, and writes its reports, one per line. Orders that watch the server count against another limit.
async fn attend(
    stream: tokio::net::UnixStream,
    path: &Path,
    orders: &UnboundedSender<ControlRequest>,
    mut place: OwnedSemaphorePermit,
    looking_on: Arc<Semaphore>,
) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let (mut line, directory) = timeout(ORDER_PATIENCE, receive_beginning(&stream)).await??;
    let (reader, mut writer) = stream.into_split();
    if user != 0 && user != geteuid().as_raw() {
        let reason =
            format!("user {user} must not control this server; run the command as root or as the server's user");
        return write(&mut writer, &ControlReport::Rejected(reason)).await;
    }
    if !directory.is_some_and(|directory| is_directory_of(path, &directory)) {
        let reason = "the command must prove access to the directory of the control socket; run it outside the server's confinement";
        return write(&mut writer, &ControlReport::Rejected(reason.into())).await;
    }
    let mut reader = BufReader::new(reader.take(LINE_BYTES_MAX));
    if !line.ends_with(b"\n") {
        timeout(ORDER_PATIENCE, reader.read_until(b'\n', &mut line)).await??;
    }
    let order: ControlOrder = match serde_json::from_slice(&line) {
        Ok(order) => order,
        Err(error) => return write(&mut writer, &ControlReport::Rejected(format!("unknown command: {error}"))).await,
    };
    if order.looks_on() {
        let Ok(another) = looking_on.try_acquire_owned() else {
            let reason = format!(
                "{LOOKING_ON_MAX} commands watch the server already, which is the maximum; end one and try again"
            );
            return write(&mut writer, &ControlReport::Rejected(reason)).await;
        };
        place = another;
    }
    let lasts = ControlOrder::time_limit(&order).is_none();
    let (sender, mut reports) = channel(REPORTS_MAX);
    if orders.send(ControlRequest { order, reply: ControlReply::new(sender) }).is_err() {
        return write(&mut writer, &ControlReport::Rejected("the server is shutting down".into())).await;
    }
    loop {
        let report = tokio::select! {
            report = reports.recv() => report,
            // Notices that the command has gone, because there may be nothing to write for a long time.
            _ = reader.read_u8(), if lasts => None,
        };
        let Some(report) = report else { break };
        // An error drops the reply, so that the sender of reports notices. A command that watches may stop reading for
        // any time; that costs only the waiting reports.
        match lasts {
            true => writer.write_all(&encoded(&report)?).await?,
            false => write(&mut writer, &report).await?,
        }
    }
    drop(place);
    Ok(())
}

/// Start of an order, with the descriptor that the sender passed.
async fn receive_beginning(stream: &tokio::net::UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let receive = || {
        let mut beginning = vec![0; BEGINNING_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let buffers = &mut [IoSliceMut::new(&mut beginning)];
        let received = recvmsg(stream, buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        beginning.truncate(received.bytes);
        let shown = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((beginning, shown))
    };
    stream.async_io(Interest::READABLE, receive).await
}

/// True if this is the directory of the socket, opened for reading. O_PATH is not enough, because programs can open it
/// so.
fn is_directory_of(socket: &Path, shown: &OwnedFd) -> bool {
    let is_open = rustix::fs::fcntl_getfl(shown).is_ok_and(|flags| !flags.contains(OFlags::PATH));
    let wanted = rustix::fs::stat(directory_of(socket));
    let is_same = wanted.and_then(|wanted| {
        let shown = rustix::fs::fstat(shown)?;
        Ok((wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino))
    });
    is_open && is_same.unwrap_or(false)
}

fn directory_of(socket: &Path) -> &Path {
    socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

async fn write(writer: &mut tokio::net::unix::OwnedWriteHalf, report: &ControlReport) -> io::Result<()> {
    timeout(PATIENCE, writer.write_all(&encoded(report)?)).await?
}

fn encoded(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends an order to the server that listens on this socket; `each` gets its reports, at least one.
///
/// # Errors
/// No server listens there, its directory cannot be opened, it does not reply, or `each` fails.
pub fn give(
    path: &Path,
    order: &ControlOrder,
    mut each: impl FnMut(ControlReport) -> io::Result<()>,
) -> io::Result<()> {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(order.time_limit())?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The path may be a link to the socket.
    let real = path.canonicalize()?;
    let directory = rustix::fs::open(directory_of(&real), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let order = encoded(order)?;
    let sent_bytes = send_showing(&stream, &order, &[directory.as_fd()])?;
    stream.write_all(&order[sent_bytes..])?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut count) = (Vec::new(), 0);
    loop {
        line.clear();
        if Read::by_ref(&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            // The server ended, or was too slow.
            return if count > 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        each(serde_json::from_slice(&line)?)?;
        count += 1;
    }
}

/// Sends the start of an order with at most one descriptor; returns the number of bytes sent.
fn send_showing(stream: &UnixStream, order: &[u8], shown: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !shown.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(shown)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(order)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn orders_are_passed_on_and_reports_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (listener, removes_file) = (UnixListener::bind(&path).unwrap(), Arc::new(true.into()));
        let socket = ControlSocket::new(listener, path.clone(), removes_file, Audience::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
        runtime.spawn(socket.serve(sender));
        runtime.spawn(async move {
            while let Some(ControlRequest { order, reply }) = orders.recv().await {
                let ControlOrder::PurgeCache { urls, prefixes, all, .. } = order else { panic!("{order:?}") };
                reply.report(ControlReport::Purged(urls.len() + 10 * prefixes.len() + 100 * usize::from(all)));
                reply.report(ControlReport::Done("nothing left".into()));
            }
        });
        let asked = path.clone();
        let asking = runtime.spawn_blocking(move || {
            let (urls, prefixes) = (vec!["a".into()], vec!["b".into(), "c".into()]);
            let order = ControlOrder::PurgeCache { urls, prefixes, tags: Vec::new(), all: true };
            let mut reports = Vec::new();
            give(&asked, &order, |report| {
                reports.push(report);
                Ok(())
            })
            .unwrap();
            assert_eq!(reports, [ControlReport::Purged(121), ControlReport::Done("nothing left".into())]);
            let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let directory = directory_of(&asked);
            let rejection = |order: &[u8], shown: Option<&OwnedFd>| {
                let mut stream = UnixStream::connect(&asked).unwrap();
                let shown: Vec<_> = shown.into_iter().map(AsFd::as_fd).collect();
                send_showing(&stream, order, &shown).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut report = String::new();
                stream.read_to_string(&mut report).unwrap();
                report
            };
            let opened = open(directory, OFlags::RDONLY);
            for order in ["purge everything\n", r#"{"order":"purge-everything"}"#] {
                let report = rejection(order.as_bytes(), Some(&opened));
                assert!(report.starts_with(r#"{"refused":"unknown command"#), "{order}: {report}");
            }
            let order =
                encoded(&ControlOrder::PurgeCache { urls: vec![], prefixes: vec![], tags: vec![], all: true }).unwrap();
            let elsewhere = tempfile::tempdir().unwrap();
            let others = [None, Some(open(elsewhere.path(), OFlags::RDONLY)), Some(open(directory, OFlags::PATH))];
            for shown in others {
                let report = rejection(&order, shown.as_ref());
                assert!(report.starts_with(r#"{"refused":"the command must prove"#), "{shown:?}: {report}");
            }
            assert!(rejection(b"", None).starts_with(r#"{"refused":"the command must prove"#));
            // By a link, and with an order longer than the first read.
            let link = elsewhere.path().join("link");
            std::os::unix::fs::symlink(&asked, &link).unwrap();
            let urls = vec!["a".repeat(BEGINNING_BYTES_MAX); 100];
            let mut purged = 0;
            give(&link, &ControlOrder::PurgeCache { urls, prefixes: vec![], tags: vec![], all: false }, |report| {
                if let ControlReport::Purged(count) = report {
                    purged = count;
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(purged, 100);
        });
        runtime.block_on(asking).unwrap();
        drop(runtime);
        assert!(!path.exists(), "the file goes with the server");
        assert!(UnixStream::connect(&path).is_err());
    }
}
