//! The new generation that has failed the analysis of this process, kept across restarts: the next process must not send it
//! requests again.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::resolve::Addresses;
use crate::error_chain::error_chain;
use crate::files;
use crate::resource::{Host, Plan, TargetAddress};

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A new generation that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// Its targets.
    new: Vec<String>,
    pub why: String,
    /// The addresses that the targets had.
    #[serde(default)]
    addresses: BTreeMap<String, Vec<SocketAddr>>,
}

impl Failed {
    pub fn of(plan: &Plan, addresses: &Addresses, why: String) -> Self {
        let new = plan.new.iter().map(ToString::to_string).collect();
        let addresses = addresses.of(&plan.new).into_iter();
        let addresses = addresses.filter(|(_, addresses)| !addresses.is_empty());
        Self {
            new,
            why,
            addresses: addresses
                .map(|(target, addresses)| (target.to_string(), addresses))
                .collect(),
        }
    }

    /// Whether any of it is in the new generation of this plan, no matter how the plan spells it.
    pub fn is_new_of(&self, plan: &Plan, addresses: &Addresses) -> bool {
        let targets = addresses.of(&plan.new);
        self.new.iter().any(|failed| {
            let Ok(target) = failed.parse::<TargetAddress>() else {
                return false;
            };
            let had = self.addresses.get(failed).map_or(&[][..], Vec::as_slice);
            let mut targets = targets.iter();
            targets.any(|(other, has)| are_same_server((&target, had), (other, has)))
        })
    }
}

/// Whether two targets lead to the same server. They do if they have the same host and port, or if one is an address to which the
/// other's name resolves. Two names are two servers even at the same address, as behind an ingress. The scheme does not matter.
fn are_same_server(
    (one, its): (&TargetAddress, &[SocketAddr]),
    (other, others): (&TargetAddress, &[SocketAddr]),
) -> bool {
    if one.port == other.port && plain_host(&one.host) == plain_host(&other.host) {
        return true;
    }
    let is_address = |target: &TargetAddress| matches!(target.host, Host::Ip(_));
    if !is_address(one) && !is_address(other) {
        return false;
    }
    let plain = |address: &SocketAddr| (plain_ip(address.ip()), address.port());
    its.iter()
        .any(|one| others.iter().any(|other| plain(one) == plain(other)))
}

/// A host in one of its spellings.
fn plain_host(host: &Host) -> Host {
    match host {
        Host::Ip(ip) => Host::Ip(plain_ip(*ip)),
        Host::Name(name) => match name.trim_end_matches('.') {
            "localhost" => Host::Ip(Ipv4Addr::LOCALHOST.into()),
            name => Host::Name(name.to_owned()),
        },
    }
}

/// One of the addresses that lead to this host.
fn plain_ip(ip: IpAddr) -> IpAddr {
    let ip = ip.to_canonical();
    let is_this_host = ip.is_unspecified() || ip == Ipv6Addr::LOCALHOST;
    if is_this_host {
        Ipv4Addr::LOCALHOST.into()
    } else {
        ip
    }
}

/// The file that records it.
#[derive(Clone, Debug)]
pub(super) struct RolledBack {
    file: PathBuf,
}

impl RolledBack {
    pub const fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// The rollback that an earlier process recorded. If the record cannot be read, the new generation of `plan` is assumed to be
    /// the failed one: old can take all requests, and a failed new must not.
    pub fn read(&self, plan: &Plan) -> Option<Failed> {
        let text = match files::read_own(&self.file, MAX_FILE) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Err(files::Error::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => Err(error_chain(&error)),
        };
        let failed = text.unwrap_or_else(|error| {
            let file = self.file.display();
            tracing::error!(
                %file,
                error,
                "cannot read the saved rollback; new gets no requests until the plan names a different one, or the file \
                 is removed and the proxy restarted"
            );
            let why = "The proxy had rolled new back before it restarted; the reason cannot be read.";
            Failed::of(plan, &Addresses::default(), why.to_owned())
        });
        Some(failed)
    }

    /// Saves `failed`, or deletes what was saved.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub fn write(&self, failed: Option<&Failed>) -> io::Result<()> {
        if let Some(failed) = failed {
            let text = serde_json::to_vec_pretty(failed)?;
            return files::replace(&self.file, &self.file.with_extension("new"), &text);
        }
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_same_in_any_spelling() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        for (failed, had, named, has, is_same) in [
            ("127.0.0.1:80", vec![], "http://127.0.0.1", vec![], true),
            ("127.0.0.1:80", vec![], "http://localhost", vec![], true),
            ("localhost.:80", vec![], "[::1]:80", vec![], true),
            ("[::ffff:10.0.0.1]:80", vec![], "10.0.0.1:80", vec![], true),
            ("0.0.0.0:80", vec![], "LOCALHOST:80", vec![], true),
            ("new.:8000", vec![], "https://New:8000", vec![], true),
            ("127.0.0.1:80", vec![], "localhost:81", vec![], false),
            ("127.0.0.1:80", vec![], "127.0.0.2:80", vec![], false),
            (
                "new:80",
                vec!["10.0.0.1:80"],
                "10.0.0.1:80",
                vec!["10.0.0.1:80"],
                true,
            ),
            (
                "10.0.0.1:80",
                vec!["10.0.0.1:80"],
                "new:80",
                vec!["10.0.0.2:80", "10.0.0.1:80"],
                true,
            ),
            (
                "10.0.0.1:80",
                vec!["10.0.0.1:80"],
                "new:80",
                vec!["10.0.0.2:80"],
                false,
            ),
            // Two hosts of one ingress.
            (
                "old:80",
                vec!["10.0.0.1:80"],
                "new:80",
                vec!["10.0.0.1:80"],
                false,
            ),
        ] {
            let [one, other] = [failed, named].map(|text| text.parse::<TargetAddress>().unwrap());
            let [had, has] = [had, has].map(|all| all.into_iter().map(at).collect::<Vec<_>>());
            for (one, other) in [
                ((&one, &*had), (&other, &*has)),
                ((&other, &*has), (&one, &*had)),
            ] {
                assert_eq!(are_same_server(one, other), is_same, "{failed} {named}");
            }
        }
    }

    #[test]
    fn a_file_of_an_earlier_version_has_no_addresses() {
        let kept = r#"{"new": ["http://10.0.0.9:8000"], "why": "It was bad."}"#;
        let failed: Failed = serde_json::from_str(kept).unwrap();
        assert!(failed.addresses.is_empty());
    }
}
