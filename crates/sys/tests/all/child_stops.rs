//! Tests that SIGCHLD is sent for stops of children only where stops are reported, and always for their ends.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use model::{Pid, Signal, Tid};
use undying_sys::ptrace::{self, Options};
use undying_sys::signal;

const ROLE: &str = "UNDYING_TEST_ROLE";
const CHLD_BIT: u64 = 1 << 16;

fn is_pending() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & CHLD_BIT != 0
}

/// Returns whether SIGCHLD is pending after the stop of a tracee, and after the end of the tracee.
fn pending_after_stop_and_end() -> (bool, bool) {
    let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let (pid, tid) = (Pid(child.id() as i32), Tid(child.id() as i32));
    ptrace::seize(tid, Options::NONE).unwrap();
    ptrace::interrupt(tid).unwrap();
    while ptrace::peek(tid).unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let after_stop = is_pending();
    signal::send(pid, Signal(9)).unwrap();
    child.wait().unwrap();
    (after_stop, is_pending())
}

#[test]
fn stops_of_tracees_are_reported_only_where_asked_for() {
    let Ok(role) = std::env::var(ROLE) else {
        for role in ["reported", "unreported", "kept"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", thread::current().name().unwrap()])
                .env(ROLE, role)
                .stdout(Stdio::null());
            // SIGCHLD is blocked in all threads of the started test process.
            let status = signal::start_with(&mut command, CHLD_BIT, 0).status().unwrap();
            assert!(status.success(), "{role}");
        }
        return;
    };
    signal::report_child_stops(role != "unreported").unwrap();
    assert_eq!(pending_after_stop_and_end(), (role != "unreported", true));
    if role == "kept" {
        signal::report_child_stops(false).unwrap();
        signal::report_child_stops(true).unwrap();
        assert!(is_pending(), "a pending SIGCHLD is lost");
    }
}
