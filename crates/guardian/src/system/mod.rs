//! A system of components in one guardian (`up`), and the orders of other commands to this guardian.
//!
//! Owns: starting the guardian of a system, and the functions for the command line.
//! Invariants: a store has only one system at a time. This process may be killed at any instant, and the components
//! continue.
//! Does not: decide what happens to a component; `supervise` does.

mod before;
mod callers;
mod checks;
mod control;
mod director;
mod file;
mod manager;
mod network;
mod notices;
mod part;
mod published;
mod random;
mod record;
mod request;
mod required;
mod startable;

use std::path::Path;

use channel::Channels;

use self::before::Before;
pub use self::control::SystemOrder;
use self::control::{Answer, call};
use self::director::SystemDirector;
pub use self::file::{SystemFile, check_system};
pub use self::network::ChannelFacts;
use self::network::Network;
pub use self::record::ComponentFacts;
pub(crate) use self::record::SystemRecord;
use self::record::claim;
use crate::error::{GuardianError, Result};
use crate::host::{Host, OnEvent};
use crate::location::StoreLocation;

/// Starts the components of a system file, and guards them until the system has ended.
///
/// # Errors
///
/// The store already has a system, or nothing can be guarded here. Running components continue.
pub fn up(file: SystemFile<'_>, store: Option<&Path>, on_event: OnEvent<'_>) -> Result<()> {
    let SystemFile { path, system, .. } = file;
    required::require(&system)?;
    let missing = Channels::missing();
    let mut host = Host::new()?;
    let holder = missing.is_none().then(|| host.start_holder()).transpose()?;
    let network = Network::new(holder, missing, host.clock())?;
    let path = std::path::absolute(path).map_err(|error| sys::Error::path("find", path, error))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let own = system.system.store.as_ref().map(|own| directory.join(own));
    let location = StoreLocation::new(store.or(own.as_deref()))?;
    let opened = location.create()?;
    let _claim = claim(&opened)?;
    let before = Before::find(&opened, &system)?;
    let mut director =
        SystemDirector::new(&system, &path, (location, opened), (network, before), &host, on_event)?;
    host.direct(&mut director)?;
    director.outcome(&host)
}

/// Sends an order to the guardian of a system, and waits until it is executed. Returns the result in a few words.
///
/// # Errors
///
/// `NoSystem` if no system is guarded in this store; `NotDone` with the reason of the guardian.
pub fn order(location: &StoreLocation, order: &SystemOrder) -> Result<String> {
    let record = location.open()?.map(|store| SystemRecord::read(&store)).transpose()?.flatten();
    let Some(record) = record.as_ref().filter(|record| record.is_guarded()) else {
        let store = location.path().to_path_buf();
        let up = record.map_or_else(|| "undying up FILE.toml".to_owned(), |record| record.up_again(&store));
        return Err(GuardianError::NoSystem { store, up });
    };
    match call(&record.control, order)? {
        Answer::Done { what } => Ok(what),
        Answer::Refused { why, code } => Err(GuardianError::NotDone { why, code }),
    }
}
