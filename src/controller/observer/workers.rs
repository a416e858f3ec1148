//! Counts the workers of a generation, as the update specifies.

use super::super::parsed::ParsedUpdate;
use super::Observer;
use crate::k8s::NotSynced;
use crate::k8s::workloads::{self, Counts, WorkerQuery};
use crate::resource::WorkerSourceSpec;

impl Observer {
    /// Counts the workers of the deployment `name`, or those that are `stated`.
    pub(super) fn count(
        &self,
        parsed: &ParsedUpdate,
        name: &str,
        stated: Option<WorkerSourceSpec>,
        dynamo_namespace: Option<&str>,
    ) -> Result<Counts, NotSynced> {
        let stated = stated.unwrap_or_default();
        let which = WorkerQuery {
            namespace: parsed.key.namespace.clone(),
            name: stated.name.clone().unwrap_or_else(|| name.to_owned()),
            is_explicit: stated.kind.is_some(),
            revision: stated.revision,
            selector: stated.selector,
            dynamo_namespace: dynamo_namespace.map(str::to_owned),
        };
        let Some(kind) = stated
            .kind
            .or_else(|| (!which.selector.is_empty()).then(|| "Pod".to_owned()))
        else {
            if which.name.is_empty() {
                // Count workers only by the metadata that frontends use.
                let name = dynamo_namespace.unwrap_or_default().to_owned();
                return self.counted("DynamoWorkerMetadata", WorkerQuery { name, ..which });
            }
            return workloads::by_name(&self.cache, &which);
        };
        let by_namespace = kind == "DynamoWorkerMetadata" && stated.name.is_none();
        let name = dynamo_namespace.filter(|_| by_namespace);
        let name = name.map_or_else(|| which.name.clone(), str::to_owned);
        self.counted(&kind, WorkerQuery { name, ..which })
    }

    fn counted(&self, kind: &str, which: WorkerQuery) -> Result<Counts, NotSynced> {
        let workload = workloads::by_kind(kind).expect("the schema names the kinds that are known");
        workloads::count(workload, &self.cache, &which)
    }
}
