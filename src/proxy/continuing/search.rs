//! Asks the endpoints of the candidates one after another until one continues the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::begin::{Continuation, NotContinued, begin};
use super::order::Order;
use super::{Joined, PreparedContinuation, Source};
use crate::continuation::{Capability, ContinuationReason, Resumption, Sent};
use crate::error_chain::error_chain;
use crate::failover::{Candidates, Cause, Target};
use crate::proxy::backend::OldBackend;
use crate::proxy::classify::cause_of;
use crate::proxy::exchange::Exchange;
use crate::split::Generation;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{Endpoint, FailFast, Head, Outgoing, Pool, ProvenConnection, SendOptions};

/// Maximum number of endpoints per pool that are asked for the rest of a stream.
const MAX_PER_POOL: usize = 3;

/// How long an attempt waits for a token if the plan sets no limit on the first content. This is longer than a move may take,
/// because there is no server to return to, and a server that takes over all streams of a failed one processes many prompts at
/// the same time.
const MAX_SILENCE: Duration = Duration::from_secs(60);

impl<O: OldBackend> Source<O> {
    pub(super) async fn run(
        &mut self,
        prepared: &PreparedContinuation,
        exchange: &mut Exchange,
        sent: &Sent,
        from: Option<Arc<Endpoint>>,
    ) -> Result<Joined, ContinuationReason> {
        let mut tried: Vec<u64> = from.iter().map(|endpoint| endpoint.id).collect();
        let mut same = from.as_ref();
        let mut attempts = [0; Generation::ALL.len()];
        let mut is_denied = false;
        // How many endpoints each of the candidates may still name.
        let mut left = vec![MAX_PER_POOL; prepared.candidates.len()];
        for order in Order::ALL {
            for (candidates, left) in prepared.candidates.iter().zip(&mut left) {
                let target = match candidates {
                    Candidates::Others(target) => *target,
                    Candidates::Same => self.target,
                };
                let Some(pool) = prepared.snapshot.pool(target) else {
                    continue;
                };
                while *left > 0 {
                    let picked = prepared.pick(pool, candidates, order, &tried, &mut same);
                    let Some((endpoint, order)) = picked else {
                        break;
                    };
                    *left -= 1;
                    tried.push(endpoint.id);
                    let is_proven = order == Order::Proven;
                    let attempts = &mut attempts[target.generation().index()];
                    let connection = match self.prove(prepared, pool, target, &endpoint).await {
                        Ok(connection) => connection,
                        Err(answer) => {
                            // It failed, and may be gone. An endpoint without any proof does not count as tried.
                            *attempts += u32::from(is_proven && answer == Capability::Unknown);
                            continue;
                        }
                    };
                    // The first attempt of a generation takes the place of the one that broke: when a server with hundreds of
                    // streams dies, all of them should continue, even if the rest of its generation dies with it.
                    if *attempts > 0 && !self.proxy.context.may_retry(&prepared.snapshot) {
                        is_denied = true;
                        *left = 0;
                        break;
                    }
                    *attempts += 1;
                    let at = (target, &endpoint, connection);
                    match self.attempt(prepared, pool, at, exchange, sent).await {
                        Ok(joined) => {
                            self.target = target;
                            return Ok(joined);
                        }
                        Err(refused) => {
                            exchange.continuation_failed(refused.cause());
                            if let NotContinued::GiveUp(reason) = refused {
                                return Err(reason);
                            }
                        }
                    }
                }
            }
        }
        Err(match (attempts, &prepared.proof) {
            _ if is_denied => ContinuationReason::RetryBudget,
            ([0, 0], Some(_)) => ContinuationReason::NotSupported,
            ([0, 0], None) => ContinuationReason::NoTarget,
            _ => ContinuationReason::AttemptsFailed,
        })
    }

    /// A connection to `endpoint` over which its server has proven that it continues the text, since another one may have taken
    /// the address of the one that proved it before. `None` if no proof is needed.
    async fn prove(
        &self,
        prepared: &PreparedContinuation,
        pool: &Pool,
        target: Target,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Option<ProvenConnection>, Capability> {
        let Some((probe, model)) = &prepared.proof else {
            return Ok(None);
        };
        let about = (*probe, model.as_str());
        let outgoing = self.outgoing(prepared, &prepared.head, target);
        let proof = pool.prove_connection(endpoint, about, outgoing, prepared.snapshot.epoch);
        Box::pin(proof).await.map(Some)
    }

    fn outgoing<'a>(
        &'a self,
        prepared: &'a PreparedContinuation,
        head: &'a Head,
        target: Target,
    ) -> Outgoing<'a> {
        Outgoing {
            head,
            extra: Some(&prepared.guard).filter(|_| target != Target::Old),
            memory: &self.proxy.context.memory,
        }
    }

    async fn attempt(
        &self,
        prepared: &PreparedContinuation,
        pool: &Pool,
        (target, endpoint, connection): (Target, &Arc<Endpoint>, Option<ProvenConnection>),
        exchange: &mut Exchange,
        sent: &Sent,
    ) -> Result<Joined, NotContinued> {
        let tokens = match prepared.resumption {
            Resumption::Resend => 0,
            Resumption::Continue => sent.tokens(),
        };
        let body = prepared.body.for_retry();
        let body = body.ok_or(NotContinued::GiveUp(ContinuationReason::BodyNotKept))?;
        let traceparent = exchange.asks_to_continue(target.generation(), prepared.cause, tokens);
        let head = traced(&prepared.head, traceparent);
        let now = Instant::now();
        let limit = prepared.snapshot.plan.failover.first_event_timeout;
        let until = limit.map(|limit| now + limit);
        let silent = now + MAX_SILENCE;
        let outgoing = self.outgoing(prepared, &head, target);
        let options = SendOptions {
            fail_fast: FailFast::Never,
            deadline: until,
            was_sent: true,
        };
        let sending = async {
            match connection {
                Some(proven) => pool.send_over(proven, outgoing, body, options).await,
                None => pool.send_on(endpoint, outgoing, body, options).await,
            }
        };
        let response = match until {
            Some(_) => sending.await,
            None => match deadline::timeout_at(silent, Box::pin(sending)).await {
                Some(response) => response,
                None => return Err(NotContinued::NoResponse),
            },
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(?target, error = %error_chain(&error), "this target does not continue a stream");
                return Err(NotContinued::TryNext(cause_of(&error)));
            }
        };
        let silence = until.is_none().then_some((silent, MAX_SILENCE));
        let reading = begin(
            exchange.api(),
            response,
            sent,
            prepared.resumption,
            exchange.memory(),
            silence,
        );
        let begun = match until {
            None => reading.await,
            Some(until) => deadline::timeout_at(until, Box::pin(reading))
                .await
                .unwrap_or(Err(NotContinued::TryNext(Cause::Deadline))),
        };
        let now = Instant::now();
        match begun {
            Ok(begun) => {
                if until.is_some() {
                    endpoint.succeeded(now);
                }
                Ok(joined(begun, prepared, target, endpoint))
            }
            Err(refused) => {
                if let Some(failure) = refused.endpoint_failure() {
                    endpoint.failed(failure, now, &"did not continue a stream");
                }
                Err(refused)
            }
        }
    }
}

/// The head of a further attempt, with the `traceparent` of its own span.
fn traced(head: &Arc<Head>, traceparent: Option<HeaderValue>) -> Arc<Head> {
    let mut head = Arc::clone(head);
    if let Some(traceparent) = traceparent {
        Arc::make_mut(&mut head)
            .headers
            .insert(TRACEPARENT, traceparent);
    }
    head
}

/// The stream as `endpoint` continues it.
fn joined(
    begun: Continuation,
    prepared: &PreparedContinuation,
    target: Target,
    endpoint: &Arc<Endpoint>,
) -> Joined {
    Joined {
        first: begun.first,
        body: begun.body,
        endpoint: Arc::clone(endpoint),
        generation: target.generation(),
        hidden: begun.hidden,
        resumption: prepared.resumption,
        comment: prepared.snapshot.plan.failover.continuation.comment,
        skipped: begun.skipped,
    }
}
