//! Runs programs natively and as replicas, and compares what they write.

use std::fs::File;
use std::process::{Command, Stdio};

use undying_replica::{End, Limits, replicate};

/// What a run has written, and how it has ended.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) output: Vec<u8>,
    pub(crate) end: End,
}

/// Bytes that cannot be compressed well, and that are the same in each run.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..length).map(|place| if place % 3 == 0 { b'\n' } else { random.u8(b'a'..=b'z') }).collect()
}

fn prepared(words: &[&str], input: &[u8]) -> (Command, File) {
    let (given, output) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&given, input, 0).unwrap();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("LC_ALL", "C");
    command.stdin(Stdio::from(given)).stdout(Stdio::from(output.try_clone().unwrap())).stderr(Stdio::null());
    (command, output)
}

fn content(output: &File) -> Vec<u8> {
    let mut bytes = vec![0; output.metadata().unwrap().len() as usize];
    std::os::unix::fs::FileExt::read_exact_at(output, &mut bytes, 0).unwrap();
    bytes
}

pub(crate) fn native(words: &[&str], input: &[u8]) -> Run {
    use std::os::unix::process::ExitStatusExt;
    let (mut command, output) = prepared(words, input);
    let status = command.status().unwrap();
    let end = match status.code() {
        Some(code) => End::Exited(code),
        None => End::Killed(model::Signal(status.signal().unwrap())),
    };
    Run { output: content(&output), end }
}

pub(crate) fn replicated(words: &[&str], input: &[u8], limits: Limits) -> Run {
    let (command, output) = prepared(words, input);
    let (end, ..) = replicate(command, 2, limits).unwrap();
    Run { output: content(&output), end }
}
