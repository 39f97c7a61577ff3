//! The memory that this process could still use without harm to others: /proc/meminfo, and the limits of control groups.
//!
//! Owns: nothing.
//! Invariants: memory that cannot be determined counts as absent.
//! Does not: allocate memory.
//!
//! Man page: proc_meminfo(5), cgroups(7)
//! Since: Linux 3.14 (MemAvailable), 4.5 (control groups of version 2)
//! Probe: none needed; the files are read each time
//! Fallback: no memory counts as free; without control groups of version 2, only the machine limits it

use std::path::Path;

use model::ByteCount;

/// Returns how much memory this process could still allocate, without swapping and within the limits of its control
/// groups (version 2). Memory that the kernel uses as a cache counts as free on the machine, and as used in a control
/// group. Zero if it cannot be determined.
#[must_use]
pub fn available() -> ByteCount {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = available_of(&meminfo).unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let within = group_of(&groups).map(|group| left_in(Path::new("/sys/fs/cgroup"), group));
    ByteCount(within.unwrap_or(u64::MAX).min(machine))
}

/// Returns the value of `MemAvailable` in bytes.
fn available_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the path of the control group of version 2.
fn group_of(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// Returns how much memory the limits of this control group and of its ancestors leave.
fn left_in(root: &Path, group: &str) -> u64 {
    let number = |path: &Path, name: &str| {
        let text = std::fs::read_to_string(path.join(name)).ok()?;
        text.trim_end().parse::<u64>().ok()
    };
    let ancestors = Path::new(group).ancestors().map(|part| root.join(part));
    // Without a limit, the file contains "max". The root has no such file.
    let left = ancestors.filter_map(|path| {
        Some(number(&path, "memory.max")?.saturating_sub(number(&path, "memory.current")?))
    });
    left.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let meminfo = "MemTotal:       24689764 kB\nMemFree:          200 kB\nMemAvailable:   21 kB\n";
        assert_eq!(available_of(meminfo), Some(21 << 10));
        assert_eq!(available_of("MemFree: 1 kB\n"), None);
        assert_eq!(group_of("1:name=systemd:/x\n0::/a.slice/b\n"), Some("a.slice/b"));
        assert!(available() > ByteCount(0));
    }

    #[test]
    fn the_smallest_limit_counts() {
        let root = std::env::temp_dir().join(format!("undying-groups-{}", std::process::id()));
        let inner = root.join("a.slice/b");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(left_in(&root, "a.slice/b"), u64::MAX);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        std::fs::write(inner.join("memory.current"), "4096\n").unwrap();
        assert_eq!(left_in(&root, "a.slice/b"), u64::MAX);
        std::fs::write(root.join("a.slice/memory.max"), "65536\n").unwrap();
        std::fs::write(root.join("a.slice/memory.current"), "5536\n").unwrap();
        assert_eq!(left_in(&root, "a.slice/b"), 60_000);
        std::fs::write(inner.join("memory.max"), "4000\n").unwrap();
        assert_eq!(left_in(&root, "a.slice/b"), 0);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
