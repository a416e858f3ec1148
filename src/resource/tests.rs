//! Tests of the public functions: text in, plan or problems out.

mod corpus;
mod manifests;
mod meaning;
mod problems;

use super::*;

const HEAD: &str = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nspec:\n";

fn problems(text: &str) -> Vec<String> {
    match load(text) {
        Ok(loaded) => panic!("loaded: {loaded:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}
