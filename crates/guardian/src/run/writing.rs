//! The write of a checkpoint that has left its subject, on a thread of its own.
//!
//! Owns: that thread, what it tells, and the question whether its image may still become visible.
//! Invariants: an image that was called off never becomes visible; one that may is committed whatever becomes of the
//! subject; older images are removed only after a newer one was committed.
//! Does not: touch the subject, to which the guard's own thread is bound by ptrace; decide how long to wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::Captured;
use model::Sequence;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use store::{ImageWriter, Store, SubjectName};
use sys::Error;

use crate::error::{GuardianError, Result};
use crate::time::timespec;

/// The part of an epoch that a dead subject may wait for the checkpoint that is being written: so a wait costs at
/// most a tenth of the work that it saves.
const EPOCH_SHARE: u32 = 10;
/// The longest such wait, however much it would save: below what people notice, and of the order of a restore.
const PATIENCE_MAX: Duration = Duration::from_millis(100);

/// How long a dead subject waits for the checkpoint that is being written, while there is another.
pub(super) fn patience(every: Duration) -> Duration {
    (every / EPOCH_SHARE).min(PATIENCE_MAX)
}

/// What the thread tells.
#[derive(Debug)]
pub(super) enum News {
    /// The checkpoint is visible and durable, after a pause of this length.
    Committed(Sequence, Duration),
    /// It is not, and this is why.
    Failed(GuardianError),
    /// Older ones were removed, up to the given one.
    Pruned(Option<Sequence>),
}

/// One write under way.
#[derive(Debug)]
pub(super) struct Write {
    /// The checkpoint that may yet be committed.
    pending: Option<Sequence>,
    news: Receiver<News>,
    alarm: Arc<OwnedFd>,
    verdict: Arc<Verdict>,
    /// None when it was seen to have ended.
    thread: Option<JoinHandle<()>>,
}

impl Write {
    /// Writes a captured checkpoint, commits it and removes all but the newest `keep`.
    pub(super) fn commit(
        store: &Store,
        name: &SubjectName,
        keep: usize,
        captured: Captured,
        writer: ImageWriter,
    ) -> Result<Self> {
        let sequence = captured.sequence();
        let (store, name) = (store.clone(), name.clone());
        Self::start(Some(sequence), move |teller, verdict| {
            let pause = captured.pause();
            match publish(captured, writer, verdict) {
                Ok(true) => teller.tell(News::Committed(sequence, pause)),
                Ok(false) => return,
                Err(error) => return teller.tell(News::Failed(error)),
            }
            teller.tell(match store.prune(&name, keep) {
                Ok(removed) => News::Pruned(removed.last().copied()),
                Err(error) => News::Failed(error.into()),
            });
        })
    }

    /// Takes back what a capture that failed has written: that too can take a while.
    pub(super) fn discard(writer: ImageWriter) -> Result<Self> {
        Self::start(None, move |_, _| drop(writer))
    }

    fn start(
        pending: Option<Sequence>,
        work: impl FnOnce(&Teller, &Verdict) + Send + 'static,
    ) -> Result<Self> {
        let failed = |errno| Error::new("make an event descriptor", errno);
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        let (sender, news) = mpsc::channel();
        let verdict = Arc::new(Verdict::default());
        let teller = Teller { sender: Some(sender), alarm: Arc::clone(&alarm) };
        let judged = Arc::clone(&verdict);
        let thread = std::thread::Builder::new()
            .name("undying-commit".to_owned())
            .spawn(move || work(&teller, &judged))
            .map_err(|error| Error::new("start a thread", error))?;
        Ok(Self { pending, news, alarm, verdict, thread: Some(thread) })
    }

    /// The checkpoint that may yet be committed.
    pub(super) fn pending(&self) -> Option<Sequence> {
        self.pending
    }

    /// Becomes readable when there are news, and when there will be no more.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// The next news, if there are any; never waits.
    pub(super) fn hear(&mut self) -> Option<News> {
        // Before the look, so that what is told after it rings again. It fails when nothing has rung.
        let _ = rustix::io::read(&*self.alarm, &mut [0_u8; 8]);
        let news = self.news.try_recv();
        match &news {
            Ok(News::Committed(..) | News::Failed(_)) => self.pending = None,
            Err(TryRecvError::Disconnected) => self.end(),
            _ => {}
        }
        news.ok()
    }

    /// Waits for news until a deadline, or as long as it takes. `None` when there are none, or no more.
    pub(super) fn listen(&mut self, deadline: Option<Instant>) -> Option<News> {
        loop {
            let news = self.hear();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if news.is_some() || self.is_over() || left == Some(Duration::ZERO) {
                return news;
            }
            let mut waiting = [PollFd::from_borrowed_fd(self.handle(), PollFlags::IN)];
            // Whatever ends the wait, the next look tells.
            let _ = poll(&mut waiting, left.map(timespec).as_ref());
        }
    }

    /// Whether all is told and done.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_none()
    }

    /// Keeps the image from ever becoming visible. False when it is too late for that: it is, or will be at once.
    pub(super) fn call_off(&mut self) -> bool {
        let is_off = self.verdict.call_off();
        if is_off {
            self.pending = None;
        }
        is_off
    }

    fn end(&mut self) {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            self.pending = None;
            std::panic::resume_unwind(panic);
        }
        self.pending = None;
    }
}

/// True when the image was committed, false when it was called off.
fn publish(captured: Captured, writer: ImageWriter, verdict: &Verdict) -> Result<bool> {
    let prepared = captured.prepare(writer)?;
    if !verdict.admit() {
        return Ok(false);
    }
    prepared.publish()?;
    Ok(true)
}

/// The thread's end of the news.
struct Teller {
    sender: Option<Sender<News>>,
    alarm: Arc<OwnedFd>,
}

impl Teller {
    fn tell(&self, news: News) {
        if let Some(sender) = &self.sender {
            // A guard that is gone does not want to know.
            let _ = sender.send(news);
        }
        self.ring();
    }

    fn ring(&self) {
        // Its count cannot run over: it is read after every ring, and there are three.
        let _ = rustix::io::write(&*self.alarm, &1_u64.to_ne_bytes());
    }
}

impl Drop for Teller {
    /// The last ring finds the channel closed.
    fn drop(&mut self) {
        self.sender = None;
        self.ring();
    }
}

const OPEN: u8 = 0;
const ADMITTED: u8 = 1;
const CALLED_OFF: u8 = 2;

/// Whether an image becomes visible. Decided once, by whoever comes first.
#[derive(Debug, Default)]
struct Verdict(AtomicU8);

impl Verdict {
    fn admit(&self) -> bool {
        self.decide(ADMITTED)
    }

    fn call_off(&self) -> bool {
        self.decide(CALLED_OFF)
    }

    fn decide(&self, verdict: u8) -> bool {
        self.0.compare_exchange(OPEN, verdict, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_costs_a_tenth_of_what_it_saves_and_is_never_long() {
        assert_eq!(patience(Duration::from_millis(10)), Duration::from_millis(1));
        assert_eq!(patience(Duration::from_millis(500)), Duration::from_millis(50));
        assert_eq!(patience(Duration::from_secs(3600)), PATIENCE_MAX);
    }

    #[test]
    fn a_verdict_is_given_once() {
        let verdict = Verdict::default();
        assert!(verdict.admit());
        assert!(!verdict.call_off());
        let verdict = Verdict::default();
        assert!(verdict.call_off());
        assert!(!verdict.admit() && !verdict.call_off());
    }

    #[test]
    fn the_end_of_the_work_is_heard_without_a_word() {
        let (release, wait) = mpsc::channel::<()>();
        let mut write = Write::start(Some(Sequence(7)), move |_, _| {
            let _ = wait.recv();
        })
        .unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(write.listen(Some(soon)).is_none());
        assert_eq!((write.is_over(), write.pending()), (false, Some(Sequence(7))));
        drop(release);
        assert!(write.listen(None).is_none());
        assert_eq!((write.is_over(), write.pending()), (true, None));
    }

    #[test]
    fn news_come_in_order_and_before_the_end() {
        let mut write = Write::start(Some(Sequence(7)), |teller, _| {
            teller.tell(News::Committed(Sequence(7), Duration::ZERO));
            teller.tell(News::Pruned(None));
        })
        .unwrap();
        assert!(matches!(write.listen(None), Some(News::Committed(Sequence(7), _))));
        assert_eq!(write.pending(), None);
        assert!(matches!(write.listen(None), Some(News::Pruned(None))));
        assert!(write.listen(None).is_none());
        assert!(write.is_over());
    }
}
