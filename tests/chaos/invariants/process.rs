//! The process: when all is quiet it holds no more than before, and it ends when it is to.

use std::fs;

use crate::support::{Proxy, eventually};

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub descriptors: usize,
    pub threads: usize,
    /// Resident memory, in bytes.
    pub memory: u64,
}

/// Threads that come and go with work on files and names.
const THREADS: usize = 4;
/// What the allocator may keep of what was freed, in bytes.
const MEMORY: u64 = 48 * 1024 * 1024;

impl Held {
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

    /// By a process that serves nobody yet, once it watches its plan.
    pub async fn at_first_by(proxy: &Proxy) -> Self {
        // Its thread begins when all that it needs is open.
        eventually("the plan is watched", async || {
            threads(proxy).iter().any(|name| name.starts_with("notify"))
        })
        .await;
        Self::by(proxy)
    }

    /// What is more than there was `before`.
    pub fn beyond(&self, before: &Self) -> Option<String> {
        let is_more = self.descriptors > before.descriptors
            || self.threads > before.threads + THREADS
            || self.memory > before.memory + MEMORY;
        is_more.then(|| format!("when all is quiet it holds {self:?}, before {before:?}"))
    }
}

/// The names of a process's threads, cut by the kernel after 15 bytes.
fn threads(proxy: &Proxy) -> Vec<String> {
    let directory = fs::read_dir(format!("/proc/{}/task", proxy.pid()));
    let entries = directory.into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.collect()
}

/// What the descriptors of a process stand for.
pub fn descriptors(proxy: &Proxy) -> Vec<String> {
    let directory = fs::read_dir(format!("/proc/{}/fd", proxy.pid()));
    let entries = directory.into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    names.map(|name| name.display().to_string()).collect()
}
