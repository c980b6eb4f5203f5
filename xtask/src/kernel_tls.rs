//! `kernel-tls`: the tests of TLS in the kernel, in a virtual machine whose kernel has it; and, as that is an older one, what
//! is said of confinement that it lacks.
//!
//! The machine is Debian's kernel for clouds and, as its first files (initramfs), the built binary, the tests, busybox and
//! what they need of this machine. It has no disk and no network, and is emulated: not every
//! machine for builds has a KVM that works. Packages come by apt; nothing is installed.

mod initramfs;

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use self::initramfs::Initramfs;

use crate::skips;

const USAGE: &str = "usage: cargo xtask kernel-tls [--kernel PACKAGE.deb]... [--timeout SECONDS] [TEST]";

/// Programs that this needs; the ones that not every Debian has.
const PROGRAMS: [&str; 6] = ["qemu-system-x86_64", "apt-get", "dpkg-deb", "strip", "ldd", "xz"];

/// The package whose latest dependency is a kernel.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Tests that are run unless others are asked for.
const TESTS: &str = "kernel_tls:: confinement::a_kernel_that_confines_less";

/// Programs of this machine that tests start.
const PROGRAMS_OF_TESTS: [&str; 5] = ["bash", "tee", "sleep", "curl", "openssl"];

/// Modules for TLS and ciphers, below the kernel's tree of modules.
const MODULES: [&str; 5] =
    ["kernel/net/tls", "kernel/crypto", "kernel/lib/crypto", "kernel/arch/x86/crypto", "kernel/arch/x86/lib"];

/// Ends what the machine says, and is followed by how the tests have ended.
const END: &str = "kernel-tls: the tests have ended with ";

// words: allow the string is a shell script
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin/box
export PATH=/usr/bin:/bin:/bin/box HOME=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
ln -s /proc/self/fd /dev/fd
ip link set lo up
# Ciphers are loaded by the kernel when they are wanted, by the names that it knows them by.
modprobe tls
for cipher in aesni-intel gcm ctr ghash-clmulni-intel ghash-generic aes_generic chacha20poly1305; do modprobe -q $cipher; done
uname -r
cat /proc/net/tls_stat
"#;

pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let (mut kernels, mut timeout, mut filter) = (Vec::new(), Duration::from_secs(900), TESTS.to_owned());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernel" => kernels.push(PathBuf::from(arguments.next().ok_or(USAGE)?)),
            "--timeout" => timeout = Duration::from_secs(arguments.next().ok_or(USAGE)?.parse().map_err(|_| USAGE)?),
            other if other.starts_with('-') => return Err(USAGE.into()),
            other => filter = other.to_owned(),
        }
    }
    if let Some(missing) = PROGRAMS.iter().find(|program| find(program).is_none()) {
        println!("Debian: apt install qemu-system-x86 binutils");
        return Ok(skips::passes_without("kernel-tls", missing));
    }
    let directory = std::path::absolute("target/kernel-tls")?;
    fs::create_dir_all(&directory)?;
    if kernels.is_empty() {
        kernels.push(download(&directory, &latest(KERNEL)?)?);
    }
    let busybox = unpack(&directory.join("busybox"), &[download(&directory, "busybox-static")?])?;
    let kernel = unpack(&directory.join("kernel"), &kernels)?;
    let (tests, binary) = build()?;
    let files = GuestFiles { busybox: busybox.join("bin/busybox"), kernel: &kernel, tests: &tests, binary: &binary };
    let image = directory.join("initramfs");
    files.pack(&directory, &filter)?.write(&image)?;
    boot(&image_of_kernel(&kernel)?, &image, timeout)
}

/// Files of the machine.
struct GuestFiles<'a> {
    busybox: PathBuf,
    kernel: &'a Path,
    tests: &'a Path,
    binary: &'a Path,
}

impl GuestFiles<'_> {
    fn pack(&self, directory: &Path, filter: &str) -> Result<Initramfs, Box<dyn Error>> {
        let mut image = Initramfs::default();
        for name in ["proc", "sys", "dev", "tmp", "run", "bin/box", "sbin", "usr/bin", "var/tmp", "root"] {
            image.add_directory(Path::new(name));
        }
        image.add_file(Path::new("bin/busybox"), fs::read(&self.busybox)?, true);
        image.add_link(Path::new("sbin/modprobe"), Path::new("/bin/busybox"));
        image.add_link(Path::new("bin/sh"), Path::new("/bin/busybox"));
        image.add_file(Path::new("etc/passwd"), b"root:x:0:0:root:/root:/bin/sh\n".to_vec(), false);
        image.add_file(Path::new("etc/hosts"), b"127.0.0.1 localhost\n".to_vec(), false);
        // Tests know where the binary is.
        for binary in [self.binary, self.tests] {
            let stripped = directory.join("stripped");
            call(Command::new("strip").arg("-o").arg(&stripped).arg(binary))?;
            image.add_file(binary, fs::read(&stripped)?, true);
            add_libraries(&mut image, binary)?;
        }
        for program in PROGRAMS_OF_TESTS {
            let Some(path) = find(program) else { continue };
            image.add_file(&Path::new("usr/bin").join(program), fs::read(&path)?, true);
            add_libraries(&mut image, &path)?;
        }
        self.add_modules(&mut image)?;
        let tests = self.tests.display();
        let filter: String = filter.split_whitespace().map(|part| format!(" '{part}'")).collect();
        let run = format!("{INIT}{tests} --test-threads 1 --nocapture{filter}\necho \"{END}$?\"\npoweroff -f\n");
        image.add_file(Path::new("init"), run.into_bytes(), true);
        Ok(image)
    }

    /// Adds the kernel's modules, which are decompressed first, with the lists of what needs what.
    fn add_modules(&self, image: &mut Initramfs) -> Result<(), Box<dyn Error>> {
        let modules = ["lib/modules", "usr/lib/modules"].map(|path| self.kernel.join(path));
        let modules = modules.iter().find(|path| path.is_dir()).ok_or("the package has no modules")?;
        let version = fs::read_dir(modules)?.next().ok_or("the package has no modules")??.file_name();
        let (from, root) = (modules.join(&version), self.kernel.join("chosen"));
        let to = root.join("lib/modules").join(&version);
        let _ = fs::remove_dir_all(&root);
        for part in MODULES.iter().filter(|part| from.join(part).is_dir()) {
            fs::create_dir_all(to.join(part))?;
            call(Command::new("cp").arg("-rT").arg(from.join(part)).arg(to.join(part)))?;
        }
        for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            let _ = fs::copy(from.join(list), to.join(list));
        }
        let mut files = Vec::new();
        files_below(&to, &mut files)?;
        let compressed: Vec<_> = files.iter().filter(|path| path.extension().is_some_and(|end| end == "xz")).collect();
        if !compressed.is_empty() {
            call(Command::new("xz").arg("-d").args(compressed))?;
        }
        call(Command::new(&self.busybox).args(["depmod", "-b"]).arg(&root).arg(&version))?;
        files.clear();
        files_below(&root, &mut files)?;
        for path in files {
            image.add_file(path.strip_prefix(&root)?, fs::read(&path)?, false);
        }
        Ok(())
    }
}

/// Builds binary and tests; returns where they are: tests, binary.
fn build() -> Result<(PathBuf, PathBuf), Box<dyn Error>> {
    let mut command = Command::new("cargo");
    command.args(["test", "-p", "tailcoat", "--test", "blackbox", "--no-run", "--message-format", "json"]);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests can't be built".into());
    }
    let (mut tests, mut binary) = (None, None);
    for line in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
        let Some(executable) = message["executable"].as_str().map(PathBuf::from) else { continue };
        match message["target"]["name"].as_str() {
            Some("blackbox") => tests = Some(executable),
            Some("tailcoat") => binary = Some(executable),
            _ => {}
        }
    }
    tests.zip(binary).ok_or_else(|| "cargo does not say what it has built".into())
}

/// Starts the machine, and says what it says; whether all tests have passed.
fn boot(kernel: &Path, initramfs: &Path, timeout: Duration) -> Result<bool, Box<dyn Error>> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2048", "-nographic", "-no-reboot"]);
    command.args(["-nic", "none", "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    let mut machine = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let output = machine.stdout.take().ok_or("it is piped")?;
    let end = std::thread::spawn(move || {
        let mut end = None;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            end = line.split_once(END).map(|(_, code)| code.trim() == "0").or(end);
        }
        end
    });
    let start = Instant::now();
    while machine.try_wait()?.is_none() {
        if start.elapsed() > timeout {
            machine.kill()?;
            machine.wait()?;
            return Err(format!("the tests take longer than {} s", timeout.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    end.join().ok().flatten().ok_or_else(|| "the machine has ended before the tests have".into())
}

/// The latest package that this one stands for.
fn latest(package: &str) -> Result<String, Box<dyn Error>> {
    let text = said(Command::new("apt-cache").args(["depends", package]))?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(name.ok_or_else(|| format!("apt knows no {package}; see `apt-get update`"))?.to_owned())
}

/// Downloads a package, unless it is there.
fn download(directory: &Path, package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let known = || {
        let files = fs::read_dir(directory).ok()?.filter_map(Result::ok);
        let prefix = format!("{package}_");
        files
            .map(|file| file.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
    };
    if known().is_none() {
        call(Command::new("apt-get").current_dir(directory).args(["download", package]))?;
    }
    known().ok_or_else(|| format!("apt has not downloaded {package}").into())
}

/// Unpacks packages into an empty directory.
fn unpack(to: &Path, packages: &[PathBuf]) -> Result<PathBuf, Box<dyn Error>> {
    let _ = fs::remove_dir_all(to);
    for package in packages {
        call(Command::new("dpkg-deb").arg("-x").arg(package).arg(to))?;
    }
    Ok(to.to_owned())
}

fn image_of_kernel(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut files = Vec::new();
    files_below(root, &mut files)?;
    let is_image = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
    files.into_iter().find(is_image).ok_or_else(|| "the packages have no kernel".into())
}

/// Adds what a program is linked with.
fn add_libraries(image: &mut Initramfs, program: &Path) -> Result<(), Box<dyn Error>> {
    let text = said(Command::new("ldd").arg(program))?;
    for path in text.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new) {
        if !image.has(path) {
            image.add_file(path, fs::read(path)?, true);
        }
    }
    Ok(())
}

fn files_below(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
        match kind? {
            kind if kind.is_dir() => files_below(&path, files)?,
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
    Ok(())
}

fn find(program: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories).map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn call(command: &mut Command) -> Result<(), Box<dyn Error>> {
    said(command).map(|_| ())
}

/// Output of a command that must succeed.
fn said(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
