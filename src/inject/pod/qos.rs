//! The resources of pods, and whether these have the QoS class Guaranteed.

use serde_json::Value as Json;

use super::Injection;
use crate::inject::resources::Resources;

impl Injection<'_, '_> {
    /// Reports what crossfade changes for the resources of a pod. `frontend` is the effective container, `own` are crossfade's.
    pub(super) fn resources(&mut self, frontend: &Json, own: &Resources) {
        let of_pod = &self.spec()["resources"];
        let mut kinds = ["requests", "limits"].into_iter();
        if kinds.all(|kind| of_pod[kind].is_null()) {
            if self.is_guaranteed(frontend) && !own.are_equal() {
                self.note.warn(
                    "its pods lose the QoS class Guaranteed, and with it exclusive CPUs, because crossfade may use more CPU than it requests: to keep the class, set \
                     its limits as its requests (--cpu-request 1 --cpu-limit 1 --memory-request 1Gi)",
                );
            }
            return;
        }
        // The class depends only on the resources of the whole pod.
        let has_requests = ["cpu", "memory"]
            .iter()
            .all(|name| !of_pod["requests"][name].is_null());
        let (raise, class) = match has_requests && has_equal_limits(self.spec()) {
            true => (
                own.describe_equal(),
                "; its pods keep the QoS class Guaranteed only if requests and limits remain the same",
            ),
            false => (own.describe(), ""),
        };
        self.note.warn(format!(
            "spec.resources sets the resources of the whole pod, of which crossfade takes a part: raise {raise}; otherwise, Kubernetes \
             may reject the pods, or the frontend lacks these resources{class}"
        ));
    }

    /// Whether the limits of all containers are also their requests. `frontend` is the frontend's container with what an operator
    /// adds; what it adds otherwise is unknown.
    fn is_guaranteed(&self, frontend: &Json) -> bool {
        let all = self.workload.everywhere(self.root).into_iter();
        let mut others = all.filter(|(path, _)| *path != self.frontend.path);
        has_equal_limits(frontend) && others.all(|(_, container)| has_equal_limits(container))
    }
}

fn has_equal_limits(container: &Json) -> bool {
    let resources = &container["resources"];
    ["cpu", "memory"].into_iter().all(|name| {
        let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
        !limit.is_null() && (request.is_null() || is_same(request, limit))
    })
}

/// Whether two quantities are the same, such as `1` and `1000m`.
fn is_same(one: &Json, other: &Json) -> bool {
    match (quantity(one), quantity(other)) {
        (Some(one), Some(other)) => (one - other).abs() <= one.abs() * 1e-9,
        _ => one == other,
    }
}

fn quantity(value: &Json) -> Option<f64> {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        // A number, also with an exponent.
        ("", 1.0),
    ];
    let number = value.as_number().map(ToString::to_string);
    let text = number.as_deref().or(value.as_str())?;
    let mut numbers = UNITS.iter().filter_map(|(suffix, factor)| {
        let number: f64 = text.strip_suffix(suffix)?.parse().ok()?;
        Some(number * factor)
    });
    numbers.next()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_same;

    #[test]
    fn quantities_are_compared_by_their_value() {
        for (one, other, same) in [
            (json!("1"), json!(1), true),
            (json!("1000m"), json!(1), true),
            (json!("0.1"), json!("100m"), true),
            (json!("1Gi"), json!("1024Mi"), true),
            (json!("1e3"), json!("1k"), true),
            (json!("1G"), json!("1Gi"), false),
            (json!("$CPU"), json!("$CPU"), true),
            (json!("$CPU"), json!("1"), false),
        ] {
            assert_eq!(is_same(&one, &other), same, "{one} {other}");
        }
    }
}
