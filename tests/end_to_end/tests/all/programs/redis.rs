//! redis-server: clients that keep their connections, a subscriber, a client that waits.
//!
//! Must hold: every answered write is there once and only once; published messages arrive in order, each once; who
//! waited for an element of a list gets it lives later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use super::connection::Connection;
use super::load::{Load, Ticker};
use super::problem::{Context, Outcome, check};
use super::requirements;
use super::sources::words;
use super::subject::{End, Subject};

/// Commands that are on their way at once.
const BATCH: u64 = 100;
/// Keys that the batches write.
const KEYS: u64 = 5_000;

type Written = Arc<Mutex<HashMap<u64, u64>>>;

#[test]
fn redis() -> Outcome {
    if !requirements::are_met(&["redis-server"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("redis", |folder| {
        let port = port.to_string();
        let server = words([&"redis-server", &"--port", &port, &"--bind", &"127.0.0.1", &"--dir", &folder]);
        Ok([server, words([&"--save", &"", &"--appendonly", &"no"])].concat())
    })?;
    let mut waiting = Connection::open(port)?;
    waiting.send("BLPOP parcels 0\r\n")?;
    let written = Written::default();
    let mut load = Load::default();
    load.add("a client that counts", move |ticker| count(port, ticker));
    let map = Arc::clone(&written);
    load.add("a client that writes in batches", move |ticker| write(port, ticker, &map));
    let mut subscriber = Connection::open(port)?;
    subscriber.send("SUBSCRIBE news\r\n")?;
    for line in ["*3", "$9", "subscribe", "$4", "news", ":1"] {
        check(subscriber.line()? == line, || "the subscription is not confirmed".to_owned())?;
    }
    load.add("a subscriber", move |ticker| listen(subscriber, ticker));
    load.add("a publisher", move |ticker| publish(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    verify(port, &written).context("after the last death")?;
    Connection::open(port)?.expect("RPUSH parcels one", ":1")?;
    for line in ["*2", "$7", "parcels", "$3", "one"] {
        let got = waiting.line().context("the client that waited")?;
        check(got == line, || format!("the client that waited got `{got}`"))?;
    }
    subject.end(Some(Signal::TERM), End::Exit(0))
}

/// One connection; each answer is one more than the last.
fn count(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut count = 0;
    while ticker.goes_on() {
        count += 1;
        let answer = connection.number("INCR counter", ":")?;
        check(answer == count, || format!("INCR gave {answer} where {count} was due"))?;
        connection.expect(&format!("SET at:{} {count}", count % 100), "+OK")?;
        ticker.tick();
    }
    connection.send("GET counter\r\n")?;
    check(connection.line()? == format!("${}", count.to_string().len()), || "GET counter".to_owned())?;
    check(connection.line()? == count.to_string(), || "the counter is another one".to_owned())
}

/// Many commands under way at once; what was answered is noted.
fn write(port: u16, ticker: &Ticker, written: &Written) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut random = fastrand::Rng::with_seed(1);
    while ticker.goes_on() {
        let pairs: Vec<(u64, u64)> = (0..BATCH).map(|_| (random.u64(..KEYS), random.u64(..))).collect();
        let commands: String = pairs.iter().map(|(key, value)| format!("SET k:{key} {value}\r\n")).collect();
        connection.send(commands)?;
        for _ in &pairs {
            let answer = connection.line()?;
            check(answer == "+OK", || format!("SET was answered with `{answer}`"))?;
        }
        written.lock().expect("no worker panics").extend(pairs);
        ticker.tick();
    }
    Ok(())
}

fn publish(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut number = 0_u64;
    while ticker.goes_on() {
        number += 1;
        connection.expect(&format!("PUBLISH news {number}"), ":1")?;
        ticker.tick();
    }
    connection.expect("PUBLISH news end", ":1")
}

fn listen(mut connection: Connection, ticker: &Ticker) -> Outcome {
    let mut number = 0_u64;
    loop {
        for line in ["*3", "$7", "message", "$4", "news"] {
            let got = connection.line()?;
            check(got == line, || format!("`{got}` where `{line}` was due"))?;
        }
        let (_length, message) = (connection.line()?, connection.line()?);
        if message == "end" {
            return Ok(());
        }
        number += 1;
        check(message == number.to_string(), || format!("message {message} where {number} was due"))?;
        ticker.tick();
    }
}

fn verify(port: u16, written: &Written) -> Outcome {
    let mut connection = Connection::open(port)?;
    let written = written.lock().expect("no worker panics");
    for (key, value) in written.iter() {
        let value = value.to_string();
        connection.expect(&format!("GET k:{key}"), &format!("${}", value.len()))?;
        let got = connection.line()?;
        check(got == value, || format!("k:{key} is {got}, and {value} was written"))?;
    }
    Ok(())
}
