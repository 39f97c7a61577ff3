//! The terminal's foreground process group when the restored processes begin to run.
//!
//! Owns: which group of the tree it becomes.
//! Invariants: only a terminal of our own session is touched, and no group outside the tree is named.
//! Does not: decide whether the terminal is ours to give, or take it back; the caller does. Sessions inside the tree
//! have terminals of their own, whose kinds restore them.

use std::os::fd::{AsFd, OwnedFd};

use model::Pid;
use sys::{session, terminal};

use super::plan::Plan;

/// Makes the group that was in the foreground at the checkpoint, else that of the root, the foreground group, and gives
/// it; without a terminal of ours, gives it only. `None` for a program that had no terminal, or has another session than
/// ours. A failure leaves the program in the background.
pub(super) fn hand_over(plan: &Plan, terminal: Option<&OwnedFd>) -> Option<Pid> {
    let member = member(plan)?;
    let own = Pid(std::process::id() as i32);
    if session::of(member).ok()? != session::of(own).ok()? {
        return None;
    }
    let group = session::group_of(member).ok()?;
    if let Some(terminal) = terminal {
        let _ = terminal::set_foreground(terminal.as_fd(), group);
    }
    Some(group)
}

/// A living process of the group. The group itself may have another number now: for one around the tree, the group of
/// the restorer stands.
fn member(plan: &Plan) -> Option<Pid> {
    let root = &plan.processes[0];
    let foreground = root.message.foreground?;
    let is_in_it = |message: &crate::records::ProcessMessage| {
        message.group == foreground && message.session == root.message.session
    };
    let found = plan.living().find(|process| is_in_it(&process.message));
    Some(found.unwrap_or(root).pid)
}
