//! Measures the speed of writing and reading images on this machine. Prints one line for each measurement.
//!
//! Usage: `throughput DIR [MIB [BUFFERS [BUFFER_PAGES [METHOD]]]]`, where METHOD is ring, direct or buffered.
//!
//! Owns: the published figures about the store.
//! Does not: stop a process. The pages are copied from the memory of this program with process_vm_readv(2).
#![forbid(unsafe_code)]

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use image::{Checksum, Extent, Owner, PageIndex, Record, RecordSet, SegmentId, Source, SpaceId, Timings};
use model::{Address, ByteCount, PAGE_BYTES, PageCount, Pid, Sequence};
use store::{CommitMeta, Directory, ImageReader, ImageWriter, PageSink, Store, WriteOptions};
use sys::direct_io::Method;
use sys::page_buffer::PageBuffer;

use undying_store as store;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let directory = PathBuf::from(arguments.first().map_or(".", String::as_str)).join("throughput.image");
    let size = ByteCount(number(1, 1024) << 20);
    let standard = WriteOptions::default();
    let buffers =
        NonZeroUsize::new(number(2, standard.buffers.get() as u64) as usize).unwrap_or(standard.buffers);
    let buffer_pages = PageCount(number(3, standard.buffer_pages.get()));
    let options = WriteOptions { buffers, buffer_pages, ..standard };
    let method = match arguments.get(4).map(String::as_str) {
        Some("direct") => Method::Direct,
        Some("buffered") => Method::Buffered,
        _ => Method::Ring,
    };
    let memory = filled(size)?;
    for round in 0..3 {
        remove(&directory)?;
        write(&directory, &memory, options, method, round)?;
        read(&directory, size, "compression")?;
        read(&directory, size, "cached")?;
    }
    remove(&directory)?;
    small(&directory, options)?;
    scattered()
}

/// Returns memory without zero pages and without repeated content.
fn filled(size: ByteCount) -> Outcome<PageBuffer> {
    let mut memory = PageBuffer::new(size)?;
    fastrand::Rng::with_seed(1).fill(&mut memory);
    Ok(memory)
}

fn write(path: &Path, memory: &PageBuffer, options: WriteOptions, method: Method, round: u64) -> Outcome<()> {
    let begun = Instant::now();
    let medium = Arc::new(Directory::with_method(method));
    let writer = ImageWriter::create_on(medium, path, options)?;
    let mut copy = Duration::ZERO;
    let mut waited = Duration::ZERO;
    let own = Pid(std::process::id() as i32);
    let (mut at, end) = (memory.as_ptr().addr() as u64, memory.as_ptr().addr() as u64 + memory.size().get());
    while at < end {
        let before = Instant::now();
        let mut batch = writer.pool().buffer()?;
        waited += before.elapsed();
        let before = Instant::now();
        let pages = PageCount(batch.room().get().min((end - at) / PAGE_BYTES));
        if let Some(bytes) = batch.push(SpaceId(0), Address(at), pages) {
            sys::process_memory::read(own, Address(at), bytes)?;
        }
        at += pages.bytes().get();
        copy += before.elapsed();
        writer.append(batch)?;
    }
    let committed = writer.finish(&records(), meta(round))?;
    let all = begun.elapsed();
    let timings = committed.timings;
    println!(
        "write {} MiB: {} ms, {:.2} GB/s (copy {}, waiting for a buffer {}; worker: hash {}, write {}; finish {} ms)",
        memory.size().get() >> 20,
        all.as_millis(),
        rate(memory.size(), all),
        copy.as_millis(),
        waited.as_millis(),
        timings.hash.as_millis(),
        timings.write.as_millis(),
        timings.commit.as_millis()
    );
    Ok(())
}

fn read(path: &Path, size: ByteCount, state: &str) -> Outcome<()> {
    for threads in [1, 2] {
        if state == "compression" {
            evict(path)?;
        }
        let begun = Instant::now();
        let image = ImageReader::open(path)?;
        let threads = NonZeroUsize::new(threads).ok_or("no thread")?;
        image.load::<Box<dyn Error + Send + Sync>>(image.index().extents(), threads, |_| Ok(()))?;
        let all = begun.elapsed();
        println!(
            "read {state}, {threads} threads, verified: {} ms, {:.2} GB/s",
            all.as_millis(),
            rate(size, all)
        );
    }
    Ok(())
}

/// Removes an image from the page cache.
fn evict(path: &Path) -> Outcome<()> {
    for entry in std::fs::read_dir(path)? {
        let file = std::fs::File::open(entry?.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Writes many images of a small process to a store.
fn small(path: &Path, options: WriteOptions) -> Outcome<()> {
    const IMAGES: usize = 200;
    let store = Store::open(path)?;
    let name = "tiny".parse()?;
    let mut writing = Vec::new();
    let mut opening = Vec::new();
    for number in 1..=IMAGES as u64 {
        let begun = Instant::now();
        let writer = store.begin(&name, Sequence(number), options)?;
        let mut batch = writer.pool().buffer()?;
        if let Some(bytes) = batch.push(SpaceId(0), Address(0x40_0000), PageCount(100)) {
            bytes.fill(7);
        }
        writer.append(batch)?;
        writer.finish(&records(), meta(number))?;
        writing.push(begun.elapsed());
        let begun = Instant::now();
        store.read(&store.get(&name, Sequence(number))?)?.verify(|_| ())?;
        opening.push(begun.elapsed());
        store.prune(&name, 8)?;
    }
    for (what, mut times) in [("write, durable", writing), ("verify", opening)] {
        times.sort_unstable();
        println!(
            "image of 100 pages: {what}: p50 {} us, p99 {} us",
            times[IMAGES / 2].as_micros(),
            times[IMAGES * 99 / 100].as_micros()
        );
    }
    std::fs::remove_dir_all(path)?;
    Ok(())
}

/// Measures the most expensive index: every second page of 4 GiB, so that no two pages can be joined.
fn scattered() -> Outcome<()> {
    const PAGES: u64 = 1 << 19;
    let extent = |number: u64| Extent {
        space: SpaceId(0),
        start: Address(2 * number * PAGE_BYTES),
        pages: PageCount(1),
        source: Source::Stored {
            segment: SegmentId(0),
            offset: ByteCount(number.wrapping_mul(0x9_e375) % PAGES * PAGE_BYTES),
            checksum: Checksum(number as u32),
        },
    };
    let index = PageIndex::from_extents((0..PAGES).map(extent).collect())?;
    let begun = Instant::now();
    let encoded = index.encode()?;
    let written = begun.elapsed();
    let begun = Instant::now();
    let extents = PageIndex::decode(&encoded)?.extents().len();
    println!(
        "index of {extents} extents, {} MiB: encode {} ms, decode {} ms",
        encoded.len() >> 20,
        written.as_millis(),
        begun.elapsed().as_millis()
    );
    Ok(())
}

fn records() -> RecordSet {
    (0..100).map(|number| Record::new("test", 1, Owner::Object(number), vec![7; 200])).collect()
}

fn meta(sequence: u64) -> CommitMeta {
    CommitMeta {
        sequence: Sequence(sequence),
        time: SystemTime::now(),
        subject: "throughput".to_owned(),
        pids: vec![Pid(std::process::id() as i32)],
        kernel_release: String::new(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        timings: Timings::default(),
    }
}

fn remove(path: &Path) -> Outcome<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn rate(size: ByteCount, time: Duration) -> f64 {
    size.get() as f64 / time.as_secs_f64() / 1e9
}
