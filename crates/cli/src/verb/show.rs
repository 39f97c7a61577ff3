//! `undying show IMAGE [--json]`
//!
//! Owns: an image's properties as text.
//! Does not: read it.

use std::time::Duration;

use clap::{ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

/// Files that are named.
const NAMED_MAX: usize = 5;

/// What a restore does with files.
fn files(report: &guardian::ImageReport) -> String {
    if report.checkpoint.files_exact && report.uncovered.is_empty() {
        return "go back with the program".to_owned();
    }
    if report.checkpoint.files_exact {
        return format!("go back with the program; compared: {}", named(&report.uncovered));
    }
    match report.compared.as_deref() {
        None => "not recorded; a restore needs --files keep".to_owned(),
        Some([]) => "none is compared".to_owned(),
        Some(compared) => format!("compared: {}", named(compared)),
    }
}

fn named(paths: &[String]) -> String {
    let named = paths.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(NAMED_MAX) {
        0 => named,
        rest => format!("{named} and {rest} more"),
    }
}

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
        let report = guardian::show(&parse::given_store(matches)?, &parse::given_image(matches))?;
        if matches.get_flag("json") {
            print::json(&report)?;
            return Ok(0);
        }
        let checkpoint = &report.checkpoint;
        let step = |microseconds| print::duration(Duration::from_micros(microseconds));
        let pids: Vec<String> = report.pids.iter().map(ToString::to_string).collect();
        let records: Vec<String> =
            report.records.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        print::line(format_args!("image    {}", report.path))?;
        if !report.subject.is_empty() {
            print::line(format_args!("subject  {}@{}", report.subject, checkpoint.seq))?;
        }
        print::line(format_args!("kind     {}", checkpoint.kind))?;
        print::line(format_args!("time     {}", checkpoint.time))?;
        print::line(format_args!("by       undying {} on Linux {}", report.tool_version, report.kernel))?;
        print::line(format_args!("pids     {}", pids.join(" ")))?;
        print::line(format_args!(
            "pause    {} (stop {}, scan {}, copy {})",
            step(checkpoint.pause_us),
            step(checkpoint.stop_us),
            step(checkpoint.scan_us),
            step(checkpoint.copy_us)
        ))?;
        print::line(format_args!(
            "pages    {}, of which {} are stored",
            checkpoint.pages, report.stored_pages
        ))?;
        print::line(format_args!("size     {}", print::bytes(checkpoint.bytes)))?;
        print::line(format_args!("files    {}", files(&report)))?;
        print::line(format_args!("records  {}", records.join(", ")))?;
        Ok(0)
    }
}
