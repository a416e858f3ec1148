//! Asks proxies at known addresses concurrently, over connections that are kept between reports.

use std::time::Duration;

use futures_util::future::join_all;

use super::{ComparisonAnswer, ProxyAnswer, StatusReport};
use crate::error_chain::error_chain;
use crate::printable;
use crate::state_api::{Client, Error, v1};

/// Timeout of each step of asking a proxy.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);

/// A proxy, and the connection to it while there is one.
#[derive(Debug)]
struct ProxyConnection {
    address: String,
    client: Option<Client>,
}

/// The admin ports of proxies.
#[derive(Debug)]
pub struct ProxyClients(Vec<ProxyConnection>);

impl ProxyClients {
    /// The proxies at these addresses, each a `host:port`.
    #[must_use]
    pub fn at(addresses: Vec<String>) -> Self {
        let proxy = |address| ProxyConnection {
            address,
            client: None,
        };
        Self(addresses.into_iter().map(proxy).collect())
    }

    /// Asks all of them.
    pub async fn report(&mut self) -> StatusReport {
        let proxies = join_all(self.0.iter_mut().map(ProxyConnection::query)).await;
        let answered = proxies.iter().filter(|proxy| proxy.state.is_ok()).count();
        StatusReport {
            origin: format!("{}, queried by address", counted(answered, proxies.len())),
            proxies,
            ..StatusReport::default()
        }
    }
}

impl ProxyClients {
    /// Asks all of them for the counts of both generations, and, if there are several, for their plans, which may differ.
    pub async fn compare(&mut self, with_past: bool) -> Vec<ComparisonAnswer> {
        let with_plan = self.0.len() > 1;
        let answers = self.0.iter_mut().map(async |proxy| {
            let (answer, plan) = match proxy.compare(with_past, with_plan).await {
                Ok((comparison, plan)) => (Ok(comparison), plan),
                Err(why) => (Err(why), None),
            };
            ComparisonAnswer {
                name: proxy.address.clone(),
                answer,
                plan,
            }
        });
        join_all(answers).await
    }
}

impl ProxyConnection {
    async fn compare(
        &mut self,
        with_past: bool,
        with_plan: bool,
    ) -> Result<(Option<v1::Comparison>, Option<v1::Plan>), String> {
        self.through(async |client| {
            let comparison = client.compare(with_past).await?;
            let plan = match with_plan && comparison.is_some() {
                true => client.get().await?.plan,
                false => None,
            };
            Ok((comparison, plan))
        })
        .await
    }

    async fn query(&mut self) -> ProxyAnswer {
        let state = self.state().await;
        ProxyAnswer {
            name: self.address.clone(),
            state,
        }
    }

    async fn state(&mut self) -> Result<v1::State, String> {
        self.through(async |client| client.get().await).await
    }

    /// Asks over the kept connection, or over a new one.
    async fn through<T>(
        &mut self,
        query: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, String> {
        let kept = self.client.take();
        let is_new = kept.is_none();
        let client = match kept {
            Some(client) => client,
            None => Client::connect(&self.address, TIMEOUT)
                .await
                .map_err(|error| error_chain(&error))?,
        };
        let answer = query(&client).await.map_err(|error| match error {
            // It accepted the connection, but does not respond like an admin port.
            Error::Unreachable(_) | Error::Timeout(_) if is_new => {
                "is not the admin port (by default 9464) of a crossfade process, or does not respond"
                    .to_owned()
            }
            error => error_chain(&error),
        })?;
        self.client = Some(client);
        Ok(answer)
    }
}

/// Formats a count of proxies: `2 of 3 proxies`.
pub(super) fn counted(answered: usize, of: usize) -> String {
    let all = printable::counted(of as u64, "proxy");
    match answered == of {
        true => all,
        false => format!("{answered} of {all}"),
    }
}
