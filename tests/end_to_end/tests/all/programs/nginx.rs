//! nginx: a master, two workers, connections that are kept, new ones, a long download.
//!
//! Must hold: every page arrives whole and right, also over connections that lived through a death; the workers
//! are the same ones; afterwards the master still obeys: it replaces its workers, and ends gracefully.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use testkit::{ProcessId, descendants};

use super::connection::Connection;
use super::load::{Load, Ticker};
use super::problem::{Context, Outcome, check};
use super::requirements::{self, find};
use super::sources::words;
use super::subject::{End, Subject};
use super::{LIMIT, POLL, http};

const WORKERS: usize = 2;
/// Sizes of the pages: nothing, less than a packet, more than a socket's buffer.
const SIZES: [usize; 4] = [0, 700, 60_000, 3_000_000];
/// The page that is sent slowly, so that a death meets it half-way.
const SLOW_SIZE: usize = 1_500_000;

#[test]
fn nginx() -> Outcome {
    if !requirements::are_met(&["nginx"]) {
        return Ok(());
    }
    let port = testkit::free_port();
    let mut subject = Subject::start("nginx", |folder| {
        prepare(folder, port)?;
        let program = find("nginx").unwrap_or_else(|| "nginx".into());
        Ok(words([&program, &"-e", &folder.join("errors"), &"-c", &folder.join("nginx.conf")]))
    })?;
    drop(Connection::open(port)?);
    let workers = wait_workers(subject.process(), &[])?;
    let mut load = Load::default();
    load.add("a connection that is kept", move |ticker| keep(port, ticker));
    load.add("new connections", move |ticker| connect(port, ticker));
    load.add("a long download", move |ticker| download(port, ticker));
    subject.live_through_deaths(&mut load)?;
    load.finish()?;
    let now: Vec<_> = descendants(subject.process()).iter().map(|worker| worker.pid()).collect();
    let before: Vec<_> = workers.iter().map(|worker| worker.pid()).collect();
    check(now == before, || format!("the workers were {before:?}, and are {now:?}"))?;
    subject.process().signal(Signal::HUP)?;
    wait_workers(subject.process(), &now).context("after SIGHUP")?;
    http::get(&mut Connection::open(port)?, "/700").and_then(|page| right(&page, 700))?;
    subject.end(Some(Signal::QUIT), End::Exit(0))
}

fn prepare(folder: &Path, port: u16) -> Outcome {
    let pages = folder.join("pages");
    fs::create_dir(&pages)?;
    for size in SIZES.iter().chain([&SLOW_SIZE]) {
        let page = pages.join(size.to_string());
        fs::write(&page, pattern(*size))?;
        // The workers are another user, whatever our umask.
        fs::set_permissions(page, fs::Permissions::from_mode(0o644))?;
    }
    fs::set_permissions(&pages, fs::Permissions::from_mode(0o755))?;
    let shown = folder.display();
    let text = format!(
        "daemon off; worker_processes {WORKERS}; pid {shown}/pid; error_log {shown}/errors;\n\
         events {{ worker_connections 64; }}\n\
         http {{\n\
           access_log {shown}/access; keepalive_requests 1000000; keepalive_timeout 1h; send_timeout 1h;\n\
           client_body_temp_path {shown}/t1; proxy_temp_path {shown}/t2; fastcgi_temp_path {shown}/t3;\n\
           uwsgi_temp_path {shown}/t4; scgi_temp_path {shown}/t5;\n\
           server {{\n\
             listen 127.0.0.1:{port}; root {shown}/pages;\n\
             location /{SLOW_SIZE} {{ limit_rate 4m; }}\n\
           }}\n\
         }}\n"
    );
    Ok(fs::write(folder.join("nginx.conf"), text)?)
}

/// Bytes that tell their own place.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|place| (place % 251) as u8 ^ (place >> 10) as u8).collect()
}

fn right(page: &[u8], size: usize) -> Outcome {
    check(page == pattern(size), || format!("a page of {size} bytes arrived damaged ({} bytes)", page.len()))
}

fn keep(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut random = fastrand::Rng::with_seed(1);
    while ticker.goes_on() {
        let size = SIZES[random.usize(..SIZES.len())];
        right(&http::get(&mut connection, &format!("/{size}"))?, size)?;
        ticker.tick();
    }
    Ok(())
}

/// A new connection each time. One that was waiting to be accepted when the server died is reset, so each page is
/// asked for until it comes.
fn connect(port: u16, ticker: &Ticker) -> Outcome {
    while ticker.goes_on() {
        let began = Instant::now();
        let page = loop {
            match Connection::open(port).and_then(|mut connection| http::get(&mut connection, "/60000")) {
                Ok(page) => break page,
                Err(problem) if began.elapsed() > LIMIT => return Err(problem),
                Err(_) => thread::sleep(POLL),
            }
        };
        right(&page, 60_000)?;
        ticker.tick();
    }
    Ok(())
}

fn download(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    while ticker.goes_on() {
        right(&http::get(&mut connection, &format!("/{SLOW_SIZE}"))?, SLOW_SIZE)?;
        ticker.tick();
    }
    Ok(())
}

/// Waits until the master has so many workers, all of them others than the `old` ones.
fn wait_workers(master: ProcessId, old: &[model::Pid]) -> Outcome<Vec<ProcessId>> {
    let began = Instant::now();
    loop {
        let workers = descendants(master);
        if workers.len() == WORKERS && workers.iter().all(|worker| !old.contains(&worker.pid())) {
            return Ok(workers);
        }
        check(began.elapsed() < LIMIT, || format!("the master has the workers {workers:?}"))?;
        thread::sleep(POLL);
    }
}
