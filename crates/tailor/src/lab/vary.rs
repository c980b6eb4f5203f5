//! `tailor compare --vary`: the same server with several values of one setting, compared like different servers.

use super::group_limit::{GroupLimit, LimitedResource};
use super::guard::{KernelParameter, restore_left_settings};
use super::model::{LabServer, split_words};
use super::namespace::{self, QueueingDiscipline};

/// Setting with the values to compare.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VariedSetting {
    kind: SettingKind,
    name: String,
    values: Vec<String>,
}

/// Kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingKind {
    /// Kernel parameter below /proc/sys.
    Sysctl,
    /// Congestion control of TCP. A network namespace of its own permits only some of them.
    Congestion,
    /// Queueing discipline of a network interface, in a network namespace of the lab.
    QueueingDiscipline,
    /// Limit of the server's control group.
    Group(LimitedResource),
    /// Environment variable of the server.
    Environment,
    /// Command of the server.
    Command,
    /// Text in the server's command and files.
    Text,
}

const FORM: &str = "write sysctl:NAME=A,B, congestion=A,B, qdisc:lo=A,B, cgroup:cpu=A,B (or memory, io), env:NAME=A,B, \
                    command:SERVER=A,B or text:OLD=A,B";

/// Name of the kernel parameter for congestion control.
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

/// Parses a setting with its values.
pub(crate) fn parse(text: &str) -> Result<VariedSetting, String> {
    let (place, values) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; {FORM}"))?;
    let (kind, name) = match place.split_once(':') {
        None if place == "congestion" => ("congestion", "tcp"),
        None => return Err(format!("`{text}` has no kind; {FORM}")),
        Some(parts) => parts,
    };
    let kind = match (kind, name) {
        ("sysctl", _) => SettingKind::Sysctl,
        ("congestion", _) => SettingKind::Congestion,
        ("qdisc", _) => SettingKind::QueueingDiscipline,
        ("cgroup", "cpu") => SettingKind::Group(LimitedResource::Cpu),
        ("cgroup", "memory") => SettingKind::Group(LimitedResource::Memory),
        ("cgroup", "io") => SettingKind::Group(LimitedResource::Io),
        ("cgroup", other) => return Err(format!("cgroup:{other}: there are cpu, memory and io")),
        ("env", _) => SettingKind::Environment,
        ("command", _) => SettingKind::Command,
        ("text", _) => SettingKind::Text,
        (other, _) => return Err(format!("unknown kind `{other}`; {FORM}")),
    };
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    let is_name = |extra: &[u8]| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte));
    match () {
        () if name.is_empty() => Err(format!("`{text}` has no name; {FORM}")),
        () if values.len() < 2 => Err(format!("`{text}` has one value; a comparison needs at least two")),
        () if (1..values.len()).any(|index| values[..index].contains(&values[index])) => {
            Err(format!("`{text}` has a value twice; the A/A control does that already"))
        }
        () if kind == SettingKind::Sysctl && !is_name(b"._-") => {
            Err(format!("`{name}` is not the name of a kernel parameter, such as net.core.somaxconn"))
        }
        () if kind == SettingKind::QueueingDiscipline && name != "lo" => {
            Err(format!("qdisc:{name}: the lab's own network namespace has only the interface lo"))
        }
        () => {
            for value in &values {
                match kind {
                    SettingKind::Group(resource) => drop(GroupLimit::parse(resource, value)?),
                    SettingKind::QueueingDiscipline => drop(QueueingDiscipline::parse(value)?),
                    _ => {}
                }
            }
            Ok(VariedSetting { kind, name: name.to_owned(), values })
        }
    }
}

impl VariedSetting {
    /// True if only one value can be in force at a time.
    pub(super) fn is_of_machine(&self) -> bool {
        matches!(self.kind, SettingKind::Sysctl | SettingKind::Congestion | SettingKind::QueueingDiscipline)
    }

    /// Checks that the setting can be changed. Each value is tried before the first measurement.
    pub(super) fn check(&self) -> Result<(), String> {
        restore_left_settings()?;
        match self.kind {
            SettingKind::Sysctl => {
                let current = KernelParameter::current(&self.name)?;
                current.apply().map(drop)
            }
            SettingKind::Congestion => {
                self.values.iter().try_for_each(|value| KernelParameter::new(CONGESTION, value).apply().map(drop))
            }
            SettingKind::QueueingDiscipline => {
                namespace::enter()?;
                self.values.iter().try_for_each(|value| QueueingDiscipline::parse(value)?.apply().map(drop))
            }
            SettingKind::Group(resource) => {
                super::cgroup::remove_left_groups();
                let limit = |value| GroupLimit::parse(resource, value);
                self.values
                    .iter()
                    .try_for_each(|value| super::cgroup::ControlGroup::limited("check", &limit(value)?).map(drop))
            }
            SettingKind::Environment | SettingKind::Command | SettingKind::Text => Ok(()),
        }
    }

    /// Servers with each of the values.
    pub(super) fn servers(&self, server: &LabServer) -> Result<Vec<LabServer>, String> {
        if self.kind == SettingKind::Command && self.name != server.name {
            return Ok(vec![server.clone()]);
        }
        let variant = |value: &String| {
            let mut server = server.clone();
            match self.kind {
                SettingKind::Sysctl => server.parameter = Some(KernelParameter::new(&self.name, value)),
                SettingKind::Congestion => server.parameter = Some(KernelParameter::new(CONGESTION, value)),
                SettingKind::QueueingDiscipline => server.discipline = Some(QueueingDiscipline::parse(value)?),
                SettingKind::Group(resource) => server.limit = Some(GroupLimit::parse(resource, value)?),
                SettingKind::Environment => {
                    let assignment = format!("{}={value}", self.name);
                    server.command.splice(0..0, ["env".to_owned(), assignment]);
                }
                SettingKind::Command => server.command = split_words(value),
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
                SettingKind::Text
                | SettingKind::Command
                | SettingKind::Congestion
                | SettingKind::QueueingDiscipline => value.clone(),
                SettingKind::Sysctl | SettingKind::Environment | SettingKind::Group(_) => {
                    format!("{}={value}", self.name)
                }
            };
            server.name = format!("{} {label}", server.name);
            Ok(server)
        };
        self.values.iter().map(variant).collect()
    }
}

impl LabServer {
    /// Applies the settings of the machine that the server has, until the result is dropped.
    pub(super) fn apply_settings(&self) -> Result<impl Sized, String> {
        let parameter = self.parameter.as_ref().map(KernelParameter::apply).transpose()?;
        let discipline = self.discipline.as_ref().map(QueueingDiscipline::apply).transpose()?;
        Ok((parameter, discipline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        let setting = parse("sysctl:net.ipv4.tcp_congestion_control=cubic, bbr").unwrap();
        assert_eq!((setting.kind, setting.values.len()), (SettingKind::Sysctl, 2));
        assert_eq!(parse("text:sendfile on;=sendfile on;,sendfile off;").unwrap().name, "sendfile on;");
        assert_eq!(parse("congestion=cubic,bbr").unwrap().kind, SettingKind::Congestion);
        assert_eq!(parse("qdisc:lo=none,tbf rate 10mbit burst 32k latency 50ms").unwrap().values.len(), 2);
        assert_eq!(parse("cgroup:cpu=0.5,max").unwrap().kind, SettingKind::Group(LimitedResource::Cpu));
        for (text, expect) in [
            ("x=1,2", "has no kind"),
            ("group:x=1,2", "unknown kind `group`"),
            ("cgroup:pids=1,2", "there are cpu, memory and io"),
            ("cgroup:cpu=1,fast", "`fast`"),
            ("qdisc:eth0=none,pfifo", "only the interface lo"),
            ("qdisc:lo=none,tbf; reboot", "`;`"),
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
        assert_eq!(servers("command:b=b -y,/opt/c 'x y'").unwrap()[1].command, ["/opt/c", "x y"]);
        assert_eq!(servers("command:other=b -y,c").unwrap().len(), 1, "other servers stay as they are");
        assert_eq!(servers("cgroup:memory=1M,2M").unwrap()[1].name, "b memory=2M");
        assert!(servers("qdisc:lo=none,pfifo").unwrap()[1].discipline.is_some());
        assert!(servers("text:threads=1,2").unwrap_err().contains("does not occur"));
    }
}
