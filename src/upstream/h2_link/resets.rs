//! Limits how many resets of requests without a response head a server may have to read at once.
//!
//! A server that was busy reads many requests together with their resets. h2 (hyper) closes a connection on which more than 20
//! requests are reset before it has accepted them. So only a few resets are sent until the server acknowledges a PING that was
//! sent after them, which means that it has read the requests, too.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Waker};

use crate::transport::h2::KeepAlive;

/// Resets that the server may not have read yet.
const MAX_UNREAD: usize = 16;

/// A request. Dropping it resets its stream.
type Request = Box<dyn Send>;

/// The resets of a connection.
#[derive(Default)]
pub struct Resets(Mutex<State>);

#[derive(Default)]
struct State {
    /// Resets since those that the last acknowledged PING followed.
    unread: usize,
    /// The PING that is not acknowledged yet, and the number of resets before it.
    ping: Option<(u64, usize)>,
    /// Requests that will be reset later.
    waiting: VecDeque<Request>,
    /// The task of the connection.
    task: Option<Waker>,
    is_closed: bool,
}

impl Resets {
    /// Resets a request, now or later.
    pub fn add(&self, request: Request) {
        let mut state = self.0.lock().expect("no holder of this lock can panic");
        if state.unread >= MAX_UNREAD && !state.is_closed {
            state.waiting.push_back(request);
            if let Some(task) = state.task.take() {
                task.wake();
            }
            return;
        }
        state.unread += 1;
        drop(state);
        drop(request);
    }

    /// Sends the resets that wait, once the server has read those before. Call it in the task of the connection, after the
    /// connection was polled.
    pub fn poll(&self, cx: &mut Context<'_>, keep_alive: &mut KeepAlive) {
        let mut state = self.0.lock().expect("no holder of this lock can panic");
        if state.waiting.is_empty() {
            if state.task.is_none() {
                state.task = Some(cx.waker().clone());
            }
            return;
        }
        let acknowledged = keep_alive.poll_acknowledged(cx);
        match state.ping {
            Some((ping, resets)) if ping <= acknowledged => {
                state.ping = None;
                state.unread -= resets;
            }
            Some(_) => return,
            None => {
                // If a PING of the keep-alive is unacknowledged, its acknowledgement wakes this task.
                state.ping = keep_alive.ping().map(|ping| (ping, state.unread));
                return;
            }
        }
        let most = MAX_UNREAD.saturating_sub(state.unread);
        let count = most.min(state.waiting.len());
        let requests: Vec<_> = state.waiting.drain(..count).collect();
        state.unread += count;
        drop(state);
        // Their resets wake this task. The next PING is sent after them.
        drop(requests);
    }

    /// The connection has ended.
    pub fn close(&self) {
        let mut state = self.0.lock().expect("no holder of this lock can panic");
        state.is_closed = true;
        let requests = std::mem::take(&mut state.waiting);
        drop(state);
        drop(requests);
    }
}

impl std::fmt::Debug for Resets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resets").finish_non_exhaustive()
    }
}
