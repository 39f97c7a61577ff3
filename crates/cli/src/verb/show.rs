//! The command `undying show IMAGE [--processes | --files | --maps] [--json]`: prints the content of an image.
//!
//! Owns: the text form of an image: its properties, processes, descriptors and mappings. The tables have the form of
//! ps(1), lsof(8) and pmap(1).
//! Does not: read the image; `guardian` does.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use guardian::{ImageReport, MappingRow};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

/// Maximum number of files that are listed by name.
const NAMED_MAX: usize = 5;

/// Describes what a restore does with the files of the image.
fn files(report: &ImageReport) -> String {
    if report.checkpoint.files_exact && report.uncovered.is_empty() {
        return "rolled back with the program".to_owned();
    }
    if report.checkpoint.files_exact {
        return format!("rolled back with the program; compared: {}", named(&report.uncovered));
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

pub(super) const VERB: Verb =
    Verb { name: "show", about: "Show what an image holds: processes, open files, mappings", arguments, run };

fn arguments(command: Command) -> Command {
    let section = |name: &'static str| Arg::new(name).action(ArgAction::SetTrue);
    let processes =
        section("processes").long("processes").help("Only its processes, as ps(1) shows living ones");
    let files = section("files")
        .long("files")
        .help("Only its descriptors, as lsof(8) shows those of living processes");
    let maps =
        section("maps").long("maps").help("Only its mappings, as pmap(1) shows those of living processes");
    command
        .arg(parse::image())
        .args([processes, files, maps])
        .arg(parse::json())
        .group(ArgGroup::new("section").args(["processes", "files", "maps", "json"]))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let report = guardian::show(&parse::given_store(matches)?, &parse::given_image(matches))?;
    if let Some(why) = &report.unlisted_because {
        print::say(format_args!("undying: processes, descriptors and mappings cannot be listed: {why}"));
    }
    let is = |section: &str| matches.get_flag(section);
    match (is("json"), is("processes"), is("files"), is("maps")) {
        (true, ..) => print::json(&report)?,
        (_, true, ..) => processes(&report)?,
        (_, _, true, _) => descriptors(&report)?,
        (.., true) => mappings(&report)?,
        _ => {
            properties(&report)?;
            print::line(format_args!(""))?;
            processes(&report)?;
            print::line(format_args!(""))?;
            descriptors(&report)?;
        }
    }
    Ok(0)
}

fn properties(report: &ImageReport) -> Result<(), Failure> {
    let checkpoint = &report.checkpoint;
    let step = |microseconds| print::duration(Duration::from_micros(microseconds));
    let records: Vec<String> = report.records.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    print::line(format_args!("image    {}", report.path))?;
    if !report.subject.is_empty() {
        print::line(format_args!("subject  {}@{}", report.subject, checkpoint.seq))?;
    }
    print::line(format_args!("kind     {}", checkpoint.kind))?;
    print::line(format_args!("time     {}", checkpoint.time))?;
    print::line(format_args!("by       undying {} on Linux {}", report.tool_version, report.kernel))?;
    print::line(format_args!(
        "pause    {} (stop {}, scan {}, copy {})",
        step(checkpoint.pause_us),
        step(checkpoint.stop_us),
        step(checkpoint.scan_us),
        step(checkpoint.copy_us)
    ))?;
    print::line(format_args!("pages    {}, of which {} are stored", checkpoint.pages, report.stored_pages))?;
    print::line(format_args!("size     {}", print::bytes(checkpoint.bytes)))?;
    print::line(format_args!("maps     {} mappings; --maps lists them", report.mappings.len()))?;
    print::line(format_args!("files    {}", files(report)))?;
    print::line(format_args!("records  {}", records.join(", ")))?;
    Ok(())
}

fn processes(report: &ImageReport) -> Result<(), Failure> {
    let rows = report.processes.iter().map(|process| {
        vec![
            process.pid.to_string(),
            process.ppid.to_string(),
            process.pgid.to_string(),
            process.sid.to_string(),
            process.state.to_owned(),
            process.threads.to_string(),
            print::bytes(process.mapped),
            print::bytes(process.stored),
            process.command.clone(),
        ]
    });
    let head = ["PID", "PPID", "PGID", "SID", "STATE", "THREADS", "MAPPED", "STORED", "COMMAND"];
    Ok(print::table(&head, &rows.collect::<Vec<_>>())?)
}

fn descriptors(report: &ImageReport) -> Result<(), Failure> {
    let rows = report.descriptors.iter().map(|descriptor| {
        vec![
            name_of(report, descriptor.pid),
            descriptor.pid.to_string(),
            format!("{}{}", descriptor.fd, descriptor.access),
            descriptor.kind.clone(),
            descriptor.position.map_or("-".to_owned(), |position| position.to_string()),
            descriptor.name.clone(),
        ]
    });
    let head = ["COMMAND", "PID", "FD", "TYPE", "OFFSET", "NAME"];
    Ok(print::table(&head, &rows.collect::<Vec<_>>())?)
}

fn name_of(report: &ImageReport, pid: i32) -> String {
    let process = report.processes.iter().find(|process| process.pid == pid);
    process.map(|process| process.name.clone()).unwrap_or_default()
}

fn mappings(report: &ImageReport) -> Result<(), Failure> {
    for (place, process) in report.processes.iter().enumerate() {
        if place > 0 {
            print::line(format_args!(""))?;
        }
        print::line(format_args!("{}: {}", process.pid, process.command))?;
        let kibibytes = |bytes: u64| (bytes >> 10).to_string();
        let own: Vec<&MappingRow> =
            report.mappings.iter().filter(|mapping| mapping.pid == process.pid).collect();
        let mut rows: Vec<Vec<String>> = own
            .iter()
            .map(|mapping| {
                vec![
                    format!("{:0>16}", mapping.address),
                    kibibytes(mapping.bytes),
                    kibibytes(mapping.stored),
                    mapping.mode.clone(),
                    format!("{:08x}", mapping.offset),
                    mapping.name.clone(),
                ]
            })
            .collect();
        let total = |of: fn(&MappingRow) -> u64| kibibytes(own.iter().map(|mapping| of(mapping)).sum());
        let sums = [total(|mapping| mapping.bytes), total(|mapping| mapping.stored)];
        rows.push(["total".to_owned()].into_iter().chain(sums).collect());
        print::table(&["ADDRESS", "KBYTES", "STORED", "MODE", "OFFSET", "MAPPING"], &rows)?;
    }
    Ok(())
}
