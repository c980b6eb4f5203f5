//! Access logs, as a configuration has them.

use std::path::PathBuf;

/// Access log: target and format.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// Target of the log.
    pub target: AccessLogTarget,
    /// In which format.
    pub format: AccessLogFormat,
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
