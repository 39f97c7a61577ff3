//! One attempt of a probe, from its beginning to its outcome.
//!
//! Owns: the deadline, the reasons of a failure, the order of connecting, asking and reading.
//! Invariants: has an outcome at the deadline at the latest; a killed program has [`program::KILL_TIME_MAX`] more.
//! Gives exactly one outcome.
//! Does not: repeat; the caller begins another attempt.

use std::time::{Duration, Instant};

use model::{Escaped, Pid, Signal};
use sys::Errno;

use super::dial::{self, Dial};
use super::http::{AnswerError, Exchange};
use super::program::{self, Program};
use super::question::{HttpTarget, Probe};
use crate::interest::Handle;

/// How an attempt has ended.
pub type Outcome = Result<(), Failure>;

/// Why a probe has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The connection was refused, or cannot be made.
    #[error("cannot connect to {}: {errno}", Escaped(target))]
    Connect {
        /// Address or path.
        target: String,
        /// Why.
        errno: Errno,
    },
    /// This process has no socket left to connect with.
    #[error("cannot make a socket: {0}")]
    NoSocket(Errno),
    /// The answer is none of HTTP, or does not come.
    #[error("no answer of HTTP: {0}")]
    Answer(AnswerError),
    /// The answer has this status.
    #[error("the answer has the status {0}")]
    Status(u16),
    /// The program cannot be started.
    #[error("cannot start {program:?}: {errno}")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        errno: Errno,
    },
    /// The program ended with this status.
    #[error("the program ended with status {0}")]
    Exit(i32),
    /// The program was ended by a signal.
    #[error("the program was ended by signal {0}")]
    Killed(Signal),
    /// The end of the program was taken by another wait of this process.
    #[error("the status of the program is not known")]
    StatusLost,
    /// The time was over.
    #[error("{step} within {limit:?}")]
    TimedOut {
        /// What had not happened.
        step: Step,
        /// The time it had.
        limit: Duration,
    },
}

impl Failure {
    /// Whether the program that was probed is the cause. Otherwise the attempt itself could not be made.
    #[must_use]
    pub fn is_of_the_program(&self) -> bool {
        !matches!(self, Self::NoSocket(_) | Self::Start { .. } | Self::StatusLost)
    }
}

/// What an attempt waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The connection.
    Connect,
    /// The status line of the answer.
    Answer,
    /// The end of the program.
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

/// An attempt of a probe.
#[derive(Debug)]
pub struct Attempt {
    state: State,
    began: Instant,
    timeout: Duration,
}

#[derive(Debug)]
enum State {
    /// Connects; the request follows.
    Dial(Dial, Option<HttpTarget>),
    Exchange(Exchange),
    Program(Program),
    /// Has failed already.
    Failed(Failure),
    /// The outcome was given.
    Over,
}

impl Attempt {
    /// Begins an attempt, which may take so long. What fails at once is the outcome of the first `advance`. Starting a
    /// program takes until the kernel has loaded it, about a millisecond.
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

    /// What is waited for; nothing for an attempt that is to be advanced at its due time alone, or is over.
    #[must_use]
    pub fn handle(&self) -> Option<Handle<'_>> {
        match &self.state {
            State::Dial(dial, _) => dial.handle(),
            State::Exchange(exchange) => Some(exchange.handle()),
            State::Program(program) => Some(program.handle()),
            State::Failed(_) | State::Over => None,
        }
    }

    /// The program that it has started and not reaped yet: a child of this process that is no part of a subject.
    #[must_use]
    pub fn child(&self) -> Option<Pid> {
        match &self.state {
            State::Program(program) => program.pid(),
            _ => None,
        }
    }

    /// When it is to be advanced, whatever happens to its handle; `None` when it is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let deadline = self.deadline();
        match &self.state {
            State::Dial(dial, _) => Some(dial.due().map_or(deadline, |due| due.min(deadline))),
            State::Exchange(_) => Some(deadline),
            State::Program(program) => Some(program.due().unwrap_or(deadline)),
            State::Failed(_) => Some(self.began),
            State::Over => None,
        }
    }

    /// Goes on as far as it can without waiting; the outcome when there is one.
    pub fn advance(&mut self, now: Instant) -> Option<Outcome> {
        let outcome = self.go_on(now)?;
        // Closes the socket; the program was reaped.
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
