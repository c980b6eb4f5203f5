//! FTP control connections: the same actions whether input comes whole or byte by byte, within all limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::ftp::{
    COMMAND_BYTES_MAX, FtpAbilities, FtpAction, FtpReply, FtpSession, FtpStep, FtpTls, PathQuestion, is_representable,
    resolve,
};

/// Runs a session whose caller agrees to everything. With `is_whole`, it sees all input at once.
fn run(input: &[u8], abilities: &FtpAbilities, is_whole: bool) -> Vec<String> {
    let (mut session, mut seen, mut actions) = (FtpSession::default(), 0, Vec::new());
    let mut start = 0;
    loop {
        if is_whole {
            seen = input.len();
        }
        match session.handle_input(&input[start..seen], abilities) {
            FtpStep::NeedInput => {
                assert!(seen - start < COMMAND_BYTES_MAX, "a client cannot make the caller keep more");
                if seen == input.len() {
                    return actions;
                }
                seen += 1;
            }
            FtpStep::AwaitTransfer => {
                assert!(session.is_transferring());
                session.on_transfer_end();
            }
            FtpStep::Act(consumed_bytes, action) => {
                assert!((1..=seen - start).contains(&consumed_bytes));
                start += consumed_bytes;
                actions.push(format!("{action:?}"));
                match action {
                    // The rest of the input is dropped, so the two runs would differ.
                    FtpAction::Close(_) | FtpAction::StartTls(_) => return actions,
                    FtpAction::Reply(reply) => check_reply(&reply),
                    FtpAction::LogIn(user, _) => _ = session.on_login(user != b"root"),
                    FtpAction::SelectHost(host) => check_reply(&session.on_host(host != "x")),
                    FtpAction::Look(question, path) => {
                        check_path(&path);
                        if question == PathQuestion::Enter {
                            check_reply(&session.on_directory(path));
                        }
                    }
                    FtpAction::Transfer(transfer) => check_path(&transfer.path),
                    FtpAction::Abort => session.on_transfer_end(),
                    FtpAction::Listen(_) | FtpAction::UseAddress(_) | FtpAction::Change(_) | FtpAction::ShowStatus => {}
                }
            }
        }
    }
}

/// A path stays below the root, and can stand in a line.
fn check_path(path: &[u8]) {
    assert!(is_representable(path) && resolve(b"/", path) == path);
}

/// A reply has one last line, and no line end comes from the client.
fn check_reply(reply: &FtpReply) {
    let mut out = Vec::new();
    reply.push(&mut out);
    let lines: Vec<&[u8]> = out.split(|byte| *byte == b'\n').collect();
    let (end, lines) = lines.split_last().expect("split returns something");
    assert!(end.is_empty() && lines.iter().all(|line| line.ends_with(b"\r")));
    let (last, others) = lines.split_last().expect("a reply has a line");
    let code = reply.code.to_string();
    assert!(last.starts_with(format!("{code} ").as_bytes()));
    assert!(!others.iter().any(|line| line.starts_with(format!("{code} ").as_bytes())));
}

fuzz_target!(|input: &[u8]| {
    let Some((&flags, input)) = input.split_first() else { return };
    let tls = if flags & 4 != 0 { FtpTls::Offered } else { FtpTls::Off };
    let abilities =
        FtpAbilities { may_write: flags & 1 != 0, may_connect: flags & 2 != 0, tls, has_hosts: flags & 8 != 0 };
    assert_eq!(run(input, &abilities, true), run(input, &abilities, false));
});
