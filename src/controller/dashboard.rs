//! The data of the live page: a list of all updates and, for the selected one, its proxies, their total and its recent
//! history.
//!
//! On the leader, the page causes no extra requests: it shows what reconciles collect anyway, and keeps a history of every
//! update. Another replica polls the proxies of an update only while a user views it, and its history starts then. Does not
//! depend on how the page is drawn.

mod selection;
mod totals;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use futures_util::{Stream, stream};
use http::StatusCode;
use kube::CustomResourceExt;
use serde_json::{Value as Json, json};

use super::observer::{Observer, ProxyPod};
use super::proxies::LastReport;
use super::spec_fields::SpecFields;
use super::{ControllerSettings, Key, parsed};
use crate::k8s::{Leading, NotSynced, Object};
use crate::pages::{History, LivePage, Refusal, Sample};
use crate::resource::{DynamoRollout, DynamoUpdateConfig};
use crate::state_api::{total, v1};
use totals::Totals;

/// All updates and rollouts, as the live page shows them.
pub(super) struct Dashboard {
    observer: Arc<Observer>,
    leading: Leading,
    settings: Arc<ControllerSettings>,
    started: (SystemTime, Instant),
    /// Each open live page also holds the record of the update that it shows.
    records: Mutex<HashMap<Key, Arc<Record>>>,
}

/// The recent history of an update.
#[derive(Default)]
struct Record {
    history: History,
    totals: Mutex<Totals>,
}

type ProxyRows = Vec<(ProxyPod, Option<LastReport>)>;

impl Dashboard {
    pub fn new(
        observer: Arc<Observer>,
        leading: Leading,
        settings: Arc<ControllerSettings>,
    ) -> Self {
        Self {
            observer,
            leading,
            settings,
            started: (SystemTime::now(), Instant::now()),
            records: Mutex::default(),
        }
    }

    /// Takes a sample of each update. Call this once a second.
    pub fn sample(&self) {
        let Ok(updates) = self.updates() else {
            return;
        };
        let leads = self.may_lead();
        let mut records = self.records();
        let is_wanted = |key: &Key, record: &Arc<Record>| {
            let is_watched = Arc::strong_count(record) > 1;
            updates.contains_key(key) && (leads || is_watched)
        };
        records.retain(|key, record| {
            let is_wanted = is_wanted(key, record);
            if !is_wanted {
                self.observer.stop_following(key);
            }
            is_wanted
        });
        if leads {
            for key in updates.keys() {
                records.entry(key.clone()).or_default();
            }
        }
        for (key, record) in &*records {
            let update = &updates[key];
            if !leads {
                // A later sample includes pods that are not listed yet.
                let source = SpecFields::of(update).source();
                let _ = self.observer.follow(key, source.unwrap_or_default());
            }
            if let Some(proxies) = self.observer.last_reports(key) {
                record.sample(update, &proxies);
            }
        }
    }

    /// The messages of the live stream for this query: all updates, and full details of the selected one, or of the only one.
    ///
    /// # Errors
    /// A refusal to send to the client: malformed query, updates not listed yet, or no such update.
    pub fn states(
        self: &Arc<Self>,
        query: Option<&str>,
    ) -> Result<impl Stream<Item = Json> + Send + use<>, Refusal> {
        let refusal = |status, why: &dyn std::fmt::Display| {
            let why = why.to_string();
            Refusal { status, why }
        };
        let selected =
            selection::read(query).map_err(|error| refusal(StatusCode::BAD_REQUEST, &error))?;
        let updates = self.updates().map_err(|not_synced| {
            let why = format!("not ready: {not_synced}");
            refusal(StatusCode::SERVICE_UNAVAILABLE, &why)
        })?;
        if let Some(key) = selected.as_ref().filter(|key| !updates.contains_key(key)) {
            let why = format!("there is no update {key}");
            return Err(refusal(StatusCode::NOT_FOUND, &why));
        }
        let reader = Reader {
            dashboard: Arc::clone(self),
            chosen: selected,
            record: None,
            seen: 0,
            listed: None,
            listed_rollouts: None,
            last: None,
        };
        Ok(stream::unfold(reader, async |mut reader| {
            Some((reader.next().await?, reader))
        }))
    }

    fn updates(&self) -> Result<BTreeMap<Key, Object>, NotSynced> {
        let kind = DynamoUpdateConfig::api_resource();
        let updates = self.observer.cache.all(&kind)?.into_iter();
        Ok(updates
            .map(|update| (parsed::key(&update), update))
            .filter(|(key, _)| self.settings.manages(&key.namespace))
            .collect())
    }

    /// The rollouts, if this controller carries them out and they are listed.
    fn rollouts(&self) -> Vec<Object> {
        if !self.settings.options.rollouts {
            return Vec::new();
        }
        let found = self.observer.cache.all(&DynamoRollout::api_resource());
        let mut found = found.unwrap_or_default();
        found.retain(|rollout| self.settings.manages(&parsed::key(rollout).namespace));
        found
    }

    fn leads(&self) -> bool {
        self.settings.options.dry_run || self.leading.remaining().is_some()
    }

    /// Like [`Self::leads`], but stays true while leadership is uncertain, until another replica is seen to hold the lease:
    /// the history matters most when the API server is unreachable.
    fn may_lead(&self) -> bool {
        let holder = self.leading.holder();
        self.leads() || holder.is_some_and(|holder| *holder == self.settings.identity)
    }

    fn record(&self, key: &Key) -> Arc<Record> {
        Arc::clone(self.records().entry(key.clone()).or_default())
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Key, Arc<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes this process.
    fn own(&self) -> Json {
        let (started, instant) = self.started;
        let role = match self.settings.options.dry_run {
            true => "dry run",
            false if self.leads() => "leads",
            false if self.may_lead() => "unsure",
            false => "standby",
        };
        json!({
            "name": host(&self.settings.identity),
            "version": env!("CARGO_PKG_VERSION"),
            "started": prost_types::Timestamp::from(started).to_string(),
            "uptimeSeconds": instant.elapsed().as_secs_f64(),
            "role": role,
            "leader": self.leading.holder().map(|holder| host(&holder).to_owned()),
        })
    }
}

/// The host part of an identity, which is `HOST_PROCESS_TIME`.
fn host(identity: &str) -> &str {
    identity.rsplitn(3, '_').last().unwrap_or_default()
}

impl Record {
    /// Adds a sample to the history. Skips it until at least one proxy has reported: before that, nothing is known, and a proxy
    /// that does not report is not a problem yet.
    fn sample(&self, update: &Object, proxies: &ProxyRows) {
        let has_reported = |(_, last): &(ProxyPod, Option<LastReport>)| last.is_some();
        if !proxies.is_empty() && !proxies.iter().any(has_reported) {
            return;
        }
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.keep(|pod| proxies.iter().any(|(proxy_pod, _)| proxy_pod.pod == pod));
        let mut states = Vec::with_capacity(proxies.len());
        for (proxy_pod, state) in own(update, proxies) {
            totals.add(&proxy_pod.pod, state);
            states.push(state);
        }
        let silent = proxies.iter().filter(|(_, last)| is_silent(last)).count();
        let now = SystemTime::now();
        let answering = states.len();
        let sum = total(states);
        let generation = update.metadata.generation.unwrap_or_default();
        let phase = serde_json::from_value(update.data["status"]["phase"].clone());
        self.history.push(Sample {
            wanted: view::wanted(update),
            plan: u64::try_from(generation).unwrap_or_default(),
            counters: totals.sum(),
            proxies: Some([answering, answering + silent]),
            phase: phase.unwrap_or_default(),
            ..sum.map_or_else(|| Sample::at(now), |sum| Sample::of(&sum, now))
        });
    }
}

/// The states of the proxies that answer and do not follow another update.
fn own<'a>(
    update: &'a Object,
    proxies: &'a ProxyRows,
) -> impl Iterator<Item = (&'a ProxyPod, &'a v1::State)> {
    let states = proxies.iter().filter_map(|(proxy_pod, last)| {
        let state = last.as_ref()?.state.as_ref().ok()?;
        Some((proxy_pod, &**state))
    });
    states.filter(|(_, state)| view::other(update, state).is_none())
}

fn is_silent(last: &Option<LastReport>) -> bool {
    last.as_ref().is_some_and(|last| last.state.is_err())
}

/// One open live page.
struct Reader {
    dashboard: Arc<Dashboard>,
    chosen: Option<Key>,
    record: Option<Arc<Record>>,
    /// The number of the next sample.
    seen: usize,
    /// The list of updates that was last sent.
    listed: Option<Json>,
    /// The list of rollouts that was last sent.
    listed_rollouts: Option<Json>,
    last: Option<tokio::time::Instant>,
}

impl Reader {
    /// The next message; `None` if the selected update no longer exists.
    async fn next(&mut self) -> Option<Json> {
        if let Some(last) = self.last {
            tokio::time::sleep_until(last + LivePage::INTERVAL).await;
        }
        self.last = Some(tokio::time::Instant::now());
        let updates = self.dashboard.updates().ok()?;
        let mut event = json!({"controller": self.dashboard.own()});
        let list = updates.values().map(view::line).collect();
        if self.listed.as_ref() != Some(&list) {
            event["updates"] = list.clone();
            self.listed = Some(list);
        }
        let rollouts = self.dashboard.rollouts();
        let list = rollouts.iter().map(view::rollout).collect();
        if self.listed_rollouts.as_ref() != Some(&list) {
            event["rollouts"] = list.clone();
            self.listed_rollouts = Some(list);
        }
        if self.chosen.is_none() && updates.len() == 1 {
            self.chosen = updates.keys().next().cloned();
        }
        if let Some(key) = self.chosen.clone() {
            self.describe(&key, updates.get(&key)?, &mut event);
        }
        Some(event)
    }

    fn describe(&mut self, key: &Key, update: &Object, event: &mut Json) {
        let record = self.dashboard.record(key);
        // The update may have been deleted and created again under the same name.
        if !self
            .record
            .as_ref()
            .is_some_and(|old| Arc::ptr_eq(old, &record))
        {
            self.seen = 0;
        }
        let (samples, seen) = record.history.since(self.seen);
        (self.record, self.seen) = (Some(record), seen);
        let proxies = self.dashboard.observer.last_reports(key);
        let now = Instant::now();
        event["update"] = view::update(update);
        event["samples"] = samples.into();
        event["state"] = proxies
            .as_ref()
            .and_then(|proxies| total(own(update, proxies).map(|(_, state)| state)))
            .map_or(Json::Null, |state| {
                let verdict = view::verdict(update);
                state.to_json_with_verdict(verdict.as_ref().or(state.verdict()))
            });
        event["proxies"] = proxies.map_or(Json::Null, |proxies| {
            let lines = proxies.iter();
            let line = |(proxy_pod, last): &(ProxyPod, Option<LastReport>)| {
                view::proxy(update, proxy_pod, last.as_ref(), now)
            };
            lines.map(line).collect()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_called_as_its_pod() {
        assert_eq!(host("controller-7d-x_12_1700000000000"), "controller-7d-x");
        assert_eq!(host("a_b_12_17"), "a_b");
        assert_eq!(host("alone"), "alone");
    }
}
