//! The controller beside a real API server, with real proxies that follow what it writes. Pods and other objects are written
//! by the tests, as there is nobody else to make them.

#[path = "support/browser.rs"]
mod browser;
#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/page.rs"]
mod page;
#[path = "support/rig.rs"]
mod rig;

#[path = "controller/end.rs"]
mod end;
#[path = "controller/faults.rs"]
mod faults;
#[path = "controller/hazards.rs"]
mod hazards;
#[path = "controller/holes.rs"]
mod holes;
#[path = "controller/kinds.rs"]
mod kinds;
#[path = "controller/live_page.rs"]
mod live_page;
#[path = "controller/questions.rs"]
mod questions;
#[path = "controller/rules.rs"]
mod rules;
#[path = "controller/stage.rs"]
mod stage;
