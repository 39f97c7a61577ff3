//! memcached with four threads, and a client for each.
//!
//! Must hold: every answered write is there once and only once, over connections that are kept.

use rustix::process::Signal;

use super::connection::Connection;
use super::load::{Load, Ticker};
use super::problem::{Outcome, check};
use super::requirements;
use super::sources::words;
use super::subject::{End, Subject};

const CLIENTS: u64 = 4;
const KEYS: u64 = 500;

#[test]
fn memcached() -> Outcome {
    if !requirements::are_met(&["memcached"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("memcached", |_folder| {
        let port = port.to_string();
        Ok(words([&"memcached", &"-u", &"root", &"-l", &"127.0.0.1", &"-p", &port, &"-t", &"4"]))
    })?;
    let mut load = Load::default();
    for client in 0..CLIENTS {
        load.add(&format!("client {client}"), move |ticker| work(port, client, ticker));
    }
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    subject.end(Some(Signal::TERM), End::Exit(0))
}

/// Sets keys of its own to numbers, counts, and looks at one of the keys each time.
fn work(port: u16, client: u64, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut random = fastrand::Rng::with_seed(client);
    let mut values = vec![None; KEYS as usize];
    let mut count = 0;
    connection.send(format!("set count:{client} 0 0 1\r\n"))?;
    connection.expect("0", "STORED")?;
    while ticker.goes_on() {
        let (key, value) = (random.u64(..KEYS), random.u64(..));
        let text = value.to_string();
        connection.send(format!("set {client}:{key} 0 0 {}\r\n", text.len()))?;
        connection.expect(&text, "STORED")?;
        values[key as usize] = Some(value);
        count += 1;
        let answer = connection.number(&format!("incr count:{client} 1"), "")?;
        check(answer == count, || format!("incr gave {answer} where {count} was due"))?;
        let key = random.u64(..KEYS);
        look(&mut connection, &format!("{client}:{key}"), values[key as usize])?;
        ticker.tick();
    }
    (0..KEYS).try_for_each(|key| look(&mut connection, &format!("{client}:{key}"), values[key as usize]))
}

fn look(connection: &mut Connection, key: &str, expected: Option<u64>) -> Outcome {
    let head = connection.ask(&format!("get {key}"))?;
    let Some(expected) = expected else {
        return check(head == "END", || format!("{key} was never written, and gives `{head}`"));
    };
    check(head.starts_with("VALUE "), || format!("{key} is gone: `{head}`"))?;
    let value = connection.line()?;
    check(value == expected.to_string(), || format!("{key} is {value}, and {expected} was written"))?;
    check(connection.line()? == "END", || format!("{key} has no end"))
}
