//! The thread that receives the calls of one incarnation.
//!
//! Owns: the receipt of calls, and the answer that a call continues.
//! Invariants: every call is answered, put aside, or broken off; a panic of the handler lets the call continue.
//! Does not: judge calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use sys::listener_holder::{HeldCalls, NotificationBuffer};
use sys::seccomp_listener::{Listener, Receipt, Waited};
use sys::socket_call::{CallHandler, Handled, ReportedCall, kind_of};

/// How long a failure to wait is left alone: memory is missing, and others may give some back.
const RETRY: Duration = Duration::from_millis(1);

/// Where calls come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) listener: Arc<Listener>,
    pub(crate) buffer: NotificationBuffer,
    pub(crate) held: HeldCalls,
}

/// Receives calls until no task uses the filter.
pub(crate) fn receive_calls(handler: &dyn CallHandler, mut source: Source) {
    loop {
        match source.listener.wait(None) {
            Ok(Waited::Ready) => {}
            Ok(Waited::TimedOut) => continue,
            Ok(Waited::Gone) => return,
            Err(_) => {
                std::thread::sleep(RETRY);
                continue;
            }
        }
        if matches!(source.listener.receive(&mut source.buffer), Ok(Receipt::Call))
            && source.handle(handler) == Handled::Pass
        {
            // A call that was broken off needs no answer.
            let _ = source.listener.answer_continue(source.buffer.id());
        }
    }
}

impl Source {
    fn handle(&self, handler: &dyn CallHandler) -> Handled {
        if kind_of(&self.buffer).is_none() {
            return Handled::Pass;
        }
        let call = ReportedCall { notification: &self.buffer, listener: &self.listener, held: &self.held };
        catch_unwind(AssertUnwindSafe(|| handler.handle(&call))).unwrap_or(Handled::Pass)
    }
}
