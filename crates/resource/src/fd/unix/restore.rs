//! Builds the Unix sockets of an image in a restore.
//!
//! The restore creates new sockets in this process, connects them, and sends the saved messages through them, so that
//! the queues have their saved content. A peer is *inside* if it is a socket of the image, and *outside* if it
//! belongs to a process outside the subject. A connection *waits* if the program has not yet accepted it. A *kept*
//! listener is a listener that was held open while the program was dead. Outside clients may wait in a kept listener.
//!
//! Owns: the order of the steps: listeners, connections, other sockets, waiting clients, queues, final settings.
//! Final settings are settings that would prevent the filling of a queue (a shut direction, a connected datagram
//! socket).
//! Invariants: while queues are filled, only the binds and connections that the messages need exist.
//! Does not: read sockets; `capture` does.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::DescriptionId;
use sys::Errno;
use sys::socket::{self, SocketAddress};

use super::super::held_listener;
use super::super::kind::{FdCreate, FdRecord};
use super::bind::{self, Bound, bind};
use super::calls::{accept, connect_to, listen, new, pair, shut};
use super::queue::{Route, fill};
use super::state::{Listener, NAME, Peer, Queued, State, is_path};
use crate::error::{ResourceError, Result};

/// The backlog of a listener while the restore connects clients. At the end, the listener gets its saved backlog.
const BACKLOG_MAX: i32 = 4096;

/// Builds all Unix sockets of an image.
pub(super) fn create(records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let mut states = HashMap::new();
    let mut order = Vec::new();
    for record in records {
        let state: State = crate::error::decode(NAME, &record.payload)?;
        order.push(record.id);
        states.insert(record.id, state);
    }
    let mut builder = Builder {
        states: &states,
        order: &order,
        context,
        others: HashMap::new(),
        names: HashMap::new(),
        unowned: Vec::new(),
        kept: HashSet::new(),
        passing: HashMap::new(),
    };
    builder.build_inherited()?;
    builder.build_listeners()?;
    builder.build_connections()?;
    builder.build_rest()?;
    builder.queue_clients()?;
    builder.fill_queues()?;
    builder.finish()
}

/// State of a socket, and the id of its description. The id is `None` for a socket that is not in the image.
type Numbered<'a> = (&'a State, Option<DescriptionId>);

/// The address of a listener, and the path of its file.
type AddressAndFile = (Vec<u8>, Option<Vec<u8>>);

struct Builder<'a, 'b> {
    states: &'a HashMap<DescriptionId, State>,
    order: &'a [DescriptionId],
    context: &'a mut FdCreate<'b>,
    /// The peers of sockets whose peer was closed at the checkpoint. These peers are closed again at the end.
    others: HashMap<DescriptionId, OwnedFd>,
    /// For each named socket of the image: how other sockets connect to it during the restore.
    names: HashMap<DescriptionId, Bound>,
    /// Names of sockets that the image does not contain.
    unowned: Vec<Bound>,
    /// The kept listeners. Outside clients wait in a kept listener, and only the program may accept them.
    kept: HashSet<DescriptionId>,
    /// Temporary listeners, by address and file, and how other sockets connect to them. Only this process connects to
    /// a temporary listener.
    passing: HashMap<AddressAndFile, (OwnedFd, Bound)>,
}

impl Builder<'_, '_> {
    fn state(&self, id: DescriptionId) -> Result<&State> {
        self.states.get(&id).ok_or_else(|| malformed(&format!("socket {id} is missing")))
    }

    fn built(&self, id: DescriptionId) -> Result<BorrowedFd<'_>> {
        let found = self.context.created.get(&id).map(AsFd::as_fd);
        found.ok_or_else(|| malformed(&format!("socket {id} was not built")))
    }

    fn is_built(&self, id: DescriptionId) -> bool {
        self.context.created.contains_key(&id)
    }

    fn build_inherited(&mut self) -> Result<()> {
        for id in self.order {
            if let Some(inherited) = self.state(*id)?.inherited {
                let socket = inherited.take(self.context)?;
                self.context.created.insert(*id, socket);
            }
        }
        Ok(())
    }

    fn build_listeners(&mut self) -> Result<()> {
        for id in self.order {
            let state = &self.states[id];
            if state.is_listening() {
                if let Some(kept) = self.take_kept(*id)? {
                    self.context.created.insert(*id, kept);
                    continue;
                }
                let socket = new(state)?;
                self.name(socket.as_fd(), state, Some(*id))?;
                listen(socket.as_fd(), BACKLOG_MAX, state.maker())?;
                self.context.created.insert(*id, socket);
            }
        }
        Ok(())
    }

    /// Returns the kept listener of a socket. Returns `None` if no listener was kept, or if the names of its file now
    /// lead to another file. Several listeners can have the same relative address, so the file is compared as well.
    fn take_kept(&mut self, id: DescriptionId) -> Result<Option<OwnedFd>> {
        let state = &self.states[&id];
        let local = state.local();
        if !state.is_named() {
            return Ok(None);
        }
        let names = state.file_names();
        let suits = |kept: &OwnedFd| !is_path(&local) || held_listener::has_its_file(kept, &names);
        let Some(kept) = held_listener::take(self.context.held, state.family, &local, suits) else {
            return Ok(None);
        };
        self.names.insert(id, Bound::of_kept(kept.as_fd())?);
        self.kept.insert(id);
        Ok(Some(kept))
    }

    /// Binds a socket to its name, if it has a name.
    fn name(&mut self, socket: BorrowedFd<'_>, state: &State, id: Option<DescriptionId>) -> Result<()> {
        if state.is_named() {
            let bound = bind(socket, &state.local(), state.file.as_ref())?;
            match id {
                Some(id) => drop(self.names.insert(id, bound)),
                None => self.unowned.push(bound),
            }
        }
        Ok(())
    }

    /// Returns an address that leads to a bound socket.
    fn address(&self, id: DescriptionId) -> Result<SocketAddress> {
        let name = self.state(id)?.local();
        Ok(self.names.get(&id).map_or_else(|| name.clone(), |bound| bound.address(&name)))
    }

    /// Reports whether a socket is one end of a connection that waits: the client, or the server side that a listener
    /// will return from accept(2). `queue_clients` builds these connections.
    fn waits(&self, id: DescriptionId) -> bool {
        let is_listed = |listener: &Listener| {
            listener.waiting.iter().any(|waiting| {
                let server = self.states.get(&DescriptionId(*waiting));
                DescriptionId(*waiting) == id
                    || server.and_then(State::peer_inside).map(DescriptionId) == Some(id)
            })
        };
        self.states.values().filter_map(|state| state.listener.as_ref()).any(is_listed)
    }

    fn build_connections(&mut self) -> Result<()> {
        for id in self.order {
            let state = &self.states[id];
            if self.is_built(*id) || !state.is_connected() || self.waits(*id) {
                continue;
            }
            match state.peer {
                Some(Peer::Inside(other)) => self.build_inside(*id, DescriptionId(other))?,
                Some(Peer::Closed(_)) if state.is_datagram() && state.peer_name.len() > 2 => {}
                Some(Peer::Closed(_)) => {
                    let mut unowned = State { family: state.family, ..State::default() };
                    if !is_taken(state)? {
                        unowned.local = state.peer_name.clone();
                    }
                    let (own, other) = self.connection((state, Some(*id)), (&unowned, None))?;
                    self.context.created.insert(*id, own);
                    self.others.insert(*id, other);
                }
                Some(Peer::Outside(_)) | None => {}
            }
        }
        Ok(())
    }

    fn build_inside(&mut self, id: DescriptionId, other: DescriptionId) -> Result<()> {
        let (state, peer) = (&self.states[&id], self.state(other)?.clone());
        // A datagram socket with a named peer is connected to this name after the queues were filled. The socket
        // itself may be the peer.
        if other == id
            || self.is_built(other)
            || (state.is_datagram() && peer.is_named() && peer.peer_inside() != Some(id.get()))
        {
            return Ok(());
        }
        let (own, theirs) = self.connection((state, Some(id)), (&peer, Some(other)))?;
        self.context.created.insert(id, own);
        self.context.created.insert(other, theirs);
        Ok(())
    }

    /// Builds both ends of a connection.
    fn connection(&mut self, one: Numbered<'_>, other: Numbered<'_>) -> Result<(OwnedFd, OwnedFd)> {
        let family = one.0.family;
        let is_plain = !one.0.is_named() && !other.0.is_named();
        if is_plain || one.0.is_datagram() {
            let (first, second) = pair(one.0)?;
            for (socket, (state, id)) in [(&first, one), (&second, other)] {
                state.options.apply_early(socket, family)?;
                if one.0.is_datagram() {
                    self.name(socket.as_fd(), state, id)?;
                }
            }
            return Ok((first, second));
        }
        if self.is_server(one.0) || (!self.is_server(other.0) && one.0.is_named()) {
            let (client, server) = self.connect(other, one.0)?;
            return Ok((server, client));
        }
        self.connect(one, other.0)
    }

    fn is_server(&self, state: &State) -> bool {
        state.is_named() && self.listener_of(state).is_some()
    }

    /// Returns the listener that has accepted a socket. Several listeners may have used the same address, one after
    /// the other, so the file is compared as well.
    fn listener_of(&self, server: &State) -> Option<DescriptionId> {
        let listens = |id: &&DescriptionId| {
            self.states.get(*id).is_some_and(|state| {
                state.is_listening() && state.local == server.local && has_same_file(state, server)
            })
        };
        self.order.iter().find(listens).copied()
    }

    /// Builds a connection from a client to a server side. Returns both ends. The server side gets its name from the
    /// listener that accepts it.
    fn connect(&mut self, client: Numbered<'_>, server: &State) -> Result<(OwnedFd, OwnedFd)> {
        let own = new(client.0)?;
        self.name(own.as_fd(), client.0, client.1)?;
        let accepted = match self.listener_of(server) {
            Some(id) if self.kept.contains(&id) && !is_path(&server.local()) => {
                // The kept listener uses the abstract name, and a temporary listener cannot have the same name. So
                // the server side is built without a name.
                let (one, other) = socket::pair(server.family.kind)?;
                client.0.options.apply_early(&one, client.0.family)?;
                server.options.apply_early(&other, server.family)?;
                return Ok((one, other));
            }
            Some(id) if self.kept.contains(&id) => self.pass(own.as_fd(), client.0, server)?,
            Some(id) => {
                connect_to(own.as_fd(), &self.address(id)?, server.maker())?;
                accept(self.built(id)?)?
            }
            None => self.pass(own.as_fd(), client.0, server)?,
        };
        server.options.apply_early(&accepted, server.family)?;
        Ok((own, accepted))
    }

    /// Connects a client to a temporary listener with the name of `server`, and returns the accepted end.
    fn pass(&mut self, client: BorrowedFd<'_>, state: &State, server: &State) -> Result<OwnedFd> {
        let key = (server.local.clone(), server.file.as_ref().map(|file| file.path.clone()));
        if !self.passing.contains_key(&key) {
            let listener = socket::create(server.family.domain, server.family.kind, 0)?;
            let bound = bind::bind_passing(listener.as_fd(), &server.local(), server.file.as_ref())?;
            listen(listener.as_fd(), BACKLOG_MAX, state.maker())?;
            self.passing.insert(key.clone(), (listener, bound));
        }
        let (listener, bound) = &self.passing[&key];
        connect_to(client, &bound.address(&server.local()), server.maker())?;
        accept(listener.as_fd())
    }

    fn build_rest(&mut self) -> Result<()> {
        for id in self.order {
            if !self.is_built(*id) && !self.waits(*id) {
                let state = &self.states[id];
                let socket = new(state)?;
                self.name(socket.as_fd(), state, Some(*id))?;
                self.context.created.insert(*id, socket);
            }
        }
        Ok(())
    }

    /// Builds the connections that wait: connects each client to its listener, and sends the bytes that the client
    /// had sent at the checkpoint.
    fn queue_clients(&mut self) -> Result<()> {
        for id in self.order {
            let listening = &self.states[id];
            let Some(listener) = &listening.listener else { continue };
            for waiting in &listener.waiting {
                let waiting = DescriptionId(*waiting);
                let state = self.state(waiting)?.clone();
                if state.peer_inside() == Some(id.get()) {
                    self.queue_client(*id, (&state, Some(waiting)), &State::default())?;
                    continue;
                }
                let client = state.peer_inside().map(DescriptionId);
                if client.is_none() && self.kept.contains(id) {
                    // An outside client needs no new connection. The client still waits in the kept listener, or the
                    // program has accepted the client after the checkpoint.
                    continue;
                }
                let local = state.peer_name.clone();
                let unowned = State { family: state.family, local, ..State::default() };
                let client_state = match client {
                    Some(client) => self.state(client)?.clone(),
                    None => unowned,
                };
                self.queue_client(*id, (&client_state, client), &state)?;
            }
        }
        Ok(())
    }

    fn queue_client(&mut self, listener: DescriptionId, client: Numbered<'_>, server: &State) -> Result<()> {
        let socket = new(client.0)?;
        self.name(socket.as_fd(), client.0, client.1)?;
        connect_to(socket.as_fd(), &self.address(listener)?, server.maker())?;
        fill(Route { from: socket.as_fd(), to: None }, &server.queue, self.context.created)?;
        if let Some(id) = client.1 {
            self.context.created.insert(id, socket);
        }
        Ok(())
    }

    fn fill_queues(&mut self) -> Result<()> {
        for id in self.order {
            let state = &self.states[id];
            if state.queue.is_empty() || !self.is_built(*id) {
                continue;
            }
            if state.is_datagram() {
                for message in &state.queue {
                    self.send_datagram(*id, state, message)?;
                }
                continue;
            }
            let from = match state.peer {
                Some(Peer::Inside(other)) => self.built(DescriptionId(other))?,
                _ => self.others.get(id).map(AsFd::as_fd).ok_or_else(|| malformed("a sender is missing"))?,
            };
            fill(Route { from, to: None }, &state.queue, self.context.created)?;
        }
        Ok(())
    }

    /// Sends a saved datagram to its receiver. If the restore has built the socket of the original sender, this
    /// socket sends the datagram. If not, a temporary socket with the name of the sender sends the datagram.
    fn send_datagram(&self, id: DescriptionId, receiver: &State, message: &Queued) -> Result<()> {
        let messages = std::slice::from_ref(message);
        let address = self.address(id)?;
        let to = receiver.is_named().then_some(&address);
        let is_sender = |candidate: &&DescriptionId| {
            let state = &self.states[*candidate];
            let is_named_so = state.local == message.from;
            let is_peer = state.peer_inside() == Some(id.get()) && !state.is_named();
            state.is_datagram()
                && self.is_built(**candidate)
                && if message.from.len() > 2 { is_named_so } else { is_peer }
        };
        if let Some(sender) = self.order.iter().find(is_sender) {
            return fill(Route { from: self.built(*sender)?, to }, messages, self.context.created);
        }
        if let (Some(other), true) = (self.others.get(&id), message.from.len() <= 2) {
            return fill(Route { from: other.as_fd(), to: None }, messages, self.context.created);
        }
        let temporary = socket::create(receiver.family.domain, receiver.family.kind, 0)?;
        let name = SocketAddress(message.from.clone());
        // If the bind fails, the message is sent without a name. For example, the bind fails if an outside sender
        // still uses its abstract name.
        let _bound = if message.from.len() > 2 { bind(temporary.as_fd(), &name, None).ok() } else { None };
        fill(Route { from: temporary.as_fd(), to }, messages, self.context.created)
    }

    /// Applies the final settings, which would prevent the filling of queues. A connected datagram socket receives
    /// only messages of its peer. A socket that is shut for receiving receives no message.
    fn finish(mut self) -> Result<()> {
        self.others.clear();
        for id in self.order {
            let state = &self.states[id];
            if state.inherited.is_some() || !self.is_built(*id) {
                continue;
            }
            let socket = self.built(*id)?;
            if state.is_datagram() && state.is_connected() {
                self.connect_datagram(socket, state)?;
            }
            if state.is_connected() || state.is_datagram() {
                shut(socket, state.shut)?;
            }
            if let Some(listener) = &state.listener {
                listen(socket, i32::try_from(listener.backlog).unwrap_or(i32::MAX), state.maker())?;
            }
            state.options.restore_buffers(socket, state.family)?;
            state.options.apply_late(socket, state.family)?;
        }
        let passed = self.passing.into_values().map(|(_, bound)| bound);
        let bound = self.names.into_values().chain(self.unowned).chain(passed);
        bind::finish(bound, self.context.held, self.context.shared)
    }

    fn connect_datagram(&self, socket: BorrowedFd<'_>, state: &State) -> Result<()> {
        if state.peer_name.len() <= 2 || socket::peer(socket)?.is_some() {
            return Ok(());
        }
        match state.peer {
            Some(Peer::Inside(other)) => connect_to(socket, &self.address(DescriptionId(other))?, None),
            _ => {
                // If the outside peer no longer exists, this call fails. The program then receives an error when it
                // sends the next message.
                let name = SocketAddress(state.peer_name.clone());
                let _ = connect_to(socket, &name, None);
                Ok(())
            }
        }
    }
}

/// Reports whether an outside socket uses the name of a closed peer. The result is `false` for a path, because
/// several sockets can be bound to the same path, one after the other.
fn is_taken(state: &State) -> Result<bool> {
    let name = SocketAddress(state.peer_name.clone());
    if state.peer_name.is_empty() || is_path(&name) {
        return Ok(false);
    }
    match socket::bind(new(state)?.as_fd(), &name) {
        Ok(()) => Ok(false),
        Err(error) if error.errno == Errno(bind::EADDRINUSE) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Reports whether two sockets are bound to the same file. Returns `true` if the file of a socket is unknown.
fn has_same_file(one: &State, other: &State) -> bool {
    match (&one.file, &other.file) {
        (Some(one), Some(other)) => (&one.path, one.gone) == (&other.path, other.gone),
        _ => true,
    }
}

fn malformed(why: &str) -> ResourceError {
    ResourceError::Malformed { kind: NAME, why: why.to_owned() }
}
