//! Reads `/proc/PID/fd` and `fdinfo`: the descriptor table of a process.
//!
//! Owns: the list of descriptors, and the parser of the lines that every kind has.
//! Does not: parse lines of one kind; the fd kinds receive them as text.

use std::fs::File;
use std::path::PathBuf;

use model::{Fd, Pid};
use sys::{Error, Result};

use super::files::{failed, link, malformed, numbers, read_open, read_text};

/// Information about one descriptor from `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorInfo {
    /// Number of the descriptor.
    pub fd: Fd,
    /// Target of the link in `/proc/PID/fd`: a path, or `kind:[inode]`.
    pub target: PathBuf,
    /// File position.
    pub position: u64,
    /// Open flags, including O_CLOEXEC of this descriptor.
    pub flags: u32,
    /// Id of the mount through which the file was opened; -1 if fdinfo has none.
    pub mount: i32,
    /// Whole text of fdinfo, for lines that only one kind has.
    pub text: String,
}

/// O_CLOEXEC on x86-64.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

impl DescriptorInfo {
    /// Reports whether the descriptor closes on exec. This is a property of the descriptor, not of the open
    /// file description.
    #[must_use]
    pub fn close_on_exec(&self) -> bool {
        self.flags & CLOSE_ON_EXEC != 0
    }

    /// Returns the flags of the open file description, without O_CLOEXEC.
    #[must_use]
    pub fn description_flags(&self) -> u32 {
        self.flags & !CLOSE_ON_EXEC
    }

    /// Returns the value of the line `name:` of fdinfo.
    #[must_use]
    pub fn line(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// Returns the descriptors that are open in a process, in ascending order.
pub fn descriptors(pid: Pid) -> Result<Vec<Fd>> {
    let mut found: Vec<Fd> = numbers(&format!("/proc/{pid}/fd"))?.into_iter().map(Fd).collect();
    found.sort_unstable();
    Ok(found)
}

/// Reports whether a descriptor closes on exec, from the text of its fdinfo.
#[must_use]
pub fn closes_on_exec(text: &str) -> Option<bool> {
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok().map(|flags| flags & CLOSE_ON_EXEC != 0)
}

/// Reads like `descriptor_info`, and also returns the open fdinfo file for later reads.
pub fn open_descriptor_info(pid: Pid, fd: Fd) -> Result<(DescriptorInfo, File)> {
    let path = format!("/proc/{pid}/fdinfo/{fd}");
    let mut file = File::open(&path).map_err(|error| failed("open", &path, error))?;
    let target = link(format!("/proc/{pid}/fd/{fd}"))?;
    let text = read_open(&mut file).map_err(|error| Error::path("read", &path, error))?;
    Ok((parsed(fd, target, String::from_utf8_lossy(&text).into_owned(), &path)?, file))
}

/// Reads the information about one descriptor from `/proc`.
pub fn descriptor_info(pid: Pid, fd: Fd) -> Result<DescriptorInfo> {
    let target = link(format!("/proc/{pid}/fd/{fd}"))?;
    let path = format!("/proc/{pid}/fdinfo/{fd}");
    parsed(fd, target, read_text(&path)?, &path)
}

fn parsed(fd: Fd, target: PathBuf, text: String, path: &str) -> Result<DescriptorInfo> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let fields = (|| {
        Some((
            value("pos:")?.parse().ok()?,
            u32::from_str_radix(value("flags:")?, 8).ok()?,
            value("mnt_id:").and_then(|id| id.parse().ok()).unwrap_or(-1),
        ))
    })();
    let (position, flags, mount) = fields.ok_or_else(|| malformed(path))?;
    Ok(DescriptorInfo { fd, target, position, flags, mount, text })
}
