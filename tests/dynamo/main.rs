//! crossfade between two stacks of real Dynamo, each a frontend and a scripted worker that says which generation it is.

#[path = "../support/rig.rs"]
mod rig;

#[path = "../support/dynamo.rs"]
mod dynamo;

mod bytes;
mod cancel;
mod ends;
mod pair;
mod refusals;
mod saves;
mod split;
mod traces;
