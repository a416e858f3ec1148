//! The command line as a source of plans: one plan for the life of the process.

use super::{BoxFuture, Context, Error, First, Source};
use crate::discovery::State;
use crate::resource::{DynamoUpdateConfigSpec, Identity, Plan};

/// A plan given by flags.
pub(super) struct Flags {
    plan: Plan,
    source: &'static str,
}

impl Flags {
    /// The split and the policies of this spec.
    pub fn new(spec: &DynamoUpdateConfigSpec) -> Result<Self, Error> {
        let plan = Plan::of(Identity::default(), spec).map_err(Error::Flags)?;
        let source = "flags";
        Ok(Self { plan, source })
    }

    /// All requests to old, with the policies of this spec.
    pub fn only_old(spec: &DynamoUpdateConfigSpec) -> Result<Self, Error> {
        let plan = Plan::only_old(spec).map_err(Error::Flags)?;
        let source = "none";
        Ok(Self { plan, source })
    }
}

impl Source for Flags {
    fn first<'a>(&'a mut self, _: Option<&'a State>) -> BoxFuture<'a, Result<First, Error>> {
        let first = First::new(self.plan.clone(), self.source);
        Box::pin(std::future::ready(Ok(first)))
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn follow(self: Box<Self>, _: Context) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
