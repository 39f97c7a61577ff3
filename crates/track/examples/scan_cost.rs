//! Measures the cost of tracking on this machine: first protection, scans, first writes, and allocations.
//!
//! `cargo run --release -p undying-track --example scan_cost [TRACKER] [MIB]`

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use model::{PAGE_BYTES, Pid};
use sys::allocation_count::{Counting, requests};
use tracee::remote::RemoteContext;
use tracee::{Gadgets, ProcessMemory, RemoteSession, StoppedTree, procfs};
use undying_track::{DirtyPages, Layout, Moment, Tracker, choose};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Failure = Box<dyn std::error::Error>;

/// First argument of the tracked process.
const WRITER: &str = "--writer";
const MIB_DEFAULT: usize = 1024;
/// Number of scans for each printed median.
const SCANS: usize = 21;
const PAGE: usize = PAGE_BYTES as usize;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mib = arguments.get(1).map_or(Ok(MIB_DEFAULT), |text| text.parse())?;
    match arguments.first().map(String::as_str) {
        Some(WRITER) => write_on_demand(mib),
        Some(tracker) => measure(tracker, mib),
        None => measure("auto", mib),
    }
}

/// Writes to all its memory once. Then reads a number of pages from each input line, writes to so many pages,
/// and prints the nanoseconds per write.
fn write_on_demand(mib: usize) -> Result<(), Failure> {
    let mut memory = vec![1_u8; mib << 20];
    let pages = memory.len() / PAGE;
    println!("0");
    for line in std::io::stdin().lines() {
        let count: usize = line?.parse()?;
        let started = Instant::now();
        for index in 0..count {
            let page = index * (pages / count);
            memory[page * PAGE + 64] = memory[page * PAGE + 64].wrapping_add(1);
        }
        println!("{}", started.elapsed().as_nanos() as usize / count.max(1));
    }
    Ok(())
}

struct Writer {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    fn start(mib: usize) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WRITER, &mib.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut writer = Self { child, answers };
        writer.answer()?;
        Ok(writer)
    }

    fn write(&mut self, pages: usize) -> Result<u64, Failure> {
        writeln!(self.child.stdin.as_mut().ok_or("no input")?, "{pages}")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<u64, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The kill fails if the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attach(name: &str, pid: Pid) -> Result<Box<dyn Tracker>, Failure> {
    let choice = choose(name)?;
    println!("tracker {}; passed over: {:?}", choice.kind.name(), choice.passed_over);
    let mut tree = StoppedTree::stop(pid)?;
    let memory = ProcessMemory::open(pid)?;
    let mappings = procfs::mappings(pid)?;
    let context =
        RemoteContext { memory: &memory, mappings: &mappings, gadgets: Gadgets::find(&memory, &mappings)? };
    let attach = choice.kind.prepare(pid, &mappings)?;
    let mut session = RemoteSession::begin(&mut tree.processes[0].threads[0], &context)?;
    let started = Instant::now();
    let tracker = attach(&mut session)?;
    println!("attach: {:?}", started.elapsed());
    session.end()?;
    tree.resume()?;
    Ok(tracker)
}

fn measure(name: &str, mib: usize) -> Result<(), Failure> {
    let mut writer = Writer::start(mib)?;
    let pid = Pid(writer.child.id() as i32);
    println!("writes without a tracker: {} ns", {
        writer.write(10_000)?;
        writer.write(10_000)?
    });
    let mut tracker = attach(name, pid)?;
    let mappings = procfs::mappings(pid)?;
    let started = Instant::now();
    tracker.cover(&mappings)?;
    println!("cover {} areas: {:?}", mappings.len(), started.elapsed());
    let mut dirty = DirtyPages::new();
    let started = Instant::now();
    tracker.scan(Moment::Stopped, &mut dirty)?;
    println!(
        "arm {mib} MiB: {:?}, {} pages in {} ranges",
        started.elapsed(),
        dirty.pages(),
        dirty.ranges().len()
    );
    let mut layout = Layout::open(pid)?;
    layout.changed()?;
    println!("dirty pages, ns per first write, scan while running, scan while standing, ranges, allocations");
    for count in [0, 1_000, 10_000, 50_000] {
        measure_with(count, &mut writer, &mut *tracker, &mut dirty)?;
    }
    let mut looks: Vec<Duration> =
        (0..SCANS).map(|_| time(|| layout.changed().map(drop))).collect::<Result<_, _>>()?;
    println!("look whether areas changed: {:?}", median(&mut looks));
    let started = Instant::now();
    drop(tracker);
    println!("detach: {:?}", started.elapsed());
    Ok(())
}

fn measure_with(
    count: usize,
    writer: &mut Writer,
    tracker: &mut dyn Tracker,
    dirty: &mut DirtyPages,
) -> Result<(), Failure> {
    let (mut written, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    let (mut allocations, mut ranges) = (0, 0);
    for round in 0..SCANS {
        for (moment, times) in [Moment::Running, Moment::Stopped].into_iter().zip(&mut times) {
            if count > 0 {
                written.push(writer.write(count)?);
            }
            dirty.clear();
            let before = requests();
            let scan = time(|| tracker.scan(moment, dirty))?;
            // The first round may enlarge buffers, so its allocations are not counted.
            allocations += if round > 0 { requests() - before } else { 0 };
            times.push(scan);
            ranges = dirty.ranges().len();
        }
    }
    written.sort_unstable();
    let write = written.get(written.len() / 2).copied().unwrap_or(0);
    let [running, standing] = times.each_mut().map(|times| median(times));
    println!("{count:6} {write:6} {running:?} {standing:?} {ranges} {allocations}");
    Ok(())
}

fn time<Error>(act: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
    let started = Instant::now();
    act()?;
    Ok(started.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
