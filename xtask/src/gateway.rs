//! `cargo xtask gateway-conformance`: the conformance suite of Gateway API against a real API server, on this machine. With
//! `--ingress`, requests to Ingresses instead; with `--scale`, many routes and changes under load.
//!
//! etcd must be installed. kube-apiserver, kube-controller-manager and the suite are built once, from the Go module proxy,
//! which takes more than 20 minutes of a core.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packaging;

const USAGE: &str = "\
usage: cargo xtask gateway-conformance [--program FILE] [--binaries DIR] [--test NAME] [--serial] [--hold]
       cargo xtask gateway-conformance --ingress [--program FILE] [--binaries DIR]
       cargo xtask gateway-conformance --scale [--program FILE] [--binaries DIR] [--routes N] [--listeners N] [--endpoints N]
                                       [--churn-seconds N]";

/// Version of Kubernetes, and that of its parts, which are modules of their own.
const KUBERNETES: [&str; 2] = ["v1.37.2", "v0.37.2"];

const GATEWAY_API: &str = "v1.6.3";

/// Folder of the lab: its state, its logs and the report.
const DIRECTORY: &str = "target/gateway-conformance";

/// Programs of the lab, each with its package.
const PROGRAMS: [(&str, &str); 4] = [
    ("echo-basic", "sigs.k8s.io/gateway-api/conformance/echo-basic"),
    ("gateway-conformance", "sigs.k8s.io/gateway-api/conformance"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
];

/// Runs the suite. Says whether all its tests passed.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let mut program = PathBuf::from("target/debug/tailcoat");
    let mut binaries = PathBuf::from("target/kubernetes/bin");
    let mut command = "suite";
    let mut options = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--program" => program = arguments.next().ok_or(USAGE)?.into(),
            "--binaries" => binaries = arguments.next().ok_or(USAGE)?.into(),
            "--ingress" => command = "ingress",
            "--scale" => command = "scale",
            "--test" | "--routes" | "--listeners" | "--endpoints" | "--churn-seconds" => {
                options.extend([argument, arguments.next().ok_or(USAGE)?])
            }
            "--serial" | "--hold" => options.push(argument),
            _ => return Err(USAGE.into()),
        }
    }
    if !program.exists() {
        return Err(format!("there is no {}: `cargo build -p tailcoat` makes it", program.display()).into());
    }
    build(&binaries)?;
    let directory = Path::new(DIRECTORY);
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;
    let access = directory.join("access.yaml");
    fs::write(&access, packaging::access_manifests()?)?;
    let definitions = module(&format!("sigs.k8s.io/gateway-api@{GATEWAY_API}"))?.join("config/crd/experimental");
    // New namespaces: no address leaves the machine, and no process outlives the lab.
    let mut lab = Command::new("unshare");
    lab.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    lab.args(["python3", "conformance/gateway/lab.py", command, "--directory", DIRECTORY]);
    if command == "suite" {
        lab.args(["--version", env!("CARGO_PKG_VERSION")]);
    }
    lab.arg("--binaries").arg(&binaries).arg("--program").arg(std::path::absolute(&program)?);
    for entry in fs::read_dir(definitions)? {
        let path = entry?.path();
        // The list of files for kustomize is none of them.
        if path.file_name().is_some_and(|name| name != "kustomization.yaml") {
            lab.arg("--manifests").arg(path);
        }
    }
    lab.arg("--manifests").arg(&access).args(options);
    let status = lab.status().map_err(|error| format!("unshare: {error}"))?;
    Ok(status.success())
}

/// Folder of a module in Go's cache.
fn module(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new("go").args(["mod", "download", "-json", name]).output();
    let output = output.map_err(|error| format!("go: {error}"))?;
    let value: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = value["Dir"].as_str().ok_or_else(|| format!("{name}: {}", value["Error"]))?;
    Ok(folder.into())
}

/// Builds the programs that are missing.
fn build(binaries: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(binaries)?;
    let binaries = std::path::absolute(binaries)?;
    for (program, package) in PROGRAMS {
        let file = binaries.join(program);
        if file.exists() {
            continue;
        }
        println!("building {program}");
        let is_kubernetes = program.starts_with("kube-");
        let folder = binaries.join(if is_kubernetes { "module-kubernetes" } else { "module-suite" });
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("go.mod"), if is_kubernetes { kubernetes_module()? } else { suite_module() })?;
        let mut go = Command::new("go");
        go.current_dir(&folder).env("GOFLAGS", "-p=1 -mod=mod").env("CGO_ENABLED", "0");
        match program {
            "gateway-conformance" => go.args(["test", "-c"]),
            _ => go.args(["build", "-ldflags=-s -w"]),
        };
        let status = go.arg("-o").arg(&file).arg(package).status().map_err(|error| format!("go: {error}"))?;
        if !status.success() {
            return Err(format!("{program} was not built: {status}").into());
        }
    }
    Ok(())
}

fn suite_module() -> String {
    format!(
        "module suite\n\ngo 1.26.0\n\nrequire (\n\tsigs.k8s.io/gateway-api {GATEWAY_API}\n\t\
         sigs.k8s.io/gateway-api/conformance {GATEWAY_API}\n)\n"
    )
}

/// A module that requires Kubernetes, with published versions of the parts that its own module has in folders.
fn kubernetes_module() -> Result<String, Box<dyn Error>> {
    let [version, of_parts] = KUBERNETES;
    let folder = module(&format!("k8s.io/kubernetes@{version}"))?;
    let manifest = fs::read_to_string(folder.join("go.mod"))?;
    let mut text = format!("module lab\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes {version}\n\nreplace (\n");
    for line in manifest.lines().filter(|line| line.contains("=> ./staging/")) {
        let part = line.split_whitespace().next().unwrap_or_default();
        text.push_str(&format!("\t{part} => {part} {of_parts}\n"));
    }
    text.push_str(")\n");
    Ok(text)
}
