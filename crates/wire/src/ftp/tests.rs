use core::net::SocketAddr;

use proptest::prelude::*;

use super::listing::parse_time;
use super::*;

#[test]
fn lines() {
    let check = |input: &[u8], expect: Result<Option<(&[u8], usize)>, FtpLineError>| {
        let parsed = parse_line(input).map(|line| line.map(|line| (line.text, line.consumed_bytes)));
        let expect = expect.map(|line| line.map(|(text, consumed_bytes)| (text.to_vec(), consumed_bytes)));
        assert_eq!(parsed, expect, "{}", input.escape_ascii());
    };
    check(b"", Ok(None));
    check(b"NOOP\r", Ok(None));
    check(b"NOOP\r\nQUIT\r\n", Ok(Some((b"NOOP", 6))));
    check(b"\r\n", Ok(Some((b"", 2))));
    // RFC 2640, section 3.1: CR NUL is a CR in a name.
    check(b"RETR a\r\0b\r\n", Ok(Some((b"RETR a\rb", 11))));
    check(b"RETR a\nDELE b\r\n", Err(FtpLineError::Malformed(15)));
    check(b"NOOP\n", Ok(None));
    check(b"NOOP\nNOOP\r\n", Err(FtpLineError::Malformed(11)));
    check(b"\n\r\n", Err(FtpLineError::Malformed(3)));
    check(b"RETR a\rb\r\n", Err(FtpLineError::Malformed(10)));
    check(b"RETR a\r\r\n", Err(FtpLineError::Malformed(9)));
    check(b"RETR a\0b\r\n", Err(FtpLineError::Malformed(10)));
    check(b"RETR a\r\0\n\r\n", Err(FtpLineError::Malformed(11)));
    // RFC 959, section 4.1.3: ABOR comes after Telnet IP and Synch.
    check(b"\xff\xf4\xff\xf2ABOR\r\n", Ok(Some((b"ABOR", 10))));
    check(b"\xff\xfb\nNOOP\r\n", Ok(Some((b"NOOP", 9))));
    check(b"RETR \xff\xff\r\n", Ok(Some((b"RETR \xff", 9))));
    check(b"\xff", Ok(None));
    check(b"\xff\xfb", Ok(None));
    check(&[b'a'; COMMAND_BYTES_MAX - 1], Ok(None));
    check(&[b'a'; COMMAND_BYTES_MAX], Err(FtpLineError::TooLong));
    let longest = [&[b'a'; COMMAND_BYTES_MAX - 2][..], b"\r\n"].concat();
    check(&longest, Ok(Some((&[b'a'; COMMAND_BYTES_MAX - 2], COMMAND_BYTES_MAX))));
}

#[test]
fn commands() {
    let check = |line: &[u8], expect: Result<FtpCommand<'_>, FtpCommandError>| {
        assert_eq!(FtpCommand::parse(line), expect, "{}", line.escape_ascii());
    };
    let fails = |line: &[u8], error: FtpCommandError| check(line, Err(error));
    check(b"user anonymous", Ok(FtpCommand::User(b"anonymous")));
    check(b"PASS", Ok(FtpCommand::Pass(b"")));
    check(b"PASS  two spaces ", Ok(FtpCommand::Pass(b" two spaces ")));
    check(b"RETR  a ", Ok(FtpCommand::Retr(b" a ")));
    check(b"XCWD a", Ok(FtpCommand::Cwd(b"a")));
    check(b"XPWD", Ok(FtpCommand::Pwd));
    check(b"TYPE A", Ok(FtpCommand::Type(Some(true))));
    check(b"TYPE a n", Ok(FtpCommand::Type(Some(true))));
    check(b"TYPE L 8", Ok(FtpCommand::Type(Some(false))));
    check(b"TYPE L 36", Ok(FtpCommand::Type(None)));
    check(b"TYPE E", Ok(FtpCommand::Type(None)));
    check(b"MODE B", Ok(FtpCommand::Mode(false)));
    check(b"STRU F", Ok(FtpCommand::Stru(true)));
    check(b"REST 18446744073709551615", Ok(FtpCommand::Rest(u64::MAX)));
    check(b"EPSV", Ok(FtpCommand::Epsv(PassiveRequest::Any)));
    check(b"EPSV 2", Ok(FtpCommand::Epsv(PassiveRequest::Family(FtpFamily::V6))));
    check(b"EPSV all", Ok(FtpCommand::Epsv(PassiveRequest::All)));
    check(b"EPSV 7", Ok(FtpCommand::Epsv(PassiveRequest::Unknown)));
    check(b"PROT P", Ok(FtpCommand::Prot(Some(true))));
    check(b"PROT S", Ok(FtpCommand::Prot(None)));
    check(b"AUTH TLS-C", Ok(FtpCommand::Auth(SecurityMechanism::Tls)));
    check(b"AUTH SSL", Ok(FtpCommand::Auth(SecurityMechanism::Other)));
    check(b"OPTS UTF8 ON", Ok(FtpCommand::Opts(b"UTF8", b"ON")));
    check(b"MFMT 20020717210715 a b", Ok(FtpCommand::Mfmt(1_026_940_035, b"a b")));
    check(b"HOST FTP.Example.COM", Ok(FtpCommand::Host("ftp.example.com".to_owned())));
    check(b"HOST [2001:db8::1]", Ok(FtpCommand::Host("[2001:db8::1]".to_owned())));
    let list = |path: &'static [u8], shows_hidden, is_long| {
        Ok(FtpCommand::List(ListArgument { shows_hidden, is_long, is_itself: false, path }))
    };
    check(b"LIST", list(b"", false, false));
    check(b"LIST -la sub dir", list(b"sub dir", true, true));
    check(b"LIST -a -l", list(b"", true, true));
    check(b"LIST ./-a", list(b"./-a", false, false));
    for line in [&b""[..], b"FOO", b"NOOPE", b" NOOP", b"ls", b"12 34", b"GET / HTTP/1.1", b"HOST:"] {
        fails(line, FtpCommandError::Unknown);
    }
    for line in [
        &b"USER"[..],
        b"USER ",
        b"QUIT now",
        b"TYPE",
        b"TYPE X",
        b"REST -1",
        b"REST 18446744073709551616",
        b"REST 1 ",
        b"PROT X",
        b"MFMT 20020717210715",
        b"MFMT 20021301000000 a",
        b"EPSV x",
        b"HOST a:21",
        b"HOST a/b",
    ] {
        fails(line, FtpCommandError::Argument);
    }
}

#[test]
fn addresses() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let malformed = Err(FtpAddressError::Malformed);
    for (argument, expect) in [
        ("132,235,1,2,24,131", Ok(address("132.235.1.2:6275"))),
        ("1,2,3,4,0,0", malformed),
        ("1,2,3,4,5", malformed),
        ("1,2,3,4,5,6,7", malformed),
        ("1,2,3,256,5,6", malformed),
        ("1,2,3,,5,6", malformed),
        ("1,2,3,+4,5,6", malformed),
        ("1,2,3,0004,5,6", malformed),
    ] {
        assert_eq!(parse_port(argument.as_bytes()), expect, "{argument}");
    }
    // Examples of RFC 2428, section 2.
    for (argument, expect) in [
        ("|1|132.235.1.2|6275|", Ok(address("132.235.1.2:6275"))),
        ("|2|1080::8:800:200C:417A|5282|", Ok(address("[1080::8:800:200c:417a]:5282"))),
        ("!1!132.235.1.2!6275!", Ok(address("132.235.1.2:6275"))),
        ("|3|a|1|", Err(FtpAddressError::Family)),
        ("|1|::1|1|", malformed),
        ("|2|127.0.0.1|1|", malformed),
        ("|1|1.2.3.4|0|", malformed),
        ("|1|1.2.3.4|65536|", malformed),
        ("|1|1.2.3.4|1|x", malformed),
        ("|1|1.2.3.4|1", malformed),
        (" 1 1.2.3.4 1 ", malformed),
        ("", malformed),
    ] {
        assert_eq!(parse_eprt(argument.as_bytes()), expect, "{argument}");
    }
    let mut out = Vec::new();
    push_pasv_reply(&mut out, [192, 168, 1, 2].into(), 50_001);
    push_epsv_reply(&mut out, 6_446);
    let expect = "227 Entering Passive Mode (192,168,1,2,195,81).\r\n229 Entering Extended Passive Mode (|||6446|)\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expect);
}

#[test]
fn replies() {
    let check = |reply: FtpReply, expect: &str| {
        let mut out = Vec::new();
        reply.push(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), expect);
    };
    check(FtpReply::new(200, "OK."), "200 OK.\r\n");
    check(FtpReply::new(211, "Features:\nUTF8\n211 End\nEnd"), "211-Features:\r\n UTF8\r\n 211 End\r\n211 End\r\n");
    check(FtpReply::with_text(250, b"a\rb".to_vec()), "250 a\r\0b\r\n");
    let mut text = Vec::new();
    push_quoted(&mut text, b"/foo\"bar");
    assert_eq!(text, b"\"/foo\"\"bar\"", "RFC 959, appendix II");
}

#[test]
fn paths() {
    for (directory, path, expect) in [
        ("/", "", "/"),
        ("/", "a", "/a"),
        ("/a/b", "c", "/a/b/c"),
        ("/a/b", "..", "/a"),
        ("/a/b", "../../../../etc/passwd", "/etc/passwd"),
        ("/a", "/../..", "/"),
        ("/a", "/b//c/./d/", "/b/c/d"),
        ("/a", "...", "/a/..."),
    ] {
        assert_eq!(resolve(directory.as_bytes(), path.as_bytes()), expect.as_bytes(), "{directory} {path}");
    }
    assert!(is_representable(b"a b\xff") && !is_representable(b"a\nb") && !is_representable(b"a\rb"));
}

#[test]
fn patterns() {
    let check = |pattern: &str, name: &str, expect: bool| {
        let glob = Glob::parse(pattern.as_bytes()).unwrap_or_else(|| panic!("{pattern} is no pattern"));
        assert_eq!(glob.matches(name.as_bytes(), &mut GlobBudget::new(1_000)), expect, "{pattern} {name}");
    };
    check("*", "", true);
    check("*", "a.txt", true);
    check("*", ".hidden", false);
    check(".*", ".hidden", true);
    check("*.txt", "a.txt", true);
    check("*.txt", "a.txt.gz", false);
    check("a?c", "abc", true);
    check("a?c", "ac", false);
    check("[a-c]x", "bx", true);
    check("[!a-c]x", "bx", false);
    check("[]]", "]", true);
    check("[a", "[a", true);
    check("\\**", "*a", true);
    check("\\**", "aa", false);
    check("a*b*c", "a-b-b-c", true);
    assert_eq!(Glob::parse(b"plain"), None);
    // A bomb: without a bound on the work, each further star multiplies the time.
    let bomb = Glob::parse("*a".repeat(100).as_bytes()).unwrap();
    let mut budget = GlobBudget::new(100_000);
    assert!(!bomb.matches("a".repeat(99).as_bytes(), &mut budget) && budget.is_left());
    let mut small = GlobBudget::new(50);
    assert!(!bomb.matches("a".repeat(100).as_bytes(), &mut small) && !small.is_left());
}

#[test]
fn listings() {
    let file = FtpEntry {
        name: b"a file",
        is_directory: false,
        size: 1_024_990,
        modified: 1_026_940_035,
        is_writable: false,
        unique: (0x10, 0x2b),
    };
    let directory = FtpEntry { name: b"d", is_directory: true, ..file.clone() };
    let facts = |entry, kind, facts: &FactSet| {
        let mut out = Vec::new();
        push_facts(&mut out, entry, kind, facts);
        String::from_utf8(out).unwrap()
    };
    let all = FactSet::default();
    let expect = "type=file;size=1024990;modify=20020717210715;perm=r;unique=10g2b; a file";
    assert_eq!(facts(&file, "file", &all), expect);
    assert_eq!(facts(&directory, "cdir", &all), "type=cdir;modify=20020717210715;perm=el;unique=10g2b; d");
    assert_eq!(all.feature(), "MLST type*;size*;modify*;perm*;unique*;");
    // RFC 3659, section 7.9: unknown facts are left out, in any case and order.
    let some = FactSet::parse(b"SIZE;UNIX.group;Type");
    assert_eq!(
        (some.selected().as_str(), facts(&file, "file", &some).as_str()),
        ("type;size;", "type=file;size=1024990; a file")
    );
    assert_eq!(facts(&file, "file", &FactSet::parse(b"")), " a file");
    let long = |entry, now| {
        let mut out = Vec::new();
        push_long_line(&mut out, entry, now);
        String::from_utf8(out).unwrap()
    };
    let later = file.modified + 86_400;
    assert_eq!(long(&file, later), "-r--r--r--   1 ftp      ftp       1024990 Jul 17 21:07 a file\r\n");
    assert_eq!(long(&file, later + 400 * 86_400), "-r--r--r--   1 ftp      ftp       1024990 Jul 17  2002 a file\r\n");
    assert_eq!(long(&directory, later), "dr-xr-xr-x   1 ftp      ftp          4096 Jul 17 21:07 d\r\n");
}

#[test]
fn times() {
    let mut out = Vec::new();
    push_time(&mut out, 951_782_400);
    assert_eq!(out, b"20000229000000");
    for (text, expect) in [
        ("19700101000000", Some(0)),
        ("20000229000000", Some(951_782_400)),
        ("20020717210715.123", Some(1_026_940_035)),
        ("19000229000000", None),
        ("20010229000000", None),
        ("20010132000000", None),
        ("20010101240000", None),
        ("2001010100000", None),
        ("20010101000000x", None),
    ] {
        assert_eq!(parse_time(text.as_bytes()), expect, "{text}");
    }
}

#[test]
fn text_files() {
    let encode = |pieces: &[&[u8]]| {
        let (mut encoder, mut out) = (AsciiEncoder::default(), Vec::new());
        pieces.iter().for_each(|piece| encoder.push(piece, &mut out));
        out
    };
    assert_eq!(encode(&[b"a\nb\n\nc"]), b"a\r\nb\r\n\r\nc");
    assert_eq!(encode(&[b"a\r\nb\r", b"\nc\r", b"d\n"]), b"a\r\nb\r\nc\rd\r\n");
}

const PLAIN: FtpAbilities = FtpAbilities { may_write: false, may_connect: false, tls: FtpTls::Off, has_hosts: false };

/// Sends commands to a session that lets anonymous users in, and returns the codes of replies; 0 for other actions.
fn codes(session: &mut FtpSession, abilities: &FtpAbilities, commands: &[&str]) -> Vec<u16> {
    let code = |command: &&str| {
        let input = format!("{command}\r\n");
        match session.handle_input(input.as_bytes(), abilities) {
            FtpStep::Act(consumed_bytes, action) => {
                assert_eq!(consumed_bytes, input.len());
                let action = match action {
                    FtpAction::LogIn(user, _) => session.on_login(user == b"anonymous"),
                    FtpAction::Look(PathQuestion::Enter, path) => FtpAction::Reply(session.on_directory(path)),
                    action => action,
                };
                match action {
                    FtpAction::Reply(reply) | FtpAction::Close(reply) | FtpAction::StartTls(reply) => reply.code,
                    _ => 0,
                }
            }
            step => panic!("{command}: {step:?}"),
        }
    };
    commands.iter().map(code).collect()
}

fn logged_in(abilities: &FtpAbilities) -> FtpSession {
    let mut session = FtpSession::default();
    assert_eq!(codes(&mut session, abilities, &["USER anonymous", "PASS me@"]), [331, 230]);
    session
}

fn act(session: &mut FtpSession, abilities: &FtpAbilities, command: &str) -> FtpAction {
    match session.handle_input(format!("{command}\r\n").as_bytes(), abilities) {
        FtpStep::Act(_, action) => action,
        step => panic!("{command}: {step:?}"),
    }
}

#[test]
fn logins() {
    let mut session = FtpSession::default();
    let before = ["PWD", "RETR a", "PASV", "NOOP", "SYST", "FEAT", "PASS x", "FOO", "CWD"];
    assert_eq!(codes(&mut session, &PLAIN, &before), [530, 530, 530, 200, 215, 211, 503, 500, 501]);
    let wrong = ["USER root", "PASS x", "PASS y", "USER root", "PASS x", "USER root", "PASS x"];
    assert_eq!(codes(&mut session, &PLAIN, &wrong), [331, 530, 503, 331, 530, 331, 421]);
    let mut session = logged_in(&PLAIN);
    assert_eq!(codes(&mut session, &PLAIN, &["PWD", "CWD a", "USER anonymous", "PWD"]), [257, 250, 331, 530]);
    assert_eq!(codes(&mut session, &PLAIN, &["PASS", "REIN", "PWD"]), [230, 220, 530]);
}

#[test]
fn sessions() {
    let mut session = logged_in(&PLAIN);
    let commands = [
        "TYPE A",
        "TYPE E",
        "STRU R",
        "MODE S",
        "REST 5",
        "TYPE I",
        "REST 5",
        "ALLO 5",
        "ACCT x",
        "SITE HELP",
        "SITE CHMOD 777 a",
        "OPTS UTF8 ON",
        "OPTS MLST size;",
        "OPTS FOO",
        "LANG en",
        "LANG fr",
        "CLNT x",
        "HOST a",
    ];
    let expect = [200, 504, 504, 200, 501, 200, 350, 202, 202, 214, 504, 200, 200, 501, 200, 504, 200, 503];
    assert_eq!(codes(&mut session, &PLAIN, &commands), expect);
    let transfer = |argument: &str, path: &str, offset| {
        let (kind, transfer_type) = (FtpTransferKind::Retrieve, TransferType::Image);
        let (path, argument) = (path.as_bytes().to_vec(), argument.as_bytes().to_vec());
        FtpAction::Transfer(FtpTransfer { kind, path, argument, offset, transfer_type, is_protected: false })
    };
    assert_eq!(act(&mut session, &PLAIN, "RETR x/../a"), transfer("x/../a", "/a", 5));
    session.on_transfer_end();
    assert_eq!(act(&mut session, &PLAIN, "RETR a"), transfer("a", "/a", 0), "once");
    // RFC 959, section 4.1.3: some commands may come during a transfer, others wait.
    assert_eq!(session.handle_input(b"PWD\r\n", &PLAIN), FtpStep::AwaitTransfer);
    assert_eq!(act(&mut session, &PLAIN, "STAT"), FtpAction::ShowStatus);
    assert_eq!(codes(&mut session, &PLAIN, &["NOOP"]), [200]);
    assert_eq!(session.handle_input(b"STAT a\r\n", &PLAIN), FtpStep::AwaitTransfer);
    assert_eq!(act(&mut session, &PLAIN, "ABOR"), FtpAction::Abort);
    session.on_transfer_end();
    assert_eq!(act(&mut session, &PLAIN, "SIZE a"), FtpAction::Look(PathQuestion::Size, b"/a".to_vec()));
    assert_eq!(codes(&mut session, &PLAIN, &["TYPE A", "SIZE a"]), [200, 550]);
    // RFC 2428, section 4.
    let abilities = FtpAbilities { may_connect: true, ..PLAIN };
    assert_eq!(codes(&mut session, &PLAIN, &["PORT 127,0,0,1,1,1"]), [500]);
    assert_eq!(
        act(&mut session, &abilities, "PORT 127,0,0,1,1,1"),
        FtpAction::UseAddress("127.0.0.1:257".parse().unwrap())
    );
    assert_eq!(
        codes(&mut session, &abilities, &["EPSV ALL", "PASV", "PORT 127,0,0,1,1,1", "EPRT |1|127.0.0.1|1|"]),
        [200, 503, 503, 503]
    );
    assert_eq!(act(&mut session, &abilities, "EPSV"), FtpAction::Listen(PassiveMode::Epsv(None)));
    let epsv = FtpAction::Listen(PassiveMode::Epsv(Some(FtpFamily::V6)));
    assert_eq!(act(&mut session, &abilities, "EPSV 2"), epsv);
}

#[test]
fn changes() {
    let mut session = logged_in(&PLAIN);
    let commands =
        ["STOR a", "APPE a", "STOU", "DELE a", "MKD a", "RMD a", "RNFR a", "RNTO b", "MFMT 20020717210715 a"];
    assert_eq!(codes(&mut session, &PLAIN, &commands), [550; 9]);
    let writing = FtpAbilities { may_write: true, ..PLAIN };
    assert_eq!(
        codes(&mut session, &writing, &["RNTO b", "RNFR a", "NOOP", "RNTO b", "RNFR a"]),
        [503, 350, 200, 503, 350]
    );
    let rename = FtpChange::Rename(b"/a".to_vec(), b"/b".to_vec());
    assert_eq!(act(&mut session, &writing, "RNTO b"), FtpAction::Change(rename));
    assert_eq!(act(&mut session, &writing, "DELE /x"), FtpAction::Change(FtpChange::Delete(b"/x".to_vec())));
}

/// Commands that a third party inserts after AUTH in plain text must not count as the client's (CVE-2011-1575).
#[test]
fn plaintext_after_auth_is_dropped() {
    let offered = FtpAbilities { tls: FtpTls::Offered, ..PLAIN };
    let mut session = logged_in(&offered);
    let input = b"AUTH TLS\r\nUSER anonymous\r\nPASS x\r\n";
    match session.handle_input(input, &offered) {
        FtpStep::Act(consumed_bytes, FtpAction::StartTls(reply)) => {
            assert_eq!((consumed_bytes, reply.code), (input.len(), 234))
        }
        step => panic!("{step:?}"),
    }
    session.on_tls();
    let commands = ["PWD", "AUTH TLS", "PROT P", "PBSZ 0", "PROT S", "PROT P", "USER anonymous", "PASS x"];
    assert_eq!(codes(&mut session, &offered, &commands), [530, 503, 503, 200, 536, 200, 331, 230]);
    match act(&mut session, &offered, "LIST") {
        FtpAction::Transfer(transfer) => assert!(transfer.is_protected),
        action => panic!("{action:?}"),
    }
    let required = FtpAbilities { tls: FtpTls::Required, ..PLAIN };
    let mut session = FtpSession::default();
    assert_eq!(
        codes(&mut session, &required, &["USER a", "PBSZ 0", "PROT P", "AUTH SSL", "AUTH TLS"]),
        [530, 503, 503, 504, 234]
    );
    session.on_tls();
    let commands = ["USER anonymous", "PASS x", "LIST", "PBSZ 0", "PROT C"];
    assert_eq!(codes(&mut session, &required, &commands), [331, 230, 521, 200, 534]);
    assert_eq!(codes(&mut FtpSession::default(), &PLAIN, &["AUTH TLS", "PBSZ 0"]), [502, 503]);
}

#[test]
fn malformed_lines_end_or_continue() {
    let mut session = logged_in(&PLAIN);
    let step = session.handle_input(b"RETR a\nDELE b\r\n", &PLAIN);
    assert!(matches!(step, FtpStep::Act(15, FtpAction::Reply(FtpReply { code: 500, .. }))), "{step:?}");
    let step = session.handle_input(&[b'A'; COMMAND_BYTES_MAX], &PLAIN);
    assert!(matches!(step, FtpStep::Act(COMMAND_BYTES_MAX, FtpAction::Close(FtpReply { code: 500, .. }))), "{step:?}");
    assert_eq!(session.handle_input(b"NOO", &PLAIN), FtpStep::NeedInput);
    assert_eq!(codes(&mut session, &PLAIN, &["CWD a\r\0b"]), [553]);
}

proptest! {
    /// All bytes of a name survive a command and a reply, except line ends.
    #[test]
    fn names_survive(name in proptest::collection::vec(any::<u8>(), 1..40)) {
        prop_assume!(is_representable(&name) && !name.contains(&b'/') && name != b"." && name != b"..");
        let mut line = b"CWD ".to_vec();
        for &byte in &name {
            line.push(byte);
            if byte == 255 {
                line.push(255);
            }
        }
        line.extend_from_slice(b"\r\n");
        let mut session = logged_in(&PLAIN);
        let expect = FtpAction::Look(PathQuestion::Enter, [b"/", name.as_slice()].concat());
        prop_assert_eq!(session.handle_input(&line, &PLAIN), FtpStep::Act(line.len(), expect));
    }

    /// A resolved path stays below the root, and resolves to itself.
    #[test]
    fn resolved_paths(directory in "(/[ab.]{1,3}){0,3}", path in "[/ab.]{0,20}") {
        let resolved = resolve(&resolve(b"/", directory.as_bytes()), path.as_bytes());
        prop_assert!(resolved.starts_with(b"/"));
        prop_assert!(resolved.split(|byte| *byte == b'/').all(|segment| segment != b"." && segment != b".."));
        prop_assert_eq!(resolve(b"/x", &resolved), resolved);
    }
}
