//! Tests of file locks at a restore. If another process has taken a lock, the restore is refused with the name of the
//! lock. The image stays valid for a second attempt.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::process::WaitOptions;
use undying_testkit::{ProcessId, Undying, Verdict, Victim, unsupported};

/// Reaps the processes that a failed restore was building, like init would.
fn collect(processes: &[ProcessId]) {
    for process in processes {
        let pid = rustix::process::Pid::from_raw(process.pid().get());
        let ended = rustix::process::waitpid(pid, WaitOptions::empty());
        assert!(ended.is_ok(), "{process} is still there: {ended:?}");
    }
}

#[test]
fn a_lock_that_somebody_else_has_by_now_refuses_the_restore() {
    let undying = Undying::find().unwrap();
    let mut victim = Victim::start("fd_regular_locks").unwrap();
    let processes = victim.survivors();
    victim.checkpoint_and_kill(&undying).unwrap();
    let path = victim.folder().join("plain");
    let other = File::open(&path).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
    let error = victim.restore(&undying).unwrap_err().to_string();
    assert!(error.contains("holds a conflicting lock") && error.contains("lslocks"), "{error}");
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    drop(other);
    collect(&processes);
    victim.restore(&undying).unwrap();
    assert_eq!(victim.judge().unwrap(), Verdict::Pass);
}

#[test]
fn a_file_that_somebody_else_has_open_by_now_gets_no_lease() {
    let undying = Undying::find().unwrap();
    let mut victim = match Victim::start("fd_regular_lease") {
        Err(undying_testkit::HarnessError::Unsupported { reason, .. }) => return unsupported(&reason),
        outcome => outcome.unwrap(),
    };
    let processes = victim.survivors();
    victim.checkpoint_and_kill(&undying).unwrap();
    let other = File::open(victim.folder().join("written")).unwrap();
    let error = victim.restore(&undying).unwrap_err().to_string();
    assert!(error.contains("now another program has it open") && error.contains("written"), "{error}");
    drop(other);
    collect(&processes);
    victim.restore(&undying).unwrap();
    assert_eq!(victim.judge().unwrap(), Verdict::Pass);
}
