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

/// Calls with pointers to nothing, memory that a call changes, an interrupted sleep, time stamps, signals to oneself.
#[test]
fn unusual_results_are_the_same_in_all_replicas() {
    let Some(program) = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "edges", &["-O2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, bytes(4096)).unwrap();
    let (output, given) = std::io::pipe().unwrap();
    let mut command = std::process::Command::new(program);
    command.arg(file).stdin(std::process::Stdio::null()).stdout(given).stderr(std::process::Stdio::null());
    let run =
        std::thread::spawn(move || undying_replica::replicate(command, 2, Limits::default()).unwrap().0);
    let mut last = String::new();
    for line in std::io::BufRead::lines(std::io::BufReader::new(output)) {
        last = line.unwrap();
        if let Some(pid) = last.strip_prefix("asleep ") {
            // The program calls nanosleep(2) next.
            std::thread::sleep(std::time::Duration::from_millis(20));
            sys::signal::send(model::Pid(pid.parse().unwrap()), model::Signal(10)).unwrap();
        }
    }
    assert_eq!((run.join().unwrap(), last.as_str()), (End::Exited(0), "end"));
}

/// Programs that the documentation names.
#[test]
fn programs_with_one_thread_are_supported() {
    let input = bytes(200_000);
    let cases: [&[&str]; 8] = [
        &["bzip2", "-c"],
        &["xz", "-T1", "-c"],
        &["mawk", "{n += length($0)} END {print n}"],
        &["perl", "-e", "my $s = 0; $s += $_ for 1 .. 10000; print \"$s\\n\""],
        &["/usr/bin/python3", "-S", "-c", "print(sum(n * n for n in range(10000)))"],
        &["sqlite3", ":memory:", "create table t(a); insert into t values(1), (2); select sum(a) from t;"],
        &["tar", "cf", "-", "/etc/hostname"],
        &["bash", "-c", "for n in 1 2 3; do echo $n; done"],
    ];
    for words in cases {
        let found = std::process::Command::new("which").arg(words[0]).output().unwrap().status.success();
        if !found {
            println!("unsupported: {}", words[0]);
            continue;
        }
        assert_eq!(replicated(words, &input, Limits::default()), native(words, &input), "{words:?}");
    }
}
