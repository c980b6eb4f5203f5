//! Outputs during a run: intervals as NDJSON, and the HDR histogram log.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use super::IntervalReport;
use crate::bench::LoadOptions;

/// Outputs to which each interval is appended.
#[derive(Default)]
pub(crate) struct IntervalOutputs {
    intervals: Option<(String, Box<dyn Write>)>,
    hdr_log: Option<(String, BufWriter<File>)>,
}

impl IntervalOutputs {
    pub(crate) fn open(options: &LoadOptions) -> Result<Self, String> {
        let create = |path: &std::path::Path| {
            let name = path.display().to_string();
            File::create(path).map(|file| (name.clone(), file)).map_err(|error| format!("{name}: {error}"))
        };
        let intervals = match &options.intervals {
            Some(path) if path.as_os_str() == "-" => {
                Some(("standard error".into(), Box::new(std::io::stderr()) as Box<dyn Write>))
            }
            Some(path) => create(path).map(|(name, file)| Some((name, Box::new(file) as Box<dyn Write>)))?,
            None => None,
        };
        let mut hdr_log = match &options.hdr_log {
            Some(path) => create(path).map(|(name, file)| Some((name, BufWriter::new(file))))?,
            None => None,
        };
        if let Some((name, file)) = &mut hdr_log {
            let mut serializer = V2DeflateSerializer::new();
            let written = IntervalLogWriterBuilder::new()
                .add_comment("tailor: latencies in nanoseconds, from the scheduled time of a request")
                .with_start_time(SystemTime::now())
                .begin_log_with(file, &mut serializer)
                .map(drop);
            written.map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(Self { intervals, hdr_log })
    }

    /// Appends an interval that ended.
    pub(crate) fn add(&mut self, report: &IntervalReport, latency: &Histogram<u64>) -> Result<(), String> {
        if let Some((name, out)) = &mut self.intervals {
            let line = serde_json::to_string(report).expect("an interval can be written as JSON");
            writeln!(out, "{line}").map_err(|error| format!("{name}: {error}"))?;
        }
        if let Some((name, out)) = &mut self.hdr_log {
            let (start, length) = (report.start_seconds, report.end_seconds - report.start_seconds);
            let start = Duration::from_secs_f64(start.max(0.0));
            let length = Duration::from_secs_f64(length.max(0.0));
            write_interval(out, start, length, latency).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }

    /// Flushes the outputs at the end of the run.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        if let Some((name, out)) = &mut self.hdr_log {
            out.flush().map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }
}

fn write_interval(
    out: &mut BufWriter<File>,
    start: Duration,
    length: Duration,
    latency: &Histogram<u64>,
) -> Result<(), String> {
    // The log writer borrows the file, so it cannot be stored. Without comments it writes no header, so a new one can
    // append.
    let mut serializer = V2DeflateSerializer::new();
    let mut writer =
        IntervalLogWriterBuilder::new().begin_log_with(out, &mut serializer).map_err(|error| error.to_string())?;
    writer.write_histogram(latency, start, length, None).map_err(|error| format!("{error:?}"))
}
