//! Tests of the space that `undying run` takes: the size of the store on the disk, and the memory of the guardian.
//! Both are sampled from the start of the program to its end, because their peaks are short.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Guarded, Lab, supported, until, wait};

/// How long a program is observed after its first checkpoint, at least. With checkpoints that follow each other without
/// a break, this is enough for more checkpoints than are kept.
const OBSERVED: Duration = Duration::from_millis(2500);

/// Returns a program with this much memory that writes to all its pages all the time.
fn writer(mib: u64) -> String {
    format!(
        r#"exec python3 -c '
import os
memory = bytearray({mib} << 20)
number = 0
while not os.path.exists("stop"):
    number = number % 255 + 1
    for page in range(0, len(memory), 4096):
        memory[page] = number
'"#
    )
}

/// Returns the blocks of all files below a directory, in bytes, as `du` counts them.
fn on_disk(path: &Path) -> u64 {
    // The guardian can remove an entry meanwhile.
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let sizes = entries.filter_map(Result::ok).filter_map(|entry| {
        let found = entry.path().symlink_metadata().ok()?;
        Some(512 * found.blocks() + if found.is_dir() { on_disk(&entry.path()) } else { 0 })
    });
    sizes.sum()
}

/// Returns the blocks of the files that were removed while this process still has them open.
fn removed_but_open(pid: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let sizes = entries.filter_map(Result::ok).filter_map(|entry| {
        let found = entry.path().metadata().ok()?;
        let is_removed = found.is_file() && found.nlink() == 0;
        let is_segment = std::fs::read_link(entry.path()).ok()?.to_string_lossy().contains(".seg");
        (is_removed && is_segment).then_some(512 * found.blocks())
    });
    sizes.sum()
}

/// Returns the value of a line of a file below /proc in bytes; 0 without this line.
fn kib_line(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    1024 * kib.unwrap_or_default()
}

/// Returns the anonymous memory of a process, without page buffers. Only the mapping of a page buffer is excluded both
/// from core dumps (`dd`) and from forked children (`dc`).
fn memory_beside_buffers(pid: u32) -> u64 {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps")) else { return 0 };
    let (mut sum, mut anonymous) = (0, 0);
    for line in text.lines() {
        if line.starts_with("Anonymous:") {
            anonymous = kib_line(line, "Anonymous:");
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_whitespace().any(|found| found == flag);
            sum += if has("dd") && has("dc") { 0 } else { anonymous };
        }
    }
    sum
}

/// Calls `sample` all the time until the program has been observed for `OBSERVED` after its first checkpoint, and has four
/// checkpoints.
fn observe(guarded: &Guarded<'_>, lab: &Lab, mut sample: impl FnMut()) {
    let has_checkpoint = || lab.store().join("job/log").exists() && lab.path("stderr").exists();
    until("a log", || {
        sample();
        has_checkpoint().then_some(())
    });
    let began = Instant::now();
    while began.elapsed() < OBSERVED {
        sample();
        std::thread::sleep(Duration::from_millis(5));
    }
    until("more checkpoints", || {
        sample();
        (guarded.status()["checkpoints"].as_u64() > Some(3)).then_some(())
    });
}

/// Before, the peak was 1.4 times the limit: segments created in advance, wasted copies, an epoch beside three older
/// checkpoints, and removals in progress were not counted.
#[test]
fn the_store_is_never_larger_than_stated() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The smaller program shows the parts that do not depend on its memory.
    for (mib, words) in
        [(64, ["--every", "50ms", "--cost-max", "off"]), (2, ["--every", "20ms", "--cost-max", "off"])]
    {
        let lab = if mib == 64 { &lab } else { &Lab::new() };
        let guarded = Guarded::run(lab, &words, &writer(mib));
        let pid = guarded.guardian.id();
        let mut largest = 0;
        observe(&guarded, lab, || largest = largest.max(on_disk(&lab.store()) + removed_but_open(pid)));
        let status = guarded.status();
        let root = status["pid"].as_u64().unwrap();
        let memory = kib_line(&std::fs::read_to_string(format!("/proc/{root}/status")).unwrap(), "RssAnon:");
        let limit = (4 * memory).max(3 * memory + (64 << 20));
        assert!(memory >= mib << 20, "the program has {memory} bytes");
        assert!(largest <= limit, "{} MiB of at most {} MiB: {status}", largest >> 20, limit >> 20);
        assert_eq!(guarded.end(), 0);
    }
}

#[test]
fn the_guardian_needs_little_memory_beside_its_page_buffers() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--every", "100ms", "--cost-max", "off"], &writer(160));
    let pid = guarded.guardian.id();
    let mut largest = 0;
    observe(&guarded, &lab, || largest = largest.max(memory_beside_buffers(pid)));
    assert!(largest > 1 << 20, "no memory was found: {largest}");
    assert!(largest <= 64 << 20, "{} MiB", largest >> 20);
    assert_eq!(guarded.end(), 0);
}

#[test]
fn no_large_file_is_left_of_a_subject_without_checkpoints() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut guarded = Guarded::run(&lab, &["--files", "rewind"], "echo begun > log; exec sleep 600");
    guarded.await_checkpoints(2);
    let reserve = lab.store().join("job/undo/reserve");
    if !reserve.exists() {
        return println!("unsupported: files-go-back");
    }
    guarded.signal(Signal::TERM);
    assert_eq!(wait(&mut guarded.guardian).code(), Some(143));
    assert_eq!(lab.say(["prune", "job", "--keep", "0"]).code, Some(0));
    let mut du = Command::new("du");
    let du = lab.call(du.args(["--summarize", "--block-size=1"]).arg(lab.store().join("job"))).stdout;
    let left: u64 = du.split_whitespace().next().unwrap().parse().unwrap();
    assert!(left < 1 << 20, "{left} bytes");
}

/// A program that rewrites a file of 4 MiB, and replaces another file, all the time until a file `stop` appears. It ends
/// with 7 or 8 if a file is not as it was written.
const REWRITING: &str = r#"
import os, sys
BLOCK, BLOCKS = 1 << 16, 64
def content(number):
    return bytes([number % 251]) * BLOCK
with open("table", "wb", buffering=0) as made:
    for block in range(BLOCKS):
        made.write(content(0))
table = open("table", "r+b", buffering=0)
number = 0
while not os.path.exists("stop"):
    for block in range(BLOCKS):
        table.seek(block * BLOCK)
        if table.read(BLOCK) != content(number):
            sys.exit(7)
        table.seek(block * BLOCK)
        table.write(content(number + 1))
    if number > 0 and open("copy", "rb").read() != content(number) * 16:
        sys.exit(8)
    with open("copy.new", "wb") as made:
        made.write(content(number + 1) * 16)
    os.replace("copy.new", "copy")
    number += 1
"#;

/// Returns the checkpoints of the subject `job` to which files can be rolled back, oldest first.
fn restorable(lab: &Lab) -> Vec<u64> {
    let listed = lab.json(&["ls", "job"]);
    let images = listed.as_array().unwrap().iter().filter(|image| image["files_exact"] == true);
    let mut found: Vec<u64> = images.map(|image| image["seq"].as_u64().unwrap()).collect();
    found.sort_unstable();
    found
}

/// Before, each checkpoint since the oldest kept one added 4 MiB.
#[test]
fn old_content_of_rewritten_files_takes_room_for_few_checkpoints_and_leads_back_to_the_oldest() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.path("rewriting.py"), REWRITING).unwrap();
    let words =
        ["--every", "50ms", "--files", "rewind", "--files-cost-max", "10000", "--max-restarts", "99/1m"];
    let mut guarded = Guarded::run(&lab, &words, "exec python3 rewriting.py");
    if wait_for_refusal(&guarded) {
        return println!("unsupported: files-go-back");
    }
    let (undo, mut largest) = (lab.store().join("job/undo"), 0);
    observe(&guarded, &lab, || largest = largest.max(on_disk(&undo)));
    guarded.kill();
    guarded.await_checkpoints(2);
    let epochs = std::fs::read_dir(&undo).unwrap().count();
    guarded.signal(Signal::TERM);
    assert_eq!(wait(&mut guarded.guardian).code(), Some(143), "{}", guarded.said());
    let kept = restorable(&lab);
    println!("{} MiB, {epochs} files, {kept:?}", largest >> 20);
    // One copy for each of eight checkpoints, as much before it is joined, and the present epoch.
    assert!(largest <= 96 << 20, "{} MiB", largest >> 20);
    assert!(kept.len() >= 4, "{kept:?}");
    std::fs::write(lab.path("stop"), "").unwrap();
    let image = format!("job@{}", kept[0]);
    let said = lab.say(["restore", &image]);
    assert_eq!(said.code, Some(0), "{image}: {said:?}");
}

/// Waits for the first checkpoint to which files can be rolled back. Returns `true` if this machine cannot roll files back.
fn wait_for_refusal(guarded: &Guarded<'_>) -> bool {
    until("an exact checkpoint, or a refusal", || {
        let said = guarded.said();
        if said.contains("cannot be rolled back") && said.contains("--files rewind") {
            return Some(true);
        }
        (guarded.status()["files"]["exact"].as_u64()? > 0).then_some(false)
    })
}
