//! `tailcoat hash-password`: a line for a file of `basic-auth`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use argon2::PasswordHasher;
use clap::{Args, ValueEnum};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::{EXIT_USAGE, fail, print};

/// Longest password that bcrypt takes whole, in bytes: it leaves out the rest.
const BCRYPT_BYTES_MAX: usize = 72;

/// Options of `hash-password`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat hash-password --user anna >> admin.htpasswd")]
pub(super) struct HashPassword {
    /// User name: print a whole line for a file of `basic-auth`
    #[arg(short, long, value_name = "NAME", value_parser = parse_user)]
    user: Option<String>,

    /// Hash function; other servers support bcrypt best
    #[arg(short, long, value_enum, default_value_t = PasswordHashKind::Bcrypt)]
    kind: PasswordHashKind,

    /// Cost of verification: exponent of bcrypt, number of rounds of the others [default: see --kind]
    #[arg(short, long, value_name = "NUMBER")]
    cost: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PasswordHashKind {
    /// $2y$, default cost 12
    Bcrypt,
    /// $argon2id$, 19 MiB, default 2 rounds
    Argon2id,
    /// $6$ of crypt(5), default 500000 rounds
    Sha512,
}

impl HashPassword {
    /// Reads a password from standard input, and prints its hash.
    pub(super) fn run(&self) -> ExitCode {
        let password = match read_password() {
            Ok(password) => password,
            Err(error) => return fail(format_args!("cannot read the password: {error}")),
        };
        if let Err(message) = self.check(&password) {
            eprintln!("tailcoat: {message}");
            return ExitCode::from(EXIT_USAGE);
        }
        match self.hash(password.as_bytes()) {
            Ok(hash) => match &self.user {
                Some(user) => print(&format!("{user}:{hash}\n")),
                None => print(&format!("{hash}\n")),
            },
            Err(message) => {
                eprintln!("tailcoat: {message}");
                ExitCode::from(EXIT_USAGE)
            }
        }
    }

    fn check(&self, password: &str) -> Result<(), String> {
        if password.is_empty() {
            return Err("the password is empty".into());
        }
        // RFC 7617, section 2.
        if password.contains(char::is_control) {
            return Err("a password has no control characters".into());
        }
        if self.kind == PasswordHashKind::Bcrypt && password.len() > BCRYPT_BYTES_MAX {
            return Err(format!(
                "bcrypt takes {BCRYPT_BYTES_MAX} bytes at most; use `--kind argon2id` for this password"
            ));
        }
        Ok(())
    }

    fn hash(&self, password: &[u8]) -> Result<String, String> {
        match self.kind {
            PasswordHashKind::Bcrypt => {
                let cost = self.cost.unwrap_or(12);
                let parts = bcrypt::hash_with_result(password, cost).map_err(|_| "the cost is from 4 to 31")?;
                Ok(parts.format_for_version(bcrypt::Version::TwoY))
            }
            PasswordHashKind::Argon2id => {
                let params = argon2::Params::new(19 << 10, self.cost.unwrap_or(2), 1, None)
                    .map_err(|_| "the cost is at least 1")?;
                let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
                Ok(argon2.hash_password(password).map_err(|error| error.to_string())?.to_string())
            }
            PasswordHashKind::Sha512 => {
                let rounds = self.cost.unwrap_or(500_000);
                let params = sha_crypt::Params::new(rounds).map_err(|_| "the cost is from 1000 to 999999999")?;
                let sha512 = sha_crypt::ShaCrypt::new(sha_crypt::Algorithm::Sha512Crypt, params);
                Ok(sha512.hash_password(password).map_err(|error| error.to_string())?.to_string())
            }
        }
    }
}

/// RFC 7617, section 2: no colon and no control characters. A `#` at the start would make the line a comment.
fn parse_user(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.starts_with('#') || text.contains(|one: char| one == ':' || one.is_control()) {
        return Err("a user's name has no colon and no control characters, and does not begin with `#`");
    }
    Ok(text.to_owned())
}

/// First line of standard input. A terminal prompts twice, without echo.
fn read_password() -> io::Result<String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return read_line();
    }
    let _hidden = Hidden::new()?;
    let ask = |prompt: &str| {
        eprint!("{prompt}");
        io::stderr().flush()?;
        let line = read_line();
        eprintln!();
        line
    };
    let (first, second) = (ask("Password: ")?, ask("Again: ")?);
    if first == second { Ok(first) } else { Err(io::Error::other("the two are not the same")) }
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden {
    before: Termios,
}

impl Hidden {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Now, &hidden)?;
        Ok(Self { before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // If this fails, the terminal does not show input, as after any program that was killed here.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PasswordFile, PasswordHash};

    #[test]
    fn what_is_hashed_can_be_verified() {
        for (kind, cost) in
            [(PasswordHashKind::Bcrypt, 4), (PasswordHashKind::Argon2id, 1), (PasswordHashKind::Sha512, 1_000)]
        {
            let options = HashPassword { user: None, kind, cost: Some(cost) };
            let hash = options.hash(b"secret").unwrap();
            let file = PasswordFile::parse(format!("anna:{hash}").as_bytes());
            let found = &file.hashes[&b"anna"[..]];
            let expect = match kind {
                PasswordHashKind::Bcrypt => PasswordHash::Bcrypt(hash),
                PasswordHashKind::Argon2id => PasswordHash::Argon2(hash),
                PasswordHashKind::Sha512 => PasswordHash::ShaCrypt(hash),
            };
            assert_eq!(*found, expect);
        }
        let options = HashPassword { user: None, kind: PasswordHashKind::Bcrypt, cost: Some(32) };
        assert!(options.hash(b"secret").is_err());
    }

    #[test]
    fn users() {
        for (user, expect) in
            [("anna", true), ("anna meier", true), ("", false), ("a:b", false), ("#a", false), ("a\n", false)]
        {
            assert_eq!(parse_user(user).is_ok(), expect, "{user}");
        }
    }
}
