//! Divides the file descriptors of a process: some are reserved for the process itself, so that the admin port can still accept
//! connections, files can be read, and names resolved, no matter how many connections clients open.
//!
//! The system always assigns the lowest free number (POSIX, 2.14), so the number of a new descriptor shows how many are left:
//! only the process itself may keep one whose number is in the reserve.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// The reserve: this part of the limit, within these bounds.
const RESERVED_PART: u64 = 8;
const RESERVED: std::ops::RangeInclusive<u64> = 32..=1024;

/// The descriptors that the process held when it began to share. Zero in a process that is not only a proxy, whose descriptors
/// are not divided here.
static HELD: AtomicU64 = AtomicU64::new(0);
static SHORTAGES: AtomicU64 = AtomicU64::new(0);

/// The shares of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Maximum number of client connections. Each has another descriptor, for a model server.
    pub clients: usize,
    /// Maximum number of admin port connections: half of the reserve.
    pub admin: usize,
    /// Connections to clients and model servers have descriptors below this one.
    below: u64,
}

impl Shares {
    const ALL: Self = Self {
        clients: usize::MAX,
        admin: usize::MAX,
        below: u64::MAX,
    };

    /// Divides `limit` descriptors, of which the process uses `held` itself.
    fn of(limit: u64, held: u64) -> Self {
        let reserve = (limit / RESERVED_PART).clamp(*RESERVED.start(), *RESERVED.end());
        let below = limit.saturating_sub(reserve);
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            clients: count(below.saturating_sub(held) / 2),
            admin: count(reserve / 2),
            below,
        }
    }

    /// The shares under the limit that is in force now.
    #[must_use]
    pub fn now() -> Self {
        match HELD.load(Ordering::Relaxed) {
            0 => Self::ALL,
            held => Self::of(limit(), held),
        }
    }

    /// Whether a connection to a client or a model server may keep this descriptor.
    #[must_use]
    pub fn allow(&self, descriptor: &impl AsFd) -> bool {
        let number = descriptor.as_fd().as_raw_fd();
        u64::try_from(number).is_ok_and(|number| number < self.below)
    }
}

/// Begins to share. All descriptors that are open now are the process's own; `one` is any of them.
///
/// # Errors
/// When no descriptor is free.
pub fn share(one: &impl AsFd) -> io::Result<()> {
    let lowest_free = one.as_fd().try_clone_to_owned()?;
    let held = u64::try_from(lowest_free.as_raw_fd()).unwrap_or(0);
    HELD.store(held.max(1), Ordering::Relaxed);
    Ok(())
}

/// A connection to a model server found no descriptor: idle connections should be closed.
pub fn ran_out() {
    SHORTAGES.fetch_add(1, Ordering::Relaxed);
}

/// How many times that has happened.
pub fn shortages() -> u64 {
    SHORTAGES.load(Ordering::Relaxed)
}

/// The soft limit of the process (`RLIMIT_NOFILE`).
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_second_descriptor_and_the_reserve_is_left_alone() {
        for limit in [
            64,
            100,
            256,
            1024,
            4096,
            20_000,
            65_536,
            1_048_576,
            u64::MAX,
        ] {
            for held in [10, 20, 40] {
                let shares = Shares::of(limit, held);
                let clients = shares.clients as u64;
                let reserve = limit - shares.below;
                assert!(
                    held.saturating_add(clients * 2) <= shares.below.max(held),
                    "{limit} {held}"
                );
                assert!((32..=1024).contains(&reserve), "{limit}: {reserve}");
                assert!((shares.admin as u64) * 2 <= reserve, "{limit}");
            }
        }
        assert_eq!(Shares::of(1024, 24).clients, (1024 - 128 - 24) / 2);
        assert_eq!(
            Shares::of(1_048_576, 24).clients,
            (1_048_576 - 1024 - 24) / 2
        );
        assert_eq!(Shares::of(1_048_576, 24).admin, 512);
    }

    #[test]
    fn of_too_few_descriptors_clients_get_none() {
        for limit in [0, 3, 31, 32, 40] {
            let shares = Shares::of(limit, 20);
            assert_eq!(shares.clients, 0, "{limit}");
        }
    }

    #[test]
    fn in_a_program_that_is_not_only_a_proxy_all_are_allowed() {
        assert_eq!(Shares::now(), Shares::ALL);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Shares::ALL.allow(&file));
        assert!(!Shares::of(32, 1).allow(&file));
    }
}
