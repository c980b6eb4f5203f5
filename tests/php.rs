//! php-fpm, where it is installed: a real FastCGI application server.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::h2::H2Client;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::skips::{skip, skip_without};
use crate::support::{LARGE_BYTES, TestServer, ask, tailcoat};

const PHP_FPM: Recipe<'_> = Recipe {
    needs: &["/usr/sbin/php-fpm8.2"],
    files: &[
        (
            "fpm.conf",
            "[global]\nerror_log = @DIR@/fpm.log\n[www]\nlisten = 127.0.0.1:@PORT@\nuser = www-data\ngroup = www-data\n\
             pm = static\npm.max_children = 3\nphp_admin_value[upload_tmp_dir] = /tmp\n\
             php_admin_value[post_max_size] = 64M\nphp_admin_value[upload_max_filesize] = 64M\n",
        ),
        ("root/index.php", "<?php echo 'front ', $_SERVER['REQUEST_URI'], \"\\n\";"),
        (
            "root/info.php",
            "<?php header('Content-Type: text/plain'); foreach (['SCRIPT_NAME', 'PATH_INFO', 'PHP_SELF', 'REQUEST_METHOD', \
             'QUERY_STRING', 'HTTPS', 'DOCUMENT_ROOT', 'SCRIPT_FILENAME'] as $n) echo \"$n=\", $_SERVER[$n] ?? '-', \"\\n\"; \
             echo json_encode($_GET), json_encode($_POST), json_encode($_COOKIE), strlen(file_get_contents('php://input')), \"\\n\";",
        ),
        (
            "root/upload.php",
            "<?php echo $_FILES['f']['size'], ' ', md5_file($_FILES['f']['tmp_name']) === md5(str_repeat('x', $_FILES['f']['size'])) ? 'same' : 'other';",
        ),
        ("root/large.php", "<?php for ($i = 0; $i < 256; $i++) echo str_repeat('y', 65536);"),
        ("root/status.php", "<?php http_response_code(404); header('X-A: 1'); echo 'gone';"),
        ("root/redirect.php", "<?php header('Location: /elsewhere');"),
        ("root/stream.php", "<?php echo 'a'; flush(); usleep(100000); echo 'b';"),
        ("root/error.php", "<?php error_log('something is wrong'); echo 'after';"),
        ("root/fatal.php", "<?php nothing();"),
        ("root/upload/x.jpg", "<?php echo 'evil';"),
        ("root/style.css", "css"),
    ],
    command: &["/usr/sbin/php-fpm8.2", "--nodaemonize", "--fpm-config", "@DIR@/fpm.conf"],
    environment: &[],
};

fn front(php: &RealServer, options: &str) -> TestServer {
    TestServer::run(&format!(
        "upstream \"php\" {{ server \"tcp://{}\"; idle-max 2; idle-timeout \"60s\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{}/root\"\n\
         fastcgi \"*.php\" \"php\" {{\n fallback \"/index.php\"\n body-bytes-max \"64MiB\"\n {options}\n }}\n }}\n\
         server {{ workers 1 }}\n",
        php.address,
        php.directory().display()
    ))
}

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

#[test]
fn php_fpm() {
    let Some(php) = RealServer::start(&PHP_FPM) else { return };
    for options in ["", "keep-connections"] {
        let server = front(&php, options);
        let root = format!("{}/root", php.directory().display());
        let info = get(&server, "/info.php/more/info?a=b%20c");
        for expect in [
            "SCRIPT_NAME=/info.php\n",
            "PATH_INFO=/more/info\n",
            "PHP_SELF=/info.php/more/info\n",
            "QUERY_STRING=a=b%20c\n",
            "HTTPS=-\n",
            &format!("DOCUMENT_ROOT={root}\n"),
            &format!("SCRIPT_FILENAME={root}/info.php\n"),
            "{\"a\":\"b c\"}[][]0\n",
        ] {
            assert!(info.contains(expect), "{expect:?}: {info}");
        }
        let posted = ask(
            &server,
            "POST /info.php HTTP/1.1\r\nHost: h\r\nConnection: close\r\nCookie: c=d\r\nContent-Length: 3\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\na=b",
        );
        assert!(posted.contains("[]{\"a\":\"b\"}{\"c\":\"d\"}3\n"), "{posted}");
        assert!(get(&server, "/a/pretty/path?x").contains("front /a/pretty/path?x\n"));
        assert!(get(&server, "/").contains("front /\n"));
        assert!(get(&server, "/style.css").ends_with("css"));
        assert!(get(&server, "/status.php").starts_with("HTTP/1.1 404 Not Found\r\n"));
        assert!(get(&server, "/redirect.php").starts_with("HTTP/1.1 302 Found\r\n"));
        assert!(get(&server, "/stream.php").contains("a"));
        assert!(get(&server, "/error.php").ends_with("after"));
        assert!(get(&server, "/fatal.php").starts_with("HTTP/1.1 500 "));
        assert!(!get(&server, "/upload/x.jpg/y.php").contains("evil"));
        for _ in 0..20 {
            assert!(get(&server, "/info.php").starts_with("HTTP/1.1 200 OK\r\n"));
        }
        let head = ask(&server, "HEAD /info.php HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        upload_and_download(&server);
    }
}

/// The request's limit is that of the script's handler, which is chosen after a lookup of the script's file.
#[test]
fn uploads_to_php_fpm_over_http2() {
    let Some(php) = RealServer::start(&PHP_FPM) else { return };
    let server = front(&php, "");
    let mut client = H2Client::connect(&server);
    let fields = [("content-length", "2500000"), ("content-type", "text/plain")];
    let stream = client.ask("POST", "/info.php", &fields, false);
    client.send(stream, &[b'x'; 2_500_000], true);
    let answer = client.finish(stream);
    let content = String::from_utf8_lossy(&answer.content);
    assert_eq!(answer.status(), 200, "{content}");
    assert!(content.ends_with("2500000\n"), "{content}");
}

fn upload_and_download(server: &TestServer) {
    let before = server.resident_kib_max();
    let file = vec![b'x'; LARGE_BYTES];
    let open = b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n";
    let content = [&open[..], &file, b"\r\n--b--\r\n"].concat();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /upload.php HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: multipart/form-data; boundary=b\r\n\r\n",
        content.len()
    )
    .unwrap();
    stream.write_all(&content).unwrap();
    let mut answered = String::new();
    stream.read_to_string(&mut answered).unwrap();
    assert!(answered.contains(&format!("{LARGE_BYTES} same")), "{answered}");
    let large = ask(server, "GET /large.php HTTP/1.0\r\n\r\n");
    let content = large.split_once("\r\n\r\n").expect("a head").1;
    assert_eq!(content.matches('y').count(), LARGE_BYTES);
    let grown_kib = server.resident_kib_max() - before;
    assert!(grown_kib < 4 << 10, "{grown_kib} KiB for {LARGE_BYTES} bytes each way");
}

/// Runs Debian's own php-fpm with its own pool, and Tailcoat as the user of the packaged unit: first without access to the socket, then
/// as a member of its group, as the manual says. A mount namespace has their users and `/run`.
const DEBIAN: &str = r#"
set -e
sed 's/^www-data:.*/&,/' /etc/group > "$1/group"
cp /etc/passwd "$1/passwd"
echo 'tailcoat:x:987:987::/nonexistent:/usr/sbin/nologin' >> "$1/passwd"
echo 'tailcoat:x:987:' >> "$1/group"
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
mount -t tmpfs none /run
mkdir /run/php /run/www
chmod 755 /run
touch /run/tailcoat
mount --bind "$2" /run/tailcoat
printf '<?php echo "hello of ", posix_getpwuid(posix_geteuid())["name"];' > /run/www/index.php
printf '%s' "$3" > /run/tailcoat.kdl
chmod -R a+rX /run/www /run/tailcoat.kdl
/usr/sbin/php-fpm8.2 --nodaemonize --fpm-config /etc/php/8.2/fpm/php-fpm.conf > /dev/null 2>&1 &
until [ -S /run/php/php8.2-fpm.sock ]; do sleep 0.05; done
serve() {
    setpriv --reuid=tailcoat --regid=tailcoat --init-groups --no-new-privs /run/tailcoat run -c /run/tailcoat.kdl > /dev/null 2> "$1" &
    until port=$(sed -n 's/.*listening on 127.0.0.1:\([0-9]*\).*/\1/p' "$1") && [ "$port" ]; do kill -0 $!; sleep 0.05; done
    curl -s -i "http://127.0.0.1:$port/a-post" > "$2"
    kill $!
    wait $! || true
}
serve "$1/without.log" "$1/without"
sed 's/^\(www-data:.*\),$/\1tailcoat/' "$1/group" > "$1/joined"
cat "$1/joined" > /etc/group
serve "$1/with.log" "$1/with"
kill %1
wait
"#;

#[test]
fn the_packaged_user_reaches_the_socket_of_debian() {
    let unit = include_str!("../packaging/systemd/tailcoat.service");
    assert!(unit.contains("\nUser=tailcoat\nGroup=tailcoat\n"));
    for needed in ["/usr/sbin/php-fpm8.2", "/etc/php/8.2/fpm/pool.d/www.conf"] {
        if !Path::new(needed).exists() {
            return skip_without(needed);
        }
    }
    let may_mount = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        return skip("it may not mount");
    }
    let config = "site {\n listen \"127.0.0.1:0\"\n root \"/run/www\"\n\
                  fastcgi \"*.php\" \"unix:/run/php/php8.2-fpm.sock\" {\n fallback \"/index.php\"\n }\n}\n";
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut script = Command::new("unshare");
    script.args(["--mount", "--pid", "--fork", "--kill-child", "bash", "-c", DEBIAN, "debian"]);
    script.arg(directory.path()).arg(tailcoat().get_program()).arg(config);
    assert!(script.status().unwrap().success());
    let file = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(file("without").starts_with("HTTP/1.1 502 "), "{}", file("without"));
    assert!(file("without.log").contains("give this server's user write permission for the socket"));
    assert!(file("with").ends_with("hello of www-data"), "{}{}", file("with"), file("with.log"));
}
