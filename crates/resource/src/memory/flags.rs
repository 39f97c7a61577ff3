//! Converts access rights and flags of a mapping, as `/proc/PID/smaps` shows them, to the arguments of mmap(2),
//! madvise(2) and mlock2(2).
//!
//! The line `VmFlags` of smaps contains a code of two letters for each flag of a mapping. In this module, a flag is
//! named by this code.
//!
//! Owns: the tables of flags and of the calls that set the flags in a restore; converting a mapping to its record.
//! Does not: depend on memory kinds.

use model::Pid;
use tracee::procfs::{Mapping, MappingFlags, Protection};

use super::hugetlb::is_anonymous;
use super::kind::MappingOf;
use super::record::{AreaRecord, NAMED_SHARED, RING_OF_SOCKET, is_fixed_code};
use crate::obstacle::Obstacle;

const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

const MAP_SHARED: u64 = 0x01;
const MAP_PRIVATE: u64 = 0x02;
const MAP_DROPPABLE: u64 = 0x08;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_FIXED_NOREPLACE: u64 = 0x0010_0000;

/// Flags that a restore sets after the mapping was filled. Each flag has the advice of madvise(2) that sets it.
const ADVICE: &[(&str, u64)] = &[
    ("rr", 1),  // MADV_RANDOM
    ("sr", 2),  // MADV_SEQUENTIAL
    ("dc", 10), // MADV_DONTFORK
    ("mg", 12), // MADV_MERGEABLE
    ("hg", 14), // MADV_HUGEPAGE
    ("dd", 16), // MADV_DONTDUMP
    ("wf", 18), // MADV_WIPEONFORK
];

/// Flags that a restore sets before the mapping is filled, because they determine the size of the pages. Each flag
/// has the advice of madvise(2) that sets it.
const ADVICE_BEFORE_PAGES: &[(&str, u64)] = &[
    ("nh", 15), // MADV_NOHUGEPAGE
];

/// Flags that are saved, but that madvise(2) does not set. A restore uses these flags for the arguments of mmap(2)
/// and mlock2(2), or to find out which mappings can become writable.
const MAPPING: &[&str] = &["gd", "nr", "lo", "lf", "mw", DROPPABLE, SEALED];

/// The flag of memory that the kernel may drop (MAP_DROPPABLE). Only mmap(2) sets this flag, not madvise(2).
pub(super) const DROPPABLE: &str = "dp";

/// The flag of memory with a protection key.
const KEYED: &str = "pk";

/// The code that the kernel shows for a flag without a code of its own.
const NAMELESS: &str = "??";

/// The flag of memory with pages of hugetlbfs.
const HUGETLB: &str = "ht";

/// The flag of memory that is sealed with mseal(2).
const SEALED: &str = "sl";

/// The reason why files of hugetlbfs are refused.
pub(super) const NAMED_HUGETLB: &str =
    "only anonymous hugetlb memory is saved (MAP_ANONYMOUS), no files, memfd files or System V segments";
/// The fix that is proposed for a program with files of hugetlbfs.
pub(super) const WITHOUT_HUGETLB: &str = "start the program with anonymous hugetlb memory or without hugetlb pages \
                                          (PostgreSQL: shared_memory_type = mmap)";
/// The fix that is proposed for a program that maps a device.
pub(super) const WITHOUT_DEVICE: &str =
    "start the program without the device: with software rendering, or without direct access to hardware";
const WITHOUT_USERFAULTFD: &str =
    "start the program without its own userfaultfd (garbage collectors, live migration)";

/// Flags of mappings that cannot be saved. Each row has the flag and the texts of the obstacle: the object, the reason
/// and the fix.
const OBSTACLES: &[(&str, &str, &str, &str)] = &[
    (HUGETLB, "huge page mapping", NAMED_HUGETLB, WITHOUT_HUGETLB),
    ("io", "device mapping", "the memory of a device cannot be saved", WITHOUT_DEVICE),
    ("pf", "device mapping", "pages without page structures cannot be saved", WITHOUT_DEVICE),
    (
        "um",
        "userfaultfd registration",
        "a lazy restore is not complete, or the program handles page faults itself, which is not supported",
        "wait until `undying restore --lazy` is complete, or start the program without its own userfaultfd",
    ),
    (
        "ui",
        "userfaultfd registration",
        "the program handles minor faults itself, which is not supported",
        WITHOUT_USERFAULTFD,
    ),
    (
        "uw",
        "userfaultfd registration",
        "the program or another undying tracks writes to it, which is not supported",
        WITHOUT_USERFAULTFD,
    ),
    (
        "ss",
        "shadow stack",
        "shadow stacks are not supported",
        "start the program with GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK",
    ),
    ("mm", "device mapping", "pages without page structures cannot be saved", WITHOUT_DEVICE),
    (
        "sf",
        "synchronous mapping",
        "mappings with MAP_SYNC are not supported",
        "configure the program to use files that are not on persistent memory (DAX)",
    ),
    (
        KEYED,
        "memory with a protection key",
        "protection keys are not supported",
        "start the program without protection keys (of pkey_alloc(2); V8 has --no-memory-protection-keys)",
    ),
];

/// A system call that a restore makes for a mapping after mmap(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// madvise(2) with the given advice.
    Advise(u64),
    /// mlock2(2) with the given flags.
    Lock(u64),
    /// mseal(2). No later call changes the mapping.
    Seal,
}

/// Returns the PROT_* bits of access rights.
#[must_use]
pub fn protection_bits(protection: Protection) -> u32 {
    let mut bits = 0;
    if protection.read {
        bits |= PROT_READ;
    }
    if protection.write {
        bits |= PROT_WRITE;
    }
    if protection.execute {
        bits |= PROT_EXEC;
    }
    bits
}

/// Returns the MAP_* flags with which a restore maps the memory at its address.
#[must_use]
pub fn map_flags(area: &AreaRecord) -> u64 {
    let sharing = match area.shared {
        true => MAP_SHARED,
        false if area.has(DROPPABLE) => MAP_DROPPABLE,
        false => MAP_PRIVATE,
    };
    let mut flags = MAP_FIXED_NOREPLACE | sharing;
    if area.object == 0 {
        flags |= MAP_ANONYMOUS;
    }
    if area.has("gd") {
        flags |= MAP_GROWSDOWN;
    }
    if area.has("nr") {
        flags |= MAP_NORESERVE;
    }
    flags
}

/// Returns the calls that a restore makes after mmap(2) and before the mapping is filled.
#[must_use]
pub fn advice_before_pages(area: &AreaRecord) -> Vec<Advice> {
    advice_of(area, ADVICE_BEFORE_PAGES)
}

/// Returns the calls that a restore makes after the mapping was filled.
#[must_use]
pub fn advice(area: &AreaRecord) -> Vec<Advice> {
    let mut steps = advice_of(area, ADVICE);
    if area.has("lo") {
        steps.push(Advice::Lock(u64::from(area.has("lf"))));
    }
    steps
}

/// Returns the last call that a restore makes for a mapping, after all other changes of the process's mappings.
#[must_use]
pub fn seal(area: &AreaRecord) -> Option<Advice> {
    area.has(SEALED).then_some(Advice::Seal)
}

fn advice_of(area: &AreaRecord, table: &[(&str, u64)]) -> Vec<Advice> {
    table.iter().filter(|(flag, _)| area.has(flag)).map(|(_, advice)| Advice::Advise(*advice)).collect()
}

impl AreaRecord {
    /// Creates the record of a mapping. `object` is the id of the mapped object; 0 for no object.
    #[must_use]
    pub fn new(mapping: &Mapping, object: u64) -> Self {
        let given = ["[anon:", NAMED_SHARED].iter().find_map(|prefix| mapping.name.strip_prefix(prefix));
        let given = given.and_then(|name| name.strip_suffix(']'));
        Self {
            start: mapping.range.start.get(),
            end: mapping.range.end.get(),
            protection: protection_bits(mapping.protection),
            shared: mapping.protection.shared,
            offset: mapping.offset,
            object,
            flags: kept(&mapping.flags),
            name: given.unwrap_or_default().to_owned(),
            code_was_writable: object != 0 && !mapping.protection.shared && was_writable(mapping),
        }
    }
}

/// Reports whether code that is not writable now may have been writable. The kernel accounts private memory (`ac`) when
/// the memory becomes writable for the first time, except memory without a reservation (`nr`).
fn was_writable(mapping: &Mapping) -> bool {
    let is_code = is_fixed_code(protection_bits(mapping.protection));
    is_code && (mapping.flags.has("ac") || mapping.flags.has("nr"))
}

fn kept(flags: &MappingFlags) -> Vec<String> {
    let advised = ADVICE_BEFORE_PAGES.iter().chain(ADVICE).map(|(flag, _)| *flag);
    let wanted = |flag: &str| advised.clone().any(|known| known == flag) || MAPPING.contains(&flag);
    let mut kept: Vec<String> = flags.iter().filter(|flag| wanted(flag)).map(str::to_owned).collect();
    // Some kernels have no code for the flag of MLOCK_ONFAULT, and show `??` instead of `lf`.
    if flags.has("lo") && flags.has(NAMELESS) && !flags.has("lf") {
        kept.push("lf".to_owned());
    }
    kept
}

/// Returns the obstacles in the flags of all mappings of a process. If several mappings have the same flag, returns
/// one obstacle, about the first of these mappings.
pub(super) fn obstacles(pid: Pid, mappings: &[Mapping]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    for (flag, what, why, fix) in OBSTACLES {
        let is_flagged = |mapping: &&Mapping| {
            let of = MappingOf { pid, mapping };
            let is_saved = match *flag {
                KEYED => is_execute_only(of),
                HUGETLB => is_anonymous(&mapping.name),
                // The obstacle of the ring is another one.
                _ => mapping.name.starts_with(RING_OF_SOCKET),
            };
            !mapping.is_kernel() && mapping.flags.has(flag) && !is_saved
        };
        let mut flagged = mappings.iter().filter(is_flagged);
        let Some(first) = flagged.next() else { continue };
        let mut obstacle = MappingOf { pid, mapping: first }.obstacle(what, why, fix);
        let more = flagged.count();
        if more > 0 {
            obstacle.what.push_str(&format!(" and {more} more mappings"));
        }
        found.push(obstacle);
    }
    found
}

/// Reports whether a mapping is execute-only memory. The kernel itself assigns a protection key to execute-only
/// memory. The key is not saved, because the kernel assigns a key when the restore maps the memory.
fn is_execute_only(of: MappingOf<'_>) -> bool {
    protection_bits(of.mapping.protection) == PROT_EXEC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::kernel_headers::Verdict::{
        Action, Derived, Ignored, Kept, Lost, Refused, Same, Value,
    };
    use crate::support::kernel_headers::{Verdict, definitions, judge};

    #[test]
    fn a_flag_of_many_mappings_is_one_obstacle() {
        let smaps = |start: u64, flags: &str| {
            format!("{start:x}000-{:x}000 rw-p 00000000 00:00 0 \nVmFlags: rd wr {flags}\n", start + 1)
        };
        let text: String = (1..=150).map(|page| smaps(page * 2, "uw")).chain([smaps(400, "sf")]).collect();
        let mappings = tracee::procfs::mappings_in(text.as_bytes()).unwrap();
        let found = obstacles(Pid(7), &mappings);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].place.as_str(), found[1].place.as_str()), ("", ""));
        assert!(found[0].what.ends_with(" and 149 more mappings"), "{found:?}");
        assert!(found[0].what.contains("0x2000") || found[0].what.contains("2000-"), "{found:?}");
    }

    #[test]
    fn no_huge_page_advice_is_given_before_there_are_pages_and_other_advice_after() {
        let flags = ["nh", "dd", "lo"].map(str::to_owned).to_vec();
        let area = AreaRecord { flags, ..AreaRecord::default() };
        assert_eq!(advice_before_pages(&area), [Advice::Advise(15)]);
        assert_eq!(advice(&area), [Advice::Advise(16), Advice::Lock(0)]);
    }

    #[test]
    fn a_protection_key_is_refused_unless_the_kernel_assigned_it() {
        let found = |rights: &str, key: u32| {
            let text = format!(
                "7f0000000000-7f0000001000 {rights} 00000000 00:00 0\nProtectionKey:  {key}\nVmFlags: rd mr mw me\n"
            );
            let mappings = tracee::procfs::mappings_in(text.as_bytes()).unwrap();
            obstacles(model::Pid(1), &mappings).len()
        };
        assert_eq!((found("rw-p", 0), found("rw-p", 1), found("--xp", 1)), (0, 1, 0));
    }

    const THIS: &str = "crates/resource/src/memory/flags.rs";
    const LAYOUT: &str = "crates/engine/src/restore/layout.rs";
    const HUGE: Verdict = Kept("crates/sys/src/shared_memory.rs");

    /// Codes of `VmFlags` (Documentation/filesystems/proc.rst, up to Linux 6.18) that are in no table above.
    const CODES: &[(&str, Verdict)] = &[
        // Access rights and sharing. The maximum rights follow from the object, and from the mode in which the object
        // was opened.
        ("rd", Derived),
        ("wr", Derived),
        ("ex", Derived),
        ("sh", Derived),
        ("mr", Derived),
        ("me", Derived),
        ("ms", Derived),
        // Codes that the kernel itself sets, for memory accounting, drivers, removed features, and the tracking of
        // writes.
        ("ac", Derived),
        ("de", Derived),
        ("nl", Ignored),
        ("dw", Ignored),
        ("sd", Derived),
        ("gu", Same("MADV_GUARD_INSTALL")),
        // Codes of other architectures.
        ("ar", Ignored),
        ("bt", Ignored),
        ("mt", Ignored),
        (NAMELESS, Ignored),
        ("MADV_GUARD_INSTALL", Kept(LAYOUT)),
    ];

    /// The codes in the documentation of the kernel.
    const DOCUMENTED: &str = "rd wr ex sh mr mw me ms gd pf lo io sr rr dc de ac nr ht sf nl ar wf dd sd mm hg nh mg \
                              bt mt um uw ss sl lf dp ui gu";

    fn is_in_a_table(code: &str) -> bool {
        let advice = ADVICE.iter().chain(ADVICE_BEFORE_PAGES).map(|row| row.0);
        let mut all = advice.chain(MAPPING.iter().copied()).chain(OBSTACLES.iter().map(|row| row.0));
        all.any(|known| known == code)
    }

    #[test]
    fn every_flag_of_a_mapping_has_a_row_or_a_verdict() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let shown = smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
        let codes = shown.flat_map(str::split_ascii_whitespace).chain(DOCUMENTED.split_ascii_whitespace());
        judge(codes, is_in_a_table, CODES);
    }

    /// Flags of memory calls, up to Linux 6.18.
    const CALLS: &[(&str, Verdict)] = &[
        ("MADV_NORMAL", Same("MADV_RANDOM")),
        ("MADV_RANDOM", Kept(THIS)),
        ("MADV_SEQUENTIAL", Kept(THIS)),
        ("MADV_WILLNEED", Action),
        ("MADV_DONTNEED", Action),
        ("MADV_DONTNEED_LOCKED", Action),
        // MADV_FREE and MADV_REMOVE change only the content of pages.
        ("MADV_FREE", Action),
        ("MADV_REMOVE", Action),
        ("MADV_DONTFORK", Kept(THIS)),
        ("MADV_DOFORK", Same("MADV_DONTFORK")),
        ("MADV_HWPOISON", Action),
        ("MADV_SOFT_OFFLINE", Action),
        ("MADV_MERGEABLE", Kept(THIS)),
        ("MADV_UNMERGEABLE", Same("MADV_MERGEABLE")),
        ("MADV_HUGEPAGE", Kept(THIS)),
        ("MADV_NOHUGEPAGE", Kept(THIS)),
        ("MADV_DONTDUMP", Kept(THIS)),
        ("MADV_DODUMP", Same("MADV_DONTDUMP")),
        ("MADV_WIPEONFORK", Kept(THIS)),
        ("MADV_KEEPONFORK", Same("MADV_WIPEONFORK")),
        ("MADV_COLD", Action),
        ("MADV_PAGEOUT", Action),
        ("MADV_POPULATE_*", Action),
        ("MADV_COLLAPSE", Action),
        ("MADV_GUARD_INSTALL", Kept(LAYOUT)),
        ("MADV_GUARD_REMOVE", Same("MADV_GUARD_INSTALL")),
        ("MAP_SHARED", Kept(THIS)),
        ("MAP_SHARED_VALIDATE", Same("MAP_SHARED")),
        ("MAP_PRIVATE", Kept(THIS)),
        ("MAP_DROPPABLE", Kept(THIS)),
        ("MAP_ANONYMOUS", Kept(THIS)),
        ("MAP_FILE", Value),
        ("MAP_TYPE", Value),
        ("MAP_GROWSDOWN", Kept(THIS)),
        ("MAP_NORESERVE", Kept(THIS)),
        // These flags select an address, and the restore uses the recorded address.
        ("MAP_FIXED", Action),
        ("MAP_FIXED_NOREPLACE", Kept(THIS)),
        ("MAP_32BIT", Action),
        ("MAP_ABOVE4G", Action),
        ("MAP_DENYWRITE", Ignored),
        ("MAP_EXECUTABLE", Ignored),
        ("MAP_UNINITIALIZED", Ignored),
        ("MAP_STACK", Same("MADV_NOHUGEPAGE")),
        ("MAP_LOCKED", Same("MLOCK_ONFAULT")),
        ("MAP_POPULATE", Action),
        ("MAP_NONBLOCK", Action),
        ("MAP_HUGETLB", HUGE),
        ("MAP_HUGE_*", Value),
        ("MAP_SYNC", Refused(THIS)),
        ("MLOCK_ONFAULT", Kept("testkit/victims/memory_mlock.c")),
        ("MCL_CURRENT", Same("MLOCK_ONFAULT")),
        ("MCL_ONFAULT", Same("MLOCK_ONFAULT")),
        ("MCL_FUTURE", Lost("`mlockall(MCL_FUTURE)`")),
        ("PKEY_*", Refused("refuse_protection_key")),
    ];

    #[test]
    fn every_flag_of_memory_calls_has_a_verdict() {
        let prefixes = ["MADV_", "MAP_", "MLOCK_", "MCL_", "PKEY_"];
        let headers = ["asm-generic/mman-common.h", "asm-generic/mman.h", "linux/mman.h", "asm/mman.h"];
        let found: Vec<_> =
            headers.iter().filter_map(|header| definitions(header, &prefixes)).flatten().collect();
        if found.is_empty() {
            return println!("unsupported: kernel headers");
        }
        judge(found.iter().map(|one| one.name.as_str()), |_| false, CALLS);
    }

    #[test]
    fn droppable_memory_is_mapped_with_its_flag() {
        let flags = vec![DROPPABLE.to_owned()];
        let area = AreaRecord { flags, ..AreaRecord::default() };
        assert_eq!(map_flags(&area) & 0x0f, MAP_DROPPABLE);
    }
}
