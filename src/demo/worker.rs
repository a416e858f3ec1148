//! A thread with a runtime of its own that ends at once when its handle is dropped, with everything that runs on it.
//!
//! This is what makes a model server mortal: its sockets are closed by the kernel as after SIGKILL, in whatever state
//! they are. Must not know what runs on it.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

/// Dropping it drops all tasks of the thread, and waits until that is done.
#[derive(Debug)]
pub(super) struct Worker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Runs what `main` gives on a new thread; tasks that it spawns stay on that thread.
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
            // A panic there has been reported by its own hook; there is nothing left to end.
            let _ = thread.join();
        }
    }
}
