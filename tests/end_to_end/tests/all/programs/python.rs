//! python3 with threads, open files, a mapping, a pipe and a server: `programs/counter.py`.
//!
//! Must hold: the program finds nothing wrong with itself; no counter ever falls; every one goes on.

use std::process::Command;

use rustix::process::Signal;

use super::connection::Connection;
use super::load::{Load, Ticker};
use super::problem::{Context, Outcome, check};
use super::requirements;
use super::sources::{source, words};
use super::subject::{End, Subject};

#[test]
fn python() -> Outcome {
    if !requirements::are_met(&["python3"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("python", |folder| {
        let (python, port) = (interpreter()?, port.to_string());
        Ok(words([&python, &source("counter.py"), &folder, &port]))
    })?;
    let mut load = Load::default();
    load.add("a client", move |ticker| watch(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    subject.end(Some(Signal::TERM), End::Exit(0))
}

/// The interpreter itself: `python3` may be a script that looks for it.
fn interpreter() -> Outcome<String> {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output()?;
    Ok(String::from_utf8(found.stdout)?.trim().to_owned())
}

/// Asks over one connection; a step is done when every counter has grown.
fn watch(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut asked = 0;
    let mut last = Vec::new();
    let mut step = Vec::new();
    while ticker.goes_on() {
        let answer = connection.ask("status")?;
        let numbers: Vec<u64> =
            answer.split(' ').map(str::parse).collect::<Result<_, _>>().context(&answer)?;
        asked += 1;
        check(numbers.len() > 2 && numbers[0] == asked, || format!("answer {asked} is `{answer}`"))?;
        check(numbers[1] == 0, || "the program found something wrong with itself".to_owned())?;
        let fell = last.iter().zip(&numbers).any(|(before, now)| now < before);
        check(!fell, || format!("a counter fell: {last:?}, then {numbers:?}"))?;
        if step.is_empty() || step.iter().zip(&numbers).skip(2).all(|(before, now)| now > before) {
            step.clone_from(&numbers);
            ticker.tick();
        }
        last = numbers;
    }
    Ok(())
}
