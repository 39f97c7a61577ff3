//! Runs every target over its seeds and a fixed number of mutations of each, as a fuzzer would.
//!
//! `UNDYING_LONG_TESTS=1` tries a hundred times as many. A failure prints the seed's file and the number of the mutation.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use image::RecordSet;
use undying_fuzz::{TARGETS, Target, create_all, kinds, mutate, of_kind, repair_records, target};

/// Bytes that the mutations of one target may take in all; small seeds get more of them.
const BYTES_OF_A_TARGET: usize = 200 << 20;
/// Mutations of one seed at most.
const MUTATIONS_MAX: usize = 4_000;
/// Far above what any input takes, also on a busy machine; far below a hang.
const LIMIT: Duration = Duration::from_secs(10);

fn seeds(target: Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| (path.display().to_string(), std::fs::read(path).unwrap());
    paths.iter().map(read).collect()
}

fn run(target: Target, name: &str, number: usize, input: &[u8]) -> bool {
    let begun = Instant::now();
    let outcome = std::panic::catch_unwind(|| (target.run)(input));
    assert!(outcome.is_ok(), "{name}: mutation {number} makes target {} panic", target.name);
    assert!(begun.elapsed() < LIMIT, "{name}: mutation {number} takes {:?}", begun.elapsed());
    outcome.is_ok_and(|is_accepted| is_accepted)
}

fn try_all(name: &str) {
    let target = target(name).unwrap();
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "no seeds for {name}");
    let more = if std::env::var_os("UNDYING_LONG_TESTS").is_some() { 100 } else { 1 };
    for (path, seed) in &seeds {
        assert!(run(target, path, 0, seed), "{path} is refused as it is: it tests nothing");
        let count = more * (BYTES_OF_A_TARGET / seeds.len() / seed.len().max(1)).min(MUTATIONS_MAX);
        for number in 1..=count {
            run(target, path, number, &mutate(seed, &mut fastrand::Rng::with_seed(number as u64)));
        }
    }
}

#[test]
fn no_part_makes_a_decoder_panic() {
    try_all("parts");
}

#[test]
fn no_records_make_the_plan_of_a_restore_panic() {
    try_all("plan");
}

#[test]
fn no_payload_makes_its_kind_panic() {
    try_all("payloads");
}

#[test]
fn no_record_makes_the_creation_of_a_descriptor_panic() {
    try_all("descriptors");
}

/// Set in the process that creates what could be anywhere.
const PRIVATE: &str = "UNDYING_FUZZ_PRIVATE";
/// Mutations of each seed there; a creation takes hundreds of system calls.
const CREATIONS: usize = 40;
/// Builds a root directory of its own: no device can be opened there, and nothing of it outlives the process.
const ENTER: &str = "set -e; mount --make-rprivate /; mount -t tmpfs -o nodev,size=64m none /mnt; \
                     mkdir -p /mnt/proc /mnt/tmp/seed /mnt/sys; mount -t proc proc /mnt/proc; ip link set lo up; exec \"$@\"";

/// Kinds with a path, an address or a pid are created in namespaces and below a root directory of their own.
#[test]
fn no_record_makes_the_creation_of_anything_panic() {
    if std::env::var_os(PRIVATE).is_some() {
        return create_in_private();
    }
    let namespaces =
        ["--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"];
    let inner = std::process::Command::new("unshare")
        .args(namespaces)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "no_record_makes_the_creation_of_anything_panic", "--nocapture"])
        .env(PRIVATE, "")
        .output();
    let Ok(inner) = inner else { return println!("unsupported: unshare") };
    let text = [inner.stdout, inner.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if !text.contains("running 1 test") {
        return println!("unsupported: namespaces of its own: {text}");
    }
    assert!(inner.status.success(), "{text}");
}

fn create_in_private() {
    let more = if std::env::var_os("UNDYING_LONG_TESTS").is_some() { 100 } else { 1 };
    let seeds = [seeds(target("payloads").unwrap()), seeds(target("plan").unwrap())].concat();
    let create = Target { name: "creation", run: create_all };
    let root = std::fs::File::open("/mnt").unwrap();
    let made = sys::working_directory::within_root(root.as_fd(), || {
        let mut made = 0;
        for (path, seed) in &seeds {
            made += usize::from(run(create, path, 0, seed));
            for number in 1..=CREATIONS * more {
                let input = mutate(seed, &mut fastrand::Rng::with_seed(number as u64));
                made += usize::from(run(create, path, number, &input));
            }
        }
        made
    });
    let made = made.unwrap();
    println!("{made} inputs made something");
    assert!(made > 0, "nothing could be created: it tests nothing");
}

#[test]
fn no_image_makes_its_reader_panic() {
    try_all("image");
}

#[test]
fn no_log_makes_its_reader_panic() {
    try_all("log");
}

#[test]
fn every_registered_kind_has_a_seed() {
    let target = target("payloads").unwrap();
    let seeds: Vec<_> = seeds(target)
        .into_iter()
        .map(|(name, seed)| RecordSet::decode(&repair_records(&seed)).unwrap_or_else(|_| panic!("{name}")))
        .collect();
    let missing: Vec<_> =
        kinds().into_iter().filter(|kind| !seeds.iter().any(|seed| of_kind(seed, kind).is_some())).collect();
    assert!(
        missing.is_empty(),
        "no seed below corpus/payloads for {missing:?}; fuzz/README.md says how to write one"
    );
}

#[test]
fn every_target_has_a_program_for_a_fuzzer() {
    for target in TARGETS {
        let path = format!("libfuzzer/fuzz_targets/{}.rs", target.name);
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).unwrap();
        assert!(text.contains(&format!("target(\"{}\")", target.name)), "{path}");
    }
}
