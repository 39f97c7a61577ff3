//! The programs that lie beside the tests: where they are, and compiling them.
//!
//! Owns: running a compiler with a limit.
//! Invariants: what is compiled goes into the folder of one test, so that no test runs an old program.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::POLL;
use super::problem::{Context, Outcome, Problem, check};
use super::requirements::find;

/// The first build of a Go program compiles the standard library.
const COMPILER_LIMIT: Duration = Duration::from_secs(300);

/// A source file below `programs/`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// A command line from words and paths.
pub(crate) fn words<const COUNT: usize>(words: [&dyn AsRef<std::ffi::OsStr>; COUNT]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Compiles a Go program into `folder`; gives the program.
pub(crate) fn go(folder: &Path, name: &str) -> Outcome<PathBuf> {
    let program = folder.join("goserver");
    let mut command = Command::new(find("go").ok_or_else(|| Problem::new("go is gone"))?);
    command.args(["build", "-o"]).arg(&program).arg(source(name)).env("GO111MODULE", "off");
    command.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    if std::env::var_os("HOME").is_none() {
        command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    }
    compile(&mut command, folder)?;
    Ok(program)
}

/// Compiles a Java program into `folder`.
pub(crate) fn java(folder: &Path, name: &str) -> Outcome {
    let mut command = Command::new("javac");
    compile(command.arg("-d").arg(folder).arg(source(name)), folder)
}

fn compile(command: &mut Command, folder: &Path) -> Outcome {
    let log = folder.join("compiler.log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut child = command.spawn().context("start the compiler")?;
    let began = Instant::now();
    while child.try_wait()?.is_none() && began.elapsed() < COMPILER_LIMIT {
        thread::sleep(POLL);
    }
    let _ended_already = child.kill();
    let good = child.wait()?.success();
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    check(good, || format!("{command:?} failed after {:?}: {said}", began.elapsed()))
}
