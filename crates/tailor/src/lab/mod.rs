//! `tailor compare`: measures servers under the same load, in alternating rounds.

mod cgroup;
mod difference;
mod endurance;
mod environment;
mod group_limit;
mod guard;
mod init;
mod kernels;
mod measure;
mod model;
mod namespace;
mod page;
mod report;
mod rounds;
mod server;
mod soak;
mod vary;

use std::path::{Path, PathBuf};

pub(crate) use guard::run_guard;
pub(crate) use init::InitOptions;
pub(crate) use init::init_web99;
pub(crate) use kernels::{become_guest, schema as kernel_schema};
pub(crate) use report::CompareReport;
pub(crate) use server::become_command;
pub(crate) use soak::{SoakOptions, run as run_soak};

use crate::end::ProgramEnd;

/// Definitions of the servers that labs can name.
const PEERS: &str = include_str!("../../labs/peers.kdl");
/// Built-in labs: name and text.
const LABS: [(&str, &str); 17] = [
    ("keepalive-1k", include_str!("../../labs/keepalive-1k.kdl")),
    ("static-mix", include_str!("../../labs/static-mix.kdl")),
    ("clients-sweep", include_str!("../../labs/clients-sweep.kdl")),
    ("slow-lines", include_str!("../../labs/slow-lines.kdl")),
    ("page", include_str!("../../labs/page.kdl")),
    ("soak", include_str!("../../labs/soak.kdl")),
    ("static-dynamic-mix", include_str!("../../labs/static-dynamic-mix.kdl")),
    ("cold-disk", include_str!("../../labs/cold-disk.kdl")),
    ("forward", include_str!("../../labs/forward.kdl")),
    ("marks-http1", include_str!("../../labs/marks-http1.kdl")),
    ("marks-tls", include_str!("../../labs/marks-tls.kdl")),
    ("slow-readers", include_str!("../../labs/slow-readers.kdl")),
    ("idle", include_str!("../../labs/idle.kdl")),
    ("zipf-tree", include_str!("../../labs/zipf-tree.kdl")),
    ("web99", include_str!("../../labs/web99.kdl")),
    ("web99-search", include_str!("../../labs/web99-search.kdl")),
    ("web99-static", include_str!("../../labs/web99-static.kdl")),
];

/// Options of `tailor compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareOptions {
    /// Lab to run (a file, or a built-in lab of --list), or recorded runs to compare; commas separate repeated runs
    #[arg(value_name = "LAB | OLD.json,... NEW.json,...", required_unless_present = "list", num_args = 1..=2)]
    pub what: Vec<String>,
    /// List the built-in labs
    #[arg(long)]
    pub list: bool,
    /// Print the lab instead of running it
    #[arg(long)]
    pub print: bool,
    /// Servers of the lab to run; the first is the baseline
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Number of rounds [default: the lab's]; an odd number above 1 becomes even, so that the order has no effect
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Maximum distance of the A/A control's interval from 1 [default: the lab's, or 3%]
    #[arg(long, value_name = "SHARE", value_parser = crate::units::parse_share)]
    pub control_margin: Option<f64>,
    /// Duration of each load [default: the lab's]
    #[arg(long, value_name = "TIME", value_parser = crate::units::parse_duration)]
    pub duration: Option<std::time::Duration>,
    /// Values to sweep over [default: the lab's]
    #[arg(long, value_name = "VALUES", value_delimiter = ',')]
    pub sweep: Vec<String>,
    /// Compare values of a setting instead of servers: sysctl:NAME=A,B, congestion=A,B, qdisc:lo=A,B or
    /// cgroup:cpu=A,B (memory, io) as root, env:NAME=A,B, command:SERVER=A,B, or text:OLD=A,B, which replaces a text in
    /// the server's command and files; the first value is the baseline
    #[arg(long, value_name = "KIND:NAME=A,B", value_parser = vary::parse)]
    pub vary: Option<vary::VariedSetting>,
    /// Compare kernels instead of servers: Debian packages or images of at least two, the baseline first; `:` joins packages
    /// of one kernel. qemu boots them with the first server that is installed
    #[arg(
        long,
        value_name = "FILE,FILE",
        value_parser = kernels::parse,
        conflicts_with_all = ["vary", "sweep"]
    )]
    pub kernel: Option<kernels::KernelChoice>,
    /// With --kernel: quantity to compare [default: time where KVM works, otherwise instructions]
    #[arg(long, value_enum, requires = "kernel")]
    pub mode: Option<kernels::KernelMode>,
    /// With --kernel by instructions: requests of the shorter of the two loads whose difference counts
    #[arg(short = 'n', long, value_name = "N", default_value_t = kernels::REQUESTS_DEFAULT, requires = "kernel", value_parser = crate::units::parse_positive)]
    pub requests: u64,
    /// With --kernel by instructions: their number for each kernel after which no further pair of loads begins
    #[arg(long, value_name = "N", default_value_t = kernels::INSTRUCTIONS_MAX_DEFAULT, requires = "kernel", value_parser = crate::units::parse_positive)]
    pub instructions_max: u64,
    /// Write the results as JSON (`tailor schema compare`; of counted instructions `tailor schema kernels`)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Runs `tailor compare`: lists labs, prints a lab, runs one, or compares two recorded runs.
///
/// # Errors
/// The command is impossible: the message gives the reason.
pub(crate) fn run(options: &CompareOptions) -> Result<ProgramEnd, String> {
    if options.list {
        for (name, text) in LABS {
            println!("{name:18} {}", model::parse(text, &peers()?)?.about);
        }
        return Ok(ProgramEnd::Passed);
    }
    if let [old, new] = options.what.as_slice() {
        let (text, is_comparable) = difference::describe(&read_reports(old)?, &read_reports(new)?);
        crate::output::print(&text)?;
        return Ok(if is_comparable { ProgramEnd::Passed } else { ProgramEnd::Failed });
    }
    let text = lab_text(&options.what[0])?;
    if options.print {
        crate::output::print(&text)?;
        return Ok(ProgramEnd::Passed);
    }
    run_lab(options, &text)
}

fn run_lab(options: &CompareOptions, text: &str) -> Result<ProgramEnd, String> {
    let mut lab = model::parse(text, &peers()?)?;
    lab.rounds = options.rounds.unwrap_or(lab.rounds).max(1);
    lab.control_margin = options.control_margin.unwrap_or(lab.control_margin);
    let mut lab = lab.with_even_rounds();
    if !options.sweep.is_empty() {
        // If a load is limited to some values of the sweep, no other values have a meaning.
        let is_closed = lab.loads.iter().any(|load| !load.only.is_empty());
        if let Some(value) = options.sweep.iter().find(|value| is_closed && !lab.sweep.contains(value)) {
            return Err(format!("`{value}` is not one of the lab's values: {}", lab.sweep.join(", ")));
        }
        lab.sweep.clone_from(&options.sweep);
    }
    select_servers(&mut lab, &options.servers)?;
    if let Some(choice) = &options.kernel {
        let options = kernels::KernelOptions {
            mode: options.mode,
            requests: options.requests,
            instructions_max: options.instructions_max,
            rounds: options.rounds,
            duration: options.duration,
            json: options.json.as_deref(),
            html: options.html.as_deref(),
        };
        return kernels::run(choice, &lab, text, &options);
    }
    let stop = crate::end::stop_on_signals()?;
    // Dropping this directory removes it, which takes time for a large site; so the report is written first.
    let directory = rounds::RunDirectory::make()?;
    if let Some(setting) = &options.vary {
        setting.check()?;
        // Servers that run at the same time cannot have different settings of the machine.
        if setting.is_of_machine() && lab.turns > 1 {
            eprintln!("each round measures one value after the other, without turns");
            lab.turns = 1;
            lab = lab.with_even_rounds();
        }
    }
    let report = rounds::run(&lab, text, (options.duration, options.vary.as_ref()), &directory, &stop)?;
    report.write(options.json.as_deref(), options.html.as_deref())?;
    Ok(report.end())
}

/// JSON schema of a recorded run.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(CompareReport)).expect("a schema can be written as JSON")
}

fn peers() -> Result<Vec<model::LabServer>, String> {
    model::parse_peers(PEERS).map_err(|error| format!("peers: {error}"))
}

fn lab_text(name: &str) -> Result<String, String> {
    if let Some((_, text)) = LABS.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_owned());
    }
    crate::input::read_text(Path::new(name))
        .map_err(|error| format!("{error}; --list shows the labs that come with tailor"))
}

/// Keeps only the named servers, in the order of the names.
fn select_servers(lab: &mut model::Lab, names: &[String]) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    let known = lab.servers.iter().cloned().chain(peers()?).collect::<Vec<_>>();
    let find = |name: &String| {
        let found = known.iter().find(|server| server.name == *name).cloned();
        found.ok_or_else(|| {
            let mut names: Vec<&str> = known.iter().map(|server| server.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            format!("no server `{name}`; use {}", names.join(", "))
        })
    };
    lab.servers = names.iter().map(find).collect::<Result<_, _>>()?;
    Ok(())
}

/// Reads the records of repeated runs.
fn read_reports(paths: &str) -> Result<Vec<CompareReport>, String> {
    paths.split(',').map(read_report).collect()
}

fn read_report(path: &str) -> Result<CompareReport, String> {
    let text = crate::input::read_text(Path::new(path))?;
    let report: CompareReport =
        serde_json::from_str(&text).map_err(|error| format!("{path}: not a record of `tailor compare`: {error}"))?;
    // Older versions judged by other rules.
    Ok(report.judged())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labs_that_come_with_it_are_whole() {
        let peers = peers().unwrap();
        for (name, text) in LABS {
            let lab = model::parse(text, &peers).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(lab.name, name);
            assert!(!lab.about.is_empty(), "{name}");
            let value = lab.search.map(|range| range.to.to_string()).or(lab.sweep.first().cloned());
            let site = lab.site.replace("@VALUE@", &value.unwrap_or_default());
            crate::site::SiteKind::parse(&site).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
