use super::{Counter, FtpDirection};

/// Counters of FTP of one worker.
#[derive(Debug, Default)]
pub struct FtpMetrics {
    /// Control connections that were greeted.
    pub sessions: Counter,
    /// Logins.
    pub logins: Counter,
    /// Logins rejected because of the user or the password.
    pub logins_rejected: Counter,
    /// Bytes of files and listings sent.
    pub sent_bytes: Counter,
    /// Bytes of files received.
    pub received_bytes: Counter,
    /// Transfers by direction, incomplete and complete ones.
    transfers: [[Counter; 2]; FtpDirection::ALL.len()],
}

impl FtpMetrics {
    /// Counts a transfer that has ended.
    pub fn on_transfer(&self, direction: FtpDirection, is_complete: bool, bytes: u64) {
        self.transfers[direction as usize][usize::from(is_complete)].add(1);
        match direction {
            FtpDirection::Upload => self.received_bytes.add(bytes),
            FtpDirection::Download | FtpDirection::Listing => self.sent_bytes.add(bytes),
        }
    }

    /// Transfers that were complete, or were not.
    pub fn transfers(&self, direction: FtpDirection, is_complete: bool) -> u64 {
        self.transfers[direction as usize][usize::from(is_complete)].get()
    }
}
