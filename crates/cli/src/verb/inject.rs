//! The command `undying inject --faults N --target KIND [--seed S] [--report FILE] -- CMD ARG...`: injects faults into
//! replicated runs of a program, and into runs without replication.
//!
//! Owns: the arguments of the command, and the table of outcomes.
//! Does not: inject or judge; `guardian` does.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use guardian::{InjectOutcome, InjectReport, InjectRequest, InjectTarget};

use super::interface::Verb;
use super::replicate::{given_program, given_replicas, program, replicas};
use crate::failure::Failure;
use crate::print;

pub(super) const VERB: Verb = Verb {
    name: "inject",
    about: "Flip single bits in runs of a program, with and without replicas, and count what becomes of them",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let targets = InjectTarget::ALL.map(|(name, _)| name);
    command
        .arg(replicas("replicas").long("replicas"))
        .arg(
            Arg::new("faults")
                .long("faults")
                .value_name("N")
                .required(true)
                .value_parser(value_parser!(u32).range(1..))
                .help("The number of faults for each target"),
        )
        .arg(
            Arg::new("target")
                .long("target")
                .value_name("KIND")
                .required(true)
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(targets)
                .help("What is changed; several kinds are separated by commas"),
        )
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("S")
                .value_parser(value_parser!(u64))
                .help("The seed of the random numbers; the same seed plans the same faults"),
        )
        .arg(
            Arg::new("report")
                .long("report")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write each fault and the counts as JSON to this file"),
        )
        .arg(program())
        .after_help(
            "Standard input is read once, and is the input of each run. The standard output, the standard error and the end \
             of a run are compared with a run without a fault; files that the program writes are not.",
        )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let targets = matches.get_many::<String>("target").into_iter().flatten();
    let known =
        |name: &String| InjectTarget::ALL.iter().find(|(known, _)| known == name).map(|(_, target)| *target);
    let mut input = Vec::new();
    if !std::io::stdin().is_terminal() {
        std::io::stdin().read_to_end(&mut input)?;
    }
    let request = InjectRequest {
        command: given_program(matches),
        replicas: given_replicas(matches, "replicas"),
        faults: matches.get_one::<u32>("faults").map_or(0, |count| *count as usize),
        targets: targets.filter_map(known).collect(),
        seed: matches.get_one::<u64>("seed").copied().unwrap_or_else(guardian::random_seed),
        input,
    };
    // A report that cannot be written ends the command before the program runs.
    let file = matches.get_one::<PathBuf>("report").map(File::create).transpose()?;
    let total = request.faults * request.targets.len();
    let is_terminal = std::io::stderr().is_terminal();
    // A closed terminal does not end the campaign.
    let progress = |text: &str| is_terminal.then(|| std::io::stderr().write_all(text.as_bytes()));
    let mut done = 0;
    let report = guardian::inject(&request, &mut |_| {
        done += 1;
        progress(&format!("\r{done} of {total} faults"));
    })?;
    progress("\n");
    if let Some(file) = file {
        serde_json::to_writer_pretty(file, &report)?;
    }
    table(&report, &request)?;
    let wrong = [InjectOutcome::Sdc, InjectOutcome::Escaped];
    let has_escaped =
        report.outcomes.values().any(|counts| wrong.iter().any(|outcome| counts[outcome.name()] > 0));
    Ok(if has_escaped { guardian::ExitCode::Diverged.number() } else { guardian::ExitCode::Done.number() })
}

/// Prints two lines for each target: with replicas, and without.
fn table(report: &InjectReport, request: &InjectRequest) -> Result<(), Failure> {
    print::line(format_args!("seed {}", report.seed))?;
    let names: Vec<&str> = InjectOutcome::ALL.iter().map(|(name, _)| *name).collect();
    print::line(format_args!("{:20} {:12} {}", "target", "run", names.join("  ")))?;
    for target in &request.targets {
        for (run, counts) in [("replicated", &report.outcomes), ("alone", &report.unprotected)] {
            let cells: Vec<String> = names
                .iter()
                .map(|name| format!("{:>width$}", counts[target.name()][name], width = name.len()))
                .collect();
            print::line(format_args!("{:20} {:12} {}", target.name(), run, cells.join("  ")))?;
        }
        let (low, high) = report.confidence[target.name()];
        print::line(format_args!(
            "{:20} wrong output that left: {:.2} % to {:.2} % (95 % interval)",
            "",
            low * 100.0,
            high * 100.0
        ))?;
    }
    Ok(())
}
