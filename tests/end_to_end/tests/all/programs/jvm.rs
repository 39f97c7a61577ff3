//! A Java program: compiled code, several collector threads, timers, http server: `programs/jvm/Work.java`.
//!
//! Must hold: the program finds nothing wrong with itself; `/next` counts without gaps over a connection that is
//! kept; every counter goes on, that of garbage collections too.

use rustix::process::Signal;

use super::http;
use super::load::Load;
use super::problem::Outcome;
use super::requirements;
use super::sources::{self, words};
use super::subject::{End, Subject};

#[test]
fn jvm_g1() -> Outcome {
    jvm("jvm-g1", &["-XX:+UseG1GC", "-XX:ConcGCThreads=2"])
}

#[test]
fn jvm_parallel() -> Outcome {
    jvm("jvm-parallel", &["-XX:+UseParallelGC"])
}

fn jvm(name: &'static str, collector: &[&str]) -> Outcome {
    if !requirements::are_met(&["java", "javac"]) {
        return Ok(());
    }
    // A Java machine that starts, the compiler's included, removes the files in /tmp/hsperfdata_USER of those that are
    // dead: also that of a subject between its death and its restore, which is then refused.
    let _alone = testkit::alone();
    let port = testkit::free_port();
    let mut subject = Subject::start(name, |folder| {
        sources::java(folder, "jvm/Work.java")?;
        let port = port.to_string();
        let machine = words([&"java", &"-Xmx48m", &"-XX:ParallelGCThreads=4"]);
        let collector = collector.iter().map(Into::into).collect();
        Ok([machine, collector, words([&"-cp", &folder, &"Work", &folder, &port])].concat())
    })?;
    let mut load = Load::default();
    load.add("a client that counts", move |ticker| http::count(port, ticker));
    load.add("a client that watches", move |ticker| http::watch(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    subject.end(Some(Signal::TERM), End::Exit(0))
}
