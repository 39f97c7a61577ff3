//! Measures a log under continuous checkpoints. Prints the written bytes for each changed byte, the duration of
//! commits, and the used disk space. Also prints the memory of this process, and the time to open the newest
//! checkpoint.
//!
//! Usage: `continuous DIR MIB PAGES HZ SECONDS [KEEP [SEGMENT_MIB [hot]]]`. The simulated subject has MIB of memory.
//! The example takes HZ checkpoints of the subject per second. In each epoch, PAGES random pages change. With `hot`,
//! nine of ten changed pages are in one tenth of the memory.
//!
//! Owns: the published figures about logs.
//! Does not: stop a process. The pages are generated, and each page differs from all others.
#![forbid(unsafe_code)]

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use image::{Owner, Record, RecordSet, SpaceId, Timings};
use model::{Address, ByteCount, PAGE_BYTES, PageCount, Pid, Sequence};
use store::{
    Base, CheckpointSink, CommitMeta, LogOptions, LogWriter, OpenCheckpoint, RetentionPolicy, Store,
    SubjectName, Urgency,
};

use undying_store as store;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The number of pages that are appended in one run.
const RUN: u64 = 1;

struct Load {
    subject: u64,
    dirty: u64,
    hertz: u64,
    seconds: u64,
    hot: bool,
    random: fastrand::Rng,
}

#[derive(Default)]
struct Measured {
    commits: Vec<Duration>,
    appends: Vec<Duration>,
    disk: Vec<u64>,
    skipped: u64,
    waited: u64,
    written: u64,
    moved: u64,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let root = PathBuf::from(arguments.first().map_or(".", String::as_str)).join("continuous.store");
    let load = &mut Load {
        subject: (number(1, 64) << 20) / PAGE_BYTES,
        dirty: number(2, 200),
        hertz: number(3, 100),
        seconds: number(4, 10),
        hot: arguments.get(7).is_some_and(|text| text == "hot"),
        random: fastrand::Rng::with_seed(1),
    };
    remove(&root)?;
    let store = Store::open(&root)?;
    let name: SubjectName = "subject".parse()?;
    let options = LogOptions {
        // Buffers for twice the changed pages of an epoch: one epoch is copied while the previous one is written.
        buffers: NonZeroUsize::new((load.dirty / 256 + 4) as usize).ok_or("no buffers")?,
        keep: RetentionPolicy::thinned(number(5, 8) as usize),
        segment: ByteCount(number(6, 16) << 20),
        ..LogOptions::default()
    };
    let keep = if number(5, 8) < 4 { RetentionPolicy::newest(number(5, 8) as usize) } else { options.keep };
    let before = resident()?;
    let writer = store.open_log(&name, LogOptions { keep, ..options.clone() })?;
    fill(&writer, load)?;
    let opened_early = open_time(&store, &name)?;
    let start_bytes = writer.status().written.get();
    let measured = run(&writer, load)?;
    let status = writer.status();
    let opened_late = open_time(&store, &name)?;
    report(load, measured, status.written.get() - start_bytes);
    println!(
        "live {} MiB; {} full indexes; own memory {} MiB above {} MiB at start",
        status.stored.bytes().get() >> 20,
        status.full_indexes,
        (resident()? - before) >> 20,
        before >> 20
    );
    println!("opening the newest: {opened_early:.1?} early, {opened_late:.1?} late");
    writer.close()?;
    let begun = Instant::now();
    let writer = store.open_log(&name, options)?;
    println!("opening for writing: {:.1?}, base {:?}", begun.elapsed(), writer.base());
    drop(writer);
    let (_, path) = store.newest(&name)?.ok_or("nothing was committed")?;
    let begun = Instant::now();
    let checked = store.read(&path)?.verify(|_| ())?;
    println!("verify: {} pages in {:.1?}", checked.pages, begun.elapsed());
    remove(&root)
}

/// Writes the first checkpoint, with all pages.
fn fill(writer: &LogWriter, load: &mut Load) -> Outcome<()> {
    let epoch = writer.begin(Sequence(1), Base::Nothing, Urgency::Precopy)?.ok_or("behind at the start")?;
    let begun = Instant::now();
    let mut page = 0;
    while page < load.subject {
        let mut batch = epoch.pool().buffer()?;
        let pages = batch.room().get().min(load.subject - page);
        let bytes =
            batch.push(SpaceId(0), Address(page * PAGE_BYTES), PageCount(pages)).ok_or("a batch is full")?;
        bytes.chunks_mut(PAGE_BYTES as usize).for_each(|page| load.stamp(page));
        epoch.append(batch)?;
        page += pages;
    }
    epoch.commit(records(1), meta(1))?.wait()?;
    println!("first checkpoint: {} MiB in {:.0?}", (load.subject * PAGE_BYTES) >> 20, begun.elapsed());
    Ok(())
}

fn run(writer: &LogWriter, load: &mut Load) -> Outcome<Measured> {
    let mut measured = Measured::default();
    let period = Duration::from_secs(1) / load.hertz as u32;
    let started = Instant::now();
    for number in 0..load.hertz * load.seconds {
        let due = started + period * number as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let Some(epoch) = writer.begin(Sequence(number + 2), Base::Newest, Urgency::Precopy)? else {
            measured.skipped += 1;
            continue;
        };
        let begun = Instant::now();
        dirty(&*epoch, load, &mut measured)?;
        measured.appends.push(begun.elapsed());
        epoch.commit(records(number), meta(number + 2))?;
        collect(writer, &mut measured)?;
        measured.disk.push(writer.status().disk.get());
    }
    while writer.behind() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    collect(writer, &mut measured)?;
    Ok(measured)
}

/// Appends the pages of an epoch.
fn dirty(epoch: &dyn OpenCheckpoint, load: &mut Load, measured: &mut Measured) -> Outcome<()> {
    let mut left = load.dirty;
    while left > 0 {
        let mut batch = match epoch.pool().free_buffer()? {
            Some(batch) => batch,
            None => {
                measured.waited += 1;
                epoch.pool().buffer()?
            }
        };
        while left > 0 && batch.room() > PageCount(0) {
            let page = load.pick();
            if let Some(bytes) = batch.push(SpaceId(0), Address(page * PAGE_BYTES), PageCount(RUN)) {
                load.stamp(bytes);
            }
            left -= RUN.min(left);
        }
        epoch.append(batch)?;
    }
    Ok(())
}

fn collect(writer: &LogWriter, measured: &mut Measured) -> Outcome<()> {
    for (_, result) in writer.take_completions() {
        let done = result?;
        if done.sequence > Sequence(1) {
            measured.commits.push(done.timings.commit);
            measured.written += done.written.get();
            measured.moved += done.moved.get();
        }
    }
    Ok(())
}

fn report(load: &Load, mut measured: Measured, written: u64) {
    let epochs = measured.commits.len() as u64;
    let dirtied = (epochs * load.dirty * PAGE_BYTES).max(1);
    println!(
        "{epochs} checkpoints of {} pages, {:.1} MB/s dirtied, {} skipped, waited {} times for a buffer",
        load.dirty,
        dirtied as f64 / load.seconds as f64 / 1e6,
        measured.skipped,
        measured.waited
    );
    println!(
        "written per byte dirtied: {:.3} (moved {:.3}, all else {:.3})",
        written as f64 / dirtied as f64,
        (measured.moved * PAGE_BYTES) as f64 / dirtied as f64,
        (written - measured.moved * PAGE_BYTES) as f64 / dirtied as f64 - 1.0
    );
    for (what, times) in
        [("finish to durable", &mut measured.commits), ("filling and appending", &mut measured.appends)]
    {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 1000];
        println!(
            "{what}: p50 {:.2?}, p99 {:.2?}, p99.9 {:.2?}, max {:.2?}",
            at(500),
            at(990),
            at(999),
            at(1000)
        );
    }
    let steps = measured.disk.len().div_ceil(10).max(1);
    let disk: Vec<u64> = measured.disk.iter().step_by(steps).map(|bytes| bytes >> 20).collect();
    let most = measured.disk.iter().max().copied().unwrap_or(0) >> 20;
    println!("disk over time, MiB: {disk:?}, at most {most}");
}

impl Load {
    fn pick(&mut self) -> u64 {
        let hot = self.hot && self.random.u64(..10) != 0;
        let span = if hot { self.subject / 10 } else { self.subject };
        self.random.u64(..span)
    }

    /// Makes a page different from all other pages. The middle of the page keeps the old content of the buffer.
    fn stamp(&mut self, page: &mut [u8]) {
        let stamp = self.random.u64(..).to_le_bytes();
        page[..8].copy_from_slice(&stamp);
        let end = page.len() - 8;
        page[end..].copy_from_slice(&stamp);
    }
}

fn open_time(store: &Store, name: &SubjectName) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let (_, path) = store.newest(name)?.ok_or("nothing was committed")?;
        store.read(&path)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[2])
}

/// Returns registers of a few threads, which change in each checkpoint, and records that never change.
fn records(number: u64) -> RecordSet {
    let threads =
        (0..4).map(|thread| Record::new("regs", 1, Owner::Object(thread), vec![number as u8; 2700]));
    let others = (0..60).map(|other| Record::new("other", 1, Owner::Object(other), vec![7; 200]));
    threads.chain(others).collect()
}

fn meta(sequence: u64) -> CommitMeta {
    CommitMeta {
        sequence: Sequence(sequence),
        time: SystemTime::now(),
        subject: "continuous".to_owned(),
        pids: vec![Pid(std::process::id() as i32)],
        kernel_release: String::new(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        timings: Timings::default(),
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    Ok(text.split(' ').nth(1).ok_or("statm is odd")?.parse::<u64>()? * PAGE_BYTES)
}

fn remove(path: &Path) -> Outcome<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
