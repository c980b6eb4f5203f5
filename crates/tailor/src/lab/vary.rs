//! `tailor compare --vary`: the same server with several values of one setting, compared like different servers.

use std::path::{Path, PathBuf};

use super::model::LabServer;

/// Setting with the values to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct VariedSetting {
    kind: SettingKind,
    name: String,
    values: Vec<String>,
}

/// Kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingKind {
    /// Kernel parameter below /proc/sys.
    Sysctl,
    /// Environment variable of the server.
    Environment,
    /// Text in the server's command and files.
    Text,
}

/// Parses `sysctl:NAME=A,B`, `env:NAME=A,B` or `text:OLD=A,B`.
pub(crate) fn parse(text: &str) -> Result<VariedSetting, String> {
    let form = "write sysctl:NAME=A,B, env:NAME=A,B or text:OLD=A,B";
    let (kind, rest) = text.split_once(':').ok_or_else(|| format!("`{text}` has no kind; {form}"))?;
    let kind = match kind {
        "sysctl" => SettingKind::Sysctl,
        "env" => SettingKind::Environment,
        "text" => SettingKind::Text,
        other => return Err(format!("unknown kind `{other}`; {form}")),
    };
    let (name, values) = rest.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; {form}"))?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    match () {
        () if name.is_empty() => Err(format!("`{text}` has no name; {form}")),
        () if values.len() < 2 => Err(format!("`{text}` has one value; a comparison needs at least two")),
        () if (1..values.len()).any(|index| values[..index].contains(&values[index])) => {
            Err(format!("`{text}` has a value twice; the A/A control does that already"))
        }
        () if kind == SettingKind::Sysctl
            && !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) =>
        {
            Err(format!("`{name}` is not the name of a kernel parameter, such as net.core.somaxconn"))
        }
        () => Ok(VariedSetting { kind, name: name.to_owned(), values }),
    }
}

impl VariedSetting {
    /// True if only one value can be in force at a time.
    pub(super) fn is_of_machine(&self) -> bool {
        self.kind == SettingKind::Sysctl
    }

    /// Checks that the setting can be changed.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.kind {
            SettingKind::Sysctl => restore_left_settings().and_then(|()| {
                let setting = KernelParameter { name: self.name.clone(), value: read(&self.name)? };
                setting.apply().map(drop)
            }),
            SettingKind::Environment | SettingKind::Text => Ok(()),
        }
    }

    /// Servers with each of the values.
    pub(super) fn servers(&self, server: &LabServer) -> Result<Vec<LabServer>, String> {
        let variant = |value: &String| {
            let mut server = server.clone();
            match self.kind {
                SettingKind::Sysctl => {
                    server.parameter = Some(KernelParameter { name: self.name.clone(), value: value.clone() });
                }
                SettingKind::Environment => {
                    let assignment = format!("{}={value}", self.name);
                    server.command.splice(0..0, ["env".to_owned(), assignment]);
                }
                SettingKind::Text => {
                    let texts = server.command.iter_mut().chain(server.files.iter_mut().map(|(_, text)| text));
                    let mut is_found = false;
                    for text in texts.filter(|text| text.contains(&self.name)) {
                        *text = text.replace(&self.name, value);
                        is_found = true;
                    }
                    if !is_found {
                        return Err(format!(
                            "--vary: `{}` does not occur in the command or the files of {}; `tailor compare LAB --print` shows the lab",
                            self.name, server.name
                        ));
                    }
                }
            }
            let label = match self.kind {
                SettingKind::Text => value.clone(),
                SettingKind::Sysctl | SettingKind::Environment => format!("{}={value}", self.name),
            };
            server.name = format!("{} {label}", server.name);
            Ok(server)
        };
        self.values.iter().map(variant).collect()
    }
}

/// Kernel parameter with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelParameter {
    name: String,
    value: String,
}

/// Changed kernel parameter; dropping it puts the old value back.
#[derive(Debug)]
pub(super) struct ChangedParameter {
    old: KernelParameter,
    /// File with the old value, for the case that the process is killed.
    note: PathBuf,
}

impl KernelParameter {
    /// Sets the parameter until the result is dropped.
    pub(super) fn apply(&self) -> Result<ChangedParameter, String> {
        let old = Self { name: self.name.clone(), value: read(&self.name)? };
        let note = note_path(std::process::id());
        std::fs::write(&note, format!("{}\n{}", old.name, old.value))
            .map_err(|error| format!("{}: {error}", note.display()))?;
        // From here on the old value is put back, whatever happens.
        let changed = ChangedParameter { old, note };
        self.write()?;
        Ok(changed)
    }

    fn write(&self) -> Result<(), String> {
        let fail = |reason: String| format!("--vary: cannot set {} to {}: {reason}", self.name, self.value);
        std::fs::write(path(&self.name), &self.value).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                fail(format!("{error}; run as root, outside of a container"))
            }
            _ => fail(error.to_string()),
        })?;
        let is = read(&self.name)?;
        // The kernel separates values by tabs.
        match is.split_whitespace().eq(self.value.split_whitespace()) {
            true => Ok(()),
            false => Err(fail(format!("the kernel made it {is}"))),
        }
    }
}

impl Drop for ChangedParameter {
    fn drop(&mut self) {
        match self.old.write() {
            Ok(()) => drop(std::fs::remove_file(&self.note)),
            Err(error) => eprintln!("tailor: {error}; its value was {} before", self.old.value),
        }
    }
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

fn read(name: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path(name));
    text.map(|text| text.trim().to_owned()).map_err(|error| format!("--vary: {name}: {error}"))
}

fn note_path(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("tailor-vary-{process}"))
}

/// Puts back parameters that killed processes have left changed.
fn restore_left_settings() -> Result<(), String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).map_err(|error| error.to_string())?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix("tailor-vary-").and_then(|process| process.parse::<u32>().ok()) else {
            continue;
        };
        if Path::new("/proc").join(process.to_string()).exists() || !is_own(&entry) {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).map_err(|error| format!("{name}: {error}"))?;
        if let Some((name, value)) = text.split_once('\n') {
            eprintln!("{name} is put back to {value}: process {process} ended before it could");
            KernelParameter { name: name.to_owned(), value: value.to_owned() }.write()?;
        }
        let _ = std::fs::remove_file(entry.path());
    }
    Ok(())
}

/// True for a plain file of this user. Other users may write to the directory.
fn is_own(entry: &std::fs::DirEntry) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_own = |meta: std::fs::Metadata| meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(entry.path()).is_ok_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        let setting = parse("sysctl:net.ipv4.tcp_congestion_control=cubic, bbr").unwrap();
        assert_eq!((setting.kind, setting.values.len()), (SettingKind::Sysctl, 2));
        assert_eq!(parse("text:sendfile on;=sendfile on;,sendfile off;").unwrap().name, "sendfile on;");
        for (text, expect) in [
            ("x=1,2", "has no kind"),
            ("cgroup:x=1,2", "unknown kind `cgroup`"),
            ("env:x", "has no `=`"),
            ("env:=1,2", "has no name"),
            ("env:x=1", "one value"),
            ("env:x=1,1", "a value twice"),
            ("sysctl:../x=1,2", "not the name of a kernel parameter"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn variants() {
        let peers = super::super::model::parse_peers("server \"b\" { command \"b\" \"-x\"; file \"c\" \"workers 1\" }");
        let server = &peers.unwrap()[0];
        let servers = |text: &str| parse(text).unwrap().servers(server);
        let texts = servers("text:workers 1=workers 1,workers 2").unwrap();
        let names: Vec<&str> = texts.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["b workers 1", "b workers 2"]);
        assert_eq!(texts[1].files[0].1, "workers 2");
        assert_eq!(servers("env:A=1,2").unwrap()[1].command, ["env", "A=2", "b", "-x"]);
        assert!(servers("sysctl:a.b=1,2").unwrap()[0].parameter.is_some());
        assert!(servers("text:threads=1,2").unwrap_err().contains("does not occur"));
    }
}
