//! What the kernel says of processes and of the machine: CPU, memory, who else was busy.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Pins the calling thread, and what it starts, to `cores`. Async-signal-safe.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    // SAFETY: a set of bits for which zero is a value, and pointers to it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores {
            libc::CPU_SET(*core, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A busy loop on a core, for as long as it lives.
pub struct Rival {
    goes_on: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    pub fn on(core: usize) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let seen = goes_on.clone();
        let thread = thread::spawn(move || {
            pin(&[core]).expect("the proxy is pinned there, too");
            while seen.load(Ordering::Relaxed) {}
        });
        Self {
            goes_on,
            thread: Some(thread),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            thread::panicking() || matches!(ended, Some(Ok(()))),
            "it was there to the end"
        );
    }
}

/// As many open files as the machine allows, and timers as sharp as they can be.
pub fn raise_limits() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: pointers to a limit of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let more = libc::rlimit {
            rlim_cur: 65_536,
            rlim_max: limit.rlim_max.max(65_536),
        };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const more) == 0 {
            return more.rlim_cur;
        }
        limit.rlim_cur = limit.rlim_max.min(65_536);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    limit.rlim_cur
}

/// A process and all that it started.
pub fn family(parent: u32) -> HashSet<u32> {
    let mut parents = HashMap::new();
    for process in numbers("/proc") {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        if let Some(of) = fields
            .split(' ')
            .nth(1)
            .and_then(|field| field.parse::<u32>().ok())
        {
            parents.insert(process, of);
        }
    }
    let mut all = HashSet::from([parent]);
    loop {
        let before = all.len();
        all.extend(
            parents
                .iter()
                .filter(|(_, of)| all.contains(of))
                .map(|(one, _)| *one)
                .collect::<Vec<_>>(),
        );
        if all.len() == before {
            return all;
        }
    }
}

/// Nanoseconds on a CPU, of all threads of `processes`.
pub fn cpu(processes: &HashSet<u32>) -> u64 {
    processes
        .iter()
        .map(|process| threads(*process).map(|(_, time)| time).sum::<u64>())
        .sum()
}

/// Resident memory in KiB.
pub fn resident(processes: &HashSet<u32>) -> f64 {
    let of = |process: &u32| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok())
    };
    processes.iter().filter_map(of).sum()
}

/// What everybody did up to a moment.
pub struct Census {
    threads: HashMap<(u32, u32), u64>,
    /// Ticks in which the hypervisor ran others.
    steal: u64,
    /// Processes and threads ever started.
    forks: u64,
}

/// What others did in a time.
pub struct Others {
    /// CPU time in seconds.
    pub cpu: f64,
    pub steal: f64,
    pub forks: u64,
}

impl Others {
    /// Was it more than what a quiet machine does in so many seconds?
    pub fn disturb(&self, seconds: f64) -> bool {
        self.cpu > 0.05 * seconds || self.steal > 0.1 * seconds || self.forks > 40
    }
}

impl Census {
    pub fn take() -> Self {
        let mut all = HashMap::new();
        for process in numbers("/proc") {
            all.extend(threads(process).map(|(thread, time)| ((process, thread), time)));
        }
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let field = |name: &str, at: usize| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().nth(at)?.parse().ok())
                .unwrap_or(0)
        };
        Self {
            threads: all,
            steal: field("cpu ", 7),
            forks: field("processes ", 0),
        }
    }

    /// What was done since by all but `own` and the kernel's own threads for interrupts.
    #[expect(
        clippy::cast_precision_loss,
        reason = "seconds to three digits are enough"
    )]
    pub fn since(&self, own: &HashSet<u32>) -> Others {
        let after = Self::take();
        let cpu: u64 = after
            .threads
            .iter()
            .filter(|((process, _), _)| !own.contains(process) && !is_interrupt(*process))
            // Who began in between did all of it in between.
            .map(|(key, time)| time.saturating_sub(*self.threads.get(key).unwrap_or(&0)))
            .sum();
        Others {
            cpu: cpu as f64 / 1e9,
            steal: (after.steal - self.steal) as f64 / 100.0,
            forks: after.forks - self.forks,
        }
    }
}

fn is_interrupt(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm"))
        .is_ok_and(|name| name.starts_with("ksoftirqd"))
}

fn threads(process: u32) -> impl Iterator<Item = (u32, u64)> {
    let tasks = format!("/proc/{process}/task");
    numbers(&tasks).into_iter().filter_map(move |thread| {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        Some((thread, text.split(' ').next()?.parse().ok()?))
    })
}

fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The processor's name, the kernel's version.
pub fn description() -> (String, String) {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    (name.to_owned(), kernel.trim().to_owned())
}
