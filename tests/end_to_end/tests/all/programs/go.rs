//! A Go program: hundreds of goroutines, channels, timers, garbage collection, http server:
//! `programs/goserver/main.go`.
//!
//! Must hold: the program finds nothing wrong with itself; `/next` counts without gaps over a connection that is
//! kept; every counter goes on.

use rustix::process::Signal;

use super::http;
use super::load::Load;
use super::problem::Outcome;
use super::requirements;
use super::sources::{self, words};
use super::subject::{End, Subject};

#[test]
fn go() -> Outcome {
    if !requirements::are_met(&["go"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("go", |folder| {
        let (program, port) = (sources::go(folder, "goserver/main.go")?, port.to_string());
        Ok(words([&program, &folder, &port]))
    })?;
    let mut load = Load::default();
    load.add("a client that counts", move |ticker| http::count(port, ticker));
    load.add("a client that watches", move |ticker| http::watch(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    subject.end(Some(Signal::TERM), End::Exit(0))
}
