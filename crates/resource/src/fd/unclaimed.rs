//! Names of open file descriptions that no descriptor kind handles, with advice for the operator.
//!
//! Owns: the name of each such description, and the advice (fix). Both are shown when the checkpoint is refused.
//! Invariants: every description gets a name and a fix. An unknown object gets the kernel's name.
//! Does not: refuse the checkpoint; the crate `engine` does.

use rustix::fs::FileType;

use super::description::Description;
use super::socket_family::{AF_INET, AF_INET6, Family};

/// Address families: number and name.
const FAMILIES: &[(i32, &str)] = &[
    (1, "Unix socket"),
    (2, "IPv4 socket"),
    (10, "IPv6 socket"),
    (15, "key management socket"),
    (16, "netlink socket"),
    (29, "CAN bus socket"),
    (30, "TIPC socket"),
    (31, "Bluetooth socket"),
    (38, "kernel crypto socket"),
    (40, "vsock socket (virtual machine)"),
    (42, "Qualcomm IPC socket"),
    (43, "SMC socket"),
    (44, "XDP socket"),
    (45, "MCTP socket"),
];
/// Protocols of the IP families that no kind supports: number and name.
const PROTOCOLS: &[(i32, &str)] = &[(33, "DCCP"), (132, "SCTP"), (262, "MPTCP")];
/// Anonymous files: a part of the kernel's name, and our name.
const ANONYMOUS: &[(&str, &str)] = &[
    ("[io_uring]", "io_uring instance"),
    ("[userfaultfd]", "userfaultfd"),
    ("[perf_event]", "performance counter"),
    ("bpf-map", "BPF map"),
    ("bpf-prog", "BPF program"),
    ("bpf_link", "BPF link"),
    ("btf", "BPF type information"),
    ("kvm-vm", "virtual machine of KVM"),
    ("kvm-vcpu", "virtual CPU of KVM"),
    ("seccomp notify", "seccomp listener"),
    ("[landlock-ruleset]", "Landlock rule set"),
    ("[fscontext]", "file system under construction"),
    ("[secretmem]", "secret memory"),
];

/// Returns the name of a description: `netlink socket`, `io_uring instance` and so on.
#[must_use]
pub fn describe_unclaimed(description: &Description) -> String {
    let kind = FileType::from_raw_mode(description.stat.st_mode);
    match kind {
        FileType::Socket => describe_socket(description),
        FileType::CharacterDevice => format!("character device {}", description.target()),
        FileType::BlockDevice => format!("block device {}", description.target()),
        FileType::RegularFile => format!("file {}", description.target()),
        FileType::Directory => format!("directory {}", description.target()),
        FileType::Fifo => "pipe".to_owned(),
        _ => describe_anonymous(description.target()),
    }
}

fn describe_socket(description: &Description) -> String {
    let Ok(Family { domain, kind, protocol }) = Family::of(description) else { return "socket".to_owned() };
    let family = FAMILIES.iter().find(|row| row.0 == domain).map_or("socket", |row| row.1);
    let is_ip = domain == AF_INET || domain == AF_INET6;
    match PROTOCOLS.iter().find(|row| row.0 == protocol) {
        Some(row) if is_ip => format!("{} {family}", row.1),
        _ if family == "socket" || is_ip => {
            format!("{family} of family {domain}, type {kind}, protocol {protocol}")
        }
        _ => family.to_owned(),
    }
}

fn describe_anonymous(target: &str) -> String {
    let name = target.trim_start_matches("anon_inode:");
    let known = ANONYMOUS.iter().find(|row| name.contains(row.0)).map(|row| row.1);
    known.map_or_else(|| format!("kernel object {name}"), str::to_owned)
}

/// Fixes: a part of the name of a description, and the advice for it.
const FIXES: &[(&str, &str)] = &[
    ("io_uring", crate::memory::WITHOUT_IO_URING),
    ("userfaultfd", "start the program without its own userfaultfd (garbage collectors, live migration)"),
    ("performance counter", "end the profiler that opened the counter, then take the checkpoint"),
    ("BPF", "unload the BPF program before the checkpoint and load it again after the restore"),
    ("KVM", "save the virtual machine with its own manager (`virsh save`)"),
    ("seccomp listener", "checkpoint the container manager's program from inside of the container"),
    ("Landlock", "take the checkpoint after the program has closed its rule set"),
    ("secret memory", "start the program without memfd_secret(2)"),
    (
        "netlink",
        "configure the program not to follow network changes, or take the checkpoint after it has closed the socket",
    ),
    ("SCTP", "configure the program to use TCP"),
    ("MPTCP", "start the program with plain TCP (Go: GODEBUG=multipathtcp=0)"),
    ("SMC", "start the program without `smc_run`, with plain TCP"),
    ("crypto socket", "configure the program to use a crypto library of its own instead of AF_ALG"),
    ("device", "configure the program to run without this device"),
];

/// Returns the fix for a description with this name from [`describe_unclaimed`].
#[must_use]
pub fn advise(what: &str) -> &'static str {
    const CLOSE: &str = "take the checkpoint at a time when the program has closed it";
    FIXES.iter().find(|(part, _)| what.contains(part)).map_or(CLOSE, |(_, fix)| fix)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::describe;
    use super::*;

    #[test]
    fn families_and_kernel_objects_have_names() {
        let netlink = sys::socket::create(16, 3, 0).unwrap();
        assert_eq!(describe_unclaimed(&describe(0, &netlink)), "netlink socket");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(describe_unclaimed(&describe(0, &null)), "character device /dev/null");
        assert_eq!(describe_anonymous("anon_inode:[io_uring]"), "io_uring instance");
        assert_eq!(describe_anonymous("anon_inode:[new thing]"), "kernel object [new thing]");
    }

    #[test]
    fn the_advice_fits_the_object() {
        assert!(advise("io_uring instance").contains("io_uring_disabled"));
        assert!(advise("MPTCP IPv4 socket").contains("multipathtcp=0"));
        assert!(advise("kernel object [new thing]").contains("has closed it"));
    }
}
