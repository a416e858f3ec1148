//! Invariants of the process: when idle it holds no more resources than before, and it ends when it should.

use std::fs;

use crate::support::{Proxy, eventually};

/// The resources that a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    pub descriptors: usize,
    pub threads: usize,
    /// Resident memory, in bytes.
    pub memory: u64,
}

/// Threads that come and go for file access and name resolution.
const THREADS: usize = 4;
/// Freed memory that the allocator may retain, in bytes.
const MEMORY: u64 = 48 * 1024 * 1024;

impl Resources {
    pub fn by(proxy: &Proxy) -> Self {
        let count = |what: &str| {
            let path = format!("/proc/{}/{what}", proxy.pid());
            fs::read_dir(path).map_or(0, Iterator::count)
        };
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            memory: proxy.memory(),
        }
    }

    /// What a process holds before its first request, once it watches its plan.
    pub async fn at_first_by(proxy: &Proxy) -> Self {
        // The thread starts after everything that it needs has been opened.
        eventually("the plan is watched", async || {
            threads(proxy).iter().any(|name| name.starts_with("notify"))
        })
        .await;
        Self::by(proxy)
    }

    /// What exceeds the state `before`.
    pub fn beyond(&self, before: &Self) -> Option<String> {
        let is_more = self.descriptors > before.descriptors
            || self.threads > before.threads + THREADS
            || self.memory > before.memory + MEMORY;
        is_more.then(|| format!("when all is quiet it holds {self:?}, before {before:?}"))
    }
}

/// The names of a process's threads, truncated by the kernel to 15 bytes.
fn threads(proxy: &Proxy) -> Vec<String> {
    let directory = fs::read_dir(format!("/proc/{}/task", proxy.pid()));
    let entries = directory.into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.collect()
}

/// What the descriptors of a process refer to.
pub fn descriptors(proxy: &Proxy) -> Vec<String> {
    let directory = fs::read_dir(format!("/proc/{}/fd", proxy.pid()));
    let entries = directory.into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    names.map(|name| name.display().to_string()).collect()
}
