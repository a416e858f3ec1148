//! What must be asked over the network is asked in the background, again and again, by one task for each place; a look at an
//! update takes what was last heard and waits for nothing.
//!
//! Must not know what is asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Key;

/// The places that are asked, by a text that names them.
pub(super) struct Lookouts<T> {
    posts: Posts<T>,
    wake: mpsc::UnboundedSender<Key>,
}

type Posts<T> = Arc<Mutex<HashMap<String, Post<T>>>>;

struct Post<T> {
    owners: BTreeSet<Key>,
    heard: Option<T>,
    since: Instant,
    task: AbortHandle,
}

/// Where a task tells what it has heard.
pub(super) struct Teller<T> {
    place: String,
    posts: Posts<T>,
    wake: mpsc::UnboundedSender<Key>,
}

impl<T: Clone + Send + 'static> Lookouts<T> {
    /// The owners of what is heard are told to `wake`.
    pub fn new(wake: mpsc::UnboundedSender<Key>) -> Self {
        Self {
            posts: Arc::default(),
            wake,
        }
    }

    /// What was last heard of `place`. Asked by `task` from now on.
    ///
    /// # Errors
    /// Since when it is asked, if nothing was heard yet.
    pub fn hear<F>(
        &self,
        owner: &Key,
        place: &str,
        task: impl FnOnce(Teller<T>) -> F,
    ) -> Result<T, Instant>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut posts = lock(&self.posts);
        let post = posts.entry(place.to_owned()).or_insert_with(|| {
            let teller = Teller {
                place: place.to_owned(),
                posts: Arc::clone(&self.posts),
                wake: self.wake.clone(),
            };
            Post {
                owners: BTreeSet::new(),
                heard: None,
                since: Instant::now(),
                task: tokio::spawn(task(teller)).abort_handle(),
            }
        });
        post.owners.insert(owner.clone());
        post.heard.clone().ok_or(post.since)
    }

    /// Nobody is asked any more, until somebody needs it again.
    pub fn rest(&self) {
        for (_, post) in lock(&self.posts).drain() {
            post.task.abort();
        }
    }

    /// What was last heard of `place`, if anybody needs it.
    pub fn heard(&self, place: &str) -> Option<T> {
        lock(&self.posts).get(place)?.heard.clone()
    }

    /// `owner` needs only `places` any more; what nobody needs is not asked any more.
    pub fn keep(&self, owner: &Key, places: &BTreeSet<String>) {
        lock(&self.posts).retain(|place, post| {
            if !places.contains(place) {
                post.owners.remove(owner);
            }
            let is_needed = !post.owners.is_empty();
            if !is_needed {
                post.task.abort();
            }
            is_needed
        });
    }
}

impl<T> Teller<T> {
    /// Tells what was heard; with `matters`, its owners are woken.
    pub fn tell(&self, heard: T, matters: bool) {
        if let Some(post) = lock(&self.posts).get_mut(&self.place) {
            let is_first = post.heard.replace(heard).is_none();
            if matters || is_first {
                for owner in &post.owners {
                    let _ = self.wake.send(owner.clone());
                }
            }
        }
    }
}

fn lock<T>(posts: &Posts<T>) -> MutexGuard<'_, HashMap<String, Post<T>>> {
    posts.lock().unwrap_or_else(PoisonError::into_inner)
}
