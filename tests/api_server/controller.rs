//! The controller beside a real API server, with real proxies that follow what it writes. Pods and other objects are written
//! by the tests, as there is nobody else to make them.

mod analysis;
mod attempts;
mod crowds;
mod doubts;
mod end;
mod faults;
mod fixture;
mod frontends;
mod gateways;
mod gitops;
mod hazards;
mod holes;
mod invalid;
mod kinds;
mod live_page;
mod promises;
mod questions;
mod rollouts;
mod rules;
mod silence;
