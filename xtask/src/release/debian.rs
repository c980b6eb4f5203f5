//! The Debian package: the tree of a release where Debian has such files, with `packaging/debian`.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::{DIRECTORIES, PROGRAMS, Tree, copy, empty, write};
use super::{Release, open_directories, read, run_command};

/// Scripts that run when the package is installed and removed.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

const MAINTAINER: &str = "The Tailcoat developers <tailcoat@example.org>";

/// Makes `tailcoat_VERSION_ARCHITECTURE.deb`.
pub(super) fn pack(tree: &Tree, release: &Release) -> Result<PathBuf, Box<dyn Error>> {
    let architecture = match release.architecture() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let root = release.directory.join("debian");
    empty(&root)?;
    install(tree, &root, release)?;
    let kibibytes = read(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1K"]).arg(&root))?;
    let control = fs::read_to_string("packaging/debian/control")?
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KIBIBYTES@", kibibytes.split_whitespace().next().unwrap_or("0"));
    write(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    copy(Path::new("packaging/debian/conffiles"), &root.join("DEBIAN/conffiles"), 0o644)?;
    for script in SCRIPTS {
        copy(&Path::new("packaging/debian").join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    open_directories(&root)?;
    let package = release.directory.join(format!("tailcoat_{}_{architecture}.deb", release.version));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"]).arg(&root).arg(&package);
    run_command(dpkg.env("SOURCE_DATE_EPOCH", release.time.to_string()))?;
    Ok(package)
}

fn install(tree: &Tree, root: &Path, release: &Release) -> Result<(), Box<dyn Error>> {
    for program in PROGRAMS {
        copy(&tree.root.join("bin").join(program), &root.join("usr/bin").join(program), 0o755)?;
    }
    copy_tree(&tree.root.join("share"), &root.join("usr/share"))?;
    compress_all(&root.join("usr/share/man"))?;
    let documents = root.join("usr/share/doc/tailcoat");
    for directory in DIRECTORIES {
        copy_tree(&tree.root.join(directory), &documents.join(directory))?;
    }
    for text in ["README.md", "SECURITY.md", "BENCHMARKS.md", "LICENSE-MIT"] {
        copy(Path::new(text), &documents.join(text), 0o644)?;
    }
    copy(Path::new("packaging/debian/copyright"), &documents.join("copyright"), 0o644)?;
    copy(&super::sbom::file(release), &documents.join("tailcoat.cdx.json"), 0o644)?;
    copy(Path::new("CHANGELOG.md"), &documents.join("NEWS.md"), 0o644)?;
    write(&documents.join("changelog"), changelog(release)?.as_bytes(), 0o644)?;
    for text in ["NEWS.md", "changelog"] {
        compress(&documents.join(text))?;
    }
    let unit = root.join("lib/systemd/system/tailcoat.service");
    copy(Path::new("packaging/systemd/tailcoat.service"), &unit, 0o644)?;
    copy(Path::new("packaging/tailcoat.kdl"), &root.join("etc/tailcoat/tailcoat.kdl"), 0o644)?;
    copy(Path::new("packaging/logrotate"), &root.join("etc/logrotate.d/tailcoat"), 0o644)?;
    fs::create_dir_all(root.join("etc/tailcoat/sites"))?;
    Ok(())
}

/// Debian's changelog, with the version only; NEWS.md has the changes.
fn changelog(release: &Release) -> Result<String, Box<dyn Error>> {
    let date = read(Command::new("date").args(["--utc", "-R", "-d"]).arg(format!("@{}", release.time)))?;
    let Release { version, .. } = release;
    Ok(format!("tailcoat ({version}) stable; urgency=medium\n\n  * See NEWS.md.\n\n -- {MAINTAINER}  {date}"))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(from).map_err(|error| format!("{}: {error}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else {
            copy(&entry.path(), &to, entry.metadata()?.permissions().mode() & 0o777)?;
        }
    }
    Ok(())
}

/// Compresses all files in the directories of a directory, as manual pages are.
fn compress_all(directory: &Path) -> Result<(), Box<dyn Error>> {
    for section in fs::read_dir(directory)? {
        for page in fs::read_dir(section?.path())? {
            compress(&page?.path())?;
        }
    }
    Ok(())
}

/// Without name and time, which would differ.
fn compress(file: &Path) -> Result<(), Box<dyn Error>> {
    run_command(Command::new("gzip").arg("-9nf").arg(file))
}
