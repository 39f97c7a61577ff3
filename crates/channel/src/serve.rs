//! The thread that receives the socket calls of one incarnation.
//!
//! Owns: the receipt of calls, and the answer that lets a call continue.
//! Invariants: every call is answered, held or interrupted. If the handler panics, the call continues.
//! Does not: decide about calls; `handler` does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use sys::listener_holder::{HeldCalls, NotificationBuffer};
use sys::seccomp_listener::{Listener, Receipt, Waited};
use sys::socket_call::{CallHandler, Handled, ReportedCall, kind_of};

/// Delay after a failed wait. The cause is a lack of memory, and other processes may free memory.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) listener: Arc<Listener>,
    pub(crate) buffer: NotificationBuffer,
    pub(crate) held: HeldCalls,
}

/// Receives calls until no thread uses the filter.
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
            // An error means that the call was interrupted. Such a call needs no answer.
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
