//! Each test makes one kind of change in one kind of memory, and checks the result of the scan.

use crate::common;
use crate::common::case::{Case, DONTNEED, NONE, PAGEMAP_SCAN, pages, split};
use crate::common::{Subject, attach, is_watched, part, scan_mapping, userfaultfds};
use model::{Address, AddressRange, PAGE_BYTES, Pid};
use sys::pagemap::{PageRegions, Pagemap};
use tracee::StoppedTree;
use tracee::procfs;
use undying_track::{Content, DirtyPages, Moment, TrackError, Unwatched, UnwatchedReason};

const REMOVE: u64 = 9;
const GUARD_INSTALL: u64 = 102;
const GUARD_REMOVE: u64 = 103;

#[test]
fn anonymous_memory_reports_writes_and_what_was_given_back() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 1024)]) else { return };
    let area = case.areas[0];
    assert_eq!(case.after("read", 0, 1, 0), NONE);
    assert_eq!(case.after("write", 3, 5, 7), (pages(3, 5), vec![]));
    assert_eq!(case.after("read", 3, 4, 0), NONE);
    // Many discarded pages are reported as absent. A few discarded pages may be reported as to be read,
    // and read as zero.
    assert_eq!(case.after("advise", 100, 300, DONTNEED), (vec![], pages(100, 300)));
    let (read, nothing) = case.after("advise", 8, 10, DONTNEED);
    assert_eq!([read, nothing].concat(), pages(8, 10));
    assert_eq!(case.after("write", 8, 9, 1), (pages(8, 9), vec![]));
    // The read maps the zero page. An earlier scan has already reported that the page lost its content.
    assert_eq!(case.after("read", 120, 121, 0), NONE);
    assert_eq!(case.subject.act("read", part(area, 120, 121), 0), 0);
    // The protection is changed and restored.
    case.subject.act("protect", part(area, 20, 40), 1);
    case.subject.act("protect", part(area, 20, 40), 3);
    case.cover();
    assert_eq!(split(&case.scan(area)), NONE);
    assert_eq!(case.after("write", 30, 31, 1), (pages(30, 31), vec![]));
}

#[test]
fn huge_pages_report_writes_and_what_was_given_back() {
    const HUGE: u64 = 512;
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("huge", 4 * HUGE)]) else { return };
    let (read, nothing) = case.after("write", 5, 6, 1);
    assert!(read.contains(&5) && read.len() as u64 <= HUGE && nothing.is_empty(), "{read:?}");
    assert_eq!(case.after("advise", HUGE, 2 * HUGE, DONTNEED), (vec![], pages(HUGE, 2 * HUGE)));
    let (read, _) = case.after("write", HUGE + 7, HUGE + 8, 1);
    assert!(read.contains(&(HUGE + 7)), "{read:?}");
    let (read, nothing) = case.after("advise", 2 * HUGE + 4, 2 * HUGE + 8, DONTNEED);
    assert_eq!([read, nothing].concat(), pages(2 * HUGE + 4, 2 * HUGE + 8));
}

#[test]
fn loose_pages_are_reported_and_looking_begins_no_round() {
    let Some(mut case) = Case::new("pagemap-scan", &[("anon", 1024)]) else { return };
    let area = case.areas[0];
    let loosener = case.tracker.loosener().unwrap();
    let mut regions = PageRegions::new();
    let mut changed = |range| {
        let mut found = Vec::new();
        let asked = loosener.changed(range, &mut regions, |region: AddressRange| {
            let first = |at: Address| (at.get() - area.start.get()) / PAGE_BYTES;
            found.extend(first(region.start)..first(region.end));
        });
        asked.map(|()| found)
    };
    assert!(changed(area).unwrap().is_empty(), "all pages are protected");
    case.subject.act("write", part(area, 30, 33), 7);
    assert_eq!(changed(area).unwrap(), pages(30, 33));
    assert_eq!(changed(part(area, 0, 31)).unwrap(), pages(30, 31), "the look has begun no round");
    loosener.loosen(&[part(area, 100, 200)]);
    assert_eq!(changed(area).unwrap(), [pages(30, 33), pages(100, 200)].concat());
    // What becomes empty has no content that could be written.
    case.subject.act("advise", part(area, 110, 120), DONTNEED);
    assert_eq!(changed(part(area, 100, 120)).unwrap(), pages(100, 110));
    let (read, nothing) = split(&case.scan(area));
    assert_eq!(read, [pages(30, 33), pages(100, 110), pages(120, 200)].concat());
    assert_eq!(nothing, pages(110, 120));
    assert!(changed(area).unwrap().is_empty(), "all pages are protected again");
    // A handle of a tracking that has ended changes nothing.
    drop(case.tracker);
    loosener.loosen(&[area]);
    assert!(case.subject.is_alive());
}

#[test]
fn soft_dirty_bits_have_no_protection_to_loosen() {
    if let Some(case) = Case::new("soft-dirty", &[("anon", 4)]) {
        assert!(case.tracker.loosener().is_none());
    }
}

#[test]
fn a_reservation_costs_no_page_tables_until_it_is_used() {
    const PAGES: u64 = 16 << 18;
    let Some(mut subject) = Subject::start("obedient", &[]) else { return };
    let area = subject.map("reserve", PAGES);
    subject.act("write", part(area, 1_000_000, 1_000_002), 1);
    let Some(tracker) = attach(PAGEMAP_SCAN, subject.pid()) else { return };
    let mut case = Case { subject, tracker, areas: vec![area] };
    let (read, _) = split(&case.scan(area));
    assert_eq!(read, pages(1_000_000, 1_000_002));
    assert_eq!(case.after("write", 3_000_000, 3_000_001, 2).0, pages(3_000_000, 3_000_001));
    assert_eq!(case.after("read", 3_000_000, 3_000_001, 2), NONE);
    assert_eq!(case.after("write", 1_000_000, 1_000_001, 2), (pages(1_000_000, 1_000_001), vec![]));
    // A new adjacent mapping makes the tracker build its runs again. The state of the old run must be
    // kept.
    case.subject.map("reserve", PAGES);
    case.cover();
    let (read, nothing) = case.after("advise", 3_000_000, 3_000_001, DONTNEED);
    assert!([read, nothing].concat().contains(&3_000_000));
    let tables = procfs::read(format!("/proc/{}/status", case.pid())).unwrap();
    let tables = procfs::status_line(&tables, "VmPTE").unwrap().to_owned();
    let kilobytes: u64 = tables.trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 1024, "{kilobytes} KiB of page tables");
}

#[test]
fn of_a_file_mapping_the_own_pages_are_reported_and_their_loss() {
    for kind in ["file", "privmem"] {
        let Some(mut subject) = Subject::start("obedient", &[]) else { return };
        let area = subject.map(kind, 64);
        subject.act("write", part(area, 4, 8), 1);
        subject.act("read", part(area, 20, 21), 0);
        let Some(tracker) = attach("pagemap-scan", subject.pid()) else { return };
        let mut case = Case { subject, tracker, areas: vec![area] };
        let (read, _) = split(&case.scan(area));
        assert_eq!(read, pages(4, 8), "{kind}");
        assert_eq!(case.after("read", 40, 41, 0).0, pages(0, 0), "{kind}");
        assert_eq!(case.after("write", 9, 10, 1).0, pages(9, 10), "{kind}");
        assert_eq!(case.after("advise", 4, 6, DONTNEED), (vec![], pages(4, 6)), "{kind}");
        assert_eq!(case.subject.act("read", part(area, 4, 5), 0), 0x55);
        assert_eq!(split(&case.scan(area)), NONE, "{kind}");
        // The pages are discarded between two scans, and one is written again. The other page shows the file.
        case.subject.act("advise", part(area, 6, 8), DONTNEED);
        case.subject.act("write", part(area, 7, 8), 9);
        let (read, nothing) = split(&case.scan(area));
        assert_eq!((read, nothing), (pages(7, 8), pages(6, 7)), "{kind}");
    }
}

#[test]
fn shared_memory_reports_writes_and_holes() {
    for kind in ["shared", "memfd"] {
        let Some(mut case) = Case::new(PAGEMAP_SCAN, &[(kind, 64)]) else { continue };
        assert_eq!(case.after("write", 3, 5, 7), (pages(3, 5), vec![]), "{kind}");
        // MADV_DONTNEED does not change the content of shared memory, so a report is allowed but not
        // required.
        let _ = case.after("advise", 10, 12, DONTNEED);
        assert_eq!(case.after("advise", 20, 23, REMOVE), (pages(20, 23), vec![]), "{kind}");
        // The hole is read before the scan, so that its page is present again.
        case.subject.act("advise", part(case.areas[0], 30, 31), REMOVE);
        assert_eq!(case.subject.act("read", part(case.areas[0], 30, 31), 0), 0);
        assert_eq!(split(&case.scan(case.areas[0])), (pages(30, 31), vec![]), "{kind}");
    }
}

/// Tests a limit that the documentation of trackers describes. If this test fails, the kernel reports such
/// writes, and the limit can be removed from the documentation.
#[test]
fn writes_past_the_mapping_are_not_seen() {
    let Some(mut case) = Case::new("pagemap-scan", &[("memfd", 64)]) else { return };
    let area = case.areas[0];
    case.subject.tell("store 3000 9");
    assert_eq!(case.subject.act("read", part(area, 3, 4), 0), 9);
    assert_eq!(split(&case.scan(area)), NONE);
    case.subject.act("second", area, 8);
    assert_eq!(case.subject.act("read", part(area, 3, 4), 0), 8);
    assert_eq!(split(&case.scan(area)), NONE);
}

#[test]
fn guard_regions_are_reported_and_survive_being_watched() {
    let Some(mut case) = Case::new("pagemap-scan", &[("anon", 256)]) else { return };
    let area = case.areas[0];
    if case.subject.act("advise", part(area, 100, 200), GUARD_INSTALL) != 0 {
        return println!("unsupported: guard regions");
    }
    let found = case.scan(area);
    assert_eq!(found, [(100, 200, Content::Guard)]);
    let flagged = sys::pagemap::Pagemap::open(case.pid()).unwrap().scan_range(area).unwrap();
    assert_eq!(flagged.guards, [part(area, 100, 200)]);
    assert_eq!(case.after("advise", 100, 200, GUARD_REMOVE), (vec![], pages(100, 200)));
}

#[test]
fn a_forked_child_is_not_watched_and_can_be() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 64), ("shared", 16)]) else { return };
    let area = case.areas[0];
    let child = Pid(case.subject.tell("fork") as i32);
    assert!(!is_watched(child));
    // The child writes to its own copies of the pages. The pages of the parent do not change.
    case.subject.act("write", part(area, 1, 3), 8);
    assert_eq!(split(&case.scan(area)), NONE);
    let mut of_child = attach(PAGEMAP_SCAN, child).unwrap();
    assert_eq!(split(&scan_mapping(&mut *of_child, area)).0, pages(0, 64));
    case.subject.act("write", part(area, 5, 6), 8);
    case.subject.act("write", part(case.areas[1], 2, 3), 8);
    let mut dirty = DirtyPages::new();
    of_child.scan(Moment::Stopped, &mut dirty).unwrap();
    let found = |page: AddressRange| dirty.ranges().iter().any(|found| found.range.overlaps(page));
    assert!(found(part(area, 5, 6)) && found(part(case.areas[1], 2, 3)));
    assert!(!found(part(area, 6, 64)));
    // Parent and child share this memory, but a write of the child is marked only in the page table of
    // the child.
    assert_eq!(split(&case.scan(case.areas[1])), NONE);
    drop(of_child);
    assert!(!is_watched(child) && is_watched(case.pid()));
}

/// An earlier tracker has cleared bits or protected pages. This does not mean that the new tracker has
/// reported these pages.
#[test]
fn a_second_tracker_reports_everything_also_when_mappings_are_listed_twice() {
    for name in ["pagemap-scan", "soft-dirty", "full"] {
        let Some(Case { subject, tracker, areas }) = Case::new(name, &[("anon", 64), ("file", 64)]) else {
            continue;
        };
        drop(tracker);
        let tracker = attach(name, subject.pid()).unwrap();
        let mut case = Case { subject, tracker, areas };
        case.cover();
        let mut dirty = DirtyPages::new();
        case.tracker.scan(Moment::Stopped, &mut dirty).unwrap();
        for page in case.areas.iter().flat_map(|area| (0..64).map(|page| part(*area, page, page + 1))) {
            let found = dirty.ranges().iter().any(|found| found.range.contains(page.start));
            assert!(found, "{name}: {}", page.start);
        }
    }
}

/// Tests every change of private memory with soft-dirty bits. These bits are less precise than protection, so
/// more pages may be reported.
#[test]
fn soft_dirty_bits_report_every_change_of_private_memory() {
    let told = |(read, nothing): (Vec<u64>, Vec<u64>)| [read, nothing].concat();
    for kind in ["anon", "huge", "file", "privmem"] {
        let Some(mut case) = Case::new("soft-dirty", &[(kind, 1024)]) else { return };
        assert_eq!(split(&case.scan(case.areas[0])), NONE, "{kind}");
        assert!(case.after("write", 3, 5, 7).0.starts_with(&pages(3, 5)) || kind == "huge");
        assert_eq!(case.after("advise", 520, 1020, DONTNEED), (vec![], pages(520, 1020)), "{kind}");
        assert!(case.after("write", 600, 601, 1).0.contains(&600), "{kind}");
        assert!(told(case.after("advise", 600, 601, DONTNEED)).contains(&600), "{kind}");
        // The pages are discarded between two scans, and one is written again.
        case.subject.act("advise", part(case.areas[0], 10, 20), DONTNEED);
        let found = case.after("write", 12, 13, 9);
        assert!(found.0.contains(&12) && (10..20).all(|page| told(found.clone()).contains(&page)), "{kind}");
        case.subject.act("protect", part(case.areas[0], 100, 200), 1);
        case.subject.act("protect", part(case.areas[0], 100, 200), 3);
        case.cover();
        assert!(case.after("write", 150, 151, 3).0.contains(&150), "{kind}");
        case.subject.act("again", part(case.areas[0], 300, 400), 0);
        case.cover();
        assert!(case.after("write", 350, 351, 9).0.contains(&350), "{kind}: replaced");
    }
}

/// Tests soft-dirty bits of memory that is moved, or shared by a fork.
#[test]
fn soft_dirty_bits_follow_memory_that_moves_and_children() {
    let Some(mut case) = Case::new("soft-dirty", &[("anon", 64), ("shared", 16)]) else { return };
    let start = Address(case.subject.act("move", case.areas[0], 0));
    let moved = AddressRange::new(start, start + case.areas[0].len());
    assert!(case.cover().0.contains(&moved));
    assert_eq!(split(&case.scan(moved)).0, pages(0, 64));
    case.areas[0] = moved;
    assert_eq!(case.after("write", 9, 10, 1).0, pages(9, 10));
    assert_eq!(split(&case.scan(case.areas[1])).0, pages(0, 16), "shared memory is copied whole");
    let child = Pid(case.subject.tell("fork") as i32);
    let mut of_child = attach("soft-dirty", child).unwrap();
    assert_eq!(split(&scan_mapping(&mut *of_child, moved)).0, pages(0, 64));
    case.subject.act("write", part(moved, 5, 6), 8);
    assert!(split(&scan_mapping(&mut *of_child, moved)).0.contains(&5));
    // The page of the parent has not changed, but may be reported.
    let _ = case.scan(moved);
    assert_eq!(userfaultfds(case.pid()), 0);
}

#[test]
fn exec_ends_the_tracker() {
    for name in ["pagemap-scan", "soft-dirty", "full"] {
        let Some(mut case) = Case::new(name, &[("anon", 64)]) else { continue };
        case.subject.restart("exec");
        let outcome = case.tracker.scan(Moment::Stopped, &mut DirtyPages::new());
        assert!(matches!(outcome, Err(TrackError::Gone(pid)) if pid == case.pid()), "{name}: {outcome:?}");
        let mut again = attach(name, case.pid()).unwrap();
        again.scan(Moment::Stopped, &mut DirtyPages::new()).unwrap();
    }
}

#[test]
fn mappings_that_the_program_watches_itself_are_reported_whole() {
    let Some(mut subject) = Subject::start("obedient", &[]) else { return };
    let area = subject.map("anon", 64);
    subject.act("write", part(area, 0, 4), 1);
    if subject.act("watch", area, 0) != 0 {
        return println!("unsupported: userfaultfd");
    }
    let Some(tracker) = attach("pagemap-scan", subject.pid()) else { return };
    let mut case = Case { subject, tracker, areas: vec![area] };
    let (_, unwatched) = case.cover();
    let expected = Unwatched { range: area, reason: UnwatchedReason::WatchedByProgram };
    assert!(unwatched.contains(&expected), "{unwatched:?}");
    for _ in 0..2 {
        assert_eq!(split(&case.scan(area)).0, pages(0, 4));
    }
    assert_eq!(case.after("advise", 1, 2, DONTNEED), (vec![0, 2, 3], vec![1]));
}

#[test]
fn nothing_stays_behind() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 64), ("file", 64), ("shared", 16)]) else {
        return;
    };
    assert!(is_watched(case.pid()));
    assert_eq!(userfaultfds(case.pid()), 0, "its descriptor is ours alone");
    let before = procfs::descriptors(case.pid()).unwrap();
    let Case { subject, tracker, areas } = case;
    drop(tracker);
    case = Case { tracker: attach("full", subject.pid()).unwrap(), subject, areas };
    common::eventually(|| !is_watched(case.pid()));
    assert_eq!(procfs::descriptors(case.pid()).unwrap(), before);
    for area in case.areas.clone() {
        case.subject.act("write", area, 5);
    }
}

#[test]
fn an_orderly_end_lifts_all_protection_before_the_watch_ends() {
    let kinds = [("anon", 1024), ("shared", 64), ("file", 64)];
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &kinds) else { return };
    let map = Pagemap::open(case.pid()).unwrap();
    assert!(map.has_protected(case.areas[0]).unwrap());
    case.tracker.unwind();
    for area in &case.areas {
        assert!(!map.has_protected(*area).unwrap(), "{area}");
    }
    let tree = StoppedTree::stop(case.pid()).unwrap();
    case.tracker.leave();
    let (anonymous, shared) = (case.areas[0].start, case.areas[1].start);
    let flags = |of: &[&str]| {
        let mappings = procfs::mappings_with_flags(case.subject.pid()).unwrap();
        let ours = mappings.iter().filter(|mapping| [anonymous, shared].contains(&mapping.range.start));
        ours.filter(|mapping| of.iter().any(|flag| mapping.flags.has(flag))).count()
    };
    assert_eq!(flags(&["uw", "um"]), 0, "watched for writes or for missing pages");
    tree.resume().unwrap();
    // No thread may wait for an answer of the handler, neither at a present page nor at a missing page.
    case.subject.act("advise", part(case.areas[0], 10, 20), DONTNEED);
    for area in case.areas.clone() {
        case.subject.act("write", area, 5);
        assert_eq!(case.subject.act("read", part(area, 15, 16), 0), 5);
    }
    drop(case.tracker);
    common::eventually(|| !is_watched(case.subject.pid()));
}

/// Starts the test `helper_that_is_killed` as a helper process, and kills it after it has attached a tracker.
#[test]
fn our_death_ends_watching() {
    let Some(mut subject) = Subject::start("obedient", &[]) else { return };
    let area = subject.map("anon", 64);
    subject.act("write", area, 1);
    let mut helper = common::helper("cases::helper_that_is_killed", PAGEMAP_SCAN, subject.pid());
    if !helper.attached() {
        return;
    }
    assert!(is_watched(subject.pid()));
    helper.kill();
    // A thread that waits for an answer of the helper must continue.
    subject.act("write", area, 2);
    subject.act("advise", part(area, 0, 3), DONTNEED);
    assert_eq!(subject.act("read", part(area, 9, 10), 0), 2);
    common::eventually(|| !is_watched(subject.pid()));
    assert_eq!(userfaultfds(subject.pid()), 0);
}

#[test]
fn helper_that_is_killed() {
    let Some((name, pid)) = common::role() else { return };
    let Some(mut tracker) = attach(&name, pid) else { return };
    tracker.scan(Moment::Stopped, &mut DirtyPages::new()).unwrap();
    common::say_attached();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Watches a process that lacks the privilege for userfaultfd(2). Faults inside its system calls must be
/// answered too.
#[test]
fn a_process_without_privileges_is_watched_and_its_system_calls_go_on() {
    for name in ["pagemap-scan", "soft-dirty", "full"] {
        let Some(mut subject) = Subject::start("obedient", &[]) else { return };
        let area = subject.map("anon", 64);
        subject.act("write", area, 1);
        if subject.tell("drop") != 0 {
            return println!("unsupported: root");
        }
        let before = procfs::descriptors(subject.pid()).unwrap();
        let Some(tracker) = attach(name, subject.pid()) else { continue };
        assert_eq!(procfs::descriptors(subject.pid()).unwrap(), before, "{name}: nothing of ours stays open");
        let mut case = Case { subject, tracker, areas: vec![area] };
        assert_eq!(split(&case.scan(area)).0, pages(0, 64), "{name}");
        assert_eq!(case.subject.act("fill", part(area, 7, 9), 5), 0, "{name}: read(2) into protected pages");
        assert_eq!(case.subject.act("read", part(area, 8, 9), 0), 5, "{name}");
        let (read, _) = split(&case.scan(area));
        assert!(read.contains(&7) && read.contains(&8), "{name}: {read:?}");
    }
}

/// Huge pages that are reserved for a test. The setting of the machine is restored when this value is
/// dropped.
struct Reserved(String);

impl Reserved {
    const PATH: &str = "/proc/sys/vm/nr_hugepages";

    fn pages(count: u64) -> Option<Self> {
        let before = std::fs::read_to_string(Self::PATH).ok()?;
        let wanted = before.trim().parse::<u64>().ok()? + count;
        let reserved = Self(before);
        std::fs::write(Self::PATH, wanted.to_string()).ok()?;
        let got = std::fs::read_to_string(Self::PATH).ok()?.trim().parse::<u64>().ok()?;
        (got >= wanted).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

#[test]
fn hugetlb_pages_are_reported_whole() {
    const HUGE: u64 = 512;
    let Some(_reserved) = Reserved::pages(4) else { return println!("unsupported: huge pages to reserve") };
    for name in ["pagemap-scan", "soft-dirty", "full"] {
        let Some(mut subject) = Subject::start("obedient", &[]) else { return };
        let area = subject.map("hugetlb", 3 * HUGE);
        subject.act("write", part(area, 0, 2 * HUGE), 1);
        let Some(tracker) = attach(name, subject.pid()) else { continue };
        let mut case = Case { subject, tracker, areas: vec![area] };
        let expected = Unwatched { range: area, reason: UnwatchedReason::Hugetlb };
        assert!(case.cover().1.contains(&expected), "{name}");
        for _ in 0..3 {
            case.subject.act("write", part(area, 5, 6), 2);
            assert_eq!(split(&case.scan(area)).0, pages(0, 2 * HUGE), "{name}: what is there");
        }
        let (read, nothing) = case.after("advise", HUGE, 2 * HUGE, DONTNEED);
        assert_eq!((read, nothing), (pages(0, HUGE), pages(HUGE, 2 * HUGE)), "{name}");
    }
}

/// Starts this test again in a helper process, with some features forced off. The helper prints the tracker
/// that it selects.
#[test]
fn auto_falls_back_and_names_refuse_when_features_are_off() {
    const ROLE: &str = "UNDYING_TEST_CHOICE";
    if std::env::var_os(ROLE).is_some() {
        let auto = undying_track::choose("auto").unwrap();
        assert!(!auto.passed_over.is_empty());
        let error = undying_track::choose("pagemap-scan").unwrap_err();
        assert!(error.to_string().contains("userfaultfd-async"), "{error}");
        println!("chosen: {}", auto.kind.name());
        return;
    }
    let mut helper = std::process::Command::new(std::env::current_exe().unwrap());
    helper.args(["--exact", "cases::auto_falls_back_and_names_refuse_when_features_are_off", "--nocapture"]);
    helper.env(ROLE, "1").env("UNDYING_FEATURES_OFF", "userfaultfd-async,soft-dirty");
    let output = helper.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("chosen: full"), "{text}");
}
