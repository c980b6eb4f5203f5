//! Logins, and the homes of users.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use wire::ftp::{FtpReply, is_representable};

use super::FtpConnection;
use crate::metrics::Limit;
use crate::routing::rules::CredentialVerdict;

/// Users that log in without a password (RFC 1635).
const ANONYMOUS: [&[u8]; 2] = [b"anonymous", b"ftp"];

/// Name of anonymous clients in logs, and of their home.
const ANONYMOUS_USER: &[u8] = b"anonymous";

/// Login whose password is verified.
pub(super) struct LoggingIn {
    user: Vec<u8>,
    /// Length of the password, which the future holds.
    password_bytes: usize,
    future: Pin<Box<dyn Future<Output = CredentialVerdict>>>,
}

impl LoggingIn {
    pub(super) fn held_bytes(&self) -> usize {
        2 * self.user.capacity() + self.password_bytes
    }
}

impl FtpConnection {
    pub(super) fn begin_login(&mut self, user: Vec<u8>, password: Vec<u8>) {
        self.is_anonymous = false;
        let Some(site) = self.site() else { return self.end_login(user, CredentialVerdict::Wrong) };
        if site.config.is_anonymous() && ANONYMOUS.iter().any(|name| user.eq_ignore_ascii_case(name)) {
            self.is_anonymous = true;
            return self.end_login(ANONYMOUS_USER.to_vec(), CredentialVerdict::Right);
        }
        let gate = self.context.generation().router.ftp_gate(self.listener, self.host.as_deref());
        let Some(gate) = gate.filter(|_| is_home(&user)) else {
            return self.end_login(user, CredentialVerdict::Wrong);
        };
        let (client, now_ms) = (self.client, self.context.clock.now().monotonic_ms);
        let password_bytes = password.capacity();
        let future = Box::pin(gate.verify(user.clone(), password, client, now_ms));
        self.logging_in = Some(Box::new(LoggingIn { user, password_bytes, future }));
    }

    /// Replies when the password is verified.
    pub(super) fn poll_login(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let Some(logging_in) = &mut self.logging_in else { return Poll::Ready(()) };
        let verdict = ready!(logging_in.future.as_mut().poll(task));
        if let Some(logging_in) = self.logging_in.take() {
            self.end_login(logging_in.user, verdict);
        }
        Poll::Ready(())
    }

    fn end_login(&mut self, user: Vec<u8>, verdict: CredentialVerdict) {
        match verdict {
            CredentialVerdict::Right | CredentialVerdict::Wrong => {
                let is_right = verdict == CredentialVerdict::Right;
                if let Some(metrics) = self.context.metrics() {
                    let counter = if is_right { &metrics.ftp.logins } else { &metrics.ftp.logins_rejected };
                    counter.add(1);
                }
                self.user = if is_right { user.into_boxed_slice() } else { Box::default() };
                let action = self.session.on_login(is_right);
                self.act(action);
            }
            CredentialVerdict::Busy => {
                self.context.count_limit(Limit::PasswordChecksWaitingMax);
                self.reply(&FtpReply::new(530, "Too many passwords wait to be verified: try again later."));
            }
            CredentialVerdict::Failed => self.reply(&FtpReply::new(530, "Logins are not possible now.")),
        }
    }

    /// Path below the root for a path that the user sees.
    pub(super) fn path_in_root(&self, path: &[u8]) -> Vec<u8> {
        match self.site() {
            Some(site) if site.config.has_homes => {
                let rest = if path == b"/" { &b""[..] } else { path };
                [b"/", &self.user[..], rest].concat()
            }
            _ => path.to_vec(),
        }
    }

    /// Path below the root of an entry that the user wants to change. The home itself belongs to the operator, so it is the
    /// root here, which cannot be changed.
    pub(super) fn changed_path_in_root(&self, path: &[u8]) -> Vec<u8> {
        if path == b"/" { path.to_vec() } else { self.path_in_root(path) }
    }
}

/// True if a user can have a directory of this name.
fn is_home(user: &[u8]) -> bool {
    !user.is_empty() && !user.starts_with(b".") && !user.contains(&b'/') && is_representable(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        for (user, expect) in [
            (&b"ann"[..], true),
            (b"ann.b-c", true),
            (b"", false),
            (b".", false),
            (b"..", false),
            (b".ssh", false),
            (b"a/../b", false),
            (b"a\nb", false),
            (b"a\0b", false),
        ] {
            assert_eq!(is_home(user), expect, "{}", user.escape_ascii());
        }
    }
}
