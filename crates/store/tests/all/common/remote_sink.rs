//! A sink outside of the store. It sends checkpoints as messages to a peer, which writes them to a log of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::store::{
    Base, BufferStock, CheckpointSink, CommitMeta, Completer, LogWriter, OpenCheckpoint, PageChange,
    PagePool, PageSink, Result, Ticket, Urgency, Waits,
};
use image::{RecordSet, SpaceId};
use model::{Address, AddressRange, PageCount, Sequence};

/// The number of buffers that are in use at the same time.
const BUFFERS: usize = 4;

enum Message {
    Begin(Sequence, Base, Urgency),
    Pages(Vec<(SpaceId, Address, Vec<u8>)>),
    Discard(SpaceId, AddressRange),
    Abandon,
    Commit(RecordSet, CommitMeta, Completer),
}

/// The end of the connection that receives checkpoints.
pub(crate) struct RemoteSink {
    messages: Option<Sender<Message>>,
    pool: Arc<PagePool>,
    peer: Option<JoinHandle<()>>,
}

struct RemoteCheckpoint {
    messages: Sender<Message>,
    pool: Arc<PagePool>,
    sequence: Sequence,
    is_committed: bool,
}

impl RemoteSink {
    /// Connects to a peer that writes to `log`. A buffer has `buffer_pages` pages.
    pub(crate) fn new(log: LogWriter, buffer_pages: PageCount) -> Self {
        let (messages, received) = channel();
        let pool = Arc::new(PagePool::new(BUFFERS, BufferStock::new(buffer_pages), Waits::Limited));
        let peer = std::thread::spawn(move || serve(&log, &received));
        Self { messages: Some(messages), pool, peer: Some(peer) }
    }
}

impl Drop for RemoteSink {
    fn drop(&mut self) {
        self.messages = None;
        // After a panic of the peer, the tickets have already reported errors.
        let _ = self.peer.take().map(JoinHandle::join);
    }
}

impl CheckpointSink for RemoteSink {
    fn begin(
        &self,
        sequence: Sequence,
        base: Base,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn OpenCheckpoint>>> {
        let messages = self.messages.clone().unwrap();
        self.pool.prepare()?;
        let _ = messages.send(Message::Begin(sequence, base, urgency));
        let pool = Arc::clone(&self.pool);
        Ok(Some(Box::new(RemoteCheckpoint { messages, pool, sequence, is_committed: false })))
    }
}

impl PageSink for RemoteCheckpoint {
    fn pool(&self) -> &PagePool {
        &self.pool
    }

    fn apply(&self, change: PageChange) -> Result<()> {
        let message = match change {
            PageChange::Pages(batch) => {
                let sent = batch
                    .pieces()
                    .iter()
                    .map(|piece| (piece.space, piece.start, batch.bytes_of(piece).to_vec()));
                let message = Message::Pages(sent.collect());
                self.pool.put_back(batch);
                message
            }
            PageChange::Discard(space, range) => Message::Discard(space, range),
        };
        let _ = self.messages.send(message);
        Ok(())
    }
}

impl OpenCheckpoint for RemoteCheckpoint {
    fn commit(mut self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        self.is_committed = true;
        let (ticket, completer) = Ticket::pending(self.sequence);
        let _ = self.messages.send(Message::Commit(records, meta, completer));
        Ok(ticket)
    }
}

impl Drop for RemoteCheckpoint {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = self.messages.send(Message::Abandon);
        }
    }
}

/// Writes the received checkpoints until the connection is closed.
fn serve(log: &LogWriter, received: &Receiver<Message>) {
    let mut open: Option<Box<dyn OpenCheckpoint>> = None;
    for message in received {
        match message {
            Message::Begin(sequence, base, urgency) => {
                open = Some(log.begin(sequence, base, urgency).unwrap().unwrap());
            }
            Message::Pages(pages) => pages.into_iter().for_each(|(space, start, bytes)| {
                append(&**open.as_ref().unwrap(), space, start, &bytes);
            }),
            Message::Discard(space, range) => open.as_ref().unwrap().discard(space, range).unwrap(),
            Message::Abandon => open = None,
            Message::Commit(records, meta, completer) => {
                let ticket = open.take().unwrap().commit(records, meta);
                completer.complete(ticket.and_then(|ticket| ticket.wait()));
            }
        }
    }
}

fn append(open: &dyn OpenCheckpoint, space: SpaceId, mut start: Address, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut batch = open.pool().buffer().unwrap();
        let pages = batch.room().min(PageCount(bytes.len() as u64 / model::PAGE_BYTES));
        let (now, later) = bytes.split_at(pages.bytes().get() as usize);
        batch.push(space, start, pages).unwrap().copy_from_slice(now);
        open.append(batch).unwrap();
        (start, bytes) = (start + pages.bytes(), later);
    }
}
