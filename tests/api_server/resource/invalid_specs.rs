//! Every way in which a field of an update can be invalid, with the expected error message.

use serde_json::{Value, json};

/// Invalid changes, each with the expected error message.
pub fn wrong() -> Vec<(Value, &'static str)> {
    [wrong_of_requests(), wrong_of_workers()].concat()
}

/// Invalid values of `workers`, the same for both generations.
fn wrong_of_workers() -> Vec<(Value, &'static str)> {
    let cases = [
        (
            json!({"kind": "Deploymnt"}),
            "Unsupported value: \"Deploymnt\"",
        ),
        (json!({"name": ""}), "should be at least 1 chars long"),
        (json!({"revision": ""}), "should be at least 1 chars long"),
        (json!({"selector": {"app": 1}}), "must be of type string"),
        (
            json!({"replicas": {"decode": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"replicas": {"decode": 5_000_000_000_u64}}),
            "should be less than or equal to 1000000",
        ),
    ];
    let generations = ["old", "new"].into_iter();
    let all = generations.flat_map(|generation| {
        let cases = cases.iter();
        cases.map(move |(wrong, message)| (json!({"workers": {generation: wrong}}), *message))
    });
    let same = [
        json!({"old": {}, "new": {}}),
        json!({"old": {}, "new": {"revision": "b"}}),
        json!({"old": {"revision": "a"}, "new": {"revision": "a"}}),
        json!({"old": {"replicas": {"decode": 1}}, "new": {"replicas": {"decode": 2}}}),
    ];
    let same = same.into_iter().map(|workers| {
        let change = json!({"targetDeployment": "old-one", "workers": workers});
        (change, "name the same object: use workers.old and")
    });
    all.chain(same).collect()
}

fn wrong_of_requests() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"newDynamoNamespace": ""}),
            "should be at least 1 chars long",
        ),
        (json!({"strict": "yes"}), "must be of type boolean"),
        (json!({"oldDraining": 1}), "must be of type boolean"),
        (json!({"drainOld": 1}), "must be of type boolean"),
        (
            json!({"newFrontendService": "https://new", "tls": {"caFile": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"serverName": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"clientKeyFile": "k"}}),
            "clientCertFile and clientKeyFile must be set together",
        ),
        (
            json!({"failover": {"gapTimeoutSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"failover": {"maxReplayBytes": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"failover": {"enabled": "no"}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"retryOverloaded": 1}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"retryOldServerErrors": 1}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"continuation": {"mode": "Always"}}}),
            "supported values: \"Off\", \"SameGeneration\", \"AnyGeneration\"",
        ),
        (
            json!({"failover": {"continuation": {"maxTextBytes": 1023}}}),
            "should be greater than or equal to 1024",
        ),
        (
            json!({"failover": {"continuation": {"maxPerStream": 101}}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"failover": {"continuation": {"comment": "no"}}}),
            "must be of type boolean",
        ),
        (
            json!({"drain": {"moveAfterSeconds": -1}, "failover": {"continuation": {"mode": "AnyGeneration"}}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"drain": {"moveAfterSeconds": 0}}),
            "drain.moveAfterSeconds moves streams to the other generation",
        ),
        (
            json!({"drain": {"moveAfterSeconds": 0}, "failover": {"continuation": {"mode": "SameGeneration"}}}),
            "needs failover.continuation.mode: AnyGeneration",
        ),
        (
            json!({"drain": {"moveRate": 0}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"warmupSeconds": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"analysis": {"windowSeconds": 5}}),
            "should be greater than or equal to 10",
        ),
        (
            json!({"analysis": {"minSamples": 0}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"maxFailureRateIncreasePercent": 100.5}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"analysis": {"ttftP95Ratio": 0.9}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"gapP99Ratio": 101}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"analysis": {"confidence": 1}}),
            "must be at least 0.5 and less than 1",
        ),
        (
            json!({"analysis": {"onFailure": "Panic"}}),
            "supported values: \"Hold\", \"RollBack\"",
        ),
        (
            json!({"steps": [{"percent": 0}]}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"steps": [{"percent": 101}]}),
            "should be less than or equal to 100",
        ),
        (json!({"steps": [{"holdSeconds": 1}]}), "Required value"),
        (
            json!({"steps": [{"percent": 5, "holdSeconds": -1}]}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"steps": [{"percent": 5, "holdSeconds": 604_801}]}),
            "should be less than or equal to 604800",
        ),
        (
            json!({"steps": [{"percent": 25}, {"percent": 5}]}),
            "each step must have a higher percent than the one before it",
        ),
        (
            json!({"steps": [{"percent": 5}, {"percent": 5}]}),
            "each step must have a higher percent than the one before it",
        ),
        (
            json!({"steps": (1..18).map(|percent| json!({"percent": percent})).collect::<Vec<_>>()}),
            "must have at most 16 items",
        ),
        (
            json!({"probe": {"model": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"trafficSplitPercent": 101}),
            "should be less than or equal to 100",
        ),
        (
            json!({"trafficSplitPercent": -1}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"trafficSplitPercent": "25"}),
            "must be of type integer",
        ),
        (
            json!({"weights": {"old": 3, "new": 2}}),
            "trafficSplitPercent and weights contradict each other",
        ),
        (
            json!({"weights": {"old": 999, "new": 1}, "trafficSplitPercent": 0}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 1, "new": 999}, "trafficSplitPercent": 100}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 2, "new": 1}, "trafficSplitPercent": 34}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 0, "new": 0}}),
            "at least one of old and new must be more than 0",
        ),
        (json!({"weights": {"old": 1}}), "Required value"),
        (json!({"newFrontendService": null}), "Required value"),
        (
            json!({"newFrontendService": "new"}),
            "must be host:port, http://host[:port], or https://host[:port]",
        ),
        (
            json!({"newFrontendService": "http://new/v1"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "http://me:secret@new"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "a:1,,b:2"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "ftp://new:21"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "new:0"}),
            "with ports from 1 to 65535",
        ),
        (
            json!({"newFrontendService": "a:1,http://new:65536"}),
            "with ports from 1 to 65535",
        ),
        (
            json!({"newFrontendService": ""}),
            "should be at least 1 chars long",
        ),
        (
            json!({"sourceDeployment": "Old One"}),
            "must be the name of an object",
        ),
        (
            json!({"targetDeployment": "-x"}),
            "must be the name of an object",
        ),
        (
            json!({"clientService": "a_b"}),
            "must be the name of an object",
        ),
        (
            json!({"clientService": "a..b"}),
            "must be the name of an object",
        ),
        (
            json!({"supersedes": "a/b"}),
            "must be the name of an object",
        ),
        (
            json!({"targetDeployment": "old-one"}),
            "name the same object: use workers.old and workers.new",
        ),
        (
            json!({"probe": {"path": "/x", "model": "m"}}),
            "path and model cannot both be set",
        ),
        (
            json!({"probe": {"path": "health"}}),
            "path must start with '/'",
        ),
        (
            json!({"probe": {"intervalSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"tls": {}}),
            "tls is given, but newFrontendService is not https://",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"clientCertFile": "c"}}),
            "clientCertFile and clientKeyFile must be set together",
        ),
        (
            json!({"affinity": {"headers": ["a b"]}}),
            "each must be the name of a header",
        ),
        (
            json!({"affinity": {"headers": ["x-a", "X-A"]}}),
            "names a header twice",
        ),
        (
            json!({"affinity": {"bodyFields": ["user", "user"]}}),
            "names a field twice",
        ),
        (
            json!({"affinity": {"bodyFields": [""]}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"affinity": {"headers": vec!["h"; 33]}}),
            "must have at most 32 items",
        ),
        (
            json!({"failover": {"firstEventTimeoutSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"probe": {"timeoutSeconds": 0.0001}}),
            "should be greater than or equal to 0.001",
        ),
        (
            json!({"failover": {"holdSeconds": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"failover": {"retryBudgetPercent": 101}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"maxTrafficSplitPercent": 250}),
            "should be less than or equal to 100",
        ),
        (
            json!({"drainDeadlineSeconds": -5}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"stableSeconds": 90000}),
            "should be less than or equal to 86400",
        ),
        (json!({"ackTimeoutSeconds": 1.5}), "must be of type integer"),
        (json!({"paused": "yes"}), "must be of type boolean"),
        (json!({"models": [""]}), "should be at least 1 chars long"),
    ]
}
