//! The controller with a real API server and real proxies that follow the updates. The tests create pods and other objects
//! themselves, because no other controllers run.

mod analysis;
mod completion;
mod faults;
mod fixture;
mod frontends;
mod gateways;
mod gitops;
mod incomplete_information;
mod invalid_updates;
mod live_page;
mod losses;
mod model_probes;
mod moving_streams;
mod rollouts;
mod rules;
mod safe_to_delete;
mod safe_to_delete_elsewhere;
mod safe_to_delete_faults;
mod safe_to_delete_hidden_clients;
mod safe_to_delete_routes;
mod silent_watches;
mod update_limits;
mod workload_kinds;
