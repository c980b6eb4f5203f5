//! Commands: a strict grammar, in which each argument has its type.

use core::net::SocketAddr;

use super::address::{FtpAddressError, FtpFamily, parse_eprt, parse_port};
use super::listing::ListArgument;
use crate::http::Host;

/// Command of a client. Paths are as the client sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FtpCommand<'a> {
    /// USER: name of the user.
    User(&'a [u8]),
    /// PASS: password, which may be empty.
    Pass(&'a [u8]),
    /// ACCT: account, which no server needs any more.
    Acct,
    /// CWD and XCWD.
    Cwd(&'a [u8]),
    /// CDUP and XCUP.
    Cdup,
    /// SMNT.
    Smnt,
    /// REIN.
    Rein,
    /// QUIT.
    Quit,
    /// PORT: address of the client.
    Port(SocketAddr),
    /// EPRT: address of the client (RFC 2428).
    Eprt(SocketAddr),
    /// PASV.
    Pasv,
    /// EPSV (RFC 2428).
    Epsv(PassiveRequest),
    /// TYPE: `Some(true)` for ASCII, `Some(false)` for image, `None` for a type that no system of today has.
    Type(Option<bool>),
    /// STRU: true for the structure of files.
    Stru(bool),
    /// MODE: true for streams.
    Mode(bool),
    /// RETR.
    Retr(&'a [u8]),
    /// STOR.
    Stor(&'a [u8]),
    /// STOU.
    Stou,
    /// APPE.
    Appe(&'a [u8]),
    /// ALLO.
    Allo,
    /// REST: number of bytes (RFC 3659, section 5).
    Rest(u64),
    /// RNFR.
    Rnfr(&'a [u8]),
    /// RNTO.
    Rnto(&'a [u8]),
    /// ABOR.
    Abor,
    /// DELE.
    Dele(&'a [u8]),
    /// RMD and XRMD.
    Rmd(&'a [u8]),
    /// MKD and XMKD.
    Mkd(&'a [u8]),
    /// PWD and XPWD.
    Pwd,
    /// LIST.
    List(ListArgument<'a>),
    /// NLST.
    Nlst(ListArgument<'a>),
    /// SITE, with its own command.
    Site(&'a [u8]),
    /// SYST.
    Syst,
    /// STAT, with a path or without.
    Stat(Option<ListArgument<'a>>),
    /// HELP.
    Help,
    /// NOOP.
    Noop,
    /// AUTH (RFC 2228, RFC 4217).
    Auth(SecurityMechanism),
    /// ADAT, MIC, CONF, ENC and CCC (RFC 2228), which are not used with TLS or would turn it off.
    Security,
    /// PBSZ (RFC 2228).
    Pbsz(u32),
    /// PROT: `Some(true)` for P, `Some(false)` for C, `None` for S and E, which TLS does not have (RFC 4217, section 9).
    Prot(Option<bool>),
    /// FEAT (RFC 2389).
    Feat,
    /// OPTS (RFC 2389): name of the command and its options.
    Opts(&'a [u8], &'a [u8]),
    /// LANG (RFC 2640): language tag; `None` for the default.
    Lang(Option<&'a [u8]>),
    /// MDTM (RFC 3659).
    Mdtm(&'a [u8]),
    /// MFMT: time of modification in seconds since 1970, and path.
    Mfmt(u64, &'a [u8]),
    /// SIZE (RFC 3659).
    Size(&'a [u8]),
    /// MLST (RFC 3659).
    Mlst(Option<&'a [u8]>),
    /// MLSD (RFC 3659).
    Mlsd(Option<&'a [u8]>),
    /// HOST (RFC 7151): name of a virtual host in lower case, or an address.
    Host(String),
    /// CLNT: the client's own name.
    Clnt,
}

/// Argument of EPSV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassiveRequest {
    /// Any address family.
    Any,
    /// This address family.
    Family(FtpFamily),
    /// `ALL`: no other command for data connections follows.
    All,
    /// A number that is no known family.
    Unknown,
}

/// Argument of AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityMechanism {
    /// `TLS`, also by its older name `TLS-C`.
    Tls,
    /// Another mechanism.
    Other,
}

/// Error of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpCommandError {
    /// No such command.
    Unknown,
    /// The argument is missing, superfluous or malformed.
    Argument,
    /// The argument is an address of an unknown family.
    Family,
}

impl From<FtpAddressError> for FtpCommandError {
    fn from(error: FtpAddressError) -> Self {
        match error {
            FtpAddressError::Malformed => Self::Argument,
            FtpAddressError::Family => Self::Family,
        }
    }
}

/// Splits a line into the command in upper case and its argument. The command ends at the first space, and the argument
/// is all that follows: names may begin or end with spaces (RFC 3659, section 2.2).
pub(super) fn split(line: &[u8]) -> Option<([u8; 4], Option<&[u8]>)> {
    let (name, argument) = match line.iter().position(|byte| *byte == b' ') {
        Some(space) => (&line[..space], Some(&line[space + 1..])),
        None => (line, None),
    };
    if !(3..=4).contains(&name.len()) || !name.iter().all(u8::is_ascii_alphabetic) {
        return None;
    }
    let mut upper = [b' '; 4];
    upper[..name.len()].copy_from_slice(name);
    upper.make_ascii_uppercase();
    Some((upper, argument))
}

impl<'a> FtpCommand<'a> {
    /// Parses a line without its end.
    pub fn parse(line: &'a [u8]) -> Result<Self, FtpCommandError> {
        let (name, argument) = split(line).ok_or(FtpCommandError::Unknown)?;
        let argument = Argument(argument.filter(|argument| !argument.is_empty()));
        Ok(match &name {
            b"USER" => Self::User(argument.required()?),
            b"PASS" => Self::Pass(argument.0.unwrap_or_default()),
            b"ACCT" => Self::Acct,
            b"CWD " | b"XCWD" => Self::Cwd(argument.required()?),
            b"CDUP" | b"XCUP" => argument.none(Self::Cdup)?,
            b"SMNT" => Self::Smnt,
            b"REIN" => argument.none(Self::Rein)?,
            b"QUIT" => argument.none(Self::Quit)?,
            b"PORT" => Self::Port(parse_port(argument.required()?)?),
            b"EPRT" => Self::Eprt(parse_eprt(argument.required()?)?),
            b"PASV" => argument.none(Self::Pasv)?,
            b"EPSV" => Self::Epsv(passive_request(argument.0)?),
            b"TYPE" => Self::Type(transfer_type(argument.required()?)?),
            b"STRU" => Self::Stru(letter(argument.required()?, b"FRP")? == b'F'),
            b"MODE" => Self::Mode(letter(argument.required()?, b"SBC")? == b'S'),
            b"RETR" => Self::Retr(argument.required()?),
            b"STOR" => Self::Stor(argument.required()?),
            b"STOU" => Self::Stou,
            b"APPE" => Self::Appe(argument.required()?),
            b"ALLO" => Self::Allo,
            b"REST" => Self::Rest(number(argument.required()?).ok_or(FtpCommandError::Argument)?),
            b"RNFR" => Self::Rnfr(argument.required()?),
            b"RNTO" => Self::Rnto(argument.required()?),
            b"ABOR" => argument.none(Self::Abor)?,
            b"DELE" => Self::Dele(argument.required()?),
            b"RMD " | b"XRMD" => Self::Rmd(argument.required()?),
            b"MKD " | b"XMKD" => Self::Mkd(argument.required()?),
            b"PWD " | b"XPWD" => argument.none(Self::Pwd)?,
            b"LIST" => Self::List(ListArgument::parse(argument.0)),
            b"NLST" => Self::Nlst(ListArgument::parse(argument.0)),
            b"SITE" => Self::Site(argument.required()?),
            b"SYST" => argument.none(Self::Syst)?,
            b"STAT" => Self::Stat(argument.0.map(|argument| ListArgument::parse(Some(argument)))),
            b"HELP" => Self::Help,
            b"NOOP" => Self::Noop,
            b"AUTH" => Self::Auth(mechanism(argument.required()?)),
            b"ADAT" | b"MIC " | b"CONF" | b"ENC " | b"CCC " => Self::Security,
            b"PBSZ" => Self::Pbsz(size(argument.required()?)?),
            b"PROT" => Self::Prot(match letter(argument.required()?, b"CSEP")? {
                b'P' => Some(true),
                b'C' => Some(false),
                _ => None,
            }),
            b"FEAT" => argument.none(Self::Feat)?,
            b"OPTS" => options(argument.required()?),
            b"LANG" => Self::Lang(argument.0),
            b"MDTM" => Self::Mdtm(argument.required()?),
            b"MFMT" => modification(argument.required()?)?,
            b"SIZE" => Self::Size(argument.required()?),
            b"MLST" => Self::Mlst(argument.0),
            b"MLSD" => Self::Mlsd(argument.0),
            b"HOST" => Self::Host(host(argument.required()?)?),
            b"CLNT" => Self::Clnt,
            _ => return Err(FtpCommandError::Unknown),
        })
    }

    /// Name of the command in a line, in upper case, for logs; `None` if it is none.
    pub fn name(line: &[u8]) -> Option<&[u8]> {
        split(line)?;
        line.split(|byte| *byte == b' ').next()
    }
}

/// Argument of a command, without the space before it; `None` if there is none.
struct Argument<'a>(Option<&'a [u8]>);

impl<'a> Argument<'a> {
    fn required(&self) -> Result<&'a [u8], FtpCommandError> {
        self.0.ok_or(FtpCommandError::Argument)
    }

    fn none<T>(&self, command: T) -> Result<T, FtpCommandError> {
        if self.0.is_some() { Err(FtpCommandError::Argument) } else { Ok(command) }
    }
}

/// Decimal number without sign.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    text.iter().try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// One of these letters, in any case.
fn letter(argument: &[u8], letters: &[u8]) -> Result<u8, FtpCommandError> {
    match argument {
        [letter] if letters.contains(&letter.to_ascii_uppercase()) => Ok(letter.to_ascii_uppercase()),
        _ => Err(FtpCommandError::Argument),
    }
}

fn passive_request(argument: Option<&[u8]>) -> Result<PassiveRequest, FtpCommandError> {
    Ok(match argument {
        None => PassiveRequest::Any,
        Some(b"1") => PassiveRequest::Family(FtpFamily::V4),
        Some(b"2") => PassiveRequest::Family(FtpFamily::V6),
        Some(all) if all.eq_ignore_ascii_case(b"ALL") => PassiveRequest::All,
        Some(other) if number(other).is_some() => PassiveRequest::Unknown,
        Some(_) => return Err(FtpCommandError::Argument),
    })
}

/// Type with its form or byte size (RFC 959, section 5.3.2).
fn transfer_type(argument: &[u8]) -> Result<Option<bool>, FtpCommandError> {
    let upper = argument.to_ascii_uppercase();
    Ok(match upper.as_slice() {
        b"A" | b"A N" => Some(true),
        b"I" | b"L 8" | b"L8" => Some(false),
        b"A T" | b"A C" | b"E" | b"E N" | b"E T" | b"E C" => None,
        [b'L', b' ', size @ ..] if number(size).is_some() => None,
        _ => return Err(FtpCommandError::Argument),
    })
}

fn mechanism(argument: &[u8]) -> SecurityMechanism {
    let is_tls = [&b"TLS"[..], b"TLS-C"].iter().any(|name| argument.eq_ignore_ascii_case(name));
    if is_tls { SecurityMechanism::Tls } else { SecurityMechanism::Other }
}

/// Size of a buffer, of 32 bits (RFC 2228, section 3).
fn size(argument: &[u8]) -> Result<u32, FtpCommandError> {
    number(argument).and_then(|size| u32::try_from(size).ok()).ok_or(FtpCommandError::Argument)
}

fn options(argument: &[u8]) -> FtpCommand<'_> {
    let (name, options) = match argument.iter().position(|byte| *byte == b' ') {
        Some(space) => (&argument[..space], &argument[space + 1..]),
        None => (argument, &argument[argument.len()..]),
    };
    FtpCommand::Opts(name, options)
}

fn modification(argument: &[u8]) -> Result<FtpCommand<'_>, FtpCommandError> {
    let space = argument.iter().position(|byte| *byte == b' ').ok_or(FtpCommandError::Argument)?;
    let seconds = super::listing::parse_time(&argument[..space]).ok_or(FtpCommandError::Argument)?;
    let path = &argument[space + 1..];
    if path.is_empty() { Err(FtpCommandError::Argument) } else { Ok(FtpCommand::Mfmt(seconds, path)) }
}

/// Host name or address in brackets (RFC 7151, section 3.1). Ports have no place here.
fn host(argument: &[u8]) -> Result<String, FtpCommandError> {
    let host = Host::parse(argument).map_err(|_| FtpCommandError::Argument)?;
    if host.name.is_empty() || host.port.is_some() {
        return Err(FtpCommandError::Argument);
    }
    Ok(String::from_utf8_lossy(host.name).to_ascii_lowercase())
}
