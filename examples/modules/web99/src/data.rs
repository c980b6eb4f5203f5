//! The files: tables of users and advertisements, and the post log.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write as _};

use wasip2::filesystem::preopens;
use wasip2::filesystem::types::{DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::io::streams::OutputStream;

use crate::ads::{self, ADS, Choice, PERSONALITY_RECORD_BYTES};
use crate::form::{Post, USER_ID_FIRST};

const DAY_SECONDS: u64 = 86_400;

/// Length of a record after its number, which is that of its place.
const UNNUMBERED_BYTES: usize = 128;

const PERSONALITIES: &str = "/data/User.Personality";
const ADVERTISEMENTS: &str = "/data/Custom.Ads";
const DATA: &str = "/data";
const POST_LOG: &str = "/data/post.log";

thread_local! {
    /// The end of the post log, which an instance that is used again keeps open.
    static LOG_END: RefCell<Option<OutputStream>> = const { RefCell::new(None) };
}

/// The first advertisement after the user's last one that suits the user, by the tables as they are in their files: read for
/// each request, so that new ones count at once.
pub(crate) fn choose(user: u32, last_ad: u32, now_seconds: u64) -> Choice {
    match (personality(user), fs::read(ADVERTISEMENTS)) {
        (Some(personality), Ok(ads)) => ads::choose(&ads, personality, last_ad, now_seconds),
        _ => Choice::none(),
    }
}

/// Both tables, that of the users first.
pub(crate) fn tables() -> io::Result<(Vec<u8>, Vec<u8>)> {
    Ok((fs::read(PERSONALITIES)?, fs::read(ADVERTISEMENTS)?))
}

fn personality(user: u32) -> Option<u32> {
    let mut file = File::open(PERSONALITIES).ok()?;
    file.seek(SeekFrom::Start(u64::from(user) * PERSONALITY_RECORD_BYTES as u64)).ok()?;
    let mut record = [0; PERSONALITY_RECORD_BYTES];
    file.read_exact(&mut record).ok()?;
    ads::demographics(&record)
}

/// Appends a record by one write, which the system does as a whole: none is lost or torn, however many instances append
/// at the same time. Its number is that of its place, and is written by who fetches the log.
pub(crate) fn append_record(post: &Post, user: u32, now_seconds: u64) -> io::Result<()> {
    let Post { file, client } = post;
    let (directory, class, number, name) = (file.directory, file.class, file.number, file.path());
    let process = 1;
    let record = format!(
        "{now_seconds:10} {process:10} {directory:5} {class:2} {number:2} {client:10} {name:<60.60} {process:10} \
         {user:10}\n"
    );
    debug_assert_eq!(record.len(), UNNUMBERED_BYTES);
    LOG_END.with_borrow_mut(|end| {
        let stream = match end.take() {
            Some(stream) => stream,
            None => log_end()?,
        };
        // By one call of the host, where the standard library has three.
        stream.blocking_write_and_flush(record.as_bytes()).map_err(io::Error::other)?;
        *end = Some(stream);
        Ok(())
    })
}

fn log_end() -> io::Result<OutputStream> {
    let directories = preopens::get_directories();
    let data = directories.iter().find(|(_, name)| name == DATA).ok_or(io::ErrorKind::NotFound)?;
    let name = POST_LOG.trim_start_matches(DATA).trim_start_matches('/');
    let failed = |code: ErrorCode| io::Error::other(code);
    let log = data.0.open_at(PathFlags::empty(), name, OpenFlags::empty(), DescriptorFlags::WRITE).map_err(failed)?;
    log.append_via_stream().map_err(failed)
}

/// The post log: a line with the count, and the records with their numbers.
pub(crate) fn post_log() -> io::Result<Vec<u8>> {
    let records = fs::read(POST_LOG)?;
    let records = records.chunks_exact(UNNUMBERED_BYTES);
    let mut log = format!("{:10}\n", records.len()).into_bytes();
    for (index, record) in records.enumerate() {
        write!(log, "{:10} ", index + 1)?;
        log.extend_from_slice(record);
    }
    Ok(log)
}

/// Makes new tables, which are equal for equal numbers on all machines, and empties the log.
pub(crate) fn reset(users: u32, seed: u32, now_seconds: u64) -> io::Result<()> {
    let mut random = Random(seed);
    let mut ads = String::new();
    for ad in 0..ADS {
        let shifts = [(3, 28), (15, 24), (15, 20), (1023, 10), (1023, 0)];
        let demographics = shifts.iter().fold(0, |word, (count, shift)| word | (1 + random.draw(*count)) << shift);
        let weights = (0..5).fold(0, |word, _| word << 4 | random.draw(10));
        let minimum = 10 + random.draw(25);
        let is_expired = random.draw(10) == 0;
        let expiry = if is_expired { now_seconds - DAY_SECONDS } else { now_seconds + 30 * DAY_SECONDS };
        // Writing to a string does not fail.
        let _ = writeln!(ads, "{ad:5} {demographics:08X} {weights:08X} {minimum:3} {expiry:10}");
    }
    let mut personalities = String::new();
    for user in 0..users {
        let shifts = [(2, 28), (4, 24), (4, 20), (10, 10), (10, 10), (10, 0), (10, 0)];
        let word = shifts.iter().fold(0, |word, (count, shift)| word | 1u32 << (shift + random.draw(*count)));
        let _ = writeln!(personalities, "{:5} {word:08X}", USER_ID_FIRST + user);
    }
    replace(ADVERTISEMENTS, &ads)?;
    replace(PERSONALITIES, &personalities)?;
    // In place, for others have it open.
    File::create(POST_LOG).map(drop)
}

/// Readers see the old file or the new one, whole.
fn replace(path: &str, content: &str) -> io::Result<()> {
    let new = format!("{path}.new");
    fs::write(&new, content)?;
    fs::rename(new, path)
}

/// Random numbers that are simple enough to be the same in every language: a linear congruential generator.
struct Random(u32);

impl Random {
    fn draw(&mut self, count: u32) -> u32 {
        self.0 = (u64::from(self.0) * 1_103_515_245 + 12_345) as u32 & 0x7fff_ffff;
        (self.0 >> 8) % count
    }
}
