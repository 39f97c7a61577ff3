//! Finds a process outside the subject that uses a file, for error messages.
//!
//! Owns: the search through the descriptor tables of other processes.
//! Invariants: the search scans all of `/proc`, so the search runs only after a refusal is certain.
//! Does not: find processes that this user may not inspect. The result is then `None`.

use std::fs;
use std::path::{Path, PathBuf};

use model::{Fd, Pid};
use rustix::fs::Stat;
use tracee::procfs::{self, DescriptorInfo};

use crate::fd::scope::CaptureScope;

/// Finds a process, outside the subject and other than this process, with a descriptor whose link is `target`.
pub(crate) fn holder(scope: &CaptureScope<'_>, target: &str) -> Option<Pid> {
    holder_with(scope, target, |_| true)
}

/// Works like [`holder`], but the open flags of the descriptor must also satisfy `fits`. The flags distinguish the two
/// ends of a pipe, which have the same link.
pub(crate) fn holder_with(scope: &CaptureScope<'_>, target: &str, fits: impl Fn(u32) -> bool) -> Option<Pid> {
    others().find(|pid| !scope.pids.contains(pid) && holds(*pid, target, |info| fits(info.flags)))
}

/// Works like [`holder`], but the fdinfo text of the descriptor must also contain `part`. All objects without an inode of
/// their own have the same link.
pub(crate) fn holder_of_text(scope: &CaptureScope<'_>, target: &str, part: &str) -> Option<Pid> {
    let fits = |info: &DescriptorInfo| info.text.contains(part);
    others().find(|pid| !scope.pids.contains(pid) && holds(*pid, target, fits))
}

/// Describes a process that `holder` or `user_of` has found, for an error message.
pub(crate) fn describe(holder: Option<Pid>) -> String {
    match holder {
        Some(pid) => {
            let name = procfs::stat(pid).map_or_else(|_| String::new(), |stat| format!(" ({})", stat.comm));
            format!("pid {pid}{name}")
        }
        None => "a process that this user may not inspect".to_owned(),
    }
}

fn holds(pid: Pid, target: &str, fits: impl Fn(&DescriptorInfo) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.filter_map(std::io::Result::ok).any(|entry| {
        let is_target = fs::read_link(entry.path()).is_ok_and(|link| link == Path::new(target));
        is_target && {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Fd);
            let info = number.and_then(|fd| procfs::descriptor_info(pid, fd).ok());
            info.is_some_and(|info| fits(&info))
        }
    })
}

/// Finds a process, outside the subject and other than this process, that has a file open.
pub(crate) fn holder_of_file(scope: &CaptureScope<'_>, stat: &Stat) -> Option<Pid> {
    others().find(|pid| !scope.pids.contains(pid) && uses(*pid, "fd", stat))
}

/// Finds a process, other than this process, that has a file open or maps the file. Used for refusals at a restore,
/// when no process of the subject exists.
pub(crate) fn user_of(stat: &Stat) -> Option<Pid> {
    others().find(|pid| uses(*pid, "map_files", stat) || uses(*pid, "fd", stat))
}

/// Reports whether a folder of a process contains a link to a file.
fn uses(pid: Pid, folder: &str, stat: &Stat) -> bool {
    let is_file = |path: PathBuf| {
        rustix::fs::stat(path).is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
    };
    let entries = fs::read_dir(format!("/proc/{pid}/{folder}")).ok();
    entries.is_some_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| is_file(entry.path()))))
}

/// Returns all processes except this process.
fn others() -> impl Iterator<Item = Pid> {
    let ourselves = Pid(std::process::id() as i32);
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid))
        .filter(move |pid| *pid != ourselves)
}
