//! The command `cargo xtask vm`: runs test programs on another kernel.
//!
//! Owns: the options of the command, the order of the steps, and the summary.
//! Invariants: the programs are built on this machine from this workspace. Their exit statuses decide the result. The
//! emulated machine never runs longer than the time limit.
//! Does not: install programs. An error names a missing program and its package.

mod campaign;
mod disk;
mod kernel;
mod machine;
mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::vm::machine::Outcome;
pub(crate) use crate::vm::programs::{Build, Line};

/// The options of `cargo xtask vm`.
#[derive(Args)]
pub(crate) struct Options {
    /// The kernel's series, as Debian has it: 6.1 or 6.12
    #[arg(long, value_name = "SERIES", default_value = "6.1")]
    kernel: String,
    /// A Debian kernel package on this machine, instead of one from the archive
    #[arg(long, value_name = "FILE")]
    package: Option<PathBuf>,
    /// Minutes after which the machine is stopped
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    limit: u64,
    /// Command lines to run one after the other, each in quotes: PACKAGE/TEST and its arguments, or `undying`, or any
    /// program of a shell. PACKAGE/lib are a package's own tests. Without any: the campaign of docs/design/0012
    #[arg(value_name = "LINE")]
    lines: Vec<String>,
}

/// The name of a program, and the package that contains it.
type Missing = (&'static str, &'static str);

/// Programs that are called on this machine, each with its Debian package.
const TOOLS: &[Missing] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
    ("timeout", "coreutils"),
    ("cc", "gcc"),
];

/// Boots the kernel and runs the command lines. Returns whether all lines ended with status 0.
pub(crate) fn run(options: &Options) -> Result<bool, Failure> {
    let given: Vec<&str> = match options.lines.as_slice() {
        [] => campaign::LINES.to_vec(),
        lines => lines.iter().map(String::as_str).collect(),
    };
    let lines: Vec<Line> = given.iter().map(|text| Line::parse(text)).collect::<Result<_, _>>()?;
    require(TOOLS)?;
    let build = build(&lines)?;
    let limit = Duration::from_secs(60 * options.limit);
    let ran = boot(&options.kernel, options.package.as_deref(), &build, limit)?;
    Ok(summarise(&given, &ran.outcomes))
}

/// Builds the programs that the command lines name.
pub(crate) fn build(lines: &[Line]) -> Result<Build, Failure> {
    programs::build(lines)
}

/// The results of the command lines on an emulated machine.
pub(crate) struct Ran {
    /// The kernel release, as `uname -r` prints it on the emulated machine.
    pub(crate) release: String,
    /// The results of the command lines that have ended.
    pub(crate) outcomes: Vec<Outcome>,
    /// The whole output, with a heading before each command line.
    pub(crate) said: String,
}

/// Boots a kernel, and runs the command lines on it.
pub(crate) fn boot(
    series: &str,
    package: Option<&Path>,
    build: &Build,
    limit: Duration,
) -> Result<Ran, Failure> {
    require_tools()?;
    let folder = build.target.join("vm");
    let kernel = kernel::find(series, package, &folder)?;
    let disk = disk::make(&folder, &kernel, build)?;
    println!("vm: {} ({}), emulated, 2 processors", kernel.package, kernel.version);
    let (outcomes, said) = machine::run(&folder, &kernel, &disk, limit)?;
    Ok(Ran { release: kernel.release(), outcomes, said })
}

fn summarise(lines: &[&str], outcomes: &[Outcome]) -> bool {
    println!("\nsummary:");
    for (number, line) in lines.iter().enumerate() {
        match outcomes.iter().find(|outcome| outcome.line == number) {
            Some(Outcome { status: 0, seconds, .. }) => println!("ok ({seconds} s): {line}"),
            Some(Outcome { status, seconds, .. }) => println!("FAILED ({status}, {seconds} s): {line}"),
            None => println!("FAILED (never ended): {line}"),
        }
    }
    outcomes.len() == lines.len() && outcomes.iter().all(|outcome| outcome.status == 0)
}

/// Returns an error with the name of the first missing program that an emulated machine needs.
pub(crate) fn require_tools() -> Result<(), Failure> {
    require(TOOLS)
}

/// Returns an error with the name of the first missing program.
fn require(tools: &[Missing]) -> Result<(), Failure> {
    match tools.iter().find(|(program, _)| find_program(program).is_none()) {
        Some((program, package)) => Err(Failure::MissingProgram { program, package }),
        None => Ok(()),
    }
}

/// Returns the path of a program. The directories of administration programs are also searched.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&path).collect::<Vec<_>>();
    let folders = own.into_iter().chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|candidate| candidate.is_file())
}

/// Runs a program to its end, and returns its standard output. An exit status other than 0 is an error.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let line = || format!("{command:?}");
    let named = line();
    let output = command.output().map_err(|source| Failure::Command { command: named.clone(), source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::Status { command: named, status: output.status.to_string(), said });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Converts an I/O error to a failure that names a file.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let path = path.to_path_buf();
    move |source| Failure::Write { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = require(&[("sh", "dash"), ("no-such-program", "a-package")]).unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("a-package"), "{error}");
    }

    #[test]
    fn a_line_that_never_ended_is_no_success() {
        let ended = |line| Outcome { line, status: 0, seconds: 1 };
        assert!(summarise(&["a", "b"], &[ended(0), ended(1)]));
        assert!(!summarise(&["a", "b"], &[ended(0)]));
        assert!(!summarise(&["a"], &[Outcome { line: 0, status: 101, seconds: 1 }]));
    }
}
