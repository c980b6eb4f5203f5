//! `import ingress`: Ingresses of Kubernetes as resources of Gateway API.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{EXIT_CONFIG, EXIT_REJECTED, fail, print};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl get ingress,service -A -o yaml | tailcoat import ingress - > gateway-api.yaml
  tailcoat import ingress --gateway-class internal ingresses.yaml")]
pub(super) struct ImportIngress {
    /// Ingresses in YAML or JSON, with their Services if ports have names; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Class of the Gateways that are printed
    #[arg(long, value_name = "NAME", default_value = "tailcoat")]
    gateway_class: String,
}

impl ImportIngress {
    /// Prints the resources, and on standard error what differs.
    pub(super) fn run(self) -> ExitCode {
        let text = match read(&self.file) {
            Ok(text) => text,
            Err(error) => return fail(format_args!("cannot read {}: {error}", self.file.display())),
        };
        let imported = match tailcoat_gateway::import(&text, &self.gateway_class) {
            Ok(imported) => imported,
            Err(error) => {
                fail(format_args!("{}: {error}", self.file.display()));
                return ExitCode::from(EXIT_CONFIG);
            }
        };
        let written = print(&imported.text);
        imported.remarks.iter().for_each(|remark| eprintln!("{remark}"));
        if written == ExitCode::SUCCESS && imported.is_partial { ExitCode::from(EXIT_REJECTED) } else { written }
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        return std::io::stdin().read_to_string(&mut text).map(|_| text);
    }
    std::fs::read_to_string(file)
}
