//! node: event loop, timers, promises, thread pool, worker thread, http server: `programs/server.js`.
//!
//! Must hold: the program finds nothing wrong with itself; `/next` counts without gaps over a connection that is
//! kept; every counter goes on.

use rustix::process::Signal;

use super::http;
use super::load::Load;
use super::problem::Outcome;
use super::requirements;
use super::sources::{source, words};
use super::subject::{End, Subject};

#[test]
fn node() -> Outcome {
    if !requirements::are_met(&["node"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("node", |folder| {
        let port = port.to_string();
        Ok(words([&"node", &source("server.js"), &folder, &port]))
    })?;
    let mut load = Load::default();
    load.add("a client that counts", move |ticker| http::count(port, ticker));
    load.add("a client that watches", move |ticker| http::watch(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    subject.end(Some(Signal::TERM), End::Exit(0))
}
