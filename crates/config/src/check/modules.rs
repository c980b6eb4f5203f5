//! Checks of module files.

use std::io::{self, Read};
use std::path::Path;

use super::finding::{CheckedSite, ModelFinding, ModelPart};
use crate::model::HandlerConfig;
use crate::model::module::ModuleConfig;
use crate::regular_file::{is_denied, open_regular};

/// A module is WebAssembly, and what it is granted is there.
pub(super) fn check_site(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    for (index, route) in site.config.routes.iter().enumerate() {
        let HandlerConfig::Module(module) = &route.handler else { continue };
        findings.extend(file_fault(&module.file, site.route(index)));
        check_grants(module, site.route(index), findings);
    }
}

fn check_grants(module: &ModuleConfig, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    let directories = &module.grants.directories;
    for (index, granted) in directories.iter().enumerate() {
        let error = std::fs::read_dir(&granted.directory)
            .err()
            .map(|error| (format!("the directory {}: {error}", granted.directory.display()), is_denied(&error)));
        let twice = directories[..index].iter().any(|other| other.name == granted.name);
        let twice = twice.then(|| (format!("two directories have the name `{}`", granted.name), false));
        for (message, is_denied) in error.into_iter().chain(twice) {
            findings.push(ModelFinding::error(part, message, "in here").denied(is_denied));
        }
    }
}

/// Fault of a module file, as far as its first bytes show.
fn file_fault(file: &Path, part: ModelPart) -> Option<ModelFinding> {
    let fault = |message: String, label: &'static str| ModelFinding::error(part, message, label);
    match is_module(file) {
        Err(error) => Some(fault(format!("the module {}: {error}", file.display()), "here").denied(is_denied(&error))),
        Ok(true) => None,
        Ok(false) => Some(
            fault(format!("{} is not WebAssembly", file.display()), "here")
                .help("use the binary format; `tailcoat module new` creates a module project"),
        ),
    }
}

/// Returns `true` if the preamble is that of WebAssembly: magic, version and layer of a component or core module.
fn is_module(file: &Path) -> io::Result<bool> {
    let mut preamble = Vec::new();
    open_regular(file)?.take(8).read_to_end(&mut preamble)?;
    Ok(matches!(preamble.as_slice(), [0, b'a', b's', b'm', 1, 0, 0, 0] | [0, b'a', b's', b'm', _, _, 1, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preambles() {
        let check = |bytes: &[u8], expect: bool| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            assert_eq!(is_module(file.path()).unwrap(), expect, "{bytes:?}");
        };
        check(b"\0asm\x0d\0\x01\0", true);
        check(b"\0asm\x0d\0\x01\0and more", true);
        check(b"\0asm\x01\0\0\0", true);
        check(b"\0asm\x01\0", false);
        check(b"(component)", false);
        check(b"", false);
    }
}
