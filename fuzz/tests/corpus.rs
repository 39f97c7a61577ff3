//! Runs every target over its seeds and a fixed number of mutations of each, as a fuzzer would.
//!
//! `UNDYING_LONG_TESTS=1` tries a hundred times as many. A failure prints the seed's file and the number of the mutation.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::{Duration, Instant};

use image::RecordSet;
use undying_fuzz::{TARGETS, Target, kinds, mutate, of_kind, repair_records, target};

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
