//! FTP, server side (RFC 959 with RFC 1123, 2228, 2389, 2428, 2640, 3659, 4217 and 7151).
//!
//! [`FtpSession`] is the control connection: bytes of commands go in, and each command becomes an [`FtpAction`]. Some
//! actions are replies. The caller carries out the others, such as opening a data connection, and replies itself. The
//! rest of the module are formats: [`addresses`](FtpAddressError) of data connections, listings, patterns and line ends.

mod address;
mod ascii;
mod command;
mod glob;
mod line;
mod listing;
mod path;
mod reply;
mod session;
#[cfg(test)]
mod tests;

pub use address::{FtpAddressError, FtpFamily, parse_eprt, parse_port, push_epsv_reply, push_pasv_reply};
pub use ascii::{AsciiDecoder, AsciiEncoder};
pub use command::{FtpCommand, FtpCommandError, PassiveRequest, SecurityMechanism};
pub use glob::{Glob, GlobBudget};
pub use line::{COMMAND_BYTES_MAX, FtpLine, FtpLineError, parse_line};
pub use listing::{FactSet, FtpEntry, ListArgument, push_facts, push_long_line, push_time};
pub use path::{is_representable, resolve};
pub use reply::{FtpReply, push_quoted};
pub use session::{
    FtpAbilities, FtpAction, FtpChange, FtpSession, FtpStep, FtpTls, FtpTransfer, FtpTransferKind, ListForm,
    PassiveMode, PathQuestion, TransferType,
};
