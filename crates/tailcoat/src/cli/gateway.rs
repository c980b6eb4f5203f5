//! `gateway`: the controller for Kubernetes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tailcoat_gateway::{Access, Addresses, ChannelSettings, Key, Settings};

use super::{EXIT_USAGE, fail};
use crate::config::SERVICE_ACCOUNT;

/// Name of the classes whose Gateways belong to the controller, unless an argument names another.
const CONTROLLER: &str = "tailcoat.dev/gateway-controller";

#[derive(Debug, Args)]
#[command(after_help = "\
Servers get their routes with the option `control-plane` of their configuration.

Examples:
  tailcoat gateway --token-file /etc/tailcoat/token --certificate /etc/tailcoat/tls.crt --key /etc/tailcoat/tls.key
  tailcoat gateway --kubeconfig admin.conf --address-pool 192.0.2.0/24 --listen unix:/run/tailcoat/channel.sock")]
pub(super) struct GatewayCommand {
    /// File with the address and credentials of the API server [default: those of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Name in the `controllerName` of the classes that belong to this controller
    #[arg(long, value_name = "NAME", default_value = CONTROLLER)]
    controller: String,

    /// Network of addresses that servers bind; each Gateway gets one. Without it, each Gateway gets a Service
    #[arg(long, value_name = "NETWORK")]
    address_pool: Vec<ipnet::IpNet>,

    /// Type of Services: LoadBalancer, NodePort or ClusterIP
    #[arg(long, value_name = "TYPE", default_value = "LoadBalancer", value_parser = ["LoadBalancer", "NodePort", "ClusterIP"])]
    service_type: String,

    /// Label of the servers' pods, which Services select
    #[arg(long, value_name = "NAME=VALUE", default_value = "app.kubernetes.io/name=tailcoat", value_parser = label)]
    service_selector: Vec<(String, String)>,

    /// Gateway that serves Ingresses, whose class has the controller tailcoat.dev/ingress-controller
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = key)]
    ingress_gateway: Option<Key>,

    /// Address for servers: ADDRESS:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: String,

    /// File of the token that servers must send
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Certificate chain (PEM) for servers
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,

    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,

    /// Namespace of the Lease [default: that of the pod]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// Name of the Lease by which replicas elect the one that writes
    #[arg(long, value_name = "NAME", default_value = "tailcoat-gateway")]
    lease: String,

    /// Name of this replica [default: the host name]
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label has the form NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn key(text: &str) -> Result<Key, String> {
    let (namespace, name) = text.split_once('/').ok_or("it has the form NAMESPACE/NAME")?;
    Ok(Key::new(namespace, name))
}

impl GatewayCommand {
    /// Runs the controller until a signal ends it.
    pub(super) fn run(self) -> ExitCode {
        let access = match &self.kubeconfig {
            Some(file) => Access::from_kubeconfig(file),
            None => Access::in_cluster(Path::new(SERVICE_ACCOUNT)),
        };
        let access = match access {
            Ok(access) => access,
            Err(error) => {
                fail(error);
                return ExitCode::from(EXIT_USAGE);
            }
        };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let namespace = self.namespace.clone().or_else(|| access.namespace().map(str::to_owned));
        let settings = Settings {
            access,
            controller: self.controller,
            addresses: if self.address_pool.is_empty() {
                let selector: BTreeMap<String, String> = self.service_selector.into_iter().collect();
                Addresses::Services { r#type: self.service_type, selector }
            } else {
                Addresses::Pool(self.address_pool)
            },
            ingress_gateway: self.ingress_gateway,
            // Two processes of a host, as in tests, have different names.
            replica: self.replica.unwrap_or_else(|| format!("{host}-{}", std::process::id())),
            lease: (namespace.unwrap_or_else(|| "default".to_owned()), self.lease),
            channel: ChannelSettings {
                listen: self.listen,
                token_file: self.token_file,
                certificate: self.certificate.zip(self.key),
            },
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(error),
        };
        match runtime.block_on(tailcoat_gateway::run(settings)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        }
    }
}
