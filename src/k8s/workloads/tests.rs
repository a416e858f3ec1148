//! Tests what holds for every kind of workers.

#[cfg(test)]
mod losses;

use super::ALL;
use crate::resource::WORKER_KINDS;

#[test]
fn the_definition_knows_the_kinds_that_can_be_counted_and_no_others() {
    assert_eq!(ALL.map(|workload| workload.kind()), WORKER_KINDS);
}
