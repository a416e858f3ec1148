//! The Kubernetes API client: watches, Events, leader election, the addresses behind a Service, and the workloads whose workers
//! are counted and scaled.
//!
//! Contains no rollout policy.

mod access;
mod cache;
mod connection;
mod events;
pub mod kinds;
mod kubeconfig;
mod lease;
mod ports;
mod quantity;
mod slices;
mod throttle;
mod update;
mod watch;
pub mod workloads;

pub use access::may_read_all_namespaces;
#[cfg(test)]
pub use cache::object;
pub use cache::{
    BothClocks, Cache, Changed, GroupKind, NotSynced, Object, ROLLOUT_LABEL, ROLLOUT_MANAGER,
    Scope, resource_version, slice_endpoints, trimmed_update, version_number,
};
pub use connection::{Connection, Error};
pub use events::{Notice, Notices, Reporter};
pub use kubeconfig::{ConfigError, load_config};
pub use lease::{Leading, Lease};
pub use ports::{container_port, declared_ports, named_ports};
pub use quantity::thousandths;
pub use slices::{SERVICE_LABEL, Slices, port_of};
pub use update::{identity_of, update_of};
pub use watch::{Watch, WatchEvent};
