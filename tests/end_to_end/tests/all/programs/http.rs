//! As much of HTTP/1.1 as the tests need.
//!
//! Owns: one request and its answer over a connection that stays open.
//! Does not: understand chunks; the programs under test say how long an answer is.

use super::connection::Connection;
use super::load::Ticker;
use super::problem::{Context, Outcome, Problem, check};

/// Gets a page over a connection that stays open.
pub(crate) fn get(connection: &mut Connection, path: &str) -> Outcome<Vec<u8>> {
    request(connection, path).context(format!("GET {path}"))
}

/// Gets a page that is text.
pub(crate) fn get_text(connection: &mut Connection, path: &str) -> Outcome<String> {
    Ok(String::from_utf8(get(connection, path)?)?)
}

/// Gets a page that is one number.
pub(crate) fn get_number(connection: &mut Connection, path: &str) -> Outcome<u64> {
    let text = get_text(connection, path)?;
    text.trim().parse().map_err(|_| Problem::new(format!("GET {path} was answered with `{text}`")))
}

fn request(connection: &mut Connection, path: &str) -> Outcome<Vec<u8>> {
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
    let status = connection.line()?;
    let mut length = None;
    loop {
        let line = connection.line()?;
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = Some(value.trim().parse()?);
            }
            Some(_) => {}
            None => break,
        }
    }
    let length = length.ok_or_else(|| Problem::new(format!("`{status}` says no length")))?;
    let body = connection.bytes(length)?;
    check(status.split(' ').nth(1) == Some("200"), || format!("answered with `{status}`"))?;
    Ok(body)
}

/// Load for servers whose `/next` counts: without gaps, over one connection.
pub(crate) fn count(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut count = 0;
    while ticker.goes_on() {
        count += 1;
        let answer = get_number(&mut connection, "/next")?;
        check(answer == count, || format!("/next gave {answer} where {count} was due"))?;
        ticker.tick();
    }
    Ok(())
}

/// Load for servers whose `/state` gives the number of problems and then counters: none falls, and a step is done
/// when each has grown.
pub(crate) fn watch(port: u16, ticker: &Ticker) -> Outcome {
    let mut connection = Connection::open(port)?;
    let mut last = Vec::new();
    let mut step = Vec::new();
    while ticker.goes_on() {
        let text = get_text(&mut connection, "/state")?;
        let numbers: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().context(&text)?;
        check(numbers.len() > 1, || format!("the state is `{text}`"))?;
        check(numbers[0] == 0, || "the program found something wrong with itself".to_owned())?;
        let fell = last.iter().zip(&numbers).any(|(before, now)| now < before);
        check(!fell, || format!("a counter fell: {last:?}, then {numbers:?}"))?;
        if step.is_empty() || step.iter().zip(&numbers).skip(1).all(|(before, now)| now > before) {
            step.clone_from(&numbers);
            ticker.tick();
        }
        last = numbers;
    }
    Ok(())
}
