//! Handover from the old process to the new one in an upgrade. They exchange messages over a socket that the new
//! process finds as its standard input.
//!
//! | | sender | message |
//! |---|---|---|
//! | 1 | old | [`HandoverOffer`]: everything that it offers; then the file descriptors |
//! | 2 | new | [`HandoverReply`]: that it serves, or why it does not |
//! | 3 | old | [`STOPPED`]: that it has stopped accepting; from here on the new process is the server |
//! | 4 | old | [`BanList`]s: the current bans, because operators may have changed them; an empty list is the last |
//!
//! If the socket ends instead of message 2, the new process has ended. If it ends instead of message 3 or 4, the old
//! process has ended, and the new one takes its place.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::datagrams::DatagramOffer;
use super::listeners::HandedOverSockets;
use super::lives::Life;
use crate::config::BanAction;
use crate::config::{Listen, Network, network_from_text};
use crate::connection::QuicKeys;
use crate::known_clients::Bans;
use crate::routing::rules::ChallengeSecret;
use crate::tls::TicketKey;
use crate::worker::Listener;

/// Environment variable that marks standard input as a handover.
const VARIABLE: &str = "TAILCOAT_HANDOVER";

/// Returns `true` if another process hands over to this one.
pub(super) fn is_expected() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// File descriptors per message; the kernel allows 253 (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 128;

/// Limit of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 160 << 10;

/// Time that the new process waits for each message of the old one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Message of the old process: it has stopped accepting.
const STOPPED: &str = "taken";

/// Limit of bans per message.
const BANS_PER_MESSAGE: usize = 1_000;

/// Banned networks, each with the seconds left. The action follows the network after a space, unless it is `reject`.
pub(super) type BanList = Vec<(String, u64)>;

/// Everything that the old process offers.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct HandoverOffer {
    /// Addresses, each with the number of its sockets. The descriptors follow in this order.
    pub(super) listeners: Vec<(Listen, usize)>,
    /// Path of the control socket, if there is one. Its descriptor comes last.
    pub(super) control: Option<PathBuf>,
    /// Keys that encrypt TLS session tickets.
    pub(super) ticket_keys: Vec<TicketKey>,
    /// First part of the bans at the time of the offer; the complete lists follow in message 4.
    #[serde(default)]
    pub(super) bans: BanList,
    /// Groups of UDP sockets. Their descriptors follow that of the control socket.
    #[serde(default)]
    pub(super) datagrams: Vec<DatagramOffer>,
    /// Keys of QUIC.
    #[serde(default)]
    pub(super) quic_keys: Option<QuicKeys>,
    /// Secret of challenges.
    #[serde(default)]
    pub(super) challenge_secret: Option<ChallengeSecret>,
    /// Number of processes that read UDP sockets. Their descriptors follow those of the sockets.
    #[serde(default)]
    pub(super) lives: usize,
}

/// Answer of the new process.
#[derive(Serialize, Deserialize)]
pub(super) enum HandoverReply {
    /// The new process serves, and uses these sockets.
    Ready(UsedSockets),
    /// The new process does not serve, for this reason.
    Failed(String),
}

/// Sockets of the [`HandoverOffer`] that the new process uses. The old process closes the others.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct UsedSockets {
    /// Addresses of these listeners.
    pub(super) listeners: Vec<Listen>,
    /// True if it uses the control socket.
    pub(super) control: bool,
}

/// New process's end of the handover.
pub(crate) struct Handover {
    socket: OwnedFd,
    pub(super) offer: HandoverOffer,
    /// Sockets of the [`HandoverOffer`] that no listener uses yet.
    pub(super) listeners: Vec<(Listen, Vec<Listener>)>,
    pub(super) control: Option<UnixListener>,
    datagrams: Vec<Vec<OwnedFd>>,
    lives: Vec<Arc<Life>>,
}

/// Old process's end of the handover.
pub(super) struct HandoverSender(OwnedFd);

/// Present bans, in lists that fit a message each.
pub(super) fn ban_lists(bans: &Bans) -> Vec<BanList> {
    // Rounds up to a full second, so that a handover never ends a ban.
    let reported = |(network, left, action): &(Network, Duration, BanAction)| {
        let action = if *action == BanAction::Reject { String::new() } else { format!(" {action}") };
        (format!("{network}{action}"), left.as_secs() + 1)
    };
    bans.list().chunks(BANS_PER_MESSAGE).map(|some| some.iter().map(reported).collect()).collect()
}

/// Replaces the present bans with those of `lists`.
pub(super) fn restore_bans(bans: &Bans, lists: &[BanList]) {
    let listed = lists.iter().flatten().filter_map(|(text, seconds)| {
        let (network, action) = text.split_once(' ').unwrap_or((text, "reject"));
        // An action of a later version is one of this.
        let action = BanAction::from_text(action).unwrap_or_default();
        Some((network_from_text(network).ok()?, Duration::from_secs(*seconds), action))
    });
    bans.replace(listed);
}

impl HandoverSender {
    /// This process's end, and the standard input of the new process, which [`Self::variable`] announces.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(own), other))
    }

    /// Name and value of the environment variable that announces the handover to the new process.
    pub(super) fn variable() -> (&'static str, &'static str) {
        (VARIABLE, "1")
    }

    /// Sends the offer and waits at most `limit` for an [`HandoverReply`].
    ///
    /// # Errors
    /// The new process has ended, or exceeds `limit`.
    pub(super) fn offer(
        &self,
        offer: &HandoverOffer,
        descriptors: &[OwnedFd],
        limit: Duration,
    ) -> io::Result<HandoverReply> {
        set_time_limit(&self.0, limit)?;
        send(&self.0, offer, &[])?;
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            send(&self.0, &(), &some)?;
        }
        receive(&self.0).map(|(answer, _)| answer)
    }

    /// Tells the new process that it is the server now, and sends the bans.
    ///
    /// # Errors
    /// The new process has ended.
    pub(super) fn leave(&self, bans: &[BanList]) -> io::Result<()> {
        send(&self.0, &STOPPED, &[])?;
        bans.iter().try_for_each(|list| send(&self.0, list, &[]))?;
        send(&self.0, &BanList::new(), &[])
    }
}

impl Handover {
    /// Handover on standard input, if this process was started for an upgrade. Must be called at most once.
    ///
    /// # Errors
    /// The old process has ended, or sends a message that this version cannot read.
    pub(crate) fn from_environment() -> io::Result<Option<Self>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        // Neither started programs nor another upgrade may use this socket.
        nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
        set_time_limit(&socket, PATIENCE)?;
        let (offer, _) = receive::<HandoverOffer>(&socket)?;
        let wanted = offer.listeners.iter().map(|(_, count)| count).sum::<usize>()
            + usize::from(offer.control.is_some())
            + offer.datagrams.iter().map(|group| group.sockets).sum::<usize>()
            + offer.lives;
        let mut descriptors = Vec::with_capacity(wanted);
        while descriptors.len() < wanted {
            let ((), some) = receive(&socket)?;
            if some.is_empty() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            descriptors.extend(some);
        }
        let mut descriptors = descriptors.into_iter();
        let listeners = offer.listeners.iter().map(|(listen, count)| {
            let sockets = descriptors.by_ref().take(*count).map(Listener::from_descriptor);
            Ok((listen.clone(), sockets.collect::<io::Result<Vec<_>>>()?))
        });
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let control = offer.control.as_ref().and_then(|_| descriptors.next()).map(UnixListener::from);
        let datagrams = offer.datagrams.iter();
        let datagrams = datagrams.map(|group| descriptors.by_ref().take(group.sockets).collect()).collect();
        let lives = descriptors.take(offer.lives).map(|life| Arc::new(Life::from(life))).collect();
        Ok(Some(Self { socket, offer, listeners, control, datagrams, lives }))
    }

    /// Addresses whose sockets the old process has handed over.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Listen> {
        self.listeners.iter().map(|(listen, _)| listen)
    }

    /// Takes the listening sockets, and the control socket with its path.
    pub(super) fn take_sockets(&mut self) -> (HandedOverSockets, Option<(PathBuf, UnixListener)>) {
        let control = self.offer.control.take().zip(self.control.take());
        let (offers, descriptors) = (std::mem::take(&mut self.offer.datagrams), std::mem::take(&mut self.datagrams));
        let sockets = HandedOverSockets {
            listeners: std::mem::take(&mut self.listeners),
            datagrams: offers.into_iter().zip(descriptors).collect(),
            lives: std::mem::take(&mut self.lives),
        };
        (sockets, control)
    }

    /// Tells the old process why this one does not serve.
    pub(crate) fn fail(&self, reason: &str) {
        let reason: String = reason.chars().take(MESSAGE_BYTES_MAX / 8).collect();
        // The old process may have ended.
        let _ = send(&self.socket, &HandoverReply::Failed(reason), &[]);
    }

    /// Tells the old process that this one serves, and waits until it has stopped accepting or has ended. Returns the
    /// old process's bans, if it has sent them.
    ///
    /// # Errors
    /// The message cannot be sent; the old process assumes that this one has failed.
    pub(super) fn confirm(self, used: UsedSockets) -> io::Result<Option<Vec<BanList>>> {
        send(&self.socket, &HandoverReply::Ready(used), &[])?;
        match receive::<String>(&self.socket) {
            Ok(_) => Ok(self.receive_bans()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Receives the bans; `None` if the old process ends before the last list: it is of an earlier version, or was
    /// killed.
    fn receive_bans(&self) -> Option<Vec<BanList>> {
        let mut lists = Vec::new();
        loop {
            match receive::<BanList>(&self.socket) {
                Ok((list, _)) if list.is_empty() => return Some(lists),
                Ok((list, _)) => lists.push(list),
                Err(_) => return None,
            }
        }
    }
}

fn set_time_limit(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))
}

pub(super) fn send<T: Serialize>(socket: &OwnedFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let message = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // On sockets with a time limit, any handled signal interrupts the call (signal(7)).
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

pub(super) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let received = retry_on_intr(&mut receive)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    Ok((serde_json::from_slice(&message[..received.bytes])?, descriptors))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn descriptors_and_answers_go_across() {
        let (sender, other) = HandoverSender::pair().unwrap();
        let sockets: Vec<_> = (0..300).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let offer =
            HandoverOffer { listeners: vec![(Listen::Inherited("web".into()), 300)], ..HandoverOffer::default() };
        let descriptors: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
        let new = std::thread::spawn(move || {
            let (offer, _) = receive::<HandoverOffer>(&other).unwrap();
            let mut got = Vec::new();
            while got.len() < offer.listeners[0].1 {
                got.extend(receive::<()>(&other).unwrap().1);
            }
            let got: Vec<_> = got.into_iter().map(|fd| TcpListener::from(fd).local_addr().unwrap()).collect();
            send(&other, &HandoverReply::Ready(UsedSockets { control: true, ..UsedSockets::default() }), &[]).unwrap();
            assert_eq!(receive::<String>(&other).unwrap().0, STOPPED);
            let lists =
                std::iter::from_fn(|| Some(receive::<BanList>(&other).unwrap().0).filter(|list| !list.is_empty()));
            assert_eq!(lists.map(|list| list.len()).collect::<Vec<_>>(), [1_000, 500]);
            got
        });
        let answer = sender.offer(&offer, &descriptors, Duration::from_secs(60)).unwrap();
        assert!(matches!(answer, HandoverReply::Ready(UsedSockets { control: true, .. })));
        let bans = Bans::default();
        for number in 0..1_500 {
            let network = network_from_text(&format!("10.0.{}.{}", number / 250, number % 250)).unwrap();
            bans.ban(network, Duration::from_secs(60)).unwrap();
        }
        sender.leave(&ban_lists(&bans)).unwrap();
        assert_eq!(new.join().unwrap(), addresses);
        let error = sender.offer(&offer, &[], Duration::from_secs(60)).err().map(|error| error.kind());
        assert!(matches!(error, Some(io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof)), "{error:?}");
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_for_ever() {
        let (sender, _other) = HandoverSender::pair().unwrap();
        let error =
            sender.offer(&HandoverOffer::default(), &[], Duration::from_millis(50)).err().map(|error| error.kind());
        assert!(matches!(error, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)), "{error:?}");
    }
}
