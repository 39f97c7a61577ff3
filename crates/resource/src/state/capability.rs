//! Names and numbers of capabilities.
//!
//! Owns: the table of names, from capabilities(7).
//! Does not: read or set capabilities.

/// Names, indexed by capability number.
const NAMES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Returns the numbers of the capabilities in a set.
pub(super) fn numbers(set: u64) -> impl Iterator<Item = u64> {
    (0..u64::from(u64::BITS)).filter(move |number| set >> number & 1 == 1)
}

/// Returns the names of the capabilities in a set, separated by commas.
pub(super) fn names(set: u64) -> String {
    let name = |number: u64| match NAMES.get(number as usize) {
        Some(name) => format!("CAP_{name}"),
        None => format!("capability {number}"),
    };
    numbers(set).map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_the_kernel() {
        assert_eq!(names(1 << 24 | 1), "CAP_CHOWN, CAP_SYS_RESOURCE");
        assert_eq!(names(1 << 40), "CAP_CHECKPOINT_RESTORE");
        assert_eq!(names(1 << 21), "CAP_SYS_ADMIN");
        assert_eq!(names(1 << 63), "capability 63");
    }
}
