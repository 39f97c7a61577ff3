//! Tests of the usage and the progress of real process trees.
//!
//! Owns: programs that use memory and descriptors, work, or hang.

use std::process::Command;
use std::time::Duration;

use testkit::until;

use super::*;
use crate::test_support::{LIMIT, Running, compile};

const MIB: u64 = 1 << 20;

/// Runs a complete inspection of a tree.
fn inspect(root: Pid) -> Usage {
    let mut inspection = Inspection::begin(root, Instant::now()).unwrap();
    let usage = loop {
        if let Some(usage) = inspection.advance(inspection.due().unwrap()) {
            break usage;
        }
    };
    assert_eq!(inspection.due(), None);
    assert_eq!(inspection.advance(Instant::now()), None);
    usage
}

/// A program that maps shared memory. The arguments are the size in MiB, the number of children that read the memory,
/// and the path of a file. Each process then appends a byte to the file.
const SHARER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    size_t bytes = strtoul(words[1], NULL, 10) << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (count != 4 || memory == MAP_FAILED)
        return 1;
    memset(memory, 1, bytes);
    for (int child = atoi(words[2]); child > 0; child--) {
        if (fork() == 0) {
            volatile char sum = 0;
            for (size_t at = 0; at < bytes; at += 4096)
                sum += memory[at];
            break;
        }
    }
    FILE *mark = fopen(words[3], "a");
    fputs("x", mark);
    fclose(mark);
    sleep(1000);
}
"#;

#[test]
fn shared_memory_of_a_tree_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), SHARER);
    let mark = folder.path().join("mark");
    let mut command = Command::new(&program);
    let running = Running::start(command.args(["64", "7"]).arg(&mark));
    until("eight processes", || std::fs::read(&mark).ok().filter(|text| text.len() == 8));
    let resident = inspect(running.pid()).resident.get();
    assert!((64 * MIB..96 * MIB).contains(&resident), "{resident}");
}

#[test]
fn the_process_with_most_descriptors_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let script = "(ulimit -n 4096; i=10; while [ $i -lt 3010 ]; do eval \"exec $i</dev/null\"; i=$((i + 1)); done; \
        echo x > $0; exec sleep 1000); true";
    let running = Running::start(Command::new("bash").args(["-c", script]).arg(&mark));
    until("the descriptors", || mark.exists().then_some(()));
    // The shell has several more descriptors open while it creates the file.
    let (pid, count) = until("the program with the descriptors", || {
        let found = inspect(running.pid()).descriptors?;
        let comm = tracee::procfs::stat(found.0).ok()?.comm;
        (comm == "sleep").then_some(found)
    });
    assert_ne!(pid, running.pid());
    assert!((3003..3020).contains(&count), "{count}");
    // The dynamic loader opens and closes files.
    until("both counts to be the same", || {
        let listed = tracee::procfs::descriptors(pid).unwrap().len() as u32;
        (listed == open_descriptors(pid).unwrap()).then_some(())
    });
    assert!(Inspection::begin(Pid(i32::MAX), Instant::now()).is_err());
}

#[test]
fn work_calls_and_new_processes_are_progress() {
    let elapsed = Duration::from_secs(1);
    let idle = Running::shell("exec sleep 1000");
    until("a program that sleeps", || {
        let comm = tracee::procfs::stat(idle.pid()).ok()?.comm;
        (comm == "sleep").then_some(())
    });
    // The shell has executed another program, which may still be loading.
    until("a program that does nothing", || {
        let before = inspect(idle.pid()).progress;
        std::thread::sleep(Duration::from_millis(20));
        (!inspect(idle.pid()).progress.is_beyond(&before, elapsed)).then_some(())
    });
    let busy = Running::shell("while :; do :; done");
    let before = inspect(busy.pid()).progress;
    until("CPU time", || inspect(busy.pid()).progress.is_beyond(&before, elapsed).then_some(()));
    let calling = Running::shell("exec dd if=/dev/zero of=/dev/null bs=1 status=none");
    let before = inspect(calling.pid()).progress;
    until("calls", || {
        inspect(calling.pid()).progress.is_beyond(&before, Duration::from_secs(3600)).then_some(())
    });
    assert!(inspect(busy.pid()).progress.is_beyond(&inspect(idle.pid()).progress, Duration::from_secs(3600)));
}

#[test]
fn a_hang_needs_a_failing_probe_and_no_progress() {
    let idle = Running::shell("exec sleep 1000");
    until("a program that sleeps", || {
        let comm = tracee::procfs::stat(idle.pid()).ok()?.comm;
        (comm == "sleep").then_some(())
    });
    let settled = until("a program that does nothing", || {
        let before = inspect(idle.pid()).progress;
        std::thread::sleep(Duration::from_millis(20));
        let after = inspect(idle.pid()).progress;
        (before == after).then_some(after)
    });
    let busy = Running::shell("while :; do :; done");
    let (began, mut hang) = (Instant::now(), Hang::default());
    assert!(!hang.note(began, true, settled.clone()), "one inspection proves nothing");
    assert!(hang.note(began + LIMIT, true, settled.clone()));
    assert!(!hang.note(began + 2 * LIMIT, false, settled.clone()));
    assert!(!hang.note(began + 3 * LIMIT, true, settled.clone()), "the probe before has succeeded");
    let other = inspect(busy.pid()).progress;
    assert!(!hang.note(began + 4 * LIMIT, true, other));
}

#[test]
fn a_large_tree_is_inspected_in_several_calls() {
    let script = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i + 1)); done; wait";
    let running = Running::shell(script);
    until("forty children", || {
        let members = tracee::tree::descendants(running.pid()).unwrap();
        (members.len() == 41).then_some(())
    });
    let now = Instant::now();
    let mut inspection = Inspection::begin(running.pid(), now).unwrap();
    assert_eq!(inspection.advance(now), None);
    assert_eq!(inspection.due(), Some(now));
    assert!(inspection.advance(now).is_some());
}
