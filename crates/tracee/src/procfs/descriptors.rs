//! `/proc/PID/fd` and `fdinfo`: the descriptor table of a process.
//!
//! Owns: its listing and the parser of the lines common to every kind.
//! Does not: understand the lines of one kind; the fd kinds get them as text.

use std::fs::File;
use std::path::PathBuf;

use model::{Fd, Pid};
use sys::{Error, Result};

use super::files::{link, malformed, numbers, read_text};

/// What `/proc` tells of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorInfo {
    /// Its number.
    pub fd: Fd,
    /// What the link in `/proc/PID/fd` says: a path, or `kind:[inode]`.
    pub target: PathBuf,
    /// File position.
    pub position: u64,
    /// Open flags, O_CLOEXEC of this descriptor included.
    pub flags: u32,
    /// The mount the file was opened through.
    pub mount: i32,
    /// All of fdinfo, for lines of one kind.
    pub text: String,
}

/// O_CLOEXEC on x86-64.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

impl DescriptorInfo {
    /// Whether the descriptor closes on exec; a property of the descriptor, not of the description.
    #[must_use]
    pub fn close_on_exec(&self) -> bool {
        self.flags & CLOSE_ON_EXEC != 0
    }

    /// Flags of the open file description alone.
    #[must_use]
    pub fn description_flags(&self) -> u32 {
        self.flags & !CLOSE_ON_EXEC
    }

    /// The value of a line `name:` of fdinfo.
    #[must_use]
    pub fn line(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// Numbers in use in a process's descriptor table, rising.
pub fn descriptors(pid: Pid) -> Result<Vec<Fd>> {
    let mut found: Vec<Fd> = numbers(&format!("/proc/{pid}/fd"))?.into_iter().map(Fd).collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether a descriptor closes on exec, by the text of its fdinfo.
#[must_use]
pub fn closes_on_exec(text: &str) -> Option<bool> {
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok().map(|flags| flags & CLOSE_ON_EXEC != 0)
}

/// As `descriptor_info`, with fdinfo held open for later.
pub fn open_descriptor_info(pid: Pid, fd: Fd) -> Result<(DescriptorInfo, File)> {
    let path = format!("/proc/{pid}/fdinfo/{fd}");
    let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
    Ok((descriptor_info(pid, fd)?, file))
}

/// What `/proc` tells of one descriptor.
pub fn descriptor_info(pid: Pid, fd: Fd) -> Result<DescriptorInfo> {
    let target = link(format!("/proc/{pid}/fd/{fd}"))?;
    let path = format!("/proc/{pid}/fdinfo/{fd}");
    let text = read_text(&path)?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let parsed = (|| {
        Some((
            value("pos:")?.parse().ok()?,
            u32::from_str_radix(value("flags:")?, 8).ok()?,
            value("mnt_id:").and_then(|id| id.parse().ok()).unwrap_or(-1),
        ))
    })();
    let (position, flags, mount) = parsed.ok_or_else(|| malformed(&path))?;
    Ok(DescriptorInfo { fd, target, position, flags, mount, text })
}
