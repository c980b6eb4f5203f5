//! Files of users and hashes of their passwords, as `htpasswd` writes them: a line for each, `USER:HASH`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read};
use std::path::Path;

use base64ct::Encoding;
use sha2::{Digest, Sha256};

use crate::regular_file::open_regular;

/// Most bytes of a file: some hundred thousand users.
pub const PASSWORD_FILE_BYTES_MAX: u64 = 16 << 20;

/// Users and hashes of their passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordFile {
    /// By user.
    pub hashes: HashMap<Vec<u8>, PasswordHash>,
    /// A hash for each user, in the order of the lines: only the first of each kind and cost is kept, and the others are
    /// its index. See [`stand_in`](Self::stand_in).
    costs: Vec<usize>,
    cost_samples: Vec<PasswordHash>,
    /// Invalid lines, by number from 1, with the reason. Their users cannot log in.
    pub problems: Vec<(usize, &'static str)>,
    /// Lines with weak hashes, by number from 1, with the reason. Their users can log in.
    pub weak: Vec<(usize, &'static str)>,
}

/// A hash of a kind that can be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordHash {
    /// `$2a$`, `$2b$`, `$2y$`
    Bcrypt(String),
    /// `$5$` and `$6$`, as crypt(5) has them.
    ShaCrypt(String),
    /// `$argon2id$`, `$argon2i$`, `$argon2d$`
    Argon2(String),
    /// `$apr1$` and `$1$`: a thousand rounds of MD5. Weak.
    Md5Crypt(String),
    /// `{SHA}` and `{SSHA}`: one round of SHA-1. Weak.
    Sha1(String),
}

/// Reason for the warning about a weak hash.
const WEAK: &str = "hashes of this kind are weak: a stolen file soon reveals its passwords; write a new one with `tailcoat \
                    hash-password`";

impl PasswordFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it can't be read, or is larger than [`PASSWORD_FILE_BYTES_MAX`].
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        open_regular(path)?.take(PASSWORD_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > PASSWORD_FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 16 MiB"));
        }
        Ok(Self::parse(&bytes))
    }

    /// Reads a text. The first line of a user counts.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut file = Self::default();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            match parse_line(line) {
                Ok((user, hash)) => {
                    if matches!(hash, PasswordHash::Md5Crypt(_) | PasswordHash::Sha1(_)) {
                        file.weak.push((index + 1, WEAK));
                    }
                    file.add(user, hash);
                }
                Err(problem) => file.problems.push((index + 1, problem)),
            }
        }
        file
    }

    fn add(&mut self, user: &[u8], hash: PasswordHash) {
        let Entry::Vacant(place) = self.hashes.entry(user.to_vec()) else { return };
        let known = self.cost_samples.iter().position(|sample| sample.costs_as(&hash));
        let sample = known.unwrap_or_else(|| {
            self.cost_samples.push(hash.clone());
            self.cost_samples.len() - 1
        });
        self.costs.push(sample);
        place.insert(hash);
    }

    /// Hash that is verified for an unknown user, so that response times do not reveal which users exist; `None` if
    /// there are no users.
    ///
    /// Each name always gets the same hash. Kinds and costs of hashes are as frequent among unknown names as among the
    /// users of the file. The key of that choice is the file's first hash, which clients do not know. It outlives
    /// restarts. Users who are added at the end move few unknown names to another cost, which no known user does
    /// either.
    pub fn stand_in(&self, user: &[u8]) -> Option<&PasswordHash> {
        let mut digest = Sha256::new();
        digest.update(self.cost_samples.first()?.text());
        digest.update([0]);
        digest.update(user);
        // Local invariant: a digest has 32 bytes.
        let number = digest.finalize().first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        self.cost_samples.get(*self.costs.get(consistent_index(number, self.costs.len()))?)
    }
}

impl PasswordHash {
    /// The whole hash.
    fn text(&self) -> &str {
        match self {
            Self::Bcrypt(text)
            | Self::ShaCrypt(text)
            | Self::Argon2(text)
            | Self::Md5Crypt(text)
            | Self::Sha1(text) => text,
        }
    }

    /// Kind, version and cost. The lengths of salt and hash count as well, for they take time, too.
    fn parameters(&self) -> (&str, usize, usize) {
        let text = self.text();
        let (rest, hash) = match self {
            // `$2y$10$`, then 22 characters of salt and 31 of hash.
            Self::Bcrypt(_) => return (text.get(..7).unwrap_or(text), 0, 0),
            Self::Sha1(_) => return ("{SHA}", 0, 0),
            Self::ShaCrypt(_) | Self::Argon2(_) | Self::Md5Crypt(_) => text.rsplit_once('$').unwrap_or((text, "")),
        };
        let (parameters, salt) = rest.rsplit_once('$').unwrap_or((rest, ""));
        (parameters, salt.len(), hash.len())
    }

    /// True if a password takes as long to verify against both.
    pub fn costs_as(&self, other: &Self) -> bool {
        self.parameters() == other.parameters()
    }
}

/// Place of a number among `count` places. Each place is equally likely, and an additional place moves few numbers
/// (Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014).
fn consistent_index(mut number: u64, count: usize) -> usize {
    let (mut place, mut next) = (0, 0);
    while next < count as u64 {
        place = next;
        number = number.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((place + 1) as f64 * ((1_u64 << 31) as f64 / ((number >> 33) + 1) as f64)) as u64;
    }
    place as usize
}

fn parse_line(line: &[u8]) -> Result<(&[u8], PasswordHash), &'static str> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or("there is no `:` after the user's name")?;
    let (user, rest) = (&line[..colon], &line[colon + 1..]);
    // Text after another colon is a comment.
    let hash = rest.split(|byte| *byte == b':').next().unwrap_or_default();
    if user.is_empty() {
        return Err("there is no user's name before the `:`");
    }
    let hash = std::str::from_utf8(hash).map_err(|_| "the hash is no text")?.trim_end();
    let hash = parse_hash(hash)?;
    match costs_too_much(&hash) {
        true => Err("the hash costs too much CPU time for each password; write one with a lower cost"),
        false => Ok((user, hash)),
    }
}

fn parse_hash(hash: &str) -> Result<PasswordHash, &'static str> {
    const RENEW: &str = "a hash of this kind is too weak; write a new one with `tailcoat hash-password`";
    let kind = hash.strip_prefix('$').and_then(|rest| rest.split_once('$')).map(|(kind, _)| kind);
    match kind {
        Some("2a" | "2b" | "2y") if is_bcrypt(hash) => Ok(PasswordHash::Bcrypt(hash.to_owned())),
        Some("5" | "6") if is_sha_crypt(hash) => Ok(PasswordHash::ShaCrypt(hash.to_owned())),
        Some("argon2id" | "argon2i" | "argon2d") if is_argon2(hash) => Ok(PasswordHash::Argon2(hash.to_owned())),
        Some("2a" | "2b" | "2y" | "5" | "6" | "argon2id" | "argon2i" | "argon2d") => Err("the hash is malformed"),
        Some("apr1" | "1") if is_md5_crypt(hash) => Ok(PasswordHash::Md5Crypt(hash.to_owned())),
        Some("apr1" | "1") => Err("the hash is malformed"),
        None if hash.starts_with("{SHA}") || hash.starts_with("{SSHA}") => match sha1_of(hash) {
            Some(_) => Ok(PasswordHash::Sha1(hash.to_owned())),
            None => Err("the hash is malformed"),
        },
        None if hash.len() == 13 => Err(RENEW),
        _ => Err("this is no hash that can be verified: bcrypt, SHA-256 and SHA-512 crypt, Argon2, apr1 and {SHA} are"),
    }
}

/// Most rounds of bcrypt, as a power of two: some four seconds for each password.
const BCRYPT_COST_MAX: u32 = 16;

/// Most rounds of SHA crypt: some five seconds for each password.
const SHA_CRYPT_ROUNDS_MAX: u32 = 10_000_000;

/// Most memory that all passes of Argon2 over it use together, in KiB: some seconds for each password.
const ARGON2_TRAFFIC_KIB_MAX: u64 = 8 << 20;

/// `$apr1$salt$hash`, with a salt of at most 8 characters and a hash of 22.
fn is_md5_crypt(hash: &str) -> bool {
    let parts: Vec<_> = hash.split('$').collect();
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    matches!(parts.as_slice(), ["", _, salt, digits]
        if salt.len() <= 8 && digits.len() == 22 && digits.bytes().all(is_digit))
}

/// Digest and salt of a `{SHA}` or `{SSHA}` hash; `None` if it is malformed.
pub fn sha1_of(hash: &str) -> Option<([u8; 20], Vec<u8>)> {
    let (is_salted, text) = match hash.strip_prefix("{SHA}") {
        Some(text) => (false, text),
        None => (true, hash.strip_prefix("{SSHA}")?),
    };
    let decoded = base64ct::Base64::decode_vec(text).ok()?;
    let (digest, salt) = decoded.split_first_chunk::<20>()?;
    (is_salted != salt.is_empty()).then(|| (*digest, salt.to_vec()))
}

fn is_bcrypt(hash: &str) -> bool {
    hash.parse::<bcrypt::HashParts>().is_ok_and(|parts| (4..=31).contains(&parts.get_cost()))
}

/// Returns `true` if verifying one password would keep a thread busy for too long.
fn costs_too_much(hash: &PasswordHash) -> bool {
    match hash {
        PasswordHash::Bcrypt(hash) => {
            hash.parse::<bcrypt::HashParts>().is_ok_and(|parts| parts.get_cost() > BCRYPT_COST_MAX)
        }
        PasswordHash::ShaCrypt(hash) => {
            let rounds = hash.split('$').nth(2).and_then(|part| part.strip_prefix("rounds="));
            rounds.is_some_and(|rounds| rounds.parse().is_ok_and(|rounds: u32| rounds > SHA_CRYPT_ROUNDS_MAX))
        }
        PasswordHash::Argon2(hash) => argon2::password_hash::phc::PasswordHash::new(hash).is_ok_and(|parsed| {
            argon2::Params::try_from(&parsed)
                .is_ok_and(|params| u64::from(params.m_cost()) * u64::from(params.t_cost()) > ARGON2_TRAFFIC_KIB_MAX)
        }),
        PasswordHash::Md5Crypt(_) | PasswordHash::Sha1(_) => false,
    }
}

fn is_sha_crypt(hash: &str) -> bool {
    // `$6$salt$hash` or `$6$rounds=N$salt$hash`; the lengths of SHA-256 and SHA-512 in crypt's base 64.
    let digits = if hash.starts_with("$5$") { 43 } else { 86 };
    sha_crypt::PasswordHashRef::new(hash).is_ok()
        && hash.rsplit('$').next().is_some_and(|last| last.len() == digits)
        && matches!(hash.matches('$').count(), 3 | 4)
}

fn is_argon2(hash: &str) -> bool {
    argon2::password_hash::phc::PasswordHash::new(hash).is_ok_and(|parsed| {
        parsed.hash.is_some() && argon2::Params::try_from(&parsed).is_ok_and(|params| params.m_cost() <= ARGON2_KIB_MAX)
    })
}

/// Most memory that verifying one password may take, in KiB.
const ARGON2_KIB_MAX: u32 = 256 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BCRYPT: &str = "$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC";
    const SHA256: &str = "$5$rounds=1000$saltstring$AH5PD0i.riCRu4BNDy9v7OPV7u3dfLBApcXI6khquVA";
    const SHA512: &str =
        "$6$saltstring$AIsRs/Ee56G/tC8MEHhvReZTfx8u3rXXMl6eYrjCG9ibix19DxoMBLogdTET5Ukw9Sf7eZTITsuk0Ry5qulYz.";
    const ARGON2: &str =
        "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$pclxcsa4X0bZ5lu7Vy5h3p7EU7VbuW7pGRWETxHuU0c";

    /// Issue 17: with mixed hashes, unknown users answered slower or faster than known ones.
    #[test]
    fn unknown_users_cost_what_known_ones_cost() {
        let kinds = [BCRYPT, SHA256, SHA512, ARGON2, &BCRYPT.replace("$04$", "$12$")];
        let lines = |count: usize| -> String {
            // Half of the users have the first kind.
            let kind = |number: usize| if number.is_multiple_of(2) { kinds[0] } else { kinds[1 + number / 2 % 4] };
            (0..count).map(|number| format!("user{number}:{}\n", kind(number))).collect()
        };
        let file = PasswordFile::parse(lines(80).as_bytes());
        assert_eq!((file.problems.as_slice(), file.hashes.len()), (&[][..], 80));
        let longer = PasswordFile::parse(lines(88).as_bytes());
        let cost = |file: &PasswordFile, name: &str| file.stand_in(name.as_bytes()).unwrap().parameters().0.to_owned();
        let (mut shares, mut moved) = (HashMap::<String, usize>::new(), 0);
        for number in 0..8_000 {
            let name = format!("unknown{number}");
            assert_eq!(cost(&file, &name), cost(&file.clone(), &name), "a name has one cost");
            *shares.entry(cost(&file, &name)).or_default() += 1;
            moved += usize::from(cost(&file, &name) != cost(&longer, &name));
        }
        let share = |parameters: &str| shares.get(parameters).copied().unwrap_or_default();
        assert!((3_700..4_300).contains(&share("$2y$04$")), "{shares:?}");
        for parameters in ["$5$rounds=1000", "$6", "$argon2id$v=19$m=64,t=1,p=1", "$2y$12$"] {
            assert!((800..1_200).contains(&share(parameters)), "{parameters}: {shares:?}");
        }
        assert!(moved < 1_000, "{moved} of 8000 names show by their cost that users were added");
        assert_eq!(PasswordFile::default().stand_in(b"anna"), None);
    }

    #[test]
    fn lines() {
        let check = |line: &str, expect: Result<&str, &str>| {
            let file = PasswordFile::parse(line.as_bytes());
            let user = file.hashes.keys().next().map(|user| String::from_utf8(user.clone()).unwrap());
            match expect {
                Ok(expect) => {
                    assert_eq!((user.as_deref(), file.problems.as_slice()), (Some(expect), &[][..]), "{line}")
                }
                Err(expect) => {
                    let problem = file.problems.first().map(|(_, problem)| *problem).unwrap_or_default();
                    assert!(user.is_none() && problem.contains(expect), "{line}: {problem}");
                }
            }
        };
        check(&format!("anna:{BCRYPT}"), Ok("anna"));
        check(&format!("anna:{BCRYPT}\r"), Ok("anna"));
        check(&format!("anna:{BCRYPT}:a comment"), Ok("anna"));
        check(&format!("# comment\n\nanna:{SHA256}"), Ok("anna"));
        check(&format!("anna:{SHA512}"), Ok("anna"));
        check(&format!("anna meier:{ARGON2}"), Ok("anna meier"));
        check(&format!(":{BCRYPT}"), Err("no user's name"));
        check("anna", Err("no `:`"));
        check("anna:", Err("no hash"));
        check("anna:secret", Err("no hash"));
        check("anna:$2y$05$short", Err("malformed"));
        check("anna:$2y$99$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC", Err("malformed"));
        check("anna:$6$salt$short", Err("malformed"));
        check("anna:$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ", Err("malformed"));
        check(&format!("anna:{}", ARGON2.replace("m=64", "m=99999999")), Err("malformed"));
        check("anna:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", Ok("anna"));
        check("anna:$1$gvRqPyWj$A7kRdmrjVOYE/g4bGy98J0", Ok("anna"));
        check("anna:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", Ok("anna"));
        check("anna:{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9hzYWx0", Ok("anna"));
        check("anna:$apr1$salt$hash", Err("malformed"));
        check("anna:$apr1$toolongasalt$eIMz/iKDkbtys/uU7LEK00", Err("malformed"));
        check("anna:{SHA}W6ph5Mm5", Err("malformed"));
        check("anna:{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", Err("malformed"));
        check(&format!("anna:{}", BCRYPT.replace("$04$", "$17$")), Err("costs too much"));
        check(&format!("anna:{}", SHA256.replace("=1000$", "=99999999$")), Err("costs too much"));
        check(&format!("anna:{}", ARGON2.replace("m=64,t=1", "m=262144,t=99")), Err("costs too much"));
        check("anna:rqXexS6ZhobKA", Err("too weak"));
        check("anna:\u{fffd}", Err("no hash"));
    }

    #[test]
    fn the_first_line_of_a_user_counts() {
        let file = PasswordFile::parse(format!("anna:{BCRYPT}\nbert:x\nanna:{SHA512}\n").as_bytes());
        assert_eq!(file.hashes[&b"anna"[..]], PasswordHash::Bcrypt(BCRYPT.into()));
        assert_eq!(file.problems.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "(a|:|\\$|2y|5|6|argon2id|[ -~]|\n|\r){0,60}".prop_map(String::into_bytes),
        ]) {
            let file = PasswordFile::parse(&bytes);
            let lines = bytes.split(|byte| *byte == b'\n').count();
            prop_assert!(file.hashes.len() + file.problems.len() <= lines);
            prop_assert!(file.hashes.keys().all(|user| !user.is_empty() && !user.contains(&b':')));
        }
    }
}
