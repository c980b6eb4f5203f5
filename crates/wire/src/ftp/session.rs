//! State of a control connection: login, settings, and the meaning of the next command.

use core::net::SocketAddr;

use super::address::FtpFamily;
use super::command::{FtpCommand, FtpCommandError, PassiveRequest, SecurityMechanism, split};
use super::line::{FtpLineError, parse_line};
use super::listing::{FactSet, ListArgument};
use super::path::{is_representable, resolve};
use super::reply::{FtpReply, push_quoted};

/// Failed logins after which the connection closes.
const LOGINS_MAX: u32 = 3;

/// Maximum length of a path, in bytes, as in Linux.
const PATH_BYTES_MAX: usize = 4_096;

/// Rights that the server grants to a session, from its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtpAbilities {
    /// The client may change the tree.
    pub may_write: bool,
    /// The client may use active mode: PORT and EPRT.
    pub may_connect: bool,
    /// Use of TLS.
    pub tls: FtpTls,
    /// True if HOST selects among several sites.
    pub has_hosts: bool,
}

/// Use of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FtpTls {
    /// The server has no TLS.
    #[default]
    Off,
    /// The client may begin TLS with AUTH.
    Offered,
    /// Login needs TLS, and transfers need `PROT P`.
    Required,
    /// As `Required`, and the connection began with TLS (implicit TLS).
    Implicit,
}

/// Next step of a session.
#[derive(Debug, PartialEq, Eq)]
pub enum FtpStep {
    /// No complete command is in the input.
    NeedInput,
    /// The command must wait until the transfer in progress has ended. Nothing is consumed.
    AwaitTransfer,
    /// A command was read. The number is that of bytes which the caller must drop from the input.
    Act(usize, FtpAction),
}

/// Work of the caller for a command.
#[derive(Debug, PartialEq, Eq)]
pub enum FtpAction {
    /// Send this reply.
    Reply(FtpReply),
    /// Send this reply and close the connection.
    Close(FtpReply),
    /// Send this reply, drop all input, and begin TLS. Then call [`FtpSession::on_tls`].
    StartTls(FtpReply),
    /// Check user and password. Then call [`FtpSession::on_login`], and send its action.
    LogIn(Vec<u8>, Vec<u8>),
    /// Select the site of this host. Then call [`FtpSession::on_host`], and send its reply.
    SelectHost(String),
    /// Listen for a data connection. Reply 227 to PASV, and 229 to EPSV. If EPSV names another family than that of the
    /// control connection, reply with [`FtpReply::other_family`].
    Listen(PassiveMode),
    /// Use this address of the client for the next data connection; reply 200.
    UseAddress(SocketAddr),
    /// Transfer something over the data connection. At the end, call [`FtpSession::on_transfer_end`].
    Transfer(FtpTransfer),
    /// Look at a path, and reply.
    Look(PathQuestion, Vec<u8>),
    /// Change the tree, and reply.
    Change(FtpChange),
    /// End the transfer in progress, if there is one, and the data connection. Reply 426 for it, and 226 for ABOR.
    Abort,
    /// Reply with the state of the connection.
    ShowStatus,
}

/// Passive mode of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassiveMode {
    /// PASV, for IPv4 alone.
    Pasv,
    /// EPSV, with the family that the client names, if any.
    Epsv(Option<FtpFamily>),
}

/// Question about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathQuestion {
    /// CWD: call [`FtpSession::on_directory`] if it is a directory.
    Enter,
    /// SIZE.
    Size,
    /// MDTM.
    Modified,
    /// MLST.
    Facts,
    /// STAT with a path: a listing on the control connection.
    List(ListForm),
}

/// Form of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListForm {
    /// True if hidden files are asked for.
    pub shows_hidden: bool,
    /// True if a directory itself is asked for, not its content.
    pub is_itself: bool,
}

/// Transfer over a data connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpTransfer {
    /// Kind of the transfer.
    pub kind: FtpTransferKind,
    /// Resolved path. The last segment of a listing's path may be a pattern.
    pub path: Vec<u8>,
    /// Path as the client sent it.
    pub argument: Vec<u8>,
    /// Position in the file to begin at, in bytes.
    pub offset: u64,
    /// Type of the transfer.
    pub transfer_type: TransferType,
    /// True if the data connection uses TLS.
    pub is_protected: bool,
}

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpTransferKind {
    /// RETR: a file to the client.
    Retrieve,
    /// STOR: a file from the client.
    Store,
    /// STOU: a file from the client, under a new name in this directory.
    StoreUnique,
    /// APPE: a file from the client, after what is there.
    Append,
    /// LIST, in the form of `ls -l`.
    LongList(ListForm),
    /// NLST: names alone.
    Names(ListForm),
    /// MLSD.
    Facts,
}

/// Type of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferType {
    /// A: text, whose lines end with CR LF on the network.
    #[default]
    Ascii,
    /// I: bytes as they are.
    Image,
}

/// Change of the tree. All paths are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FtpChange {
    /// DELE.
    Delete(Vec<u8>),
    /// MKD.
    MakeDirectory(Vec<u8>),
    /// RMD.
    RemoveDirectory(Vec<u8>),
    /// RNFR and RNTO.
    Rename(Vec<u8>, Vec<u8>),
    /// MFMT: time in seconds since 1970.
    SetModified(Vec<u8>, u64),
}

/// Login state.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FtpLogin {
    None,
    /// The user was named, and PASS must follow.
    Named(Vec<u8>),
    LoggedIn,
}

/// Session of a client.
#[derive(Clone, Debug)]
pub struct FtpSession {
    login: FtpLogin,
    failed_logins: u32,
    directory: Vec<u8>,
    transfer_type: TransferType,
    offset: u64,
    rename_from: Option<Vec<u8>>,
    facts: FactSet,
    /// True after `EPSV ALL`.
    is_epsv_only: bool,
    is_secure: bool,
    /// True after PBSZ, which must come before PROT.
    has_buffer_size: bool,
    is_protected: bool,
    is_transferring: bool,
}

impl Default for FtpSession {
    fn default() -> Self {
        Self {
            login: FtpLogin::None,
            failed_logins: 0,
            directory: b"/".to_vec(),
            transfer_type: TransferType::default(),
            offset: 0,
            rename_from: None,
            facts: FactSet::default(),
            is_epsv_only: false,
            is_secure: false,
            has_buffer_size: false,
            is_protected: false,
            is_transferring: false,
        }
    }
}

const NOT_LOGGED_IN: FtpReply = FtpReply::new(530, "Log in with USER and PASS first.");
const READ_ONLY: FtpReply = FtpReply::new(550, "Permission denied: this server is read-only.");
const BAD_PATH: FtpReply = FtpReply::new(553, "The path is too long or has a line end.");
const NOT_IMPLEMENTED: FtpReply = FtpReply::new(502, "Command not implemented.");

impl FtpSession {
    /// Handles the next command in `input`.
    pub fn handle_input(&mut self, input: &[u8], abilities: &FtpAbilities) -> FtpStep {
        let line = match parse_line(input) {
            Ok(Some(line)) => line,
            Ok(None) => return FtpStep::NeedInput,
            Err(FtpLineError::TooLong) => {
                let reply = FtpReply::new(500, "Command too long, closing the connection.");
                return FtpStep::Act(input.len(), FtpAction::Close(reply));
            }
            Err(FtpLineError::Malformed(consumed_bytes)) => {
                let reply =
                    FtpReply::new(500, "Malformed command: a line ends with CR LF, and has no CR, LF or NUL inside.");
                return FtpStep::Act(consumed_bytes, FtpAction::Reply(reply));
            }
        };
        if self.is_transferring && !may_interrupt(&line.text) {
            return FtpStep::AwaitTransfer;
        }
        let action = match FtpCommand::parse(&line.text) {
            Ok(command) => self.on_command(command, abilities),
            Err(error) => FtpAction::Reply(error_reply(error)),
        };
        // Input after AUTH was not encrypted. A third party may have inserted it, so that it would count as the client's.
        let is_starting_tls = matches!(action, FtpAction::StartTls(_));
        FtpStep::Act(if is_starting_tls { input.len() } else { line.consumed_bytes }, action)
    }

    fn on_command(&mut self, command: FtpCommand<'_>, abilities: &FtpAbilities) -> FtpAction {
        let rename_from = self.rename_from.take();
        let reply = |code, text| FtpAction::Reply(FtpReply::new(code, text));
        match command {
            FtpCommand::User(name) => self.on_user(name, abilities),
            FtpCommand::Pass(password) => match std::mem::replace(&mut self.login, FtpLogin::None) {
                FtpLogin::Named(user) => FtpAction::LogIn(user, password.to_vec()),
                login => {
                    self.login = login;
                    reply(503, "Send USER first.")
                }
            },
            FtpCommand::Acct => reply(202, "No account is needed."),
            FtpCommand::Rein => {
                self.reinitialize();
                reply(220, "Ready for a new user.")
            }
            FtpCommand::Quit => FtpAction::Close(FtpReply::new(221, "Goodbye.")),
            FtpCommand::Smnt | FtpCommand::Security => FtpAction::Reply(NOT_IMPLEMENTED),
            FtpCommand::Syst => reply(215, "UNIX Type: L8"),
            FtpCommand::Noop => reply(200, "OK."),
            FtpCommand::Clnt => reply(200, "Noted."),
            FtpCommand::Help => FtpAction::Reply(help(abilities)),
            FtpCommand::Feat => FtpAction::Reply(self.features(abilities)),
            FtpCommand::Opts(name, options) => self.on_options(name, options),
            FtpCommand::Lang(tag) => match tag {
                None | Some(b"en" | b"EN" | b"i-default") => reply(200, "Replies are in English."),
                Some(_) => reply(504, "Replies are in English only."),
            },
            FtpCommand::Host(name) => match self.login {
                FtpLogin::None => FtpAction::SelectHost(name),
                _ => reply(503, "HOST must come before USER."),
            },
            FtpCommand::Auth(mechanism) => self.on_auth(mechanism, abilities),
            FtpCommand::Pbsz(_) if self.is_secure => {
                self.has_buffer_size = true;
                reply(200, "PBSZ=0")
            }
            FtpCommand::Prot(level) if self.has_buffer_size => self.on_protection(level, abilities),
            FtpCommand::Pbsz(_) => reply(503, "Send AUTH TLS first."),
            FtpCommand::Prot(_) => reply(503, "Send PBSZ first."),
            FtpCommand::Abor => FtpAction::Abort,
            FtpCommand::Stat(None) => FtpAction::ShowStatus,
            command if self.login == FtpLogin::LoggedIn => self.on_user_command(command, rename_from, abilities),
            _ => FtpAction::Reply(NOT_LOGGED_IN),
        }
    }

    /// Handles a command of a user who has logged in.
    fn on_user_command(
        &mut self,
        command: FtpCommand<'_>,
        rename_from: Option<Vec<u8>>,
        abilities: &FtpAbilities,
    ) -> FtpAction {
        let reply = |code, text| FtpAction::Reply(FtpReply::new(code, text));
        match command {
            FtpCommand::Cwd(path) => self.look(PathQuestion::Enter, path),
            FtpCommand::Cdup => self.look(PathQuestion::Enter, b".."),
            FtpCommand::Pwd => {
                let mut text = Vec::new();
                push_quoted(&mut text, &self.directory);
                text.extend_from_slice(b" is the current directory.");
                FtpAction::Reply(FtpReply::with_text(257, text))
            }
            FtpCommand::Port(address) | FtpCommand::Eprt(address) => self.on_active(address, abilities),
            FtpCommand::Pasv if self.is_epsv_only => reply(503, "Not allowed after EPSV ALL."),
            FtpCommand::Pasv => FtpAction::Listen(PassiveMode::Pasv),
            FtpCommand::Epsv(PassiveRequest::All) => {
                self.is_epsv_only = true;
                reply(200, "EPSV only from now on.")
            }
            FtpCommand::Epsv(PassiveRequest::Unknown) => FtpAction::Reply(error_reply(FtpCommandError::Family)),
            FtpCommand::Epsv(PassiveRequest::Any) => FtpAction::Listen(PassiveMode::Epsv(None)),
            FtpCommand::Epsv(PassiveRequest::Family(family)) => FtpAction::Listen(PassiveMode::Epsv(Some(family))),
            FtpCommand::Type(Some(is_ascii)) => {
                self.transfer_type = if is_ascii { TransferType::Ascii } else { TransferType::Image };
                reply(200, if is_ascii { "Type is A." } else { "Type is I." })
            }
            FtpCommand::Type(None) => reply(504, "Only the types A and I are implemented."),
            FtpCommand::Stru(true) => reply(200, "Structure is F."),
            FtpCommand::Stru(false) => reply(504, "Only the structure F is implemented."),
            FtpCommand::Mode(true) => reply(200, "Mode is S."),
            FtpCommand::Mode(false) => reply(504, "Only the mode S is implemented."),
            FtpCommand::Allo => reply(202, "No storage needs to be reserved."),
            FtpCommand::Rest(offset) if offset > 0 && self.transfer_type == TransferType::Ascii => {
                reply(501, "REST needs TYPE I.")
            }
            FtpCommand::Rest(offset) => {
                self.offset = offset;
                let text = format!("Restarting at {offset}. Send RETR or STOR.");
                FtpAction::Reply(FtpReply::with_text(350, text))
            }
            FtpCommand::Retr(path) => self.transfer(FtpTransferKind::Retrieve, path, abilities),
            FtpCommand::List(argument) => {
                self.transfer(FtpTransferKind::LongList(ListForm::of(&argument)), argument.path, abilities)
            }
            FtpCommand::Nlst(argument) if argument.is_long => {
                self.transfer(FtpTransferKind::LongList(ListForm::of(&argument)), argument.path, abilities)
            }
            FtpCommand::Nlst(argument) => {
                self.transfer(FtpTransferKind::Names(ListForm::of(&argument)), argument.path, abilities)
            }
            FtpCommand::Mlsd(path) => self.transfer(FtpTransferKind::Facts, path.unwrap_or_default(), abilities),
            FtpCommand::Stat(Some(argument)) => self.look(PathQuestion::List(ListForm::of(&argument)), argument.path),
            FtpCommand::Size(_) if self.transfer_type == TransferType::Ascii => {
                reply(550, "SIZE needs TYPE I: the size of a text depends on its lines.")
            }
            FtpCommand::Size(path) => self.look(PathQuestion::Size, path),
            FtpCommand::Mdtm(path) => self.look(PathQuestion::Modified, path),
            FtpCommand::Mlst(path) => self.look(PathQuestion::Facts, path.unwrap_or_default()),
            FtpCommand::Site(command) if command.eq_ignore_ascii_case(b"HELP") => {
                reply(214, "No SITE command is implemented.")
            }
            FtpCommand::Site(_) => reply(504, "No SITE command is implemented."),
            command if !abilities.may_write => {
                // The offset belonged to this command.
                if matches!(command, FtpCommand::Stor(_) | FtpCommand::Appe(_) | FtpCommand::Stou) {
                    self.offset = 0;
                }
                FtpAction::Reply(READ_ONLY)
            }
            FtpCommand::Stor(path) => self.transfer(FtpTransferKind::Store, path, abilities),
            FtpCommand::Stou => self.transfer(FtpTransferKind::StoreUnique, b"", abilities),
            FtpCommand::Appe(path) => self.transfer(FtpTransferKind::Append, path, abilities),
            FtpCommand::Dele(path) => self.change(path, FtpChange::Delete),
            FtpCommand::Mkd(path) => self.change(path, FtpChange::MakeDirectory),
            FtpCommand::Rmd(path) => self.change(path, FtpChange::RemoveDirectory),
            FtpCommand::Mfmt(modified, path) => self.change(path, |path| FtpChange::SetModified(path, modified)),
            FtpCommand::Rnfr(path) => {
                let Some(path) = self.path(path) else { return FtpAction::Reply(BAD_PATH) };
                self.rename_from = Some(path);
                reply(350, "Send RNTO.")
            }
            FtpCommand::Rnto(path) => match rename_from {
                Some(from) => self.change(path, |to| FtpChange::Rename(from, to)),
                None => reply(503, "Send RNFR first."),
            },
            // `on_command` has handled the others.
            _ => FtpAction::Reply(NOT_IMPLEMENTED),
        }
    }

    fn on_user(&mut self, name: &[u8], abilities: &FtpAbilities) -> FtpAction {
        if matches!(abilities.tls, FtpTls::Required | FtpTls::Implicit) && !self.is_secure {
            return FtpAction::Reply(FtpReply::new(530, "Login needs TLS: send AUTH TLS first."));
        }
        self.log_out();
        self.login = FtpLogin::Named(name.to_vec());
        FtpAction::Reply(FtpReply::new(331, "Send the password. For an anonymous login, any will do."))
    }

    fn on_auth(&mut self, mechanism: SecurityMechanism, abilities: &FtpAbilities) -> FtpAction {
        FtpAction::Reply(match (abilities.tls, mechanism) {
            (FtpTls::Off, _) => FtpReply::new(502, "TLS is not available here."),
            (_, SecurityMechanism::Other) => FtpReply::new(504, "Only AUTH TLS is implemented."),
            _ if self.is_secure => FtpReply::new(503, "The connection uses TLS already."),
            _ => return FtpAction::StartTls(FtpReply::new(234, "Begin TLS now.")),
        })
    }

    fn on_protection(&mut self, level: Option<bool>, abilities: &FtpAbilities) -> FtpAction {
        FtpAction::Reply(match level {
            Some(true) => {
                self.is_protected = true;
                FtpReply::new(200, "Data connections use TLS.")
            }
            Some(false) if abilities.tls == FtpTls::Offered => {
                self.is_protected = false;
                FtpReply::new(200, "Data connections are not encrypted.")
            }
            Some(false) => FtpReply::new(534, "Data connections need TLS here."),
            None => FtpReply::new(536, "TLS has no such level."),
        })
    }

    fn on_options(&mut self, name: &[u8], options: &[u8]) -> FtpAction {
        let upper = name.to_ascii_uppercase();
        FtpAction::Reply(match (upper.as_slice(), options.to_ascii_uppercase().as_slice()) {
            (b"UTF8", b"ON" | b"") => FtpReply::new(200, "Paths are UTF-8."),
            (b"UTF8", _) => FtpReply::new(504, "Paths are UTF-8 always."),
            (b"MLST", _) => {
                self.facts = FactSet::parse(options);
                FtpReply::with_text(200, format!("MLST OPTS {}", self.facts.selected()).trim_end())
            }
            _ => FtpReply::new(501, "The command has no options."),
        })
    }

    fn on_active(&mut self, address: SocketAddr, abilities: &FtpAbilities) -> FtpAction {
        if self.is_epsv_only {
            return FtpAction::Reply(FtpReply::new(503, "Not allowed after EPSV ALL."));
        }
        if !abilities.may_connect {
            return FtpAction::Reply(FtpReply::new(500, "Active mode is off: use EPSV or PASV."));
        }
        FtpAction::UseAddress(address)
    }

    fn transfer(&mut self, kind: FtpTransferKind, path: &[u8], abilities: &FtpAbilities) -> FtpAction {
        let offset = std::mem::take(&mut self.offset);
        if matches!(abilities.tls, FtpTls::Required | FtpTls::Implicit) && !self.is_protected {
            return FtpAction::Reply(FtpReply::new(521, "Transfers need TLS: send PBSZ 0 and PROT P first."));
        }
        let argument = path.to_vec();
        let Some(path) = self.path(path) else { return FtpAction::Reply(BAD_PATH) };
        let (transfer_type, is_protected) = (self.transfer_type, self.is_protected);
        self.is_transferring = true;
        FtpAction::Transfer(FtpTransfer { kind, path, argument, offset, transfer_type, is_protected })
    }

    fn look(&self, question: PathQuestion, path: &[u8]) -> FtpAction {
        self.path(path).map_or(FtpAction::Reply(BAD_PATH), |path| FtpAction::Look(question, path))
    }

    fn change(&self, path: &[u8], change: impl FnOnce(Vec<u8>) -> FtpChange) -> FtpAction {
        self.path(path).map_or(FtpAction::Reply(BAD_PATH), |path| FtpAction::Change(change(path)))
    }

    /// Resolved path; `None` if it cannot be used.
    fn path(&self, path: &[u8]) -> Option<Vec<u8>> {
        let resolved = resolve(&self.directory, path);
        (resolved.len() <= PATH_BYTES_MAX && is_representable(&resolved)).then_some(resolved)
    }

    /// Forgets the user and all that depends on the user.
    fn log_out(&mut self) {
        let Self { failed_logins, facts, is_secure, has_buffer_size, is_protected, .. } = *self;
        *self = Self { failed_logins, facts, is_secure, has_buffer_size, is_protected, ..Self::default() };
    }

    fn reinitialize(&mut self) {
        let Self { failed_logins, is_secure, .. } = *self;
        *self = Self { failed_logins, is_secure, ..Self::default() };
    }

    /// Must be called after the TLS handshake of the control connection. The client must log in again (RFC 4217,
    /// section 4).
    pub fn on_tls(&mut self) {
        self.reinitialize();
        self.is_secure = true;
    }

    /// Must be called with the result of a login; returns the reply.
    pub fn on_login(&mut self, is_correct: bool) -> FtpAction {
        if is_correct {
            self.login = FtpLogin::LoggedIn;
            self.failed_logins = 0;
            return FtpAction::Reply(FtpReply::new(230, "Logged in."));
        }
        self.failed_logins += 1;
        if self.failed_logins >= LOGINS_MAX {
            return FtpAction::Close(FtpReply::new(421, "Too many failed logins, closing the connection."));
        }
        FtpAction::Reply(FtpReply::new(530, "Login incorrect."))
    }

    /// Must be called with the result of HOST; returns the reply.
    pub fn on_host(&mut self, is_known: bool) -> FtpReply {
        match is_known {
            true => FtpReply::new(220, "Host accepted."),
            false => FtpReply::new(504, "Unknown host."),
        }
    }

    /// Must be called when a directory was found that becomes the working directory; returns the reply.
    pub fn on_directory(&mut self, path: Vec<u8>) -> FtpReply {
        self.directory = path;
        FtpReply::new(250, "Directory changed.")
    }

    /// Must be called at the end of a transfer, successful or not.
    pub fn on_transfer_end(&mut self) {
        self.is_transferring = false;
    }

    /// True while a transfer is in progress.
    pub fn is_transferring(&self) -> bool {
        self.is_transferring
    }

    /// Bytes of memory that the session holds for texts of the client.
    pub fn held_bytes(&self) -> usize {
        let name_bytes = if let FtpLogin::Named(name) = &self.login { name.capacity() } else { 0 };
        name_bytes + self.directory.capacity() + self.rename_from.as_ref().map_or(0, Vec::capacity)
    }

    /// True after a login.
    pub fn is_logged_in(&self) -> bool {
        self.login == FtpLogin::LoggedIn
    }

    /// True if the control connection uses TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Type of transfers.
    pub fn transfer_type(&self) -> TransferType {
        self.transfer_type
    }

    /// Facts that the client has selected.
    pub fn facts(&self) -> FactSet {
        self.facts
    }

    fn features(&self, abilities: &FtpAbilities) -> FtpReply {
        let mut lines = vec!["Features:".to_owned()];
        let has_tls = abilities.tls != FtpTls::Off;
        let features = [
            ("AUTH TLS", has_tls),
            ("CLNT", true),
            ("EPRT", abilities.may_connect),
            ("EPSV", true),
            ("HOST", abilities.has_hosts),
            ("LANG EN*", true),
            ("MDTM", true),
            ("MFMT", abilities.may_write),
            (self.facts.feature().as_str(), true),
            ("PBSZ", has_tls),
            ("PROT", has_tls),
            ("REST STREAM", true),
            ("SIZE", true),
            ("TVFS", true),
            ("UTF8", true),
        ]
        .map(|(name, is_on)| is_on.then(|| name.to_owned()));
        lines.extend(features.into_iter().flatten());
        lines.push("End".to_owned());
        FtpReply::with_text(211, lines.join("\n"))
    }
}

impl ListForm {
    fn of(argument: &ListArgument<'_>) -> Self {
        Self { shows_hidden: argument.shows_hidden, is_itself: argument.is_itself }
    }
}

/// True for commands that may come during a transfer (RFC 959, section 4.1.3). All others wait for its end.
fn may_interrupt(line: &[u8]) -> bool {
    match split(line) {
        Some((name, argument)) => {
            matches!(&name, b"ABOR" | b"NOOP") || (&name == b"STAT" && argument.is_none_or(<[u8]>::is_empty))
        }
        None => false,
    }
}

fn error_reply(error: FtpCommandError) -> FtpReply {
    match error {
        FtpCommandError::Unknown => FtpReply::new(500, "Unknown command."),
        FtpCommandError::Argument => FtpReply::new(501, "Missing or malformed argument."),
        FtpCommandError::Family => FtpReply::new(522, "Unknown address family, use (1,2)"),
    }
}

/// Commands that all servers have.
const COMMANDS: [&str; 33] = [
    "ABOR", "ACCT", "ALLO", "AUTH", "CDUP", "CLNT", "CWD", "EPSV", "FEAT", "HELP", "HOST", "LANG", "LIST", "MDTM",
    "MLSD", "MLST", "MODE", "NLST", "NOOP", "OPTS", "PASS", "PASV", "PWD", "QUIT", "REIN", "REST", "RETR", "SIZE",
    "STAT", "STRU", "SYST", "TYPE", "USER",
];

/// Commands of active mode.
const ACTIVE_COMMANDS: [&str; 2] = ["EPRT", "PORT"];

/// Commands that change the tree.
const WRITE_COMMANDS: [&str; 9] = ["APPE", "DELE", "MFMT", "MKD", "RMD", "RNFR", "RNTO", "STOR", "STOU"];

fn help(abilities: &FtpAbilities) -> FtpReply {
    let mut commands = COMMANDS.to_vec();
    if abilities.may_connect {
        commands.extend(ACTIVE_COMMANDS);
    }
    if abilities.may_write {
        commands.extend(WRITE_COMMANDS);
    }
    let lines: Vec<String> = commands.chunks(12).map(|line| line.join(" ")).collect();
    FtpReply::with_text(214, format!("Commands:\n{}\nEnd", lines.join("\n")))
}
