//! A bash pipeline of six processes: `programs/pipeline.sh`.
//!
//! Must hold: every line comes through once and in order, whatever was in the pipes at a death.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::POLL;
use super::load::{Load, Ticker};
use super::problem::{Context, Outcome, check};
use super::requirements;
use super::sources::{source, words};
use super::subject::{End, Subject};

#[test]
fn bash() -> Outcome {
    if !requirements::are_met(&["bash", "awk", "sed", "tee"]) {
        return Ok(());
    }
    let mut subject = Subject::start("bash", |_folder| Ok(words([&"bash", &source("pipeline.sh")])))?;
    let folder = subject.folder().to_owned();
    let mut load = Load::default();
    let squares = folder.join("squares");
    load.add("the pipeline", move |ticker| watch(&squares, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    fs::write(folder.join("stop"), "")?;
    let keep = Kept { sum: folder.join("sum"), squares: folder.join("squares") };
    subject.end_and(None, End::Exit(0), || keep.verify())
}

/// A step is done when the file has grown.
fn watch(path: &Path, ticker: &Ticker) -> Outcome {
    let mut last = 0;
    while ticker.goes_on() {
        let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
        check(length >= last, || format!("{} shrank from {last} to {length}", path.display()))?;
        if length > last {
            last = length;
            ticker.tick();
        }
        thread::sleep(POLL);
    }
    Ok(())
}

struct Kept {
    sum: PathBuf,
    squares: PathBuf,
}

impl Kept {
    fn verify(&self) -> Outcome {
        let squares = fs::read_to_string(&self.squares).context("squares")?;
        let mut count = 0_u64;
        for line in squares.lines() {
            count += 1;
            let expected = format!("{count} {}", count * count);
            check(line == expected, || format!("`{line}` where `{expected}` was due"))?;
        }
        let (sum, expected) =
            (fs::read_to_string(&self.sum)?, format!("{count} {} 0\n", count * (count + 1) / 2));
        check(sum == expected, || format!("the sum is `{sum}`, and `{expected}` was due"))
    }
}
