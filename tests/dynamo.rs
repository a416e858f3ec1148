//! crossfade between two stacks of real Dynamo, each a frontend and a scripted worker that says which generation it is.

#[path = "support/rig.rs"]
mod rig;

#[path = "support/dynamo.rs"]
mod dynamo;

#[path = "dynamo/bytes.rs"]
mod bytes;
#[path = "dynamo/cancel.rs"]
mod cancel;
#[path = "dynamo/ends.rs"]
mod ends;
#[path = "dynamo/pair.rs"]
mod pair;
#[path = "dynamo/refusals.rs"]
mod refusals;
#[path = "dynamo/saves.rs"]
mod saves;
#[path = "dynamo/split.rs"]
mod split;
#[path = "dynamo/traces.rs"]
mod traces;
