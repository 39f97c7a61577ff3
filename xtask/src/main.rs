//! The development commands of the workspace ("chores"): `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask edges`,
//! `cargo xtask figures`, `cargo xtask vm`, `cargo xtask trackers`.
//!
//! Owns: the order of the checks for a commit, and the house rules (coding rules) that a program can check.
//! Invariants: files are written only below the build directory, by `figures`, and to the path of `--report`.
//! Does not: install programs (`.ci/run` does), or depend on the crates of the product.
#![forbid(unsafe_code)]

mod ci;
mod edges;
mod failure;
mod figures;
mod test_output;
mod test_run;
mod test_times;
mod tidy;
mod trackers;
mod vm;

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

use crate::failure::Failure;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the undying workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Every check a commit must pass, in order, each with its time
    Ci {
        /// Only this step; may be given more than once
        #[arg(long, value_name = "STEP", value_parser = PossibleValuesParser::new(ci::step_names()))]
        only: Vec<String>,
    },
    /// The house rules, each violation with its place and its cure
    Tidy {
        /// Only the rules with this number; may be given more than once
        #[arg(long, value_name = "NUMBER")]
        only: Vec<u8>,
    },
    /// Test programs on another kernel, in an emulated machine
    Vm(vm::Options),
    /// Every tracker on this kernel and on an older, emulated one, in one table
    Trackers(trackers::Options),
    /// The table of allowed dependencies, as ARCHITECTURE.md prints it
    Edges,
    /// The figures and tables of README.md and benches/results/RESULTS.md, from the rows beside them
    Figures {
        /// Write nothing; end with 1 if something is out of date
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse().chore) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a chore. Returns whether all checks are good.
fn run(chore: &Chore) -> Result<bool, Failure> {
    match chore {
        Chore::Ci { only } => ci::run(only),
        Chore::Tidy { only } => tidy::run(only),
        Chore::Vm(options) => vm::run(options),
        Chore::Trackers(options) => trackers::run(options),
        Chore::Figures { check } => figures::run(&figures::root(), *check),
        Chore::Edges => {
            print!("{}", edges::table());
            Ok(true)
        }
    }
}
