//! Child processes that never outlive the test process, and ports for them.
//!
//! Does not depend on the programs that run in them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;
use std::{io, thread};

use tokio::time::{Instant, sleep};

/// A free port below the kernel's range for outgoing connections, so that none of those takes it before the frontend does.
pub fn free_address() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static NEXT: LazyLock<AtomicU16> =
        // Test processes that run in parallel start at different ports.
        LazyLock::new(|| AtomicU16::new((std::process::id() % 300) as u16 * 61));
    loop {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Starts a process that the kernel kills when this one ends.
///
/// Beware: the kernel acts when the thread that forked ends, and a test's thread may end before the process that it started. So
/// a single thread, which never ends, starts all processes.
pub fn spawn(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static STARTER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // SAFETY: `prctl` is just a system call: it neither allocates nor takes a lock.
                unsafe {
                    command.pre_exec(
                        || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                            0 => Ok(()),
                            _ => Err(io::Error::last_os_error()),
                        },
                    );
                }
                answer.send(command.spawn()).expect("the caller waits");
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    STARTER
        .send((command, answer))
        .expect("the starter never ends");
    let child = child.recv().expect("the starter never ends");
    child.expect("the Python of the installation starts")
}

/// Sends a signal to a process that has not been waited for.
pub fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).expect("a process id is positive");
    // SAFETY: no memory is involved, and `child` is not reaped while we hold it, so its process ID has not been reused.
    let done = unsafe { libc::kill(pid, signal) };
    assert_eq!(
        done,
        0,
        "signal {signal} to {pid}: {}",
        io::Error::last_os_error()
    );
}

/// Kills and reaps the process, if it has not ended already.
pub fn end(child: &mut Child) {
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}

/// The exit status; `None` if the process does not end within `patience`.
pub async fn exit(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("our own child") {
            return Some(status);
        }
        sleep(Duration::from_millis(10)).await;
    }
    None
}
