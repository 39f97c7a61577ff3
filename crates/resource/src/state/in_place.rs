//! The interface of state kinds that can set state of a living process.
//!
//! Clocks run while a process is stopped. Therefore the remaining times of timers, and the signals that timers have sent,
//! differ from each checkpoint. All other state of a living process that differs from a checkpoint refuses the operation.
//!
//! Owns: the trait [`InPlace`], and the thread that makes the calls.
//! Invariants: for each thread, every kind removes its present state before the first kind sets the state of the
//! checkpoint. Otherwise a signal of a present timer could arrive after the pending signals were removed.
//! Does not: name any state kind.

use model::{Address, ByteCount, Pid, Tid};
use sys::Result as SysResult;
use tracee::remote::RemoteContext;
use tracee::{RemoteError, RemoteSession, Stopped, Thread};

use super::caller::Caller;
use crate::error::Result;

/// Returns the present pid or tid for a pid or tid of the checkpoint.
pub type Renumber<'a> = &'a dyn Fn(i32) -> i32;

/// A state kind whose state can be set in a living process.
pub trait InPlace {
    /// Reports whether the state can be changed from `present` to `wanted`. Both are payloads of records; `None` means
    /// that there is no record.
    fn can_set(&self, present: Option<&[u8]>, wanted: Option<&[u8]>, renumber: Renumber<'_>) -> Result<bool>;

    /// Removes the present state, so that it causes no effect any more. All threads of the process are stopped.
    fn clear(&self, present: Option<&[u8]>, thread: &mut LivingThread<'_>) -> Result<()>;

    /// Sets the state of the checkpoint.
    fn set(&self, wanted: &[u8], thread: &mut LivingThread<'_>) -> Result<()>;
}

/// A stopped thread of a living process. It makes remote calls: system calls after which the thread is restored.
#[derive(Debug)]
pub struct LivingThread<'a> {
    pid: Pid,
    tid: Tid,
    context: &'a RemoteContext<'a>,
    /// The thread, until the session begins.
    thread: Option<&'a mut Thread<Stopped>>,
    session: Option<RemoteSession<'a>>,
}

impl<'a> LivingThread<'a> {
    /// Creates the interface of a thread. The thread does not change before the first call.
    pub fn new(thread: &'a mut Thread<Stopped>, context: &'a RemoteContext<'a>) -> Self {
        let (pid, tid) = (thread.pid(), thread.tid());
        Self { pid, tid, context, thread: Some(thread), session: None }
    }

    fn session(&mut self) -> std::result::Result<&mut RemoteSession<'a>, RemoteError> {
        if let Some(thread) = self.thread.take() {
            self.session = Some(RemoteSession::begin(thread, self.context)?);
        }
        self.session.as_mut().ok_or(RemoteError::Ended(self.tid))
    }

    /// Restores the thread after the calls.
    ///
    /// # Errors
    ///
    /// The thread could not be restored.
    pub fn finish(self) -> Result<()> {
        Ok(self.session.map_or(Ok(()), RemoteSession::end)?)
    }
}

impl Caller for LivingThread<'_> {
    fn ids(&self) -> (Pid, Tid) {
        (self.pid, self.tid)
    }

    fn call_with(
        &mut self,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(Address) -> [u64; 6],
    ) -> std::result::Result<u64, RemoteError> {
        let session = self.session()?;
        session.write_data(bytes)?;
        let data = session.data();
        session.call(number, arguments(data))
    }

    fn read_data(&mut self, length: ByteCount) -> SysResult<Vec<u8>> {
        let data = self.session.as_ref().map_or(Address(0), RemoteSession::data);
        self.context.memory.read_vec(data, length)
    }
}
