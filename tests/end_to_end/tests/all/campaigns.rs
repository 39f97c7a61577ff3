//! The campaigns of `tests/campaigns`, each in a form of some seconds.
//!
//! Owns: starting them, and that each says that all held.
//! Invariants: every wait has a limit; a campaign whose program is missing is counted as unsupported.
//! Does not: say what they look at; each campaign does. Long forms are commands of their own, see CONTRIBUTING.md.

use std::path::Path;
use std::process::Command;

/// Far above what a loaded two-core machine needs; the longest short form takes half a minute on an idle one.
const LIMIT_S: &str = "300";

fn short_form(campaign: &str, words: &[&str], needs: &[&str]) {
    let is_here = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    let missing =
        ["python3", "cc", "unshare", "timeout"].iter().chain(needs).find(|program| !is_here(program));
    let lacks = missing.copied().or((!rustix::process::geteuid().is_root()).then_some("root"));
    if let Some(lacks) = lacks {
        return testkit::unsupported(lacks);
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../campaigns").join(campaign);
    let undying = testkit::Undying::find().unwrap();
    let outcome = Command::new("timeout")
        .args([LIMIT_S, "python3"])
        .arg(script)
        .args(words)
        .args(["--tag", "short", "--out"])
        .arg(folder.path())
        .arg("--undying")
        .arg(undying.binary())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.status.success(), "{campaign}: {said}{}", String::from_utf8_lossy(&outcome.stderr));
    println!("{said}");
}

#[test]
fn a_redis_loses_nothing_and_nothing_leaks() {
    let seconds = ["--seconds", "12", "--sample", "1", "--warm-up", "4", "--stretch", "5", "--keys", "20000"];
    short_form("soak_redis.py", &[&seconds[..], &["--short"]].concat(), &["redis-server"]);
}

#[test]
fn images_of_a_subject_that_changes_all_the_time_judge_themselves_good() {
    short_form("images.py", &["--seconds", "12", "--each", "20"], &[]);
}

#[test]
fn no_checkpoint_differs_from_the_subject_page_by_page() {
    short_form("verified.py", &["--count", "30"], &[]);
}

#[test]
fn a_subject_with_threads_and_children_does_not_notice_that_undying_is_killed() {
    short_form("killed.py", &["--rounds", testkit::rounds("8", "15"), "--judge", "5"], &[]);
}

#[test]
fn killed_parts_of_undying_cost_no_checkpoint() {
    short_form("own_parts.py", &["--only", "kills", "--kills", testkit::rounds("5", "100")], &[]);
}

#[test]
fn a_failed_call_of_a_restore_costs_no_checkpoint() {
    short_form("own_parts.py", &["--only", "errnos", "--errnos", testkit::rounds("5", "400")], &["strace"]);
}

/// Content events are enabled and marked again after a rollback. If a failure is forgotten, changes are not recorded.
#[test]
fn failed_marks_of_a_restore_lose_no_change() {
    let one = ["--only", "errnos", "--errnos", testkit::rounds("4", "0"), "--call", "fanotify_mark"];
    short_form("own_parts.py", &one, &["strace"]);
}

#[test]
fn a_build_two_tables_and_a_database_leave_the_files_of_an_uninterrupted_run() {
    short_form("rewind.py", &["--quick", "--kills", testkit::rounds("1", "2")], &["make", "ar"]);
}

#[test]
fn clients_of_components_that_are_killed_are_never_refused() {
    short_form(
        "channels.py",
        &["--kills", "3", "--clients", "2", "--only", "redis", "unix"],
        &["redis-server"],
    );
}

#[test]
fn servers_that_are_killed_lose_no_acknowledged_request() {
    let words = ["--kills", "2", "--only", "mapped-10mib", "--mode", "held", "committed"];
    short_form("servers.py", &words, &[]);
}

#[test]
fn clients_of_systems_that_are_operated_meet_only_announced_errors() {
    short_form("operated.py", &["--seconds", testkit::rounds("4", "200")], &["mkfs.ext4"]);
}
