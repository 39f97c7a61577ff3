//! Tests of restores of a victim (test program) whose control group no longer exists.

use std::fs;
use std::path::{Path, PathBuf};

use undying_testkit::{HarnessError, Undying, Verdict, Victim, unsupported};

const VICTIM: &str = "state_cgroup_named";

#[test]
fn a_group_without_controllers_is_made_again_with_all_that_it_had() {
    let undying = Undying::find().unwrap();
    let mut victim = match Victim::start(VICTIM) {
        Err(HarnessError::Unsupported { reason, .. }) => return unsupported(&reason),
        outcome => outcome.unwrap(),
    };
    let group = group_of(&victim);
    victim.checkpoint_and_kill(&undying).unwrap();
    remove(&group);
    victim.restore(&undying).unwrap();
    assert_eq!(victim.judge().unwrap(), Verdict::Pass);
    assert!(!group.exists());
}

/// Returns the control group of the victim. The victim has a directory inside its group open.
fn group_of(victim: &Victim) -> PathBuf {
    let links = fs::read_dir(format!("/proc/{}/fd", victim.pid())).unwrap();
    let open = links.map(|link| fs::read_link(link.unwrap().path()).unwrap());
    let inner = open.into_iter().find(|path| path.ends_with("inner")).unwrap();
    inner.parent().unwrap().to_owned()
}

/// Removes a control group and its inner groups. The files of a group vanish with the group.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            remove(&entry.path());
        }
    }
    fs::remove_dir(group).unwrap();
}
