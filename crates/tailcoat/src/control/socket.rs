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

use super::order::{Order, REPORTS_MAX, Reply, Report, Request};

/// Bytes of an order or a report.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of an order that are read together with the directory that comes with them.
const BEGINNING_BYTES_MAX: usize = 4 << 10;

/// How long the server waits for a report to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it waits for an order: programs give them as soon as they have connected, and meanwhile others may have to wait.
const ORDER_PATIENCE: Duration = Duration::from_secs(2);

/// Operators who are attended to at once; others wait.
const CONNECTIONS_MAX: u32 = 16;

/// Operators who may look on as long as they like, besides.
const LOOKING_ON_MAX: u32 = 16;

/// The socket on which operators of this machine give orders: whoever may open its file, is root or the server's own user,
/// and shows the directory that the socket is in, opened (SCM_RIGHTS, unix(7)). Programs that the server has started for requests
/// may be the same user, and no kernel keeps them from connecting; but they are kept from opening that directory
/// (`confinement/`).
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    removes_file: Arc<AtomicBool>,
    audience: Audience,
}

/// Those who are attended to, on one socket after the other.
#[derive(Clone, Debug)]
pub struct Audience {
    attended: Arc<Semaphore>,
    looking_on: Arc<Semaphore>,
}

impl ControlSocket {
    /// The socket that is bound to this path. Its file goes with it, if that is so by then.
    pub fn new(listener: UnixListener, path: PathBuf, removes_file: Arc<AtomicBool>, audience: Audience) -> Self {
        Self { listener, path, removes_file, audience }
    }

    /// Passes orders on until the task is dropped, and writes what is reported.
    ///
    /// # Errors
    /// The socket can't be listened on.
    pub async fn serve(self, orders: UnboundedSender<Request>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            // Local invariant: nobody closes the semaphore.
            let Ok(place) = Arc::clone(&self.audience.attended).acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors: those in use are given back sooner or later.
                tokio::time::sleep(PATIENCE / 10).await;
                continue;
            };
            let (orders, path, looking_on) = (orders.clone(), self.path.clone(), Arc::clone(&self.audience.looking_on));
            tokio::spawn(async move {
                // Whoever does not wait for the report does not want it.
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
    /// Waits until all have what was reported to them, but no longer than this. By then nobody is to listen any more.
    pub async fn dismiss(&self, limit: Duration) {
        // It is only waited for.
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
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes one order, and writes all reports on it, a line each. Who looks on has a place of another kind.
async fn attend(
    stream: tokio::net::UnixStream,
    path: &Path,
    orders: &UnboundedSender<Request>,
    mut place: OwnedSemaphorePermit,
    looking_on: Arc<Semaphore>,
) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let (mut line, directory) = timeout(ORDER_PATIENCE, receive_beginning(&stream)).await??;
    let (reader, mut writer) = stream.into_split();
    if user != 0 && user != geteuid().as_raw() {
        let reason = format!("user {user} is neither root nor the server's");
        return write(&mut writer, &Report::Refused(reason)).await;
    }
    if !directory.is_some_and(|directory| is_directory_of(path, &directory)) {
        let reason = "who gives orders has to show the directory of the socket, which programs of the server can't";
        return write(&mut writer, &Report::Refused(reason.into())).await;
    }
    let mut reader = BufReader::new(reader.take(LINE_BYTES_MAX));
    if !line.ends_with(b"\n") {
        timeout(ORDER_PATIENCE, reader.read_until(b'\n', &mut line)).await??;
    }
    let order: Order = match serde_json::from_slice(&line) {
        Ok(order) => order,
        Err(error) => return write(&mut writer, &Report::Refused(format!("not an order: {error}"))).await,
    };
    if order.looks_on() {
        let Ok(another) = looking_on.try_acquire_owned() else {
            let reason = format!("{LOOKING_ON_MAX} look on already, which is as many as can");
            return write(&mut writer, &Report::Refused(reason)).await;
        };
        place = another;
    }
    let lasts = Order::time_limit(&order).is_none();
    let (sender, mut reports) = channel(REPORTS_MAX);
    if orders.send(Request { order, reply: Reply::new(sender) }).is_err() {
        return write(&mut writer, &Report::Refused("the server is ending".into())).await;
    }
    loop {
        let report = tokio::select! {
            report = reports.recv() => report,
            // Whoever has gone wants no more, and there may be nothing to write for a long time.
            _ = reader.read_u8(), if lasts => None,
        };
        let Some(report) = report else { break };
        // If it fails, whoever carries the order out learns that nobody wants to know any more. Who looks on may stand still
        // as long as they like: it costs the reports that wait.
        match lasts {
            true => writer.write_all(&encoded(&report)?).await?,
            false => write(&mut writer, &report).await?,
        }
    }
    drop(place);
    Ok(())
}

/// The beginning of an order, and what its sender shows.
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

/// Whether this is the directory of the socket, opened to be read: by O_PATH programs can open it as well.
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

async fn write(writer: &mut tokio::net::unix::OwnedWriteHalf, report: &Report) -> io::Result<()> {
    timeout(PATIENCE, writer.write_all(&encoded(report)?)).await?
}

fn encoded(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Gives an order to the server that listens on this socket; `each` gets its reports, of which there is at least one.
///
/// # Errors
/// No server listens there, its directory can't be opened, it does not answer, or `each` fails.
pub fn give(path: &Path, order: &Order, mut each: impl FnMut(Report) -> io::Result<()>) -> io::Result<()> {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(order.time_limit())?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // A link to the socket may be elsewhere.
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
            // The server has ended, or was too slow.
            return if count > 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        each(serde_json::from_slice(&line)?)?;
        count += 1;
    }
}

/// Sends the beginning of an order with what is shown, which is at most one; how many bytes it was.
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
            while let Some(Request { order, reply }) = orders.recv().await {
                let Order::PurgeCache { urls, prefixes, all } = order else { panic!("{order:?}") };
                reply.report(Report::Purged(urls.len() + 10 * prefixes.len() + 100 * usize::from(all)));
                reply.report(Report::Done("nothing left".into()));
            }
        });
        let asked = path.clone();
        let asking = runtime.spawn_blocking(move || {
            let (urls, prefixes) = (vec!["a".into()], vec!["b".into(), "c".into()]);
            let order = Order::PurgeCache { urls, prefixes, all: true };
            let mut reports = Vec::new();
            give(&asked, &order, |report| {
                reports.push(report);
                Ok(())
            })
            .unwrap();
            assert_eq!(reports, [Report::Purged(121), Report::Done("nothing left".into())]);
            let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let directory = directory_of(&asked);
            let refusal = |order: &[u8], shown: Option<&OwnedFd>| {
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
                let report = refusal(order.as_bytes(), Some(&opened));
                assert!(report.starts_with(r#"{"refused":"not an order"#), "{order}: {report}");
            }
            let order = encoded(&Order::PurgeCache { urls: vec![], prefixes: vec![], all: true }).unwrap();
            let elsewhere = tempfile::tempdir().unwrap();
            let others = [None, Some(open(elsewhere.path(), OFlags::RDONLY)), Some(open(directory, OFlags::PATH))];
            for shown in others {
                let report = refusal(&order, shown.as_ref());
                assert!(report.starts_with(r#"{"refused":"who gives orders"#), "{shown:?}: {report}");
            }
            assert!(refusal(b"", None).starts_with(r#"{"refused":"who gives orders"#));
            // By another name for it, and one that is longer than what is read at once.
            let link = elsewhere.path().join("link");
            std::os::unix::fs::symlink(&asked, &link).unwrap();
            let urls = vec!["a".repeat(BEGINNING_BYTES_MAX); 100];
            let mut purged = 0;
            give(&link, &Order::PurgeCache { urls, prefixes: vec![], all: false }, |report| {
                if let Report::Purged(count) = report {
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
