//! Programs write the same as without replicas, and end in the same way.

use undying_replica::{End, Limits};

use crate::common::{bytes, native, replicated};

#[test]
fn output_and_end_are_those_of_a_native_run() {
    let (small, large) = (bytes(3_000), bytes(3 << 20));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, &large).unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], &[u8]); 13] = [
        (&["cat"], &large),
        (&["cat", file], &[]),
        (&["cat", "/nowhere"], &[]),
        (&["sha256sum", file], &[]),
        (&["sha256sum"], &large),
        (&["gzip", "-n", "-c"], &large),
        (&["gzip", "-n", "-c", file], &[]),
        (&["sort", "--parallel=1"], &large),
        (&["wc"], &large),
        (&["head", "-n", "3"], &small),
        (&["ls", "/etc"], &[]),
        (&["sh", "-c", "read line; echo \"$line\"; exit 7"], &small),
        (&["sh", "-c", "kill -9 $$"], &[]),
    ];
    for (words, input) in cases {
        let expected = native(words, input);
        let found = replicated(words, input, Limits::default());
        assert_eq!(found.end, expected.end, "{words:?}");
        assert!(found.output == expected.output, "{words:?} has written something else");
    }
}

#[test]
fn a_file_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let content = bytes(1 << 20);
    std::fs::write(&file, &content).unwrap();
    let run = replicated(&["gzip", file.to_str().unwrap()], &[], Limits::default());
    assert_eq!(run.end, End::Exited(0));
    assert!(!file.exists());
    let packed = file.with_extension("gz");
    let unpacked = replicated(&["gzip", "-d", "-c", packed.to_str().unwrap()], &[], Limits::default());
    assert!(unpacked.output == content);
}

#[test]
fn clean_runs_have_no_detection() {
    let input = bytes(40_000);
    let expected = native(&["sha256sum"], &input);
    for round in 0..testkit::rounds(20, 1000) {
        assert_eq!(replicated(&["sha256sum"], &input, Limits::default()), expected, "round {round}");
    }
}

#[test]
fn random_bytes_and_clocks_are_the_same_in_all_replicas() {
    for words in [&["head", "-c", "64", "/dev/urandom"][..], &["date", "+%N"], &["sleep", "0.05"]] {
        assert_eq!(replicated(words, &[], Limits::default()).end, End::Exited(0), "{words:?}");
    }
}
