//! sqlite3 that writes transactions without pause: `programs/inserts.sh`.
//!
//! Must hold: every transaction is there once and only once, and the base is whole by sqlite3's own judgement.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use super::POLL;
use super::load::{Load, Ticker};
use super::problem::{Context, Outcome, Problem, check};
use super::requirements;
use super::sources::{source, words};
use super::subject::{End, Subject};

#[test]
fn sqlite() -> Outcome {
    if !requirements::are_met(&["sqlite3", "bash"]) {
        return Ok(());
    }
    let mut subject = Subject::start("sqlite", |_folder| Ok(words([&"bash", &source("inserts.sh")])))?;
    let folder = subject.folder().to_owned();
    let mut load = Load::default();
    let counts = folder.join("counts");
    load.add("the transactions", move |ticker| watch(&counts, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    fs::write(folder.join("stop"), "")?;
    subject.end_and(None, End::Exit(0), || verify(&folder))
}

/// sqlite3 says now and then how many entries there are, and the highest: a step is done when it says more.
fn watch(path: &Path, ticker: &Ticker) -> Outcome {
    let mut last = 0;
    while ticker.goes_on() {
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let line = whole.lines().last().unwrap_or("0|0");
        let numbers = line
            .split_once('|')
            .and_then(|(count, highest)| Some((count.parse::<u64>().ok()?, highest.parse::<u64>().ok()?)));
        let (count, highest) = numbers.ok_or_else(|| Problem::new(format!("sqlite3 said `{line}`")))?;
        check(count == highest && count >= last, || format!("`{line}` after {last}"))?;
        if count > last {
            last = count;
            ticker.tick();
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn verify(folder: &Path) -> Outcome {
    let query = "PRAGMA integrity_check; SELECT COUNT(*) - MAX(id), SUM(square <> id * id) FROM entries;";
    let output = Command::new("sqlite3").arg(folder.join("base")).arg(query).output().context("sqlite3")?;
    let text = String::from_utf8(output.stdout)?;
    check(text == "ok\n0|0\n", || format!("the base is judged `{text}`"))
}
