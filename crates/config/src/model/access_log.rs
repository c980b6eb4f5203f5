//! Access logs, as a configuration has them.

use std::fmt;
use std::path::PathBuf;

use super::rules::Condition;

/// Access log: target and format.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// Target of the log.
    pub target: AccessLogTarget,
    /// In which format.
    pub format: AccessLogFormat,
}

impl Default for AccessLog {
    /// Log of a configuration that names none.
    fn default() -> Self {
        Self { target: AccessLogTarget::Stdout, format: AccessLogFormat::Combined }
    }
}

/// Target of an access log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccessLogTarget {
    /// A file, opened again at SIGUSR1.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// The local syslog (`/dev/log`), with this facility.
    Syslog(String),
    /// Syslog of another machine.
    Remote(Box<RemoteSyslog>),
}

/// Syslog of another machine (RFC 5424).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSyslog {
    /// Transport of the messages.
    pub transport: SyslogTransport,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Facility of the messages.
    pub facility: String,
    /// CA certificates (PEM) that must have signed the server's; `None` trusts the system's CAs.
    pub ca_file: Option<PathBuf>,
}

/// Transport of messages to a syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyslogTransport {
    /// UDP (RFC 5426).
    Udp,
    /// TCP (RFC 6587).
    Tcp,
    /// TLS (RFC 5425).
    Tls,
}

impl SyslogTransport {
    /// All, with the schemes of their URLs and their ports.
    pub const ALL: [(Self, &'static str, u16); 3] =
        [(Self::Udp, "syslog+udp", 514), (Self::Tcp, "syslog+tcp", 601), (Self::Tls, "syslog+tls", 6_514)];
}

impl fmt::Display for RemoteSyslog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = SyslogTransport::ALL.iter().find(|(transport, ..)| *transport == self.transport);
        let scheme = scheme.map_or("syslog", |(_, scheme, _)| scheme);
        write!(f, "{scheme}://{}:{}/{}", self.host, self.port, self.facility)
    }
}

/// Choice of the requests that an access log has.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LogFilter {
    /// Condition on a request and its response; `None` if there is none.
    pub when: Option<Condition>,
    /// Share of the requests, in millionths; `None` is all.
    pub sample_millionths: Option<u32>,
}

/// Format of an access log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccessLogFormat {
    /// Common Log Format.
    Common,
    /// Common with Referer and User-Agent.
    Combined,
    /// One JSON object a line.
    Json,
    /// W3C Extended Log File Format.
    W3c,
    /// File transfers over FTP, in the form of wu-ftpd and vsftpd.
    Xferlog,
    /// Fields in braces in a text.
    Template(String),
    /// Tailcoat's binary format, for `tailcoat log convert`.
    Binary,
}

impl AccessLogFormat {
    /// Returns `true` if the first and last braces of a template are those of a JSON object.
    pub fn is_object(template: &str) -> bool {
        let template = template.trim();
        template.starts_with("{{") && template.ends_with("}}")
    }
}
