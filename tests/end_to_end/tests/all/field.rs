//! The quick programs of the field suite (`tests/field`), one test each.
//!
//! Owns: calling `tests/field/field.py` for one program, and reading its verdicts.
//! Invariants: both trials of a program work; a missing program or missing rights count as unsupported; each call
//! has a time limit.
//! Does not: know the programs, or install them. `make field` tries all programs.

use std::path::Path;
use std::process::{Command, Stdio};

/// Both trials of a program take about 10 s on an idle machine; this bounds a program that hangs.
const LIMIT_S: &str = "200";

#[test]
fn redis() {
    works("redis");
}

#[test]
fn memcached() {
    works("memcached");
}

#[test]
fn nginx() {
    works("nginx");
}

#[test]
fn sqlite_wal() {
    works("sqlite-wal");
}

#[test]
fn python() {
    works("python");
}

#[test]
fn node() {
    works("node");
}

fn works(program: &str) {
    let is_here = |tool: &&&str| Command::new(tool).arg("--version").output().is_ok();
    if let Some(lacks) = ["python3", "timeout"].iter().find(|tool| !is_here(tool)) {
        return testkit::unsupported(lacks);
    }
    let undying = testkit::Undying::find().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../field/field.py");
    let outcome = Command::new("timeout")
        .args([LIMIT_S, "python3"])
        .arg(script)
        .args(["--quick", "--only", program, "--undying"])
        .arg(undying.binary())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stdout);
    let shown = format!("{said}{}", String::from_utf8_lossy(&outcome.stderr));
    let verdicts: Vec<&str> = said.lines().filter(|line| line.starts_with(program)).collect();
    if let Some(lacks) = verdicts.iter().find_map(|line| Some(line.split_once("unsupported (")?.1)) {
        return testkit::unsupported(lacks.trim_end_matches(')'));
    }
    assert!(outcome.status.success() && verdicts.len() == 2, "{program}: {shown}");
    assert!(verdicts.iter().all(|line| line.contains(" s  works")), "{program}: {shown}");
    println!("{said}");
}
