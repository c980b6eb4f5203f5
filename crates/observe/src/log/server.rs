//! Server log: lines on stderr that say what happened and what the operator can do.
//!
//! The log is a handle that is passed on, not a global: tests read the lines, and two servers in one process do not
//! mix.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Display, Write as _};
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::panic::Location;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::format::DateTexts;
use super::record::LogClient;
use crate::config::LogLevel;

/// Errors and warnings that one place in the program may log in an interval; more are counted. Not an option, because
/// `log-level` reduces the lines.
const LINES_PER_INTERVAL_MAX: u32 = 10;
/// Lines of these about one client, so that a client with many errors does not hide others.
const LINES_PER_CLIENT_MAX: usize = 3;
/// Interval of [`LINES_PER_INTERVAL_MAX`].
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Handle to the server log; clones are cheap and write to the same log.
///
/// A line costs one system call and may wait for the reader of stderr. So the log is for rare events; a request that is
/// served as usual logs nothing here.
#[derive(Clone)]
pub struct ServerLog {
    inner: Arc<ServerLogInner>,
}

struct ServerLogInner {
    /// A [`LogLevel`], as a number.
    level: AtomicU8,
    style: LineStyle,
    /// Lines suppressed because many were similar.
    suppressed: AtomicU64,
    state: Mutex<ServerLogState>,
}

struct ServerLogState {
    output: Box<dyn Write + Send>,
    places: HashMap<Caller, CallSiteCount>,
    dates: DateTexts,
}

/// Lines of one place in the program that one worker suppresses itself. While the log would suppress all of them, or all
/// about the same client, workers need neither its lock nor the clock.
#[derive(Debug, Default)]
pub struct Suppression {
    until_ms: Cell<u64>,
    /// Client whose lines are suppressed; `None` is all.
    client: Cell<Option<IpAddr>>,
    /// Suppressed lines of which the log does not know yet.
    lines: Cell<u64>,
}

/// Time for which a worker suppresses lines without asking the log.
const SUPPRESSION_MS: u64 = 500;

/// A place in the program.
type Caller = &'static Location<'static>;

/// Lines that one place in the program has logged in its interval.
struct CallSiteCount {
    since: Instant,
    lines: u32,
    suppressed: u64,
    /// Clients of these lines; at most as many as lines.
    clients: Vec<IpAddr>,
}

/// Style of the start of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    /// Time and severity.
    Plain,
    /// Time and coloured severity.
    Coloured,
    /// Priority for systemd's journal (sd-daemon(3)), which adds its own time.
    Journal,
}

impl ServerLog {
    /// Log on stderr, in the style that suits the kind of stderr.
    pub fn stderr(level: LogLevel) -> Self {
        Self::new(level, LineStyle::of_stderr(), Box::new(io::stderr()))
    }

    /// Log to any output. `output` gets each line in one call.
    pub fn new(level: LogLevel, style: LineStyle, output: Box<dyn Write + Send>) -> Self {
        let state = ServerLogState { output, places: HashMap::new(), dates: DateTexts::default() };
        let level = AtomicU8::new(level as u8);
        Self {
            inner: Arc::new(ServerLogInner { level, style, suppressed: AtomicU64::new(0), state: Mutex::new(state) }),
        }
    }

    /// Sets the lowest severity that is shown.
    pub fn set_level(&self, level: LogLevel) {
        self.inner.level.store(level as u8, Ordering::Relaxed);
    }

    /// Lines suppressed so far because many were similar.
    pub fn suppressed(&self) -> u64 {
        self.inner.suppressed.load(Ordering::Relaxed)
    }

    /// Logs a failure. `help` says what the operator can do, or is empty.
    #[track_caller]
    pub fn error(&self, message: impl Display, help: &str) {
        self.log(LogLevel::Error, &message, help, Some((Location::caller(), None)));
    }

    /// Logs a failure with details, such as diagnostics, on lines of their own.
    pub fn error_with(&self, message: impl Display, help: &str, details: &str) {
        self.log_with(LogLevel::Error, &message, (help, details), None);
    }

    /// Logs a warning. `help` says what the operator can do, or is empty.
    #[track_caller]
    pub fn warn(&self, message: impl Display, help: &str) {
        self.log(LogLevel::Warn, &message, help, Some((Location::caller(), None)));
    }

    /// Logs a warning about a client; suppresses many of one client. `help` says what the operator can do, or is empty.
    #[track_caller]
    pub fn warn_of(&self, client: LogClient, message: impl Display, help: &str) {
        self.log(LogLevel::Warn, &message, help, Some((Location::caller(), network_of(client))));
    }

    /// Logs a line of an operator's script. Never suppressed, because only the operator can judge its value.
    pub fn relay(&self, message: impl Display) {
        self.log(LogLevel::Warn, &message, "", None);
    }

    /// Logs start, stop, reload.
    pub fn info(&self, message: impl Display) {
        self.log(LogLevel::Info, &message, "", None);
    }

    /// Logs the fate of a request that its client or the operator may ask about. Suppresses many similar lines.
    #[track_caller]
    pub fn notice_of(&self, client: LogClient, message: impl Display) {
        self.log(LogLevel::Info, &message, "", Some((Location::caller(), network_of(client))));
    }

    /// Logs a notice as [`Self::notice_of`] does, unless [`Suppression::takes`] has taken it. `now_ms` is the time of the
    /// monotonic clock.
    #[track_caller]
    pub fn notice_for(&self, suppression: &Suppression, client: LogClient, now_ms: u64, message: impl Display) {
        let client = network_of(client);
        let place = (Location::caller(), client, suppression.lines.take());
        if let Repeat::Suppressed { of_all } = self.log_with(LogLevel::Info, &message, ("", ""), Some(place)) {
            suppression.client.set(client.filter(|_| !of_all));
            suppression.until_ms.set(now_ms + SUPPRESSION_MS);
        }
    }

    /// Logs details for debugging.
    pub fn debug(&self, message: impl Display) {
        self.log(LogLevel::Debug, &message, "", None);
    }

    fn log(&self, level: LogLevel, message: &dyn Display, help: &str, place: Option<(Caller, Option<IpAddr>)>) {
        let place = place.map(|(caller, client)| (caller, client, 0));
        self.log_with(level, message, (help, ""), place);
    }

    /// Logs a line, unless there are many of its place; `place` also has the number of lines that were suppressed before it
    /// and are not counted yet.
    fn log_with(
        &self,
        level: LogLevel,
        message: &dyn Display,
        (help, details): (&str, &str),
        place: Option<(Caller, Option<IpAddr>, u64)>,
    ) -> Repeat {
        const SHOWN: Repeat = Repeat::Shown { suppressed: 0 };
        if level as u8 > self.inner.level.load(Ordering::Relaxed) {
            return SHOWN;
        }
        // A panic under the lock leaves nothing half-done that the next line needs.
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = place.map_or(0, |(.., earlier)| earlier);
        self.inner.suppressed.fetch_add(earlier, Ordering::Relaxed);
        let repeat = place.map_or(SHOWN, |place| state.count_line(place, Instant::now()));
        let Repeat::Shown { suppressed } = repeat else {
            self.inner.suppressed.fetch_add(1, Ordering::Relaxed);
            return repeat;
        };
        let mut line = String::new();
        push_start(&mut line, level, self.inner.style, &mut state.dates);
        // Fails only if the message's own Display fails; then its text so far is shown.
        let _ = write!(Escaping(&mut line), "{message}");
        if !help.is_empty() {
            let _ = write!(Escaping(&mut line), "; {help}");
        }
        if suppressed > 0 {
            let _ = write!(line, " ({suppressed} similar lines suppressed)");
        }
        line.push('\n');
        for detail in details.lines().filter(|detail| !detail.trim().is_empty()) {
            push_indent(&mut line, level, self.inner.style);
            let _ = write!(Escaping(&mut line), "{}", detail.trim_end());
            line.push('\n');
        }
        // There is nowhere to report this error.
        let _ = state.output.write_all(line.as_bytes());
        repeat
    }
}

impl fmt::Debug for ServerLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLog").field("level", &self.inner.level).field("style", &self.inner.style).finish()
    }
}

/// Bytes for a message: UTF-8 as it is, other bytes as `\xHH`. (All messages escape control characters.)
pub fn escaped(bytes: &[u8]) -> impl Display + '_ {
    fmt::from_fn(move |f| {
        for chunk in bytes.utf8_chunks() {
            f.write_str(chunk.valid())?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02X}"))?;
        }
        Ok(())
    })
}

impl LineStyle {
    /// Style that suits stderr.
    fn of_stderr() -> Self {
        if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()) {
            return Self::Journal;
        }
        // https://no-color.org: any value except the empty one.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if io::stderr().is_terminal() && !no_color && !is_dumb { Self::Coloured } else { Self::Plain }
    }
}

/// True if stderr is the stream to systemd's journal (systemd.exec(5)). The variable names device and inode, because
/// processes inherit it even if stderr is redirected.
fn is_journal(journal_stream: Option<&str>) -> bool {
    let Some((device, inode)) = journal_stream.and_then(|stream| stream.split_once(':')) else { return false };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

/// Part of a client's address that its customer cannot choose: the first 64 bits of IPv6 (RFC 6177). `None` for a unix
/// socket, which serves many clients.
fn network_of(client: LogClient) -> Option<IpAddr> {
    let LogClient::Ip(address) = client else { return None };
    Some(match address.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    })
}

impl Suppression {
    /// Takes a line about this client, if the log would suppress it. The log counts it later.
    #[inline]
    pub fn takes(&self, client: LogClient, now_ms: u64) -> bool {
        let is_suppressed =
            now_ms < self.until_ms.get() && self.client.get().is_none_or(|known| Some(known) == network_of(client));
        self.lines.set(self.lines.get() + u64::from(is_suppressed));
        is_suppressed
    }
}

impl CallSiteCount {
    fn new(since: Instant) -> Self {
        Self { since, lines: 0, suppressed: 0, clients: Vec::new() }
    }
}

/// Decision to show or suppress a line.
enum Repeat {
    Shown {
        suppressed: u64,
    },
    /// All lines of the place are suppressed, or those about the client.
    Suppressed {
        of_all: bool,
    },
}

impl ServerLogState {
    fn count_line(&mut self, (place, client, earlier): (Caller, Option<IpAddr>, u64), now: Instant) -> Repeat {
        let place = self.places.entry(place).or_insert_with(|| CallSiteCount::new(now));
        place.suppressed += earlier;
        let mut suppressed = 0;
        if now.duration_since(place.since) >= REPEAT_INTERVAL {
            suppressed = place.suppressed;
            *place = CallSiteCount::new(now);
        }
        let of_client = client.map_or(0, |client| place.clients.iter().filter(|known| **known == client).count());
        if place.lines < LINES_PER_INTERVAL_MAX && of_client < LINES_PER_CLIENT_MAX {
            place.lines += 1;
            place.clients.extend(client);
            Repeat::Shown { suppressed }
        } else {
            place.suppressed += 1;
            Repeat::Suppressed { of_all: place.lines >= LINES_PER_INTERVAL_MAX }
        }
    }
}

/// Name, colour and journal priority of a level.
fn shown(level: LogLevel) -> (&'static str, &'static str, u8) {
    match level {
        LogLevel::Error => ("error", "\x1b[1;31m", 3),
        LogLevel::Warn => ("warning", "\x1b[1;33m", 4),
        LogLevel::Info => ("info", "\x1b[32m", 6),
        LogLevel::Debug => ("debug", "\x1b[2m", 7),
    }
}

/// Starts a continuation line.
fn push_indent(line: &mut String, level: LogLevel, style: LineStyle) {
    if style == LineStyle::Journal {
        line.push_str(&format!("<{}>", shown(level).2));
    }
    line.push_str("    ");
}

fn push_start(line: &mut String, level: LogLevel, style: LineStyle, dates: &mut DateTexts) {
    let (name, colour, priority) = shown(level);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = String::from_utf8_lossy(dates.at(now.as_secs()).rfc3339());
    let _ = match style {
        LineStyle::Plain => write!(line, "{time}Z {name}: "),
        LineStyle::Coloured => write!(line, "{time}Z {colour}{name}\x1b[0m: "),
        LineStyle::Journal => write!(line, "<{priority}>"),
    };
}

/// Writer that escapes characters which could forge a line or command a terminal: control characters (C1 included) and
/// bidirectional overrides.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '\0'..='\x1f' | '\x7f' => write!(self.0, "\\x{:02X}", character as u32)?,
                '\u{80}'..='\u{9f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(self.0, "\\u{{{:X}}}", character as u32)?;
                }
                _ => self.0.push(character),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Messages;
    use super::*;

    fn logged(level: LogLevel, style: LineStyle, log: impl FnOnce(&ServerLog)) -> String {
        let messages = Messages::default();
        log(&ServerLog::new(level, style, Box::new(messages.clone())));
        messages.text()
    }

    #[test]
    fn styles() {
        let log = |log: &ServerLog| {
            log.error("cannot listen", "choose another port");
            log.warn("slow", "");
            log.info("started");
            log.debug("detail");
        };
        assert_eq!(
            logged(LogLevel::Debug, LineStyle::Journal, log),
            "<3>cannot listen; choose another port\n<4>slow\n<6>started\n<7>detail\n"
        );
        let plain = logged(LogLevel::Info, LineStyle::Plain, log);
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(lines.len(), 3, "debug is not shown");
        for (line, expect) in
            lines.iter().zip(["Z error: cannot listen; choose another port", "Z warning: slow", "Z info: started"])
        {
            let (time, rest) = line.split_at("2026-11-21T07:41:51".len());
            assert_eq!(rest, expect);
            assert!(time.starts_with("20") && time.as_bytes()[10] == b'T');
        }
        let coloured = logged(LogLevel::Error, LineStyle::Coloured, log);
        assert!(coloured.ends_with("Z \x1b[1;31merror\x1b[0m: cannot listen; choose another port\n"));
    }

    #[test]
    fn details_stand_below() {
        let log = |log: &ServerLog| log.error_with("broken", "mend it", "\n  1 | a\x1b \n\n    ^\n");
        let expect = "<3>broken; mend it\n<3>      1 | a\\x1B\n<3>        ^\n";
        assert_eq!(logged(LogLevel::Error, LineStyle::Journal, log), expect);
        assert!(
            logged(LogLevel::Error, LineStyle::Plain, log)
                .ends_with(": broken; mend it\n      1 | a\\x1B\n        ^\n")
        );
    }

    #[test]
    fn hostile_text() {
        let check = |message: &dyn Display, expect: &str| {
            assert_eq!(
                logged(LogLevel::Error, LineStyle::Journal, |log| log.error(message, "")),
                format!("<3>{expect}\n")
            );
        };
        check(&"a\n<0>b\r\x1b[2J\x7f\0", r"a\x0A<0>b\x0D\x1B[2J\x7F\x00");
        check(&"c1 \u{9b}2J bidi \u{202e}x\u{2066}y", r"c1 \u{9B}2J bidi \u{202E}x\u{2066}y");
        check(&"naïve → ok", "naïve → ok");
        check(&escaped(b"/\xff\n\xc3\xa9\x1b"), r"/\xFF\x0Aé\x1B");
    }

    #[test]
    fn repeated_messages_are_counted() {
        let text = logged(LogLevel::Error, LineStyle::Journal, |log| {
            for number in 0..LINES_PER_INTERVAL_MAX + 5 {
                log.error(format_args!("no {number}"), "");
            }
            log.error("another place", "");
            for place in log.inner.state.lock().unwrap().places.values_mut() {
                place.since -= REPEAT_INTERVAL;
            }
            for _ in 0..2 {
                log.error("the other place again", "");
            }
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), LINES_PER_INTERVAL_MAX as usize + 3);
        assert_eq!(lines[LINES_PER_INTERVAL_MAX as usize - 1], "<3>no 9");
        assert_eq!(lines[LINES_PER_INTERVAL_MAX as usize], "<3>another place");

        let text = logged(LogLevel::Error, LineStyle::Journal, |log| {
            for number in 0..LINES_PER_INTERVAL_MAX + 5 {
                if number == LINES_PER_INTERVAL_MAX + 4 {
                    for place in log.inner.state.lock().unwrap().places.values_mut() {
                        place.since -= REPEAT_INTERVAL;
                    }
                }
                log.error("again", "");
            }
        });
        assert!(text.ends_with("<3>again (4 similar lines suppressed)\n"), "{text}");
    }

    #[test]
    fn suppressed_lines_are_counted_by_workers() {
        let [one, other] = ["192.0.2.1:1", "192.0.2.2:1"].map(|client| LogClient::Ip(client.parse().unwrap()));
        let text = logged(LogLevel::Info, LineStyle::Journal, |log| {
            let suppression = Suppression::default();
            let notice = |client: LogClient, now_ms: u64| {
                if !suppression.takes(client, now_ms) {
                    log.notice_for(&suppression, client, now_ms, format_args!("{now_ms}"));
                }
            };
            for now_ms in 0..10 {
                notice(one, now_ms);
            }
            // Another client is logged, although the first is suppressed.
            notice(other, 10);
            for place in log.inner.state.lock().unwrap().places.values_mut() {
                place.since -= REPEAT_INTERVAL;
            }
            notice(one, 11);
            notice(one, 11 + SUPPRESSION_MS);
            assert_eq!(log.suppressed(), 8);
        });
        assert_eq!(text, "<6>0\n<6>1\n<6>2\n<6>10\n<6>511 (8 similar lines suppressed)\n");
    }

    #[test]
    fn no_client_takes_all_lines() {
        let client = |text: &str| LogClient::Ip(format!("{text}:1").parse().unwrap());
        let text = logged(LogLevel::Info, LineStyle::Journal, |log| {
            for (number, address) in [
                ("[2001:db8::1]", 4),
                ("[2001:db8::2]", 2),
                ("[2001:db8:0:1::1]", 1),
                ("192.0.2.1", 4),
                ("[::ffff:192.0.2.1]", 1),
                ("192.0.2.2", 1),
            ]
            .into_iter()
            .flat_map(|(address, count)| (0..count).map(move |number| (number, address)))
            {
                log.notice_of(client(address), format_args!("{address} {number}"));
            }
        });
        let shown: Vec<&str> = text.lines().map(|line| line.trim_start_matches("<6>")).collect();
        let of_first = ["[2001:db8::1] 0", "[2001:db8::1] 1", "[2001:db8::1] 2"];
        let of_others = ["[2001:db8:0:1::1] 0", "192.0.2.1 0", "192.0.2.1 1", "192.0.2.1 2", "192.0.2.2 0"];
        assert_eq!(shown, [&of_first[..], &of_others].concat());
    }

    #[test]
    fn the_journal_is_known_by_its_file() {
        assert!(!is_journal(None));
        for stream in ["", "1", "1:x", "0:0"] {
            assert!(!is_journal(Some(stream)), "{stream}");
        }
        let stderr = rustix::fs::fstat(io::stderr()).unwrap();
        assert!(is_journal(Some(&format!("{}:{}", stderr.st_dev, stderr.st_ino))));
    }
}
