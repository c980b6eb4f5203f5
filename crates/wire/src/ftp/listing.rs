//! Listings: the form of `ls -l` for people and old clients, and the facts of MLST and MLSD (RFC 3659, section 7).

use std::io::Write;

use time::{Date, Month};

use super::command::number;
use crate::http::date;

/// File or directory as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpEntry<'a> {
    /// Name in its directory, or path.
    pub name: &'a [u8],
    /// True for a directory.
    pub is_directory: bool,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, in seconds since 1970.
    pub modified: u64,
    /// True if the client may change it.
    pub is_writable: bool,
    /// Value that is the same for all names of a file, and for no other file.
    pub unique: (u64, u64),
}

/// Facts that MLST and MLSD show. The client selects them with OPTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactSet {
    selected: [bool; FACTS.len()],
}

/// Names of the facts, in the order in which they are shown.
const FACTS: [&str; 5] = ["type", "size", "modify", "perm", "unique"];

const TYPE: usize = 0;
const SIZE: usize = 1;
const MODIFY: usize = 2;
const PERM: usize = 3;
const UNIQUE: usize = 4;

/// Six months, in seconds. `ls -l` shows the year of older files in place of the time.
const RECENT_SECONDS: u64 = 182 * 86_400;

impl Default for FactSet {
    fn default() -> Self {
        Self { selected: [true; FACTS.len()] }
    }
}

impl FactSet {
    /// Set with the facts in the argument of `OPTS MLST`. Unknown ones are left out (RFC 3659, section 7.9).
    pub fn parse(argument: &[u8]) -> Self {
        let mut selected = [false; FACTS.len()];
        for name in argument.split(|byte| *byte == b';') {
            if let Some(fact) = FACTS.iter().position(|fact| name.eq_ignore_ascii_case(fact.as_bytes())) {
                selected[fact] = true;
            }
        }
        Self { selected }
    }

    /// Line of FEAT: all facts, with a star after those that are selected (RFC 3659, section 7.8).
    pub fn feature(&self) -> String {
        let facts = FACTS.iter().zip(self.selected);
        let facts: String =
            facts.map(|(fact, is_selected)| format!("{fact}{};", if is_selected { "*" } else { "" })).collect();
        format!("MLST {facts}")
    }

    /// Selected facts, as in the reply to `OPTS MLST`.
    pub fn selected(&self) -> String {
        let facts = FACTS.iter().zip(self.selected).filter(|(_, is_selected)| *is_selected);
        facts.map(|(fact, _)| format!("{fact};")).collect()
    }
}

/// Appends facts, a space and the name, without an end of line. `kind` is the value of the fact `type`: `file`, `dir`,
/// `cdir` or `pdir`.
pub fn push_facts(out: &mut Vec<u8>, entry: &FtpEntry<'_>, kind: &str, facts: &FactSet) {
    let mut push = |fact: usize, value: &dyn core::fmt::Display| {
        if facts.selected[fact] {
            // Writing to memory cannot fail.
            let _ = write!(out, "{}={value};", FACTS[fact]);
        }
    };
    push(TYPE, &kind);
    if !entry.is_directory {
        push(SIZE, &entry.size);
    }
    push(MODIFY, &time_text(entry.modified));
    push(
        PERM,
        &match (entry.is_directory, entry.is_writable) {
            (true, false) => "el",
            (true, true) => "celmpdf",
            (false, false) => "r",
            (false, true) => "adfrw",
        },
    );
    push(UNIQUE, &format_args!("{:x}g{:x}", entry.unique.0, entry.unique.1));
    out.push(b' ');
    out.extend_from_slice(entry.name);
}

/// Appends a line in the form of `ls -l`, with its end. Owner and permissions are those of the session, not of the file
/// system. `now` is in seconds since 1970; all times are UTC.
pub fn push_long_line(out: &mut Vec<u8>, entry: &FtpEntry<'_>, now: u64) {
    let mode = match (entry.is_directory, entry.is_writable) {
        (true, false) => "dr-xr-xr-x",
        (true, true) => "drwxr-xr-x",
        (false, false) => "-r--r--r--",
        (false, true) => "-rw-r--r--",
    };
    let fixdate = date::format(entry.modified);
    let part = |from: usize, to: usize| String::from_utf8_lossy(&fixdate[from..to]).into_owned();
    let (day, month) = (part(5, 7), part(8, 11));
    let is_recent = entry.modified <= now.saturating_add(86_400) && now.saturating_sub(entry.modified) < RECENT_SECONDS;
    let third = if is_recent { part(17, 22) } else { format!(" {}", part(12, 16)) };
    let size = if entry.is_directory { 4096 } else { entry.size };
    // Writing to memory cannot fail.
    let _ = write!(out, "{mode}   1 ftp      ftp  {size:>12} {month} {day} {third} ");
    out.extend_from_slice(entry.name);
    out.extend_from_slice(b"\r\n");
}

/// Appends a time in seconds since 1970 as MDTM replies it: `YYYYMMDDHHMMSS` (RFC 3659, section 2.3).
pub fn push_time(out: &mut Vec<u8>, unix_seconds: u64) {
    out.extend_from_slice(time_text(unix_seconds).as_bytes());
}

fn time_text(unix_seconds: u64) -> String {
    let time = date::format_rfc3339(unix_seconds);
    time.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte)).collect()
}

/// Parses `YYYYMMDDHHMMSS`, with a fraction that is dropped, into seconds since 1970.
pub(super) fn parse_time(text: &[u8]) -> Option<u64> {
    let (digits, fraction) = text.split_at_checked(14)?;
    let is_fraction = fraction.is_empty() || (fraction[0] == b'.' && number(&fraction[1..]).is_some());
    let part = |from: usize, to: usize| number(&digits[from..to]);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(8, 10)?, part(10, 12)?, part(12, 14)?);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    // A leap second counts as the second after it.
    if !is_fraction || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let midnight = u64::try_from(date.midnight().assume_utc().unix_timestamp()).ok()?;
    Some(midnight + hour * 3_600 + minute * 60 + second)
}

/// Argument of LIST and NLST: options as for ls(1), then a path or pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListArgument<'a> {
    /// True if `-a` is among the options. Hidden files are shown only if the server shows them at all.
    pub shows_hidden: bool,
    /// True if `-l` is among the options; NLST then has the form of LIST.
    pub is_long: bool,
    /// True if `-d` is among the options: a directory itself, not its content.
    pub is_itself: bool,
    /// Path or pattern; empty for the working directory.
    pub path: &'a [u8],
}

impl<'a> ListArgument<'a> {
    /// Parses an argument. Clients put options before the path, although no RFC has them. A path that begins with `-`
    /// must be given as `./-…`.
    pub(super) fn parse(argument: Option<&'a [u8]>) -> Self {
        let mut parsed = Self::default();
        let mut rest = argument.unwrap_or_default();
        while let [b'-', options @ ..] = rest {
            let end = options.iter().position(|byte| *byte == b' ').unwrap_or(options.len());
            let (letters, after) = options.split_at(end);
            if letters.is_empty() || !letters.iter().all(u8::is_ascii_alphabetic) {
                break;
            }
            parsed.shows_hidden |= letters.contains(&b'a') || letters.contains(&b'A');
            parsed.is_long |= letters.contains(&b'l');
            parsed.is_itself |= letters.contains(&b'd');
            rest = after.strip_prefix(b" ").unwrap_or(after);
        }
        Self { path: rest, ..parsed }
    }
}
