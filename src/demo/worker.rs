//! A thread with its own runtime. Dropping the handle immediately ends both, with everything that runs on them.
//!
//! This is how a model server is killed: the kernel closes its sockets as after SIGKILL, no matter what state they are in.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

/// Dropping it drops all tasks of the thread and waits until they are gone.
#[derive(Debug)]
pub(super) struct Worker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Runs what `main` returns on a new thread. Tasks that it spawns stay on that thread.
    pub(super) fn spawn<F>(
        name: &str,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = async { main().await } => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has already been reported by the panic hook.
            let _ = thread.join();
        }
    }
}
