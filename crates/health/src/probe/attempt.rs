//! One attempt of a probe, from its start to its outcome.
//!
//! Owns: the deadline, the reasons of a failure, and the order of the steps: connect, send, receive.
//! Invariants: an attempt has exactly one outcome, at its deadline or earlier. A killed program may take
//! [`program::KILL_TIME_MAX`] longer.
//! Does not: repeat an attempt; the caller starts the next attempt.

use std::time::{Duration, Instant};

use model::{Escaped, Pid, Signal};
use sys::Errno;

use super::dial::{self, Dial};
use super::http::{AnswerError, Exchange};
use super::program::{self, Program};
use super::question::{HttpTarget, Probe};
use crate::interest::Handle;

/// The result of an attempt.
pub type Outcome = Result<(), Failure>;

/// The reason why a probe has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The connection was refused, or cannot be established.
    #[error("cannot connect to {}: {errno}", Escaped(target))]
    Connect {
        /// The address or the path of the socket.
        target: String,
        /// The error of the connection.
        errno: Errno,
    },
    /// This process cannot create a socket.
    #[error("cannot create a socket: {0}")]
    NoSocket(Errno),
    /// The server did not send a valid HTTP response.
    #[error("the response is not valid HTTP: {0}")]
    Answer(AnswerError),
    /// The HTTP response has this status.
    #[error("the response has the status {0}")]
    Status(u16),
    /// The program cannot be started.
    #[error("cannot start {program:?}: {errno}")]
    Start {
        /// The name of the program.
        program: String,
        /// The error of the start.
        errno: Errno,
    },
    /// The program exited with this status.
    #[error("the program ended with status {0}")]
    Exit(i32),
    /// The program was killed by this signal.
    #[error("the program was killed by signal {0}")]
    Killed(Signal),
    /// Another wait of this process has reaped the program, so its exit status is lost.
    #[error("the exit status of the program is unknown")]
    StatusLost,
    /// The deadline has passed.
    #[error("{step} within {limit:?}")]
    TimedOut {
        /// The step that was not completed.
        step: Step,
        /// The time limit of the attempt.
        limit: Duration,
    },
}

impl Failure {
    /// Reports whether the probed program is the cause. Otherwise the attempt itself could not be made.
    #[must_use]
    pub fn is_of_the_program(&self) -> bool {
        !matches!(self, Self::NoSocket(_) | Self::Start { .. } | Self::StatusLost)
    }
}

/// The event for which an attempt waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The connection is established.
    Connect,
    /// The status line of the HTTP response is received.
    Answer,
    /// The program exits.
    Exit,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection",
            Self::Answer => "no answer",
            Self::Exit => "the program did not end",
        })
    }
}

/// One attempt of a probe.
#[derive(Debug)]
pub struct Attempt {
    state: State,
    began: Instant,
    timeout: Duration,
}

#[derive(Debug)]
enum State {
    /// The connection is in progress; for HTTP, the request follows.
    Dial(Dial, Option<HttpTarget>),
    Exchange(Exchange),
    Program(Program),
    /// The attempt has failed, but the outcome was not returned yet.
    Failed(Failure),
    /// The outcome was returned.
    Over,
}

impl Attempt {
    /// Begins an attempt with a time limit. If the attempt fails at once, the first call of `advance` returns the
    /// failure. If the probe is a program, this call blocks until the kernel has loaded the program: about one
    /// millisecond.
    #[must_use]
    pub fn begin(probe: &Probe, now: Instant, timeout: Duration) -> Self {
        let state = match probe {
            Probe::Tcp(address) => State::Dial(Dial::tcp(*address), None),
            Probe::Unix(path) => State::Dial(Dial::unix(path), None),
            Probe::Http(target) => State::Dial(Dial::tcp(target.address), Some(target.clone())),
            Probe::Exec(command) => match Program::start(command) {
                Ok(program) => State::Program(program),
                Err(errno) => {
                    let program = command.first().cloned().unwrap_or_default();
                    State::Failed(Failure::Start { program, errno })
                }
            },
        };
        Self { state, began: now, timeout }
    }

    /// Returns the descriptor for which the caller waits. Returns `None` if the attempt waits only for its due time, or
    /// is over.
    #[must_use]
    pub fn handle(&self) -> Option<Handle<'_>> {
        match &self.state {
            State::Dial(dial, _) => dial.handle(),
            State::Exchange(exchange) => Some(exchange.handle()),
            State::Program(program) => Some(program.handle()),
            State::Failed(_) | State::Over => None,
        }
    }

    /// Returns the pid of the program that the attempt has started and not reaped yet. The program is a child of this
    /// process and does not belong to a subject.
    #[must_use]
    pub fn child(&self) -> Option<Pid> {
        match &self.state {
            State::Program(program) => program.pid(),
            _ => None,
        }
    }

    /// Returns the latest time of the next call of [`Attempt::advance`]; `None` if the attempt is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let deadline = self.deadline();
        match &self.state {
            State::Dial(dial, _) => Some(dial.due().map_or(deadline, |due| due.min(deadline))),
            State::Exchange(_) => Some(deadline),
            State::Program(program) => Some(program.killed_until.unwrap_or(deadline)),
            State::Failed(_) => Some(self.began),
            State::Over => None,
        }
    }

    /// Advances as far as possible without blocking. Returns the outcome if the attempt is over.
    pub fn advance(&mut self, now: Instant) -> Option<Outcome> {
        let outcome = self.go_on(now)?;
        // Closes the socket. The program was already reaped.
        self.state = State::Over;
        Some(outcome)
    }

    fn deadline(&self) -> Instant {
        self.began + self.timeout
    }

    fn timed_out(&self, step: Step) -> Failure {
        Failure::TimedOut { step, limit: self.timeout }
    }

    fn go_on(&mut self, now: Instant) -> Option<Outcome> {
        let is_late = now >= self.deadline();
        loop {
            match &mut self.state {
                State::Dial(dial, target) => match dial.advance(now) {
                    dial::Progress::Connected(socket) => match target.take() {
                        Some(target) => self.state = State::Exchange(Exchange::new(socket, &target)),
                        None => return Some(Ok(())),
                    },
                    dial::Progress::Failed(errno) => {
                        return Some(Err(Failure::Connect { target: dial.name(), errno }));
                    }
                    dial::Progress::NoSocket(errno) => return Some(Err(Failure::NoSocket(errno))),
                    dial::Progress::Waiting => return is_late.then(|| Err(self.timed_out(Step::Connect))),
                },
                State::Exchange(exchange) => match exchange.advance() {
                    Ok(Some(status)) if (200..400).contains(&status) => return Some(Ok(())),
                    Ok(Some(status)) => return Some(Err(Failure::Status(status))),
                    Ok(None) => return is_late.then(|| Err(self.timed_out(Step::Answer))),
                    Err(error) => return Some(Err(Failure::Answer(error))),
                },
                State::Program(program) => {
                    let end = program.advance(now, is_late)?;
                    return Some(match end {
                        program::End::Exited(0) => Ok(()),
                        program::End::Exited(status) => Err(Failure::Exit(status)),
                        program::End::Killed(signal) => Err(Failure::Killed(signal)),
                        program::End::Lost => Err(Failure::StatusLost),
                        program::End::TimedOut => Err(self.timed_out(Step::Exit)),
                    });
                }
                State::Failed(failure) => return Some(Err(failure.clone())),
                State::Over => return None,
            }
        }
    }
}
