//! `undying show IMAGE [--json]`
//!
//! Owns: an image's properties as text.
//! Does not: read it.

use std::io::Write;
use std::time::Duration;

use clap::{ArgMatches, Command};

use super::Verb;
use crate::failure::Failure;
use crate::{command, parse, print};

pub(super) struct Show;

impl Verb for Show {
    fn name(&self) -> &'static str {
        "show"
    }

    fn about(&self) -> &'static str {
        "Tell what an image holds"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(parse::image()).arg(parse::json())
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let report = guardian::show(&command::store(matches)?, &parse::given_image(matches))?;
        if matches.get_flag("json") {
            print::json(&report)?;
            return Ok(0);
        }
        let checkpoint = &report.checkpoint;
        let step = |microseconds| print::duration(Duration::from_micros(microseconds));
        let pids: Vec<String> = report.pids.iter().map(ToString::to_string).collect();
        let records: Vec<String> =
            report.records.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "image    {}", report.path)?;
        if !report.subject.is_empty() {
            writeln!(out, "subject  {}@{}", report.subject, checkpoint.seq)?;
        }
        writeln!(out, "kind     {}", checkpoint.kind)?;
        writeln!(out, "time     {}", checkpoint.time)?;
        writeln!(out, "by       undying {} on Linux {}", report.tool_version, report.kernel)?;
        writeln!(out, "pids     {}", pids.join(" "))?;
        writeln!(
            out,
            "pause    {} (stop {}, scan {}, copy {})",
            step(checkpoint.pause_us),
            step(checkpoint.stop_us),
            step(checkpoint.scan_us),
            step(checkpoint.copy_us)
        )?;
        writeln!(out, "pages    {}, of which {} are stored", checkpoint.pages, report.stored_pages)?;
        writeln!(out, "size     {}", print::bytes(checkpoint.bytes))?;
        writeln!(out, "records  {}", records.join(", "))?;
        Ok(0)
    }
}
