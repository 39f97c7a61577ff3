//! The dump of every thread when a wait reaches its time limit.
//!
//! Owns: the dump files under `target/hang-dumps`, and their summaries with one line for each thread.
//! Does not: change the processes; all data is read from /proc.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::error::HarnessError;
use crate::limits::DUMP_FILE_BYTES_MAX;
use crate::paths::folder_in_target;
use crate::process::ProcessId;

/// The files of `/proc` that are read for every thread.
const THREAD_FILES: &[&str] = &["status", "syscall", "wchan", "stack"];
/// The files of `/proc` that are read once for a process.
const PROCESS_FILES: &[&str] = &["cmdline", "maps"];

/// Writes a dump of the processes and of the given files. Returns the error to report.
pub(crate) fn timeout(what: &str, limit: Duration, processes: &[ProcessId], files: &[&Path]) -> HarnessError {
    let mut text = format!("{what}: nothing after {limit:?}\n");
    let mut summary = String::new();
    for path in files {
        add_file(&mut text, path);
    }
    for process in processes {
        add_process(&mut text, &mut summary, *process);
    }
    if processes.is_empty() {
        summary.push_str("  no process is left\n");
    }
    let dump = write_dump(&text).unwrap_or_else(|| PathBuf::from("(the dump could not be written)"));
    HarnessError::Timeout { what: what.to_owned(), limit, dump, summary }
}

/// Describes the activity of each thread of these processes, with one line for each thread.
#[must_use]
pub fn describe(processes: &[ProcessId]) -> String {
    let mut summary = String::new();
    for process in processes {
        add_threads(&mut summary, &process_folder(*process));
    }
    summary
}

fn process_folder(process: ProcessId) -> PathBuf {
    PathBuf::from(format!("/proc/{}", process.pid()))
}

fn add_threads(summary: &mut String, process: &Path) {
    for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        add_summary(summary, &task.path());
    }
}

fn add_process(text: &mut String, summary: &mut String, process: ProcessId) {
    let folder = process_folder(process);
    for name in PROCESS_FILES {
        add_file(text, &folder.join(name));
    }
    for task in fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
        for name in THREAD_FILES {
            add_file(text, &task.path().join(name));
        }
    }
    add_threads(summary, &folder);
}

/// Appends a line like `tid 812 (fd_pipe), parent 1, tracer 0, S (sleeping) in pipe_read, syscall 0 0x3 0x7ffd…`.
fn add_summary(summary: &mut String, task: &Path) {
    let status = read(&task.join("status"));
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.map_or("?", |line| line[name.len()..].trim_start_matches(':').trim()).to_owned()
    };
    let syscall = read(&task.join("syscall"));
    let wait = read(&task.join("wchan"));
    let _infallible = writeln!(
        summary,
        "  tid {} ({}), parent {}, tracer {}, {} in {}, syscall {}",
        field("Pid"),
        field("Name"),
        field("PPid"),
        field("TracerPid"),
        field("State"),
        wait.trim(),
        syscall.trim()
    );
}

fn add_file(text: &mut String, path: &Path) {
    let content = read(path).replace('\0', " ");
    let end = content.floor_char_boundary(DUMP_FILE_BYTES_MAX);
    let _infallible = writeln!(text, "==== {}\n{}", path.display(), &content[..end]);
}

fn read(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("({error})"),
    }
}

fn write_dump(text: &str) -> Option<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = folder_in_target("hang-dumps").ok()?;
    let path = folder.join(format!("{}-{number}.txt", std::process::id()));
    fs::write(&path, text).ok()?;
    Some(path)
}
